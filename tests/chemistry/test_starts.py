"""Amplitudes of a user where a method has its own."""

from __future__ import annotations

import tracemalloc
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import tilewise as tw
from chemistry.cc_cases import mean_field_of
from tilewise.chemistry import CCSD, CCSD_T, MP2
from tilewise.chemistry.hamiltonian import Hamiltonian
from tilewise.chemistry.spaces import OrbitalSpaces, stored_elements
from tilewise.chemistry.starts import Start
from tilewise.engines.base import current_engine
from tilewise.errors import ConvergenceError


def spaces_of(nocc: int, nvir: int, irreps: int, tile: int) -> OrbitalSpaces:
    """Orbitals whose irreps take turns, so that the tiles have them in another order."""
    labels = (np.arange(nocc) % irreps, np.arange(nvir) % irreps) if irreps > 1 else (None, None)
    return OrbitalSpaces.of((nocc, nvir), labels, tile)


def placed(start: Start | None, spaces: OrbitalSpaces) -> dict[str, tw.BlockTensor]:
    assert start is not None
    return start.placed(spaces, None, current_engine())


@pytest.mark.parametrize("irreps", [1, 4])
@pytest.mark.parametrize("blocks", [False, True], ids=["arrays", "blocks"])
def test_they_are_put_in_the_order_of_tiles(irreps: int, blocks: bool) -> None:
    spaces, random = spaces_of(5, 9, irreps, 3), np.random.default_rng(1)
    given: dict[str, Any] = {"t1": random.normal(size=(5, 9)), "t2": random.normal(size=(5, 5, 9, 9))}
    occ, vir = spaces.occ.order, spaces.vir.order
    singles, doubles = given["t1"][np.ix_(occ, vir)], given["t2"][np.ix_(occ, occ, vir, vir)]
    if blocks:
        given["t1"] = tw.from_dense(singles, (spaces.occ, spaces.vir))
        given["t2"] = tw.from_dense(doubles, (spaces.occ, spaces.occ, spaces.vir, spaces.vir))
    found = placed(Start.of(("t1", "t2"), given["t1"], given["t2"], spaces, current_engine()), spaces)
    mean = 0.5 * (doubles + doubles.transpose(1, 0, 3, 2)).transpose(0, 2, 1, 3)
    for name, expected in (("t1", singles), ("t2", mean)):
        kept = expected * stored_elements(found[name].pattern)
        np.testing.assert_allclose(found[name].to_dense(), kept, rtol=0, atol=1e-15)


def test_what_is_missing_is_zero() -> None:
    spaces = spaces_of(3, 4, 1, 2)
    assert Start.of(("t1", "t2"), None, None, spaces, current_engine()) is None
    found = placed(Start.of(("t1", "t2"), np.ones((3, 4)), None, spaces, current_engine()), spaces)
    assert found["t2"].norm() == 0.0
    holes = tw.from_blocks({(0, 1, 0, 1): np.ones((2, 1, 2, 2))}, (spaces.occ, spaces.occ, spaces.vir, spaces.vir))
    assert placed(Start.of(("t2",), None, holes, spaces, current_engine()), spaces)["t2"].norm() == pytest.approx(2.0)


def test_they_take_no_more_memory_than_what_is_made_of_them() -> None:
    spaces = spaces_of(16, 48, 1, 12)
    array = np.ones((16, 16, 48, 48))
    tracemalloc.start()
    try:
        found = placed(Start.of(("t2",), None, array, spaces, current_engine()), spaces)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found["t2"].nbytes == array.nbytes
    assert peak < 1.4 * array.nbytes


def test_they_are_made_after_the_integrals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for them is counted beside the amplitudes of an iteration, and not while integrals are made."""
    mf, order = mean_field_of("water", "6-31g"), []
    given = CCSD(mf, max_cycle=1).run().to_pyscf()
    build, place = Hamiltonian.build, Start.placed
    monkeypatch.setattr(Hamiltonian, "build", lambda *a, **k: order.append("integrals") or build(*a, **k))  # type: ignore[func-returns-value]
    monkeypatch.setattr(Start, "placed", lambda *a: order.append("start") or place(*a))  # type: ignore[func-returns-value]
    CCSD(mf, max_cycle=1).kernel(*given)
    assert order == ["integrals", "start"]


def test_amplitudes_of_mp2_are_a_start() -> None:
    mf = mean_field_of("water", "6-31g")
    given = CCSD(mf, max_cycle=0)
    given.kernel(None, MP2(mf).run().t2)
    assert given.e_corr == pytest.approx(MP2(mf).run().e_corr, rel=0, abs=1e-10)


@pytest.mark.parametrize("kind", [CCSD, CCSD_T])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_nothing_of_what_was_given_is_held_through_the_run(
    kind: type[CCSD], dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither as it is nor as a copy in double precision."""
    mf = mean_field_of("water", "6-31g")
    given = [array.astype(dtype) for array in CCSD(mf, max_cycle=1).run().to_pyscf()]
    held: list[weakref.ref[Any]] = []
    alive: list[bool] = []
    place = Start.placed

    def remember(start: Start, *arguments: Any) -> dict[str, tw.BlockTensor]:
        held.extend(weakref.ref(value) for value in start.given.values())
        found = place(start, *arguments)
        assert not start.given
        return found

    def look(facts: dict[str, Any]) -> None:
        alive.extend(each() is not None for each in held)

    monkeypatch.setattr(Start, "placed", remember)
    with suppress(ConvergenceError):
        kind(mf, max_cycle=2, callback=look).kernel(t2=given.pop(), t1=given.pop())
    assert alive == [False] * 4


def test_single_precision_is_no_loss_of_symmetry() -> None:
    spaces, random = spaces_of(3, 4, 1, 2), np.random.default_rng(1)
    array = random.normal(size=(3, 3, 4, 4)).astype(np.float32)
    found = placed(Start.of(("t2",), None, array, spaces, current_engine()), spaces)["t2"].to_dense()
    whole = array.astype(np.float64)
    np.testing.assert_array_equal(found, 0.5 * (whole.transpose(0, 2, 1, 3) + whole.transpose(1, 3, 0, 2)))


def test_amplitudes_that_a_method_has_not_are_no_start() -> None:
    spaces = spaces_of(3, 4, 1, 2)
    assert Start.of(("t2",), np.ones((3, 4)), None, spaces, current_engine()) is None
