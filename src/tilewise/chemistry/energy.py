"""`run`: from a file to an energy, with every wrong input answered by an `InputError` before a long computation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from html import escape
from inspect import signature
from pathlib import Path
from typing import Any, Final

from tilewise.chemistry.ccsd import CCD, CCSD
from tilewise.chemistry.ccsd_t import CCSD_T
from tilewise.chemistry.checkpoint import check_manifest
from tilewise.chemistry.coupled_cluster import CoupledCluster, Timing
from tilewise.chemistry.drccd import DRCCD
from tilewise.chemistry.hamiltonian import INTEGRALS as INTEGRAL_MODES
from tilewise.chemistry.inputs import Input, Request, read_input
from tilewise.chemistry.kept_orbitals import orbital_file
from tilewise.chemistry.method import Method, check_companions, check_kind, parse_tile
from tilewise.chemistry.method_plan import MethodPlan, reserved_bytes
from tilewise.chemistry.mp2 import MP2
from tilewise.chemistry.orbitals import Frozen
from tilewise.chemistry.solver import Cycle, Options
from tilewise.chemistry.vectors import parse_tol
from tilewise.contract import einsum
from tilewise.engines.base import current_engine
from tilewise.engines.transform.checkpoint import parse_checkpoint
from tilewise.errors import ConvergenceError, InputError
from tilewise.factories import random
from tilewise.iteration import PlannedStep
from tilewise.patterns import Pattern
from tilewise.plans.budget import no_budget, parse_memory
from tilewise.plans.explain import plural_text, seconds_text
from tilewise.spaces import Space
from tilewise.tensors.drafts import parse_scratch

__all__ = ["METHODS", "Calculation", "EnergyResult", "parse_method", "prepare", "run"]

Tell = Callable[[str], None]

METHODS: Final[Mapping[str, type[Method]]] = {
    "mp2": MP2,
    "drccd": DRCCD,
    "ccd": CCD,
    "ccsd": CCSD,
    "ccsd(t)": CCSD_T,
}
"""Methods by the name a user types."""

TITLES: Final[Mapping[str, str]] = {"mp2": "MP2", "drccd": "drCCD", "ccd": "CCD", "ccsd": "CCSD", "ccsd(t)": "CCSD(T)"}
"""The same names as people write them."""

ALIASES: Final[Mapping[str, str]] = {"ccsd_t": "ccsd(t)", "ccsd-t": "ccsd(t)", "drpa": "drccd"}
"""Other names for them."""

ITERATES: Final = tuple(name for name in CoupledCluster.settings if name not in Method.settings)
"""Options of methods that iterate."""

SOLVER_OPTIONS: Final = tuple(each.name for each in fields(Options) if each.name in ITERATES)
"""Those of them that the solver checks."""


@dataclass(frozen=True, slots=True)
class EnergyResult:
    """Energies of a molecule and what they were made of."""

    e_hf: float
    """Energy of the mean field, in hartree."""
    e_corr: float
    """Correlation energy, in hartree."""
    e_tot: float
    """Sum of the two, in hartree."""
    method: str
    """Name of the method, one of `METHODS`."""
    title: str
    """The same as people write it."""
    converged: bool
    """Whether the amplitudes have converged; true for a method without iterations."""
    reason: str
    """How the iteration ended; without convergence also what to do about it."""
    cycles: int
    """Iterations."""
    history: tuple[Cycle, ...]
    """What each came to, those before an interruption included."""
    timings: tuple[Timing, ...]
    """What each iteration of this run took."""
    parts: Mapping[str, float]
    """Of CCSD(T) ``e_ccsd`` and ``e_t``, in hartree, and ``seconds_t``; of methods with singles ``t1_diagnostic``."""
    kind: str
    """What the input was."""
    basis: str | None
    """Name of the basis set; None if nobody knows."""
    charge: int | None
    """Total charge; None if there is no molecule."""
    group: str
    """Point group whose irreps were used."""
    natoms: int | None
    """Number of atoms; None if there is no molecule."""
    nbasis: int
    """Number of atomic functions."""
    nfrozen: int
    """Orbitals that were not correlated."""
    nocc: int
    """Occupied orbitals that were correlated."""
    nvir: int
    """Virtual orbitals that were correlated."""
    plan: Mapping[str, Any]
    """Figures of the plan of an iteration; none for a method without iterations."""
    mean_field_seconds: float
    """Wall time of reading the input and of the mean field."""
    seconds: float
    """Wall time of everything, the mean field included."""
    explanation: str
    """The plan, as a person reads it."""

    @property
    def headline(self) -> str:
        """What was computed, in a line."""
        atoms = [] if self.natoms is None else [plural_text(self.natoms, "atom")]
        level = self.title if self.basis is None else f"{self.title}/{self.basis}"
        return ", ".join([level, *atoms, f"{self.nbasis} basis functions", self.group_text])

    @property
    def group_text(self) -> str:
        """The point group in words."""
        return self.group if self.group.endswith("irreps") else f"point group {self.group}"

    @property
    def verdict(self) -> str:
        """How the iteration ended, in a few words; empty without one."""
        if not self.history and self.converged:
            return ""
        done = f"{'converged' if self.converged else 'NOT CONVERGED'} in {plural_text(self.cycles, 'cycle')}"
        diagnostic = self.parts.get("t1_diagnostic")
        return done if diagnostic is None else f"{done}, T1 diagnostic {diagnostic:.4f}"

    def facts(self) -> list[tuple[str, str]]:
        """What was computed and what it took, by what people call it."""
        found = [
            ("computed", self.headline),
            ("orbitals", f"{self.nocc} occupied and {self.nvir} virtual correlated, {self.nfrozen} frozen"),
            ("time", f"{seconds_text(self.seconds)}, {seconds_text(self.mean_field_seconds)} of it for the mean field"),
        ]
        if self.timings:
            mean = sum(timing.seconds for timing in self.timings) / len(self.timings)
            found.append(("a cycle", f"{seconds_text(mean)}, mean of {len(self.timings)}"))
        if "seconds_t" in self.parts:
            found.append(("triples", seconds_text(self.parts["seconds_t"])))
        return found

    def energies(self) -> list[tuple[str, float]]:
        """All energies as people call them, in hartree."""
        mark = "" if self.converged else " NOT CONVERGED"
        found = [("E(HF)", self.e_hf)]
        if "e_t" in self.parts:
            found += [("E_corr(CCSD)" + mark, self.parts["e_ccsd"]), ("E(T)" + mark, self.parts["e_t"])]
        return [*found, (f"E_corr({self.title}){mark}", self.e_corr), (f"E_tot({self.title}){mark}", self.e_tot)]

    def to_dict(self) -> dict[str, Any]:
        """Everything as values that JSON has."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        found["history"] = [asdict(cycle) for cycle in self.history]
        found["timings"] = [
            {
                "seconds": timing.seconds,
                "groups": {name: {"seconds": took, "flops": flops} for name, (took, flops) in timing.terms.items()},
            }
            for timing in self.timings
        ]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Calculation:
    """A method that is ready to run."""

    name: str
    """Name of the method, one of `METHODS`."""
    source: Input
    """The mean field, and where it comes from."""
    method: Method
    """The method."""
    mean_field_seconds: float
    """Wall time of reading the input and of the mean field."""

    @property
    def limits(self) -> tuple[float, float]:
        """Change of the energy in hartree, and norm of the step, below which an iteration ends."""
        return getattr(self.method, "conv_tol", 0.0), getattr(self.method, "conv_tol_normt", 0.0)

    @property
    def explanation(self) -> str:
        """What the method will do or has done, as a person reads it."""
        return "\n\n".join(plan.explain() for plan in self._plans())

    @property
    def explanation_html(self) -> str:
        """The same as tables of a page."""
        return "".join(
            plan._repr_html_() if hasattr(plan, "_repr_html_") else f"<pre>{escape(plan.explain())}</pre>"
            for plan in self._plans()
        )

    @property
    def steps(self) -> tuple[PlannedStep, ...]:
        """The terms of an iteration; none for a method without iterations."""
        plan = self._plan()
        return plan.iteration.steps if isinstance(plan, MethodPlan) else ()

    @property
    def held(self) -> dict[str, int]:
        """Bytes that are held throughout an iteration besides its tensors and buffers, by what for."""
        plan = self._plan()
        if not isinstance(plan, MethodPlan):
            return {}
        found = {"DIIS": plan.diis.held_bytes, "vectors": plan.hamiltonian.vector_bytes}
        return {name: size for name, size in found.items() if size}

    def stages(self, result: EnergyResult) -> list[tuple[str, int, float]]:
        """What a run spent its time on, in order: the stage, its flops where they are counted, and seconds."""
        found = [("mean field", 0, result.mean_field_seconds)]
        if result.timings:
            took = sum(timing.seconds for timing in result.timings)
            found.append((plural_text(len(result.timings), "cycle"), len(result.timings) * result.plan["flops"], took))
        if isinstance(self.method, CCSD_T) and "seconds_t" in result.parts:
            found.append(("triples", self.method.plan_triples().flops, result.parts["seconds_t"]))
        rest = result.seconds - sum(seconds for _, _, seconds in found)
        return [*found, ("integrals, DIIS and the rest", 0, max(rest, 0.0))]

    def patterns(self) -> dict[str, Pattern]:
        """Blocks and norms of the amplitudes and of the largest integrals, after the run."""
        if isinstance(self.method, MP2):
            return {} if self.method.t2 is None else {"t2[ijab]": self.method.t2.pattern}
        # Not `t2`, which transposes: that is work of all ranks together, and a copy.
        outcome = getattr(self.method, "outcome", None)
        if outcome is None:
            return {}
        kept = getattr(self.method, "_tensors", {})
        largest = {name: kept[name].pattern for name in ("ovvv", "V") if name in kept}
        named = {f"{name}[{INTEGRAL_MODES[name][0]}]": pattern for name, pattern in largest.items()}
        return {"t2[iajb]": outcome.amplitudes["t2"].pattern} | dict(list(named.items())[:1])

    @property
    def is_done(self) -> bool:
        """Whether the energy that was asked for is known."""
        found = self.method.e_t if isinstance(self.method, CCSD_T) else self.method.e_corr
        return found is not None

    def run(self) -> EnergyResult:
        """Compute; amplitudes that have not converged are no error, the result says so."""
        begin = time.perf_counter()
        if self.method.progress is not None:
            self.method.progress("Loops: loaded, or compiled if this is the first time, which takes up to a minute")
        _load_loops()
        name, refused = self.name, ""
        try:
            self.method.kernel()
        except ConvergenceError as error:
            name, refused = "ccsd", str(error)
        return self._result(name, refused, self.mean_field_seconds + time.perf_counter() - begin)

    def _result(self, name: str, refused: str, seconds: float) -> EnergyResult:
        """The result of a method, or of CCSD if its triples were refused."""
        method, source = self.method, self.source
        outcome = getattr(method, "outcome", None)
        e_corr = outcome.e_corr if outcome is not None and refused else method.e_corr
        assert e_corr is not None
        return EnergyResult(
            e_hf=method.e_hf,
            e_corr=e_corr,
            e_tot=method.e_hf + e_corr,
            method=name,
            title=TITLES[name],
            converged=outcome is None or outcome.converged,
            reason=refused or ("" if outcome is None else outcome.reason),
            cycles=0 if outcome is None else outcome.cycles,
            history=() if outcome is None else outcome.history,
            timings=tuple(getattr(method, "timings", ())),
            parts=_parts(method),
            kind=source.kind,
            basis=source.basis,
            charge=source.charge,
            group=source.group,
            natoms=source.natoms,
            nbasis=source.functions,
            nfrozen=source.frozen_count,
            nocc=method.nocc,
            nvir=method.nvir,
            plan=self._figures(),
            mean_field_seconds=self.mean_field_seconds,
            seconds=seconds,
            explanation=self.explanation,
        )

    def _plan(self) -> Any:
        method: Any = self.method  # each has a plan of its own kind
        return method.plan()

    def _plans(self) -> list[Any]:
        """That of an iteration, and that of the triples once they are known."""
        if isinstance(self.method, CCSD_T) and self.method.e_t is not None:
            return [self._plan(), self.method.plan_triples()]
        return [self._plan()]

    def _figures(self) -> dict[str, Any]:
        plan = self._plan()
        if not isinstance(plan, MethodPlan):
            return {}
        return {
            "budget_bytes": plan.budget,
            "peak_bytes": plan.peak_bytes,
            "build_bytes": plan.build_bytes,
            "held_bytes": self.held,
            "reserved_bytes": reserved_bytes(plan.budget),
            "diis_on_disk": plan.diis_on_disk,
            "on_disk": [] if plan.hamiltonian.vectors else list(plan.elsewhere),
            "made_on_demand": list(plan.elsewhere) if plan.hamiltonian.vectors else [],
            "flops": plan.flops,
            "steps": [
                {
                    "term": str(step.statement),
                    "group": step.statement.group,
                    "flops": step.flops,
                    "seconds": list(step.seconds),
                    "slice_seconds": list(step.slice_seconds),
                    "held_bytes": step.held_bytes,
                    "added_bytes": step.added_bytes,
                }
                for step in plan.iteration.steps
            ],
        }


