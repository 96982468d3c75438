"""Every way to run a four-index transform against NumPy, with the counts that its plan gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.engines.threads import ThreadsEngine
from tilewise.engines.transform import ArraySource, Outcome, run_transform
from tilewise.errors import MemoryBudgetError, TilewiseError
from tilewise.plans.transform import Problem, Variant
from tilewise.plans.transform.schedules import cost_of, list_variants
from tilewise.spaces import Space

Array = npt.NDArray[np.float64]
HOST = ThreadsEngine(2)
AO, MO, OCC, VIR = Space([4, 3, 5]), Space([3, 4]), Space([2]), Space([3, 2, 4])
IRREPS = Space([3, 2, 1, 4], irrep=[0, 1, 2, 3])

CASES = {
    "full": ((MO,) * 4, (True, True), 1),
    "full, antisymmetric": ((MO,) * 4, (True, True), -1),
    "first pair symmetric": ((MO,) * 4, (True, False), 1),
    "second pair symmetric": ((MO,) * 4, (False, True), 1),
    "ovov": ((OCC, VIR, OCC, VIR), (False, False), 1),
    "vovv": ((VIR, OCC, VIR, VIR), (False, True), 1),
    "vvov": ((VIR, VIR, OCC, VIR), (True, False), 1),
    "vvov, antisymmetric": ((VIR, VIR, OCC, VIR), (True, False), -1),
    "oovv": ((OCC, OCC, VIR, VIR), (True, True), 1),
    "vvoo": ((VIR, VIR, OCC, OCC), (True, True), 1),
    "four sets": ((OCC, MO, VIR, Space([1])), (False, False), 1),
    "irreps": ((IRREPS,) * 4, (True, True), 1),
    "no orbitals": ((OCC, Space([]), OCC, VIR), (False, False), 1),
}


def integrals(size: int, sign: int, seed: int = 0) -> Array:
    a = np.random.default_rng(seed).standard_normal((size,) * 4)
    a = a + sign * a.transpose(1, 0, 2, 3)
    a = a + sign * a.transpose(0, 1, 3, 2)
    return a + a.transpose(2, 3, 0, 1)


def source_of(problem: Problem, a: Array) -> ArraySource:
    return ArraySource(
        problem.functions,
        np.arange(problem.size),
        lambda ij, kl: a[ij[0][:, None], ij[1][:, None], kl[0], kl[1]],
    )


def orbitals(size: int, spaces: tuple[Space, ...], equal: tuple[bool, bool]) -> list[Array]:
    draw = np.random.default_rng(1)
    made = [draw.standard_normal((size, space.size)) for space in spaces]
    return [made[0], made[0] if equal[0] else made[1], made[2], made[2] if equal[1] else made[3]]


def run(problem: Problem, variant: Variant, a: Array, matrices: list[Array], budget: int = 10**12) -> Outcome:
    return run_transform(HOST, problem, variant, source_of(problem, a), matrices, budget)


def check(problem: Problem, variant: Variant, a: Array, matrices: list[Array]) -> None:
    """The numbers are NumPy's, and everything that the plan counts is what was counted."""
    cost = cost_of(problem, variant, HOST.workers)
    found = run(problem, variant, a, matrices, cost.peak_bytes)
    tensor = found.tensor if found.tensor.in_memory else found.tensor.copy()
    tensor.check()
    exact = np.einsum("pqrs,pi,qj,rk,sl->ijkl", a, *matrices, optimize=True)
    for index, block in tensor.blocks():
        where = tuple(slice(s.offsets[t], s.offsets[t + 1]) for s, t in zip(tensor.spaces, index, strict=True))
        np.testing.assert_allclose(block, exact[where], rtol=0, atol=1e-11 * np.abs(exact).max(initial=1.0))
    assert found.flops == cost.flops
    assert found.integrals == cost.integrals
    assert found.peak_bytes == cost.peak_bytes
    assert (found.written_bytes, found.read_bytes) == (cost.written_bytes, cost.read_bytes)


@pytest.mark.parametrize("case", CASES)
def test_every_variant_gives_the_numbers_of_einsum_and_the_counts_of_its_plan(case: str) -> None:
    spaces, equal, sign = CASES[case]
    problem = Problem.of(AO, spaces, equal, sign)
    a, matrices = integrals(AO.size, sign), orbitals(AO.size, spaces, equal)
    for variant in list_variants(problem):
        check(problem, variant, a, matrices)


