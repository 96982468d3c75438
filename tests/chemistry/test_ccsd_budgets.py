"""Plans of coupled cluster, the budgets that runs keep to, and their bits."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

import tilewise as tw
from chemistry.cc_cases import (
    TIGHT,
    least_memory,
    mean_field_of,
    run_within,
    tensor_bytes,
)
from tilewise.chemistry import CCD, CCSD, DRCCD, MP2, method
from tilewise.chemistry.diis import Footprint
from tilewise.chemistry.four_index import Transform
from tilewise.chemistry.hamiltonian import Hamiltonian
from tilewise.chemistry.method_plan import reserved_bytes
from tilewise.chemistry.vectors import fitted_vectors
from tilewise.engines.base import current_engine
from tilewise.errors import MemoryBudgetError
from tilewise.patterns import Pattern


@pytest.fixture(scope="module")
def water() -> Any:
    return mean_field_of("water", "6-31g")


# Plans and budgets


def test_a_plan_computes_nothing(water: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a plan needs no integrals")

    monkeypatch.setattr(Hamiltonian, "build", refuse)
    plan = CCSD(water, tile=3, memory="1GB").plan()
    text = plan.explain()
    assert text.startswith("CCSD: 5 occupied and 8 virtual orbitals")
    for word in ("ladder", "rings", "singles", "vv_s", "ovvv", "budget", "DIIS", "The peak of an iteration is at"):
        assert word in text
    assert plan.peak_bytes == CCSD(water, tile=3, memory="1GB").peak_bytes


def test_the_plan_counts_a_quarter_for_the_ladder(water: Any) -> None:
    flops = CCSD(water).plan().iteration.by_group()["ladder"][1]
    counts = [(n * (n + 1) // 2, n * (n - 1) // 2) for n in (5, 8)]
    assert flops == 2 * sum(left * right**2 for left, right in zip(*counts, strict=True))


@pytest.fixture(scope="module")
def nitrogen() -> Any:
    return mean_field_of("nitrogen", "cc-pvdz")


def test_integrals_that_do_not_fit_are_on_disk(nitrogen: Any) -> None:
    """What DIIS remembers goes there first."""
    free, least = tensor_bytes(CCSD(nitrogen, 2, tile=10)), least_memory(CCSD, nitrogen, 2, tile=10)
    method = run_within(CCSD, nitrogen, 2, least + (free - least) // 5, tile=10, max_cycle=3)
    plan = method.plan()
    assert plan.elsewhere
    assert plan.diis_on_disk
    assert plan.peak_bytes <= method.memory < free
    assert f"{', '.join(plan.elsewhere)} are read from disk" in plan.explain()
    assert {name for name in plan.names if not method._tensors[name].in_memory} == set(plan.elsewhere)
    assert method.e_corr == pytest.approx(CCSD(nitrogen, 2, max_cycle=3).run().e_corr, rel=0, abs=1e-10)


@pytest.mark.parametrize("integrals", ["exact", "df"])
def test_with_the_least_memory_all_integrals_are_elsewhere(water: Any, integrals: str) -> None:
    least = least_memory(CCSD, water, tile=4, integrals=integrals)
    method = CCSD(water, memory=least, tile=4, integrals=integrals).run(max_cycle=2)
    plan = method.plan()
    assert {"oooo_s", "oooo_a", "ov_s", "ov_a", "vv_s", "V"} <= set(plan.elsewhere)
    assert {name for name in plan.names if not method._tensors[name].in_memory} == set(plan.elsewhere)
    free = CCSD(water, integrals=integrals).run(max_cycle=2)
    assert method.e_corr == pytest.approx(free.e_corr, rel=0, abs=1e-10)


def test_vectors_over_functions_count_and_are_gone_before_tensors_are_made(
    water: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, there = CCSD(water, integrals="cholesky"), []
    plan = method.plan()
    held = method.make_vectors(plan.engine).held_bytes
    assert 0 < held <= plan.build_bytes
    assert plan.peak_bytes >= held + plan.hamiltonian.vector_bytes
    build = Hamiltonian.build

    def look(*arguments: Any, **settings: Any) -> Any:
        there.append(method._made_vectors)
        return build(*arguments, **settings)

    monkeypatch.setattr(Hamiltonian, "build", look)
    method.run(max_cycle=1)
    assert there == [None]


def test_diis_counts_what_the_fullest_rank_has(water: Any) -> None:
    pattern = Pattern.dense((tw.Space([30]), tw.Space([32] * 3)) * 2)
    share = pattern.nbytes() // 3  # nine blocks on four ranks: the first has three
    one, whole = (
        Footprint.of([pattern], space=6, on_disk=False, nbytes=nbytes) for nbytes in (share, pattern.nbytes())
    )
    assert one.held_bytes == 10 * share
    buffers = whole.peak_bytes - 13 * pattern.nbytes()
    assert one.peak_bytes == 13 * share + buffers


def test_too_little_memory_is_refused_with_both_sizes(water: Any) -> None:
    with pytest.raises(MemoryBudgetError, match=r"An iteration of CCSD needs \d+ bytes .* The budget is 1000") as found:
        CCSD(water, memory=1000).run()
    least = found.value.least_bytes
    assert found.value.budget == 1000
    assert f"Give memory={least} or more" in str(found.value)
    assert CCSD(water, memory=least).plan().peak_bytes <= least
    with pytest.raises(MemoryBudgetError):
        CCSD(water, memory=least * 99 // 100).plan()


@pytest.mark.parametrize("kind", [CCSD, CCD, DRCCD])
@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize(
    ("name", "basis", "tile"), [("water", "6-31g", None), ("water", "6-31g", 4), ("nitrogen", "cc-pvdz", 10)]
)
def test_what_can_be_planned_can_be_run(kind: Any, name: str, basis: str, tile: int | None, share: float) -> None:
    """A budget that is too small is refused by the plan, before anything is computed."""
    mf = mean_field_of(name, basis)
    least, free = least_memory(kind, mf, tile=tile), tensor_bytes(kind(mf, tile=tile))
    memory = int(least + share * max(free - least, 0))
    method = kind(mf, tile=tile, memory=memory, max_cycle=2)
    assert method.plan().peak_bytes <= memory
    assert method.run().e_corr == pytest.approx(kind(mf, max_cycle=2).run().e_corr, rel=0, abs=1e-10)


def test_integrals_are_gone_before_the_next_are_made(nitrogen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget has no room for those of two transforms."""
    made: list[weakref.ref[Any]] = []
    kernel = Transform.kernel

    def run(self: Transform) -> Any:
        assert all(each() is None for each in made)
        tensor = kernel(self)
        made.append(weakref.ref(tensor.arena.data))
        return tensor

    monkeypatch.setattr(Transform, "kernel", run)
    CCSD(nitrogen, 2, max_cycle=1).run()
    assert len(made) == 2


