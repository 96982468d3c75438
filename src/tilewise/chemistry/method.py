"""`Method`: a correlation energy of a PySCF mean field, with PySCF's habits."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from tilewise.chemistry.fitted_integrals import making_bytes
from tilewise.chemistry.identity import molecule_digest
from tilewise.chemistry.kept_orbitals import find_orbitals
from tilewise.chemistry.orbitals import Frozen
from tilewise.chemistry.reference import Reference, parse_reference
from tilewise.chemistry.spaces import OrbitalSpaces
from tilewise.chemistry.vectors import Vectors, cholesky_vectors, fitted_vectors, parse_tol
from tilewise.engines.base import current_engine
from tilewise.errors import InputError, MemoryBudgetError
from tilewise.plans.budget import budget_of, parse_memory
from tilewise.plans.propagation import nonnegative
from tilewise.spaces.integers import parse_integer
from tilewise.tensors import Engine
from tilewise.tensors.drafts import parse_scratch
from tilewise.tensors.memory import trim_heap

__all__ = ["Method"]

Floats = npt.NDArray[np.float64]
Self = TypeVar("Self", bound="Method")
Planned = TypeVar("Planned")

TILE = 32
"""About how many orbitals a tile holds: large products, and few orbitals that belong to no full tile."""

CHOLESKY_TOL = 1e-8
"""Largest error of an integral (pq|pq) that decomposed integrals have by default, in hartree."""

INTEGRALS = ("exact", "df", "cholesky")
"""What ``integrals=`` takes."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """Tells what goes on; it does not hold the method, which would hold itself then."""

    progress: Callable[[str], None] | None
    """Called with every line."""
    verbose: int
    """Lines of this level and below are printed."""
    stdout: Any
    """Where they are printed; None for the standard output."""

    def say(self, line: str, level: int = 4) -> None:
        """Tell one line."""
        if self.progress is not None:
            self.progress(line)
        if self.verbose >= level:
            print(line, file=self.stdout)


SILENT = Speaker(None, 0, None)
"""Tells nothing."""


class Method(ABC):
    """What all methods do: take a mean field, say what goes on, give energies."""

    name: ClassVar[str] = ""
    settings: ClassVar[tuple[str, ...]] = (
        "auxbasis",
        "cholesky_tol",
        "frozen",
        "integrals",
        "max_memory",
        "memory",
        "progress",
        "scratch",
        "stdout",
        "tile",
        "verbose",
    )
    planned: ClassVar[tuple[str, ...]] = ("auxbasis", "cholesky_tol", "integrals", "memory", "scratch")
    """Attributes that a plan depends on, and perhaps three-index vectors."""
    reproducible: bool = False
    """Whether bits must not depend on workers, ranks and memory."""
    scratch: str | None
    """Folder for what memory does not hold; the system's temporary folder by default."""

    def __init__(
        self,
        mf: Any,
        frozen: Frozen = None,
        *,
        memory: int | str | None = None,
        scratch: str | os.PathLike[str] | None = None,
        tile: int | None = None,
        integrals: str | None = None,
        auxbasis: str | None = None,
        cholesky_tol: float | None = None,
        verbose: int | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        if progress is not None and not callable(progress):
            raise InputError(f"progress={progress!r} cannot be called. Expected a function, or None. Pass print.")
        if memory is not None:
            parse_memory(memory)
        self._mf = mf
        self._tile = parse_tile(tile)
        self._take_orbitals(frozen)
        self.integrals = ("df" if self._is_fitted else "exact") if integrals is None else integrals
        self.auxbasis, self.cholesky_tol = auxbasis, cholesky_tol
        self._check_integrals()
        self.memory = memory
        self.set(scratch=scratch)
        self.verbose = parse_integer(
            getattr(mf, "verbose", 0) if verbose is None else verbose, "verbose=", "Pass a number from 0 to 9."
        )
        self.progress = progress
        self.stdout = getattr(self.mol, "stdout", None)
        self.e_corr: float | None = None

    def _take_orbitals(self, frozen: Frozen) -> None:
        """The orbitals of the mean field that are correlated, and its molecule."""
        self._given_reference = parse_reference(self._mf, frozen)
        self._frozen = frozen
        self.mol = getattr(self._mf, "mol", None)
        self._molecule = None if self.mol is None else molecule_digest(self.mol)
        self._drop_vectors()
        self._cut()

    def _drop_vectors(self) -> None:
        """Let go of three-index vectors, and of what is known of them."""
        self._made_vectors: Vectors | None = None
        self._vector_sizes: tuple[int, int] | None = None
        self._vectors_in_file = False
        self._spared_bytes = 0  # in memory, if fitted ones were in a file

    def _cut(self) -> None:
        """Put the orbitals into tiles."""
        self._settled = self._given_reference
        self._asked, self._asked_spaces = self._settled.tiled(self._tile)
        self.reference: Reference = self._asked
        self.spaces: OrbitalSpaces = self._asked_spaces
        self._plan: Any = None

    def _check_integrals(self) -> None:
        check_kind(self.integrals)
        check_companions(self.integrals, self.auxbasis, self.cholesky_tol)
        if self.integrals != "df" and self._is_fitted:
            raise InputError(
                f"integrals={self.integrals!r} was given with a mean field whose energy and Fock matrix are made of "
                "fitted integrals. Expected 'df', the default for it. Leave it away, or pass a mean field without "
                "density_fit()."
            )
        if self.cholesky_tol is not None:
            parse_tol(self.cholesky_tol, "cholesky_tol")
        if self.integrals != "exact" and self.mol is None:
            raise InputError(
                f"integrals={self.integrals!r} was given with a reference that has no molecule. Expected 'exact': its "
                "integrals are those of the file. Leave it away."
            )

    @property
    def _is_fitted(self) -> bool:
        """Whether the mean field has fitted integrals."""
        return getattr(self._mf, "with_df", None) is not None

    @property
    def frozen(self) -> Frozen:
        """Orbitals that are not correlated, as they were given."""
        return self._frozen

    @frozen.setter
    def frozen(self, frozen: Frozen) -> None:
        self._take_orbitals(frozen)
        self._forget()

    @property
    def tile(self) -> int:
        """About how many orbitals a tile holds."""
        return self._tile

    @tile.setter
    def tile(self, tile: int | None) -> None:
        self._tile = parse_tile(tile)
        self._cut()
        self._forget()

    @property
    def nocc(self) -> int:
        """Occupied orbitals that are correlated."""
        return self.reference.nocc

    @property
    def nvir(self) -> int:
        """Virtual orbitals that are correlated."""
        return self.reference.nvir

    @property
    def e_hf(self) -> float:
        """Energy of the mean field, in hartree."""
        return self.reference.e_tot

    @property
    def e_tot(self) -> float | None:
        """Energy of the mean field and the correlation, in hartree; None before the run."""
        return None if self.e_corr is None else self.e_hf + self.e_corr

    @property
    def max_memory(self) -> float:
        """The budget in megabytes, as PySCF has it."""
        return parse_memory(self.memory) / 1e6

    @max_memory.setter
    def max_memory(self, megabytes: float) -> None:
        number = nonnegative(megabytes)
        if not number or number == math.inf:
            raise InputError(f"max_memory={megabytes!r} is no size. Expected megabytes, a number > 0. Pass 4000, say.")
        self.memory = int(number * 1e6)

    def __repr__(self) -> str:
        known = "" if self.e_corr is None else f", e_corr={self.e_corr:.8f}"
        return f"{type(self).__name__}({self.nocc} occupied and {self.nvir} virtual orbitals{known})"

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "scratch" and value is not None:
            value = parse_scratch(value)
        super().__setattr__(name, value)
        if name in self.planned:
            self._plan = None
            self._drop_vectors()

    def set(self: Self, **settings: Any) -> Self:
        """Set attributes, as PySCF's objects do."""
        for name, value in settings.items():
            if name not in self.settings:
                raise InputError(
                    f"{type(self).__name__} has no setting {name!r}. Expected one of {', '.join(self.settings)}. "
                    "Correct the name."
                )
            setattr(self, name, value)
        return self

    @abstractmethod
    def kernel(self) -> Any:
        """Compute."""

    def run(self: Self, **settings: Any) -> Self:
        """Compute, and return this object; settings are set before."""
        self.set(**settings)
        self.kernel()
        return self

    def make_vectors(self, engine: Engine) -> Vectors:
        """Three-index vectors of fitted or decomposed integrals, made once."""
        if self._made_vectors is None:
            memory = 0 if self._vectors_in_file else engine.least(budget_of(self.memory, engine.ranks_per_node))
            self._made_vectors = self._new_vectors(memory, engine)
        return self._made_vectors

    def _new_vectors(self, memory: int, engine: Engine) -> Vectors:
        self._say(f"Vectors: {self.integrals}")
        settings: dict[str, Any] = {"memory": memory, "engine": engine, "reproducible": self.reproducible}
        if self.integrals == "df":
            return fitted_vectors(self._mf, self.auxbasis, scratch=self.scratch, **settings)
        return cholesky_vectors(self.mol, self._cholesky_limit(), **settings)

    def _with_vectors(self, make: Callable[[Engine], Planned], engine: Engine) -> Planned:
        """Plan something, once more with fitted vectors in a file if they leave it too little memory."""
        self._check_integrals()
        try:
            return make(engine)
        except MemoryBudgetError:
            if self._vectors_in_file or not self._spared_bytes:
                raise
        self._drop_vectors()  # first, since they are to be in memory no more
        self._vectors_in_file = True
        return make(engine)

    def _count_vectors(self, engine: Engine) -> tuple[int, int]:
        """How many vectors there are, and bytes that making those over orbitals takes besides them."""
        if self._vector_sizes is None:
            vectors = self.make_vectors(engine)
            self._vector_sizes = vectors.count, making_bytes(vectors)
            self._spared_bytes = vectors.held_bytes if self.integrals == "df" else 0
        return self._vector_sizes

    def _cholesky_limit(self) -> float:
        return CHOLESKY_TOL if self.cholesky_tol is None else self.cholesky_tol

    def _forget(self) -> None:
        """Let go of the results of an earlier run."""
        self.e_corr = None

    def _begin(self, engine: Engine, checkpoint: str | os.PathLike[str] | None = None) -> None:
        """Check what may have changed since this method was made, and settle on orbitals.

        Ranks take those of the first one; a run that goes on, those it was begun with.
        """
        self._check_integrals()
        self._check_molecule()
        self._forget()
        trim_heap()
        if engine.ranks == 1 and checkpoint is None:
            if self._settled is not self._given_reference:
                self._cut()
            return
        first = self._given_reference.of_first(engine)
        self._asked, self._asked_spaces = first.tiled(self._tile)
        self._settled = first if checkpoint is None else find_orbitals(first, checkpoint, engine)
        self.reference, self.spaces = self._settled.tiled(self._tile)
        self._plan = None

    def _check_molecule(self) -> None:
        """Raise if the molecule is not the one that the orbitals belong to."""
        molecule = getattr(self._mf, "mol", None)  # perhaps another object by now
        if molecule is not None and molecule_digest(molecule) != self._molecule:
            raise InputError(
                f"The molecule has changed since this {self.name} was made of its mean field. Expected the atoms and "
                f"functions that its orbitals belong to. Solve the mean field again, and make a new {self.name} of it."
            )

    def _levels(self, modes: int) -> list[Floats]:
        """The orbital energies of each mode of amplitudes; virtual ones count negative."""
        energies = np.diag(self.reference.fock)
        pair = [energies[: self.nocc], -energies[self.nocc :]]
        return pair * (modes // 2)

    @property
    def speaker(self) -> Speaker:
        """Who tells what goes on: the first rank for all."""
        return Speaker(self.progress, self.verbose, self.stdout) if current_engine().rank == 0 else SILENT

    def _say(self, line: str, level: int = 4) -> None:
        self.speaker.say(line, level)

    def _tell_stage(self, line: str) -> None:
        self._say(line, level=5)


def check_kind(integrals: str) -> None:
    """Raise if there is no such kind of integrals."""
    if integrals not in INTEGRALS:
        raise InputError(f"integrals={integrals!r} is unknown. Expected one of {', '.join(INTEGRALS)}. Correct it.")


def check_companions(integrals: str, auxbasis: str | None, cholesky_tol: float | None) -> None:
    """Raise if something was given that a kind of integrals does not need."""
    for name, value, kind in (("auxbasis", auxbasis, "df"), ("cholesky_tol", cholesky_tol, "cholesky")):
        if value is not None and integrals != kind:
            raise InputError(
                f"{name}={value!r} was given with integrals={integrals!r}. Expected it with {kind!r}. Leave it away, "
                f"or pass integrals={kind!r}."
            )


def parse_tile(tile: int | None) -> int:
    remedy = "Pass a number such as tile=32."
    size = parse_integer(TILE if tile is None else tile, "The tile size", remedy)
    if size < 1:
        raise InputError(f"The tile size is {size}. Expected at least 1. {remedy}")
    return size
