"""`Hamiltonian`: the integrals of the coupled-cluster equations as block tensors, in memory, on disk or on demand."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt

from tilewise.chemistry.fitted_integrals import FittedIntegrals, side_bytes
from tilewise.chemistry.four_index import Transform
from tilewise.chemistry.integrals import AtomicOrbitals, function_integrals
from tilewise.chemistry.reference import Reference
from tilewise.chemistry.spaces import OrbitalSpaces, joined_space, plain_space, stored_elements
from tilewise.contract import find_engine
from tilewise.engines.folding import Folding, folded_block, folded_pattern, for_each_block
from tilewise.errors import MemoryBudgetError, TilewiseError
from tilewise.factories import from_dense, from_function, zeros
from tilewise.iteration import allowed_pattern, bytes_on_rank
from tilewise.patterns import Pattern, Symmetry
from tilewise.plans.explain import bytes_text
from tilewise.plans.transform import Rates
from tilewise.spaces import Pairs, Space
from tilewise.tensors import BlockTensor, Engine
from tilewise.tensors.elsewhere import make_elsewhere
from tilewise.tensors.files import ScratchFile
from tilewise.tensors.storage import check_bytes, frobenius_norm

__all__ = ["DIRECT", "FOCK", "INTEGRALS", "Hamiltonian", "assembled", "handed_out"]

Floats = npt.NDArray[np.float64]
Maker = Callable[[tuple[int, ...]], Floats]
Tell = Callable[[str], None]

INTEGRALS: Final[Mapping[str, tuple[str, str]]] = {
    "V": ("iajb", "iajb"),
    "Vp": ("iajb", "jaib"),
    "J": ("iakc", "kiac"),
    "ooov": ("kilc", "kilc"),
    "oooo": ("kilj", "kilj"),
    "ovvv": ("akcd", "kcad"),
}
"""Modes of each tensor, and of the integrals (pq|rs) that it is made of; all begin with an occupied orbital."""

MATRICES: Final[Mapping[str, str]] = {
    "oooo_s": "yx",
    "oooo_a": "YX",
    "ov_s": "yp",
    "ov_a": "YP",
    "vv_s": "pq",
    "vv_a": "PQ",
    "ff_s": "mn",
    "ff_a": "MN",
}
"""Matrices over pairs."""

FOCK: Final[Mapping[str, str]] = {"f_oo": "ij", "f_ov": "ia", "f_vv": "ab"}
"""Blocks of the Fock matrix."""

MADE: Final[Mapping[str, str]] = {**FOCK, "L": "iajb", "c_v": "sa"}
"""What is no integral itself: L = 2 V - V', and virtual orbitals over functions."""

DIRECT: Final = ("ff_s", "ff_a")
"""Matrices over pairs of atomic functions, made on demand."""

SYMMETRIC: Final = ("vv_s", "vv_a", *DIRECT)
"""Matrices that equal their transpose."""

EXCHANGE: Final = Symmetry(((0, 1), 1))
"""(ac|bd) = (ca|db): the matrix over virtual pairs is symmetric."""

VIRTUALS: Final = frozenset("abcd")