def _parts(method: Method) -> dict[str, float]:
    triples = ("e_ccsd", "e_t", "seconds_t") if getattr(method, "e_t", None) is not None else ()
    found = {name: getattr(method, name, None) for name in (*triples, "t1_diagnostic")}
    return {name: float(value) for name, value in found.items() if value is not None}


def prepare(
    path: Path,
    *,
    method: str,
    basis: str | None = None,
    frozen: Frozen | str = None,
    charge: int | None = None,
    spin: int = 0,
    symmetry: bool = True,
    progress: Tell | None = None,
    **options: Any,
) -> Calculation:
    """Read the input, compute its mean field, and make the method; for the arguments see `run`."""
    begin = time.perf_counter()
    tell = progress if progress is not None else _tell_nobody
    given = {key: value for key, value in options.items() if value is not None}
    name = current_engine().agree(lambda: _check_options(method, given))
    assert name is not None
    asked = Request(
        path, basis, charge, spin, frozen, symmetry, given.get("auxbasis"), reproducible=bool(given.get("reproducible"))
    )
    source = read_input(asked, tell)
    made = METHODS[name](source.mean_field, source.frozen, verbose=0, progress=progress, **given)
    return Calculation(name, source, made, time.perf_counter() - begin)


def run(
    path: Path,
    *,
    method: str,
    basis: str | None = None,
    frozen: Frozen | str = None,
    charge: int | None = None,
    spin: int = 0,
    symmetry: bool = True,
    progress: Tell | None = None,
    **options: Any,
) -> EnergyResult:
    r"""Compute the energy of the molecule in a file.

    Parameters
    ----------
    path : Path
        An .xyz file with coordinates in Angstrom, a checkpoint of PySCF, or an FCIDUMP file.
    method : str
        Name of a method, one of `METHODS`, in any case of letters.
    basis : str, optional
        Name of a basis set that PySCF knows, for an .xyz file; cc-pvdz by default.
    frozen : int, list or array of int, or str, optional
        Orbitals that are not correlated: the number of lowest ones, a list, or ``"core"`` for the usual ones.
    charge : int, optional
        Total charge, for an .xyz file.
    spin : int
        Unpaired electrons; the present methods need none.
    symmetry : bool
        Whether the point group is used.
    progress : callable, optional
        Called with a line of text at each stage.
    **options
        Keywords of the method, such as ``memory`` and ``conv_tol``; None stands for the default.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from tilewise.chemistry.energy import run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "hydrogen.xyz"
    ...     _ = file.write_text("2\nbond of 0.74 Angstrom\nH 0 0 0\nH 0 0 0.74\n")
    ...     result = run(file, basis="6-31g", method="ccsd")
    >>> round(result.e_corr, 6), result.nbasis, result.converged
    (-0.024917, 4, True)
    """
    made = prepare(
        path,
        method=method,
        basis=basis,
        frozen=frozen,
        charge=charge,
        spin=spin,
        symmetry=symmetry,
        progress=progress,
        **options,
    )
    return made.run()


