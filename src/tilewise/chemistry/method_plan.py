"""`MethodPlan`: one iteration of a method within a budget, and where its tensors are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from tilewise.chemistry.diis import Footprint
from tilewise.chemistry.hamiltonian import DIRECT, FOCK, Hamiltonian
from tilewise.errors import MemoryBudgetError
from tilewise.expressions.equations import Statement
from tilewise.iteration import Iteration, bytes_on_rank
from tilewise.patterns import Pattern
from tilewise.plans.explain import Report, Table, bytes_text, count_text, plural_text, seconds_text, to_html, to_text
from tilewise.tensors import Engine

__all__ = ["MethodPlan", "plan_method"]

RESERVE_BYTES = 64 << 20
"""What libraries and the interpreter take besides tensors and buffers, at the most."""

RESERVE = 0.15
"""Part of a small budget that is left for them."""

INDICES: Final[Mapping[str, str]] = {"t1": "ia", "t2": "iajb"}
"""Modes of the amplitudes."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MethodPlan:
    """An iteration, the tensors that it reads, and what is kept where."""

    name: str
    """The method."""
    hamiltonian: Hamiltonian
    """Where integrals come from."""
    iteration: Iteration
    """The terms."""
    names: tuple[str, ...]
    """Tensors of the Hamiltonian that are needed."""
    elsewhere: tuple[str, ...]
    """Those that are not kept in memory."""
    diis: Footprint
    """What convergence acceleration holds."""
    diis_on_disk: bool
    """Whether it is in scratch files."""
    budget: int
    """Bytes for everything."""
    build_bytes: int
    """Bytes in memory at the peak of making the tensors, besides vectors over orbitals."""
    engine: Engine
    """Who runs it."""

    @property
    def flops(self) -> int:
        """Floating-point operations of an iteration."""
        return self.iteration.flops

    @property
    def peak_bytes(self) -> int:
        """Bytes in memory at the peak of a run: of an iteration, or of making the integrals before."""
        most = max(self.iteration.peak_bytes + self.diis.held_bytes, self.build_bytes)
        return most + self.hamiltonian.vector_bytes + reserved_bytes(self.budget)

    @property
    def seconds(self) -> float:
        """Time of an iteration: measured once there was one, projected before."""
        return self.iteration.seconds

    def explain(self) -> str:
        """What an iteration does and costs, as tables in plain text."""
        return to_text(_report(self))

    def _repr_html_(self) -> str:
        return to_html(_report(self))

    def __repr__(self) -> str:
        peak, budget = bytes_text(self.peak_bytes), bytes_text(self.budget)
        return f"MethodPlan({self.name!r}, {self.flops:.3g} flops an iteration, {peak} of {budget})"


def plan_method(
    name: str,
    statements: Sequence[Statement],
    hamiltonian: Hamiltonian,
    amplitudes: Sequence[str],
    energy: Sequence[str],
    budget: int,
    *,
    diis_space: int,
    scratch: str | None,
    engine: Engine,
    reproducible: bool,
) -> MethodPlan:
    """Find what has to leave memory so that an iteration fits: the largest integrals first, before them DIIS.

    `energy` names the tensors that the energy is made of.
    """
    search = _Search(
        name, tuple(statements), hamiltonian, tuple(amplitudes), tuple(energy), scratch, engine, reproducible
    )
    footprints = [search.footprint(diis_space, on_disk) for on_disk in (False, True)]
    fixed = hamiltonian.vector_bytes + reserved_bytes(budget)
    movable = search.movable
    for count in range(len(movable) + 1):
        for on_disk, footprint in zip((False, True), footprints, strict=True):
            elsewhere = movable[:count]
            if search.resident_bytes(elsewhere) + footprint.peak_bytes + fixed > budget:
                continue
            try:
                build = search.check_build(elsewhere, budget - fixed)
                iteration = search.iteration(elsewhere, budget - footprint.held_bytes - fixed)
            except MemoryBudgetError:
                continue
            return MethodPlan(
                name, hamiltonian, iteration, search.names, elsewhere, footprint, on_disk, budget, build, engine
            )
    least = with_reserve(search.least_bytes(footprints[1]) + hamiltonian.vector_bytes)
    raise MemoryBudgetError(
        f"An iteration of {name} needs {least} bytes ({bytes_text(least)}) with no integrals in memory. The budget is "
        f"{budget} bytes ({bytes_text(budget)}). Give memory={least} or more, or freeze orbitals.",
        budget,
        least,
    )