@dataclass(frozen=True, slots=True, eq=False)
class Hamiltonian:
    """Fock matrix and integrals over the orbitals of a reference."""

    reference: Reference
    """Orbitals in the order of the tiles."""
    spaces: OrbitalSpaces
    """Their tiles."""
    vectors: int = 0
    """How many three-index vectors replace the integrals; none if these are exact."""
    functions: AtomicOrbitals | None = None
    """Atomic functions, for a ladder over them."""
    making_bytes: int = 0
    """Bytes that making vectors over orbitals takes besides them: those over functions, and slices."""
    rates: list[Rates] = field(default_factory=list)
    """What this computer does in a second, once it was measured for a transform; it is measured for one of them."""

    @property
    def letters(self) -> Mapping[str, Space | Pairs]:
        """What the letters of equations stand for."""
        found = dict(self.spaces.letters)
        if self.functions is not None:
            space = Space(self.functions.space.sizes, "ao")
            found |= dict.fromkeys("st", space)
            found |= dict.fromkeys("mn", Pairs.of(space, 1)) | dict.fromkeys("MN", Pairs.of(space, -1))
        return found

    @property
    def vector_bytes(self) -> int:
        """Bytes of the vectors over orbitals, (Q, ip) and (Q, ab), of all ranks."""
        nocc, nvir = self.reference.nocc, self.reference.nvir
        return 8 * self.vectors * (nocc * (nocc + nvir) + nvir * nvir)

    def pattern(self, name: str) -> Pattern:
        """The blocks of a tensor of the equations."""
        if name in SYMMETRIC:
            letters = self.letters
            space = letters["a" if name.startswith("vv") else "s"]
            assert isinstance(space, Space)
            full = Pattern.allowed((space,) * 4, irrep=None if space.irrep is None else 0)
            return folded_pattern(full, self.folding(name), EXCHANGE)
        if name in INTEGRALS:
            return allowed_pattern(self.letters, INTEGRALS[name][0])
        return allowed_pattern(self.letters, MATRICES.get(name) or MADE[name])

    def folding(self, name: str) -> Folding:
        """The pairs of a matrix over pairs."""
        rows, cols = (self.letters[letter] for letter in MATRICES[name])
        assert isinstance(rows, Pairs)
        assert isinstance(cols, Pairs)
        return Folding(rows, cols)

    def working_bytes(self, name: str) -> int:
        """Bytes that making a block of a tensor takes besides it, at the most.

        While a block of integrals is made, the vectors of both its pairs are there.  It is copied into an array of its
        own, which is the block of a tensor of integrals but for the order of modes; a difference needs another one, and
        a matrix over pairs the two that a part of it is made of, which are blocks of such a tensor where an occupied
        orbital is among them.
        """
        modes = self._integral_modes(name)
        elements = math.prod(int(space.sizes.max(initial=0)) for space in modes)
        blocks = 1 if name in INTEGRALS else 2 if name == "L" else 3 if name in SYMMETRIC else 4
        return 8 * blocks * elements + max(side_bytes(self.vectors, modes), check_bytes(elements, np.dtype(np.float64)))

    def _integral_modes(self, name: str) -> list[Space]:
        """The spaces of the integrals (pq|rs) that a tensor is made of."""
        if name in SYMMETRIC:
            modes = [self.letters["a" if name.startswith("vv") else "s"]] * 4
        else:
            modes = [self.letters[letter] for letter in INTEGRALS[_part(name)][1]]
        return [space for space in modes if isinstance(space, Space)]

    def assembly_bytes(self, names: Collection[str], workers: int) -> int:
        """Bytes that making blocks of tensors takes, one tensor after the other, in so many workers at once."""
        most = 0
        for name in names:
            sizes = self.pattern(name).block_sizes
            at_once = min(workers, len(sizes))
            most = max(most, at_once * (8 * int(sizes.max(initial=0)) + self.working_bytes(name)))
        return most

    def placeholder(self, name: str, elsewhere: bool, engine: Engine) -> Pattern | BlockTensor:
        """What stands for a tensor in a plan."""
        pattern = self.pattern(name)
        if self.vectors or name in DIRECT:
            if not elsewhere and name not in DIRECT:
                return pattern
            return from_function(_not_there, pattern=pattern, working_bytes=self.working_bytes(name))
        return make_elsewhere(pattern, engine) if elsewhere else pattern

    def check_build(
        self,
        names: Collection[str],
        elsewhere: Collection[str],
        memory: int,
        *,
        engine: Engine,
        reproducible: bool = False,
    ) -> int:
        """Most bytes that making the tensors takes, or a `MemoryBudgetError` if that is too much; nothing is made."""
        builder = _Builder(self, set(elsewhere), memory, None, None, engine, None, reproducible)
        most = builder.check_vectors(names) if self.vectors else builder.check(names)
        if most > memory:
            raise MemoryBudgetError(
                f"Making the integrals takes {most} bytes ({bytes_text(most)}). Expected at most {memory} "
                f"({bytes_text(memory)}), what the budget leaves for it. Give more memory=, or use smaller tiles.",
                memory,
                most,
            )
        return most

    def build(
        self,
        names: Collection[str],
        elsewhere: Collection[str],
        memory: int,
        *,
        source: FittedIntegrals | None = None,
        scratch: str | None = None,
        engine: Engine | None = None,
        tell: Tell | None = None,
        reproducible: bool = False,
    ) -> dict[str, BlockTensor]:
        """Make tensors of the equations.

        Parameters
        ----------
        names : collection of str
            The tensors.
        elsewhere : collection of str
            Those that are not kept in memory.
        memory : int
            Bytes for everything that this takes and leaves.
        source : FittedIntegrals, optional
            Three-index vectors over orbitals to make them of.
        reproducible : bool
            Whether their bits must not depend on ranks, workers and memory.
        """
        builder = _Builder(self, set(elsewhere), memory, source, scratch, find_engine(engine), tell, reproducible)
        return builder.build(names)

    def fock(self, name: str) -> BlockTensor:
        """A block of the Fock matrix."""
        nocc = self.reference.nocc
        part = {"o": slice(0, nocc), "v": slice(nocc, None)}
        values = self.reference.fock[part[name[2]], part[name[3]]]
        pattern = self.pattern(name)
        masked = values * stored_elements(pattern)
        return from_dense(masked, pattern.spaces) + zeros(pattern=pattern)


