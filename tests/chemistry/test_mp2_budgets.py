"""Budgets of MP2: what a run holds at any time stays within memory=."""

from __future__ import annotations

import gc
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import mp

import tilewise as tw
from chemistry.cc_cases import mean_field_of
from chemistry.molecules import mean_field, pyscf_mp2
from engines.processes import ranks
from tilewise.chemistry import MP2
from tilewise.chemistry.four_index import Transform
from tilewise.chemistry.method_plan import reserved_bytes
from tilewise.chemistry.mp2 import Doubles
from tilewise.engines.base import current_engine
from tilewise.errors import MemoryBudgetError
from tilewise.plans import budget
from tilewise.tensors.memory import Memory

BENZENE = "; ".join(
    f"{symbol} {radius * np.cos(angle)} {radius * np.sin(angle)} 0"
    for symbol, radius in (("C", 1.39), ("H", 2.48))
    for angle in np.arange(6) * np.pi / 3
)
SMALL = 700_000
"""Bytes of tables and other small objects that a run has beside what is counted."""


@pytest.fixture(scope="module")
def benzene() -> Any:
    return mean_field(BENZENE, "6-31g")


@pytest.fixture(scope="module")
def water() -> Any:
    return mean_field_of("water", "6-31g")


def give(method: MP2, memory: int) -> None:
    """A budget for all but vectors over functions, which are made within one of their own."""
    vectors = None if method.integrals == "exact" else method.make_vectors(current_engine())
    method.memory = memory
    method._made_vectors = vectors


def least_of(method: MP2) -> int:
    """The least budget that a method says it needs once there are vectors."""
    give(method, 1000)
    with pytest.raises(MemoryBudgetError) as found:
        method.plan()
    return found.value.least_bytes