def test_blocks_that_symmetry_forbids_are_neither_stored_nor_multiplied() -> None:
    plain = Problem.of(AO, (Space(IRREPS.sizes),) * 4, (True, True))
    labelled = Problem.of(AO, (IRREPS,) * 4, (True, True))
    assert labelled.result.nnz_blocks < plain.result.nnz_blocks
    assert {int(np.bitwise_xor.reduce(IRREPS.irrep[block])) for block in labelled.result.index} == {0}  # type: ignore[index]
    steps = plain.steps(plain.functions.elements), labelled.steps(labelled.functions.elements)
    assert steps[0][:3] == steps[1][:3]
    assert steps[1][3] < steps[0][3] / 2


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, tuple[Space, ...], tuple[bool, bool]]:
    tiles = st.lists(st.integers(1, 4), min_size=1, max_size=3)
    functions = Space(draw(tiles))
    modes = [Space(draw(tiles)) for _ in range(4)]
    equal = draw(st.booleans()), draw(st.booleans())
    for side in (0, 1):
        if equal[side]:
            modes[2 * side + 1] = modes[2 * side]
    return Problem.of(functions, modes, equal, draw(st.sampled_from([1, -1]))), tuple(modes), equal


@given(problems(), st.data())
def test_random_tilings(made: tuple[Problem, tuple[Space, ...], tuple[bool, bool]], data: st.DataObject) -> None:
    problem, spaces, equal = made
    variant = data.draw(st.sampled_from(list(list_variants(problem))))
    check(problem, variant, integrals(problem.size, problem.sign), orbitals(problem.size, spaces, equal))


def test_a_run_above_its_budget_is_refused() -> None:
    spaces, equal, sign = CASES["full"]
    problem, variant = Problem.of(AO, spaces, equal, sign), Variant("fused12-34", keeps=True)
    least = cost_of(problem, variant, HOST.workers).peak_bytes
    with pytest.raises(MemoryBudgetError, match=f"The budget is {least - 1}"):
        run(problem, variant, integrals(AO.size, 1), orbitals(AO.size, spaces, equal), least - 1)


@pytest.mark.parametrize("variant", [Variant("fused12-34", keeps=True), Variant("fused12-34")])
def test_integrals_that_are_no_numbers_are_named(variant: Variant) -> None:
    spaces, equal, sign = CASES["full"]
    problem, a = Problem.of(AO, spaces, equal, sign), integrals(AO.size, 1)
    a[0, 5, 2, 1] = a[2, 1, 0, 5] = np.nan
    with pytest.raises(TilewiseError, match=r"integrals of the tiles \(.*\) are not all finite"):
        run(problem, variant, a, orbitals(AO.size, spaces, equal))


class Broken:
    needed = None

    def read(self, row: int, column: int, out: Array) -> None:
        raise OSError("the disk is gone")


def test_an_error_of_the_source_ends_the_run() -> None:
    spaces, equal, sign = CASES["full"]
    problem = Problem.of(AO, spaces, equal, sign)
    with pytest.raises(OSError, match="the disk is gone"):
        run_transform(HOST, problem, Variant("unfused"), Broken(), orbitals(AO.size, spaces, equal), 10**12)


def test_blocks_that_are_not_needed_count_as_zero() -> None:
    spaces, equal, sign = CASES["full"]
    problem, a = Problem.of(AO, spaces, equal, sign), integrals(AO.size, 1)
    needed = np.random.default_rng(2).random((problem.functions.count,) * 2) < 0.5
    needed |= needed.T
    source = Screened(source_of(problem, a), needed)
    left = a.copy()
    tiles, offsets = problem.functions.tiles, AO.offsets
    for row, column in np.argwhere(~needed):
        for p, q in (tiles[row], tiles[row][::-1]):
            for r, s in (tiles[column], tiles[column][::-1]):
                left[tuple(slice(offsets[t], offsets[t + 1]) for t in (p, q, r, s))] = 0
    matrices = orbitals(AO.size, spaces, equal)
    exact = np.einsum("pqrs,pi,qj,rk,sl->ijkl", left, *matrices, optimize=True)
    for variant in list_variants(problem):
        found = run_transform(HOST, problem, variant, source, matrices, 10**12)
        np.testing.assert_allclose(found.tensor.to_dense(), exact, rtol=0, atol=1e-10)
        assert found.integrals < cost_of(problem, replace(variant), HOST.workers).integrals


class Screened:
    def __init__(self, source: ArraySource, needed: npt.NDArray[np.bool_]) -> None:
        self.source, self.needed = source, needed

    def read(self, row: int, column: int, out: Array) -> None:
        assert self.needed[row, column]
        self.source.read(row, column, out)