class _Builder:
    """Makes tensors within a budget."""

    def __init__(
        self,
        hamiltonian: Hamiltonian,
        elsewhere: set[str],
        memory: int,
        source: FittedIntegrals | None,
        scratch: str | None,
        engine: Engine,
        tell: Tell | None,
        reproducible: bool,
    ) -> None:
        self.reproducible = reproducible
        self.hamiltonian, self.elsewhere, self.memory = hamiltonian, elsewhere, memory
        self.source, self.scratch, self.engine, self.tell = source, scratch, engine, tell
        self.made: dict[str, BlockTensor] = {}
        self.done: list[str] = []

    def check(self, names: Collection[str]) -> int:
        """Plan the transforms of all of them; most bytes that are held."""
        most = 0
        for which, wanted in _stages(names):
            before = self._held_bytes()
            plan = self._job(which, wanted).plan()
            self.done += wanted
            result = 0 if plan.variant.spills_result else bytes_on_rank(plan.problem.result, self.engine)
            most = max(most, before + plan.peak_bytes, self._held_bytes() + result + self._assembly_bytes(wanted))
        return most

    def check_vectors(self, names: Collection[str]) -> int:
        """Most bytes that are held where tensors are made of vectors: by those over functions, then by tensors."""
        made = [name for _, wanted in _stages(names) for name in wanted]
        return max(self.hamiltonian.making_bytes, self._held_bytes(made) + self._assembly_bytes(made))

    def _assembly_bytes(self, names: Collection[str]) -> int:
        """Bytes that making the blocks of tensors takes: by all workers at once of those that are to be in memory."""
        kept = [name for name in names if name not in self.elsewhere]
        most = self.hamiltonian.assembly_bytes(kept, self.engine.workers)
        if self.hamiltonian.vectors:
            return most
        return max(most, self.hamiltonian.assembly_bytes(self.elsewhere.intersection(names), 1))

    def build(self, names: Collection[str]) -> dict[str, BlockTensor]:
        """All of them, the largest first."""
        for name in FOCK:
            if name in names:
                self.made[name] = self.hamiltonian.fock(name)
        if "c_v" in names:
            self._build_direct()
        for which, wanted in _stages(names):
            self._build_stage(which, wanted)
        return {name: self.made[name] for name in names}

    def _build_stage(self, which: str, wanted: Sequence[str]) -> None:
        """Tensors that are made of one transform; its integrals are gone before the next one begins."""
        source = self._job(which, wanted).kernel() if self.source is None else self.source.tensor(which)
        if which == "vvvv":
            self._build_virtual(source, wanted)
        else:
            self._build_mixed(source, wanted, 0 if which == "ovov" else self.hamiltonian.spaces.occ.ntiles)
        self.done += wanted

    def _build_direct(self) -> None:
        """What a ladder over atomic functions needs; its integrals are made in each iteration."""
        functions, pattern = self.hamiltonian.functions, self.hamiltonian.pattern("c_v")
        assert functions is not None
        self.made["c_v"] = from_dense(self.hamiltonian.reference.virtual[functions.order], pattern.spaces)
        source = function_integrals(functions)
        for name in DIRECT:
            self._make_on_demand(name, _folder(source, self.hamiltonian.folding(name)))

    def _build_virtual(self, source: BlockTensor, names: Sequence[str]) -> None:
        for name in names:
            self._keep(name, _folder(source, self.hamiltonian.folding(name)))

    def _build_mixed(self, source: BlockTensor, names: Sequence[str], shift: int) -> None:
        for name in names:
            if name in INTEGRALS:
                self._keep(name, _taker(source, *INTEGRALS[name], shift))
            elif name == "L":
                self._keep(name, _without_exchange(*(_taker(source, *INTEGRALS[part], shift) for part in ("V", "Vp"))))
            else:
                self._keep_matrix(name, source, shift)

    def _keep_matrix(self, name: str, source: BlockTensor, shift: int) -> None:
        """A matrix over pairs of occupied orbitals, and of these or virtual ones."""
        part = _part(name)
        whole = self.made.get(part)
        if whole is None:
            whole = from_function(_taker(source, *INTEGRALS[part], shift), pattern=self.hamiltonian.pattern(part))
        self._keep(name, _folder(whole, self.hamiltonian.folding(name)))

    def _job(self, which: str, names: Sequence[str]) -> Transform:
        """The transform to the integrals that some tensors are made of, within the memory that tensors leave."""
        reference, spaces = self.hamiltonian.reference, self.hamiltonian.spaces
        held = self._held_bytes(names)
        orbitals = {
            "o": (reference.occupied, plain_space(spaces.occ)),
            "v": (reference.virtual, plain_space(spaces.vir)),
            "p": (np.hstack([reference.occupied, reference.virtual]), joined_space(spaces.occ, spaces.vir)),
        }
        job = Transform(
            reference.integrals,
            [orbitals[letter][0] for letter in which],
            spaces=[orbitals[letter][1] for letter in which],
            memory=max(self.memory - held, 0),
            tile=max(int(self.hamiltonian.spaces.vir.sizes.max(initial=1)), 1),
            scratch=self.scratch,
            engine=self.engine,
            progress=self.tell,
            reproducible=self.reproducible,
            rates=next(iter(self.hamiltonian.rates), None),
        )
        self.hamiltonian.rates[:] = [job.rates]
        return job

    def _held_bytes(self, more: Sequence[str] = ()) -> int:
        """Bytes in memory of the tensors that are done, and of more."""
        kept = [name for name in (*self.done, *more) if name not in self.elsewhere]
        return sum(bytes_on_rank(self.hamiltonian.pattern(name), self.engine) for name in kept)

    def _keep(self, name: str, make: Maker) -> None:
        """Make a tensor where it is to be."""
        pattern = self.hamiltonian.pattern(name)
        if name in self.elsewhere and self.source is not None:
            products = 2 if name in MATRICES or name == "L" else 1
            self._make_on_demand(name, make, self.source.seconds(pattern, products).tolist())
            return
        if name not in self.elsewhere:
            self.made[name] = assembled(pattern, make, self.engine)
            return
        scratch = ScratchFile(pattern, np.dtype(np.float64), self.scratch)
        for row, index in enumerate(pattern.index.tolist()):
            block = np.ascontiguousarray(make(tuple(index)))
            scratch.write(row, block, frobenius_norm(block))
        self.made[name] = scratch.tensor(self.engine)

    def _make_on_demand(self, name: str, make: Maker, cost: float | Sequence[float] = 0.0) -> None:
        """A tensor whose blocks are made when they are needed."""
        pattern, besides = self.hamiltonian.pattern(name), self.hamiltonian.working_bytes(name)
        self.made[name] = from_function(make, pattern=pattern, cost=cost, working_bytes=besides)