def measured(method: MP2, memory: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Most bytes that a run holds: of arrays, and of pieces that an engine hands out."""
    peaks, used, take = [0], [0], Memory._take

    def note(self: Memory, size: int) -> Any:
        piece = take(self, size)
        peaks.append(used[0] + tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()
        used[0] = self._used_bytes
        return piece

    gc.collect()  # an error that was caught in a test keeps the method that it came from
    with monkeypatch.context() as patch:
        tracemalloc.start()
        give(method, memory)
        tracemalloc.reset_peak()
        patch.setattr(Memory, "_take", note)
        method.run()
        peaks.append(used[0] + tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return max(peaks)


@pytest.mark.parametrize("factor", [1, 2, 10])
def test_a_run_keeps_to_its_budget(benzene: Any, factor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the least memory half-transformed integrals and the result are on disk, and no amplitudes are beside."""
    with tw.engine("threads", workers=2):
        memory = factor * least_of(MP2(benzene, tile=8))
        MP2(benzene, tile=8, memory=memory).run()  # loads what is compiled
        method = MP2(benzene, tile=8)
        assert measured(method, memory, monkeypatch) <= memory + SMALL
        plan: Any = method.plan()
        assert plan.variant.spills_result == (factor < 10)
    assert method.e_corr == pytest.approx(pyscf_mp2(benzene), abs=1e-8)


@pytest.mark.parametrize("integrals", ["df", "cholesky"])
@pytest.mark.parametrize("factor", [1, 2])
def test_vectors_count(benzene: Any, integrals: str, factor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"tile": 8, "integrals": integrals, "cholesky_tol": None}
    if integrals == "cholesky":
        settings["cholesky_tol"] = 1e-5
    expected = MP2(benzene, **settings).run().e_corr
    with tw.engine("threads", workers=2):
        method = MP2(benzene, **settings)
        memory = factor * least_of(method)
        give(method, memory)
        method.run()  # loads what is compiled
        method = MP2(benzene, **settings)
        assert measured(method, memory, monkeypatch) <= memory - reserved_bytes(memory) + SMALL
    assert method._made_vectors is None
    assert method.e_corr == pytest.approx(expected, abs=1e-8)


def test_only_so_many_blocks_are_there_at_once_as_there_is_room_for(
    benzene: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers wait with a block of 1.9 MB and what it needs, so that all that are let in are there together."""
    make, compute, seen = Doubles.denominator, Doubles.energies, []

    def wait(self: Doubles, index: tuple[int, ...]) -> Any:
        made = make(self, index)
        time.sleep(0.1)
        return made

    def measure(self: Doubles, at_once: int) -> Any:
        assert not self.repulsion.in_memory
        tracemalloc.start()
        try:
            return compute(self, at_once)
        finally:
            seen.append((at_once, tracemalloc.get_traced_memory()[1]))
            tracemalloc.stop()

    monkeypatch.setattr(Doubles, "denominator", wait)
    monkeypatch.setattr(Doubles, "energies", measure)
    with tw.engine("threads", workers=4):
        memory = least_of(MP2(benzene, tile=24))
        MP2(benzene, tile=24, memory=memory).run()
    ((at_once, peak),) = seen
    assert at_once == 1
    assert memory // 2 < peak <= memory


@pytest.mark.parametrize("integrals", ["exact", "df"])
def test_integrals_are_taken_off_what_was_free_before_them(
    water: Any, integrals: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without memory= there is room for the blocks of all workers, though the integrals take most of what is free."""
    seen: list[int] = []
    free, compute = [10**9], Doubles.energies

    def note(self: Doubles, at_once: int) -> Any:
        seen.append(at_once)
        return compute(self, at_once)

    def run(self: MP2, engine: Any) -> Any:
        made = repulsion(self, engine)
        free[0] = made.nbytes
        return made

    repulsion = MP2._repulsion
    monkeypatch.delenv(budget.VARIABLE, raising=False)
    monkeypatch.setattr(budget, "free_memory", lambda: free[0])
    monkeypatch.setattr(Doubles, "energies", note)
    monkeypatch.setattr(MP2, "_repulsion", run)
    with tw.engine("threads", workers=4):
        MP2(water, tile=3, integrals=integrals).run()
    assert seen == [4]


@pytest.mark.parametrize("factor", [1, 10])
def test_making_amplitudes_takes_no_more_than_is_said(benzene: Any, factor: int) -> None:
    """Of integrals on disk, and in memory."""
    made: Any = MP2(benzene, tile=8, memory=factor * least_of(MP2(benzene, tile=8))).run().t2
    sizes = made.pattern.block_sizes
    row = int(sizes.argmax())
    out = np.empty(int(sizes[row]))
    tracemalloc.start()
    made.storage.read(row, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= made.storage.largest_bytes + 10_000  # objects of Python


def test_amplitudes_of_integrals_on_disk(water: Any) -> None:
    method = MP2(water, tile=3, memory=least_of(MP2(water, tile=3))).run()
    found: Any = method.t2
    np.testing.assert_allclose(found.to_dense(), mp.MP2(water).run().t2, rtol=0, atol=1e-8)
    assert found.copy().in_memory
    found.copy().check()


def test_amplitudes_serve_in_contractions(water: Any) -> None:
    ours = MP2(water, tile=3).run()
    found: Any = ours.t2
    dense = mp.MP2(water).run().t2
    density = tw.einsum("ikab,jkab->ij", found, found).to_dense()
    np.testing.assert_allclose(density, np.einsum("ikab,jkab->ij", dense, dense), rtol=0, atol=1e-8)


@pytest.mark.parametrize("integrals", ["exact", "df", "cholesky"])
def test_too_little_memory_is_refused_before_anything_is_computed(
    water: Any, integrals: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("nothing is to be computed")

    settings: dict[str, Any] = {"tile": 4, "integrals": integrals}
    method = MP2(water, **settings)
    least = least_of(method)
    monkeypatch.setattr(Transform, "kernel", refuse)
    monkeypatch.setattr("tilewise.chemistry.mp2.to_orbitals", refuse)
    with pytest.raises(MemoryBudgetError, match=f"{least}"):
        method.run()
    monkeypatch.undo()
    give(method, least)
    assert method.run().e_corr == pytest.approx(MP2(water, **settings).run().e_corr, abs=1e-10)


def test_screened_amplitudes_have_an_error_bound(water: Any) -> None:
    exact, screened = (MP2(water, tile=3, tol=tol).run().t2 for tol in (None, 1e-4))
    assert exact is not None
    assert screened is not None
    assert exact.error_bound == 0.0
    assert (screened.copy() - exact.copy()).norm() <= screened.error_bound


@pytest.mark.parametrize("per_node", ["1", "2"])
def test_ranks(per_node: str, tmp_path: Path) -> None:
    """Blocks that amplitudes and exchange need are on other nodes, or in a file."""
    pytest.importorskip("mpi4py")
    done = ranks(2, str(Path(__file__).parent / "mpi_mp2_job.py"), per_node, str(tmp_path))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("right") == 2