def test_the_peak_covers_making_the_integrals(nitrogen: Any) -> None:
    plan = CCSD(nitrogen, 2, memory="1GB").plan()
    iteration = plan.iteration.peak_bytes + plan.diis.held_bytes
    assert plan.peak_bytes == max(iteration, plan.build_bytes) + reserved_bytes(plan.budget)
    kept = sum(plan.hamiltonian.pattern(name).nbytes() for name in plan.names if name not in plan.elsewhere)
    assert plan.build_bytes > kept
    assert "of making the integrals" in plan.explain()


# Bits


def test_reproducible_bits(water: Any) -> None:
    """Of any number of workers, with much memory and little."""
    results = set()
    for workers, memory in ((1, None), (2, None), (3, None), (2, least_memory(CCSD, water, tile=4, reproducible=True))):
        with tw.engine("threads", workers=workers):
            method = CCSD(water, tile=4, reproducible=True, memory=memory, max_cycle=4).run()
            results.add((method.e_corr, *(array.tobytes() for array in method.to_pyscf())))
    assert len(results) == 1


@pytest.mark.parametrize("kind", [CCSD, MP2])
def test_the_least_memory_with_fitted_integrals_is_enough(kind: Any) -> None:
    """Vectors that a larger budget could hold are in a file if that leaves too little for the rest."""
    mf = mean_field_of("ethene", "cc-pvdz")
    least = least_memory(kind, mf, tile=8, integrals="df")
    settings: dict[str, Any] = {"tile": 8, "integrals": "df", "verbose": 0} | ({} if kind is MP2 else {"max_cycle": 2})
    method = kind(mf, memory=least, **settings).run()
    assert method.e_corr == pytest.approx(kind(mf, **settings).run().e_corr, rel=0, abs=1e-10)
    if kind is MP2:
        assert method.make_vectors(current_engine()).held_bytes == 0
        assert kind(mf, tile=8, integrals="df", memory=2 * least).make_vectors(current_engine()).held_bytes > 0


@pytest.mark.parametrize("kind", [DRCCD, MP2])
def test_vectors_of_a_file_are_in_one_again_in_a_second_run(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mf = mean_field_of("ethene", "cc-pvdz")
    job = kind(mf, tile=8, integrals="df", memory=least_memory(kind, mf, tile=8, integrals="df"), verbose=0)
    held = []

    def noted(*arguments: Any, **options: Any) -> Any:
        made = fitted_vectors(*arguments, **options)
        held.append(made.held_bytes)
        return made

    monkeypatch.setattr(method, "fitted_vectors", noted)
    energies = {job.run().e_corr for _ in range(3)}
    assert held[0] > 0
    assert len(held) > 1
    assert set(held[1:]) == {0}
    assert len(energies) == 1


def test_the_budget_of_a_method_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment gives to calls without one does not hold for the parts of a method that was given one."""
    mf = mean_field_of("ethene", "6-31g")
    expected = CCSD(mf, memory="1GB", **TIGHT).run()
    monkeypatch.setenv("TILEWISE_MEMORY", "1kB")
    found = CCSD(mf, memory="1GB", **TIGHT).run()
    assert found.plan().elsewhere == expected.plan().elsewhere == ()
    assert found.e_corr == pytest.approx(expected.e_corr, rel=0, abs=1e-12)