def _part(name: str) -> str:
    """The tensor of integrals that another one is made of, or is."""
    return name if name in INTEGRALS else "oooo" if name.startswith("oooo") else "V"


def _stages(names: Collection[str]) -> list[tuple[str, list[str]]]:
    """Which integrals are transformed one after the other, and the tensors that are made of each."""
    virtual = [name for name in ("vv_s", "vv_a") if name in names]
    mixed = [name for name in (*INTEGRALS, "L", *MATRICES) if name in names and name not in SYMMETRIC]
    only_ovov = all(name in ("V", "Vp", "L", "ov_s", "ov_a") for name in mixed)
    stages = [("vvvv", virtual), ("ovov" if only_ovov else "oppp", mixed)]
    return [(which, wanted) for which, wanted in stages if wanted]


def _not_there(index: tuple[int, ...]) -> NoReturn:
    raise TilewiseError(f"Block {index} of a tensor that only stands for one was asked for. Expected plans alone.")


def assembled(pattern: Pattern, make: Maker, engine: Engine) -> BlockTensor:
    """A tensor in memory; each process makes the blocks that it answers for."""
    arena = engine.allocate(pattern, np.float64, zero=False)
    parts = list(arena.parts(pattern))

    def fill(number: int) -> None:
        row, part = parts[number]
        part[...] = make(tuple(pattern.index[row].tolist()))

    arena.agree(lambda: for_each_block(engine, [part.size for _, part in parts], fill))
    tensor = BlockTensor(pattern, arena, engine)
    tensor.replace_norms(arena.norms())
    return tensor


