"""The triples correction on workers and ranks: what a task is, what is held of the operands, and who does what.

The virtual orbitals are cut into *chunks*, pieces of tiles, and three chunks are a task: what a task is depends on the
orbitals alone, so that neither workers nor ranks nor memory change the bits of an energy.  Chunks are held by *slices*,
as many at a time as memory has room for: the tasks of three slices are done while these are held.
"""

from __future__ import annotations

from tilewise.engines.triples.orbitals import Orbitals
from tilewise.engines.triples.run import run_triples
from tilewise.engines.triples.slices import Holding, TriplesInput, cut_slices, list_threes, total_irreps

__all__ = ["Holding", "Orbitals", "TriplesInput", "cut_slices", "list_threes", "run_triples", "total_irreps"]