@dataclass(frozen=True)
class _Search:
    """A method that is to fit into a budget."""

    name: str
    """The method."""
    statements: tuple[Statement, ...]
    """Its terms."""
    hamiltonian: Hamiltonian
    """Where integrals come from."""
    amplitudes: tuple[str, ...]
    """Names of its amplitudes."""
    energy: tuple[str, ...]
    """Tensors that its energy is made of."""
    scratch: str | None
    """Folder for what goes to disk."""
    engine: Engine
    """Who runs it."""
    reproducible: bool
    """Whether bits must not depend on ranks."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Tensors of the Hamiltonian that are needed, also for the energy and to start from."""
        needed = {each.name for statement in self.statements for each in statement.operands}
        made = {statement.target.name for statement in self.statements}
        start = {"V", "f_ov"} if "t1" in self.amplitudes else {"V"}
        return tuple(sorted((needed - made - set(self.amplitudes)) | start | set(self.energy)))

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of each of them on a rank."""
        return {each: bytes_on_rank(self.hamiltonian.pattern(each), self.engine) for each in self.names}

    @cached_property
    def patterns(self) -> dict[str, Pattern]:
        """Those of the amplitudes."""
        return {each: self.hamiltonian.spaces.pattern(INDICES[each]) for each in self.amplitudes}

    @property
    def movable(self) -> tuple[str, ...]:
        """Tensors that need not be in memory, the largest first."""
        large = [each for each in self.names if each not in (*FOCK, *DIRECT, "c_v")]
        return tuple(sorted(large, key=lambda each: -self.sizes[each]))

    def footprint(self, space: int, on_disk: bool) -> Footprint:
        """What DIIS needs on a rank."""
        patterns, engine = list(self.patterns.values()), self.engine
        share = sum(bytes_on_rank(pattern, engine) for pattern in patterns)
        return Footprint.of(patterns, space=space, on_disk=on_disk, workers=engine.workers, nbytes=share)

    def resident_bytes(self, elsewhere: Sequence[str]) -> int:
        """Bytes of the tensors that stay in memory."""
        return sum(size for each, size in self.sizes.items() if each not in (*elsewhere, *DIRECT))

    def iteration(self, elsewhere: Sequence[str], memory: int) -> Iteration:
        """The plan of an iteration, or a `MemoryBudgetError`."""
        placeholder = self.hamiltonian.placeholder
        return Iteration(
            self.statements,
            self.hamiltonian.letters,
            {each: placeholder(each, each in elsewhere, self.engine) for each in self.names} | self.patterns,
            [f"r{each[1:]}" for each in self.amplitudes],
            memory=memory,
            scratch=self.scratch,
            engine=self.engine,
            reproducible=self.reproducible,
        )

    def check_build(self, elsewhere: Sequence[str], memory: int) -> int:
        """Most bytes that making the integrals takes, or a `MemoryBudgetError`."""
        reproducible = self.reproducible
        return self.hamiltonian.check_build(
            self.names, elsewhere, memory, engine=self.engine, reproducible=reproducible
        )

    def least_bytes(self, footprint: Footprint) -> int:
        """The smallest budget for tensors with which an iteration can be planned."""
        memory = self.resident_bytes(self.movable) + footprint.peak_bytes
        while True:
            try:
                self.check_build(self.movable, memory)
                self.iteration(self.movable, memory)
            except MemoryBudgetError as error:
                memory = max(error.least_bytes, memory + 1)
            else:
                return memory


def reserved_bytes(budget: int) -> int:
    """Bytes of a budget that are left for what is not counted: tables of libraries, small objects."""
    return min(RESERVE_BYTES, int(RESERVE * budget))


def with_reserve(needed: int) -> int:
    """A budget that leaves so many bytes besides `reserved_bytes`, and hardly more."""
    return min(needed + RESERVE_BYTES, int(needed / (1 - RESERVE)) + 1)


def _report(plan: MethodPlan) -> Report:
    spaces = plan.hamiltonian.spaces
    title = f"{plan.name}: {spaces.occ.size} occupied and {spaces.vir.size} virtual orbitals"
    if spaces.occ.irrep is not None and spaces.vir.irrep is not None:
        count = len(np.unique(np.concatenate([spaces.occ.irrep, spaces.vir.irrep])))
        title += f", {plural_text(count, 'irrep')}"
    return Report(title, (_tensor_table(plan), _group_table(plan), _memory_table(plan)), _notes(plan))


def _tensor_table(plan: MethodPlan) -> Table:
    rows = []
    for name in plan.names:
        pattern = plan.hamiltonian.pattern(name)
        away = "made on demand" if plan.hamiltonian.vectors else "on disk"
        place = away if name in plan.elsewhere else "made on demand" if name in DIRECT else "memory"
        rows.append((name, plural_text(pattern.nnz_blocks, "block"), bytes_text(pattern.nbytes()), place))
    return Table("Integrals", ("", "stored", "size", "kept"), tuple(rows))


def _group_table(plan: MethodPlan) -> Table:
    measured = any(step.seconds for step in plan.iteration.steps)
    rows = []
    for group, (seconds, flops) in sorted(plan.iteration.by_group().items(), key=lambda each: -each[1][1]):
        rate = f"{flops / seconds / 1e9:.3g} GF/s" if seconds and flops else ""
        rows.append((group, count_text(flops), seconds_text(seconds), rate))
    rows.append(("all", count_text(plan.flops), seconds_text(plan.seconds), ""))
    return Table("An iteration", ("", "flops", "measured" if measured else "projected", "rate"), tuple(rows))


def _memory_table(plan: MethodPlan) -> Table:
    worst = max(plan.iteration.steps, key=lambda step: step.peak_bytes)
    rows = (
        ("budget", bytes_text(plan.budget)),
        ("peak", bytes_text(plan.peak_bytes)),
        ("  of an iteration", bytes_text(worst.peak_bytes + plan.diis.held_bytes)),
        ("    tensors", bytes_text(worst.held_bytes)),
        ("    buffers", bytes_text(worst.added_bytes)),
        ("    DIIS", bytes_text(plan.diis.held_bytes)),
        ("  of making the integrals", bytes_text(plan.build_bytes)),
        *((("  and vectors", bytes_text(plan.hamiltonian.vector_bytes)),) if plan.hamiltonian.vectors else ()),
        ("  and libraries and small objects", bytes_text(reserved_bytes(plan.budget))),
    )
    return Table("Memory", ("", ""), rows)


def _notes(plan: MethodPlan) -> tuple[str, ...]:
    worst = max(plan.iteration.steps, key=lambda step: step.peak_bytes)
    notes = [f"The peak of an iteration is at {worst.statement}."]
    if plan.elsewhere:
        how = "made of vectors when they are needed" if plan.hamiltonian.vectors else "read from disk"
        notes.append(f"To keep to the budget, {', '.join(plan.elsewhere)} are {how} in each iteration.")
    if plan.diis_on_disk:
        notes.append("DIIS keeps its vectors in scratch files.")
    return tuple(notes)