def handed_out(pattern: Pattern, make: Maker | None, engine: Engine) -> BlockTensor:
    """A tensor in memory whose blocks the first process makes, one by one for those who answer for them."""
    arena = engine.allocate(pattern, np.float64, zero=False)
    own = dict(arena.parts(pattern))
    for row, index in enumerate(pattern.index.tolist()):
        block = engine.of_first(None if make is None else make(tuple(index)))
        if row in own:
            own[row][...] = block
    tensor = BlockTensor(pattern, arena, engine)
    tensor.replace_norms(arena.norms())
    return tensor


def _taker(source: BlockTensor, target: str, letters: str, shift: int) -> Maker:
    """Makes blocks of a tensor of transformed integrals; virtual tiles of all but the first mode come after `shift`."""
    axes = [letters.index(letter) for letter in target]

    def take(index: tuple[int, ...]) -> Floats:
        tile = dict(zip(target, index, strict=True))
        where = [tile[each] + (shift if each in VIRTUALS else 0) for each in letters]
        block: Floats = source.block(where).transpose(axes)
        return block

    return take


def _without_exchange(direct: Maker, exchange: Maker) -> Maker:
    """Makes blocks of L = 2 V - V'."""
    return lambda index: 2 * direct(index) - exchange(index)


def _folder(source: BlockTensor, folding: Folding) -> Maker:
    """Makes blocks of the matrix of a tensor over pairs."""
    return lambda index: folded_block(source, folding, (index[0], index[1]))