def _load_loops() -> None:
    """Run a small contraction of each kind, so that figures of the first run are those of running, not of compiling."""
    space = Space([8, 8])
    small = random((space, space))
    einsum("ij,jk->ik", small, small, memory=no_budget())
    einsum("ij->ji", small, memory=no_budget())
    einsum("ij,ij->", small, small, memory=no_budget())


def _tell_nobody(line: str) -> None:
    """Nobody listens."""


def parse_method(method: str) -> str:
    """The name of a method as `METHODS` has it."""
    typed = method.lower() if isinstance(method, str) else method
    name = ALIASES.get(typed, typed)
    if name not in METHODS:
        raise InputError(
            f"There is no method {method!r}. Expected one of: {', '.join(METHODS)}. Correct the name{_hint(typed)}."
        )
    return name


def _hint(typed: Any) -> str:
    return "; triples are there by perturbation theory, as ccsd(t)" if typed == "ccsdt" else ""


def _check_options(method: str, options: dict[str, Any]) -> str:
    """The name of the method; what is wrong with its options is said before the mean field is computed."""
    name = parse_method(method)
    _check_names(name, options)
    Options(**{each: options[each] for each in SOLVER_OPTIONS if each in options})
    parse_tile(options.get("tile"))
    if "memory" in options:
        parse_memory(options["memory"])
    if "scratch" in options:
        parse_scratch(options["scratch"])
    if "checkpoint" in options:
        options["checkpoint"] = parse_checkpoint(options["checkpoint"])
        if not orbital_file(options["checkpoint"]).exists():  # else a generation that is whole may be left
            check_manifest(options["checkpoint"])
    _check_integrals(options)
    return name


def _check_names(name: str, options: Mapping[str, Any]) -> None:
    """Raise if a method does not take an option."""
    kind = METHODS[name]
    for each, value in options.items():
        if each in ITERATES and not issubclass(kind, CoupledCluster):
            raise InputError(
                f"{each}={value} was given with {TITLES[name]}, which does not iterate. Expected it with a method that "
                f"does. Leave {each}= out."
            )
        if each == "force" and name != "ccsd(t)":
            raise InputError(
                f"force was given with {TITLES[name]}. Expected it with ccsd(t), whose triples need converged "
                "amplitudes. Leave force out."
            )
        if each not in (known := _keywords(kind)):
            raise InputError(
                f"{TITLES[name]} has no option {each!r}. Expected one of: {', '.join(known)}. Correct the name, or "
                "leave it out."
            )


def _keywords(kind: type[Method]) -> list[str]:
    """The options that a method takes; those that `prepare` sets itself are not among them."""
    makers = [each for each in kind.__mro__ if issubclass(each, Method)]
    found = {
        part.name for each in makers for part in signature(each).parameters.values() if part.kind is part.KEYWORD_ONLY
    }
    if issubclass(kind, CoupledCluster):
        found |= set(kind.settings)
    return sorted(found - {"frozen", "progress", "verbose"})


def _check_integrals(options: Mapping[str, Any]) -> None:
    """Raise if the kind of integrals is unknown, or something was given that it does not need."""
    kind = options.get("integrals", "exact")
    check_kind(kind)
    check_companions(kind, options.get("auxbasis"), options.get("cholesky_tol"))
    if "cholesky_tol" in options:
        parse_tol(options["cholesky_tol"], "cholesky_tol")
