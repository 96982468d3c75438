"""Chains: bounds and verdicts on both sides of the theorems, loops block by block, partitions by brute force."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewise as tw
from strategies import EinsumCase, einsum_cases
from tilewise.costs.fusion import (
    futile_capacity_words,
    least_reuse_words,
    list_partitions,
    pair_capacity_words,
    parse_partition,
    partition_bound_words,
)
from tilewise.patterns import expand
from tilewise.plans import chains
from tilewise.plans.budget import MOST
from tilewise.plans.chains import Chain, find_chain
from tilewise.plans.nests import Fused, Nest, Nests, Tensor
from tilewise.plans.program import Step

TRANSFORM = "pqrs,pi,qj,rk,sl->ijkl"


def transform_patterns(ao: tw.Space, mo: tw.Space, symmetry: tw.Symmetry | None = None) -> list[tw.Pattern]:
    """Integrals and four different coefficient matrices."""
    return [tw.Pattern.dense([ao] * 4, symmetry), *(tw.Pattern.dense((ao, mo)) for _ in range(4))]


def transform_chain(n: int, memory: int | str, tile: int = 1, orbitals: int | None = None) -> Chain:
    spaces = tw.Space.uniform(n, tile=tile), tw.Space.uniform(orbitals or n, tile=tile)
    return tw.plan_chain(TRANSFORM, *transform_patterns(*spaces), memory=memory)


def program_of(text: str, *operands: Any) -> tw.Program:
    made = tw.plan(text, *operands)
    assert isinstance(made, tw.Program)
    return made


# The transform


@pytest.mark.parametrize("n", [2, 3, 5])
def test_least_memory_of_a_pair_is_that_of_theorem_5_1(n: int) -> None:
    chain = transform_chain(n, "1MB")
    assert [(pair.first, pair.second) for pair in chain.neighbours] == [(1, 2), (2, 3), (3, 4)]
    for pair in chain.neighbours:
        # A column of A is gone before the one element of the result is needed, which the theorem counts beside it.
        assert pair.least_bytes == 8 * (pair_capacity_words((n, n), (n, n)) - 1)
        assert pair.intermediate_bytes == 8 * n**4


def test_verdicts_on_both_sides_of_every_limit() -> None:
    n = 12
    pair = transform_chain(n, "1MB", tile=4).neighbours[0]
    futile = int(futile_capacity_words(2 * n**5, n**4, share=0.1))
    found = {
        memory: transform_chain(n, memory, tile=4).neighbours[0].verdict
        for memory in (
            8 * futile,
            8 * (futile + 1),
            pair.least_bytes - 1,
            pair.least_bytes,
            pair.whole_bytes - 1,
            pair.whole_bytes,
        )
    }
    assert list(found.values()) == ["futile", "too little memory", "too little memory", "fuse", "fuse", "fits anyhow"]


def test_fusing_a_pair_spares_nearly_half_of_its_traffic() -> None:
    n = 12
    for pair in transform_chain(n, "50kB", tile=4).neighbours:
        assert pair.unfused_bytes == 8 * (4 * n**4 + 2 * n**2)
        assert pair.fused_bytes == 8 * (2 * n**4 + 2 * n**2)
        assert pair.spared_bytes == 2 * pair.intermediate_bytes
        assert pair.spared_share == pytest.approx(n**4 / (2 * n**4 + n**2))


def test_bounds_of_steps_are_those_at_the_memory_given() -> None:
    n, words = 12, 4
    for step in transform_chain(n, 8 * words, tile=4).steps:
        assert step.compulsory_bytes == 8 * (2 * n**4 + n**2)
        assert step.bound_bytes == int(8 * (math.sqrt(27 / 8) * n**5 / math.sqrt(words) - words))
        assert step.flops == 2 * n**5
    for step in transform_chain(n, "1GB", tile=4).steps:
        assert step.bound_bytes == step.compulsory_bytes


@pytest.mark.parametrize(("ao", "mo"), [(6, 6), (6, 4), (4, 6)])
def test_full_reuse_needs_the_smallest_tensor(ao: int, mo: int) -> None:
    """Theorem 6.1: no loops around all four steps get by with less."""
    spaces = tw.Space.uniform(ao, tile=2), tw.Space.uniform(mo, tile=2)
    program = program_of(TRANSFORM, *transform_patterns(*spaces))
    least = Nests.of(program).least(Fused(program.steps)).peak_bytes
    sizes = (ao**4, mo * ao**3, mo**2 * ao**2, mo**3 * ao, mo**4)
    chain = find_chain(program, least)
    assert chain.partition == "1234"
    assert chain.bound_bytes == 8 * (ao**4 + 4 * ao * mo + mo**4)
    assert least > 8 * least_reuse_words(sizes)
    assert find_chain(program, least - 1).partition != "1234"


@pytest.mark.parametrize("orbitals", [6, 9, 12])
@pytest.mark.parametrize("memory", [800, 8_000, 20_000, 60_000, 200_000, 10**7])
def test_groups_are_the_best_of_all_partitions_that_fit(orbitals: int, memory: int) -> None:
    spaces = tw.Space.uniform(12, tile=3), tw.Space.uniform(orbitals, tile=3)
    program = program_of(TRANSFORM, *transform_patterns(*spaces))
    chain, nests = find_chain(program, memory), Nests.of(program)
    sizes = [program.operands[0].nbytes(), *(step.plan.result_bytes for step in program.steps)]
    beside, bounds = [12 * orbitals * 8] * 4, [step.bound_bytes for step in chain.steps]

    def fits(partition: str) -> bool:
        groups = [[program.steps[number - 1] for number in group] for group in parse_partition(partition, 4)]
        return all(nests.least(Fused(tuple(group))).peak_bytes <= memory for group in groups if len(group) > 1)

    fitting = {p: partition_bound_words(p, sizes, beside, bounds) for p in list_partitions(4) if fits(p)}
    assert chain.bound_bytes == min(fitting.values()) == fitting[chain.partition]
    assert chain.unfused_bytes == fitting["1/2/3/4"]


def test_symmetric_integrals_are_looped_over_by_pairs_of_tiles() -> None:
    """A stored block belongs to two slices unless both are done in one turn."""
    ao = tw.Space.uniform(6, tile=2)
    patterns = transform_patterns(ao, ao, tw.Symmetry(((0, 1), 1), ((2, 3), 1)))
    pair = tw.plan_chain(TRANSFORM, *patterns, memory="1MB").neighbours[0]
    whole = patterns[0].nbytes()
    assert pair.nest.loops[0] in ("pq", "rs")
    assert pair.least_bytes < whole < pair.whole_bytes
    program = program_of(TRANSFORM, *patterns)
    # One loop over all four steps breaks the symmetry of its index: the integrals stay.
    assert Nests.of(program).least(Fused(program.steps)).peak_bytes > whole


# Loops, block by block


def uses(step: Step, tensors: dict[int, Tensor]) -> Iterator[tuple[dict[int, int], tuple[int, ...]]]:
    """Stored blocks that each product (or sum) of a step reads, by tensor, and the result block that it adds to."""
    own = [tensors[number] for number in step.inputs]
    tiles = {i: count for t in own for i, count in zip(t.indices, t.pattern.ntiles, strict=True)}
    rows = [
        {tuple(block): int(row) for block, row in zip(full.index.tolist(), full.source, strict=True)}
        for full in (expand(t.pattern) for t in own)
    ]
    for chosen in product(*map(range, tiles.values())):
        tile = dict(zip(tiles, chosen, strict=True))
        read = [found.get(tuple(tile[i] for i in t.indices)) for found, t in zip(rows, own, strict=True)]
        if None not in read:
            stored = {n: row for n, row in zip(step.inputs, read, strict=True) if row is not None}
            yield stored, tuple(tile[i] for i in tensors[step.result].indices)


def turn(tensor: Tensor, block: tuple[int, ...], loops: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Which turn of some loops a block belongs to."""
    return tuple(tuple(sorted(block[tensor.indices.index(letter)] for letter in loop)) for loop in loops)


def assert_loops_hold(tensors: dict[int, Tensor], pair: Fused, nest: Nest, itemsize: int) -> None:
    """What a turn needs is there in that turn, each stored block comes in one turn of outer loops, and it all fits."""
    maker, reader = pair.steps
    middle, loops = tensors[maker.result], nest.loops
    made = {tuple(block) for block in middle.pattern.index.tolist()}
    index = {number: [tuple(block) for block in t.pattern.index.tolist()] for number, t in tensors.items()}
    turns = {turn(middle, block, loops) for block in made}

    def part(number: int, at: tuple[tuple[int, ...], ...]) -> set[int]:
        """Stored blocks that are there in a turn: those of the loops, from outside, that the tensor has."""
        depth = tensors[number].depth(loops)
        own = enumerate(index[number])
        return {row for row, block in own if turn(tensors[number], block, loops[:depth]) == at[:depth]}

    parts = {(number, at): part(number, at) for number in (*pair.outer, *pair.inner) for at in turns}
    for stored, block in uses(maker, tensors):
        at = turn(middle, block, loops)
        assert all(row in parts[number, at] for number, row in stored.items())
    for stored, block in uses(reader, tensors):
        at = turn(middle, index[maker.result][stored[maker.result]], loops)
        assert all(row in parts[number, at] for number, row in stored.items())
        assert index[reader.result].index(block) in parts[reader.result, at]
    for at in turns:
        held = [n for n in pair.outer if tensors[n].depth(loops) < len(loops)]
        rows = [(number, row) for number in (*held, *pair.inner) for row in parts[number, at]]
        assert sum(int(tensors[n].pattern.block_sizes[row]) for n, row in rows) * itemsize <= nest.peak_bytes
    for number in pair.outer:
        depth = tensors[number].depth(loops)
        seen = [row for prefix in {at[:depth] for at in turns} for row in part(number, (*prefix, *[()] * len(loops)))]
        assert len(seen) == len(set(seen))


def assert_all_loops_hold(program: tw.Program) -> None:
    nests = Nests.of(program)
    for first, second in product(program.steps, repeat=2):
        if first.result in second.inputs:
            pair = Fused((first, second))
            for nest in nests.every(pair):
                assert_loops_hold(dict(nests.tensors), pair, nest, 8)


@settings(max_examples=100)
@given(st.integers(2, 4).flatmap(lambda n: einsum_cases(n, "float64")))
def test_loops_read_every_block_once_and_hold_what_they_need(case: EinsumCase) -> None:
    made = tw.plan(case.text, *[tensor.pattern for tensor in case.tensors])
    if isinstance(made, tw.Program):
        assert_all_loops_hold(made)


@pytest.mark.parametrize("modes", [(), (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("text", ["aba,->ab", "abc,ax,by->cxy", "abc,ax,cy->bxy", "abc,cx,xy->aby", "abc,abx,xy->cy"])
def test_loops_over_symmetric_operands(text: str, modes: tuple[int, ...]) -> None:
    """A diagonal of exchanged modes has its tile in any of them; the slices of exchanged indices share blocks."""
    i, symmetry = tw.Space([2, 1, 3]), tw.Symmetry((modes, -1)) if modes else None
    _, *others = text.split("->")[0].split(",")
    patterns = [tw.Pattern.dense([i] * 3, symmetry), *(tw.Pattern.dense([i] * len(term)) for term in others)]
    assert_all_loops_hold(program_of(text, *patterns))


def test_loops_over_sparse_symmetric_integrals() -> None:
    ao, mo = tw.Space([3, 1, 2]), tw.Space([2, 2])
    symmetry = tw.Symmetry(((0, 1), 1), ((2, 3), 1))
    integrals = tw.Pattern.random([ao] * 4, density=0.4, symmetry=symmetry)
    matrices = [tw.Pattern.random((ao, mo), density=0.7, seed=seed) for seed in range(4)]
    assert_all_loops_hold(program_of(TRANSFORM, integrals, *matrices))


@settings(max_examples=100)
@given(st.integers(2, 4).flatmap(einsum_cases), st.integers(16, 4000))
def test_figures_of_any_chain(case: EinsumCase, memory: int) -> None:
    if isinstance(tw.plan(case.text, *case.tensors), tw.Plan):
        return
    chain = tw.plan_chain(case.text, *case.tensors, memory=memory)
    free = tw.plan_chain(case.text, *case.tensors, memory=MOST)
    assert len(chain.neighbours) == len(chain.steps) - 1
    assert sorted(number for group in chain.groups for number in group.steps) == [s.number for s in chain.steps]
    assert chain.bound_bytes <= chain.unfused_bytes
    for pair, unbound in zip(chain.neighbours, free.neighbours, strict=True):
        assert unbound.fused_bytes <= pair.fused_bytes <= pair.unfused_bytes
        assert pair.least_bytes <= pair.whole_bytes
        assert 0 <= pair.spared_share <= 1
        assert unbound.verdict == "fits anyhow"
        # Where the loops have room they move operands and result alone: the bound cannot say more there.
        roomy = tw.plan_chain(case.text, *case.tensors, memory=max(pair.least_bytes, 16))
        same = next(p for p in roomy.neighbours if (p.first, p.second) == (pair.first, pair.second))
        assert same.fused_bytes == unbound.fused_bytes
        assert same.verdict in ("fuse", "fits anyhow", "futile")
    for group in chain.groups:
        assert group.nest is None or group.nest.peak_bytes <= memory


def pair_of(text: str, *operands: tw.Pattern) -> tuple[Nests, Fused]:
    program = program_of(text, *operands)
    assert len(program.steps) == 2
    return Nests.of(program), Fused(program.steps)


def test_what_passes_by_while_an_intermediate_stays() -> None:
    """Of the last step: a panel of its operand and a block of its result; of the first, what comes for one k tile."""
    i, j, k, long = tw.Space([2, 2]), tw.Space([2, 2]), tw.Space([3]), tw.Space([50, 30])
    operands = [tw.Pattern.dense(spaces) for spaces in ((i, j), (j, k), (k, long))]
    nests, pair = pair_of("ij,jk,kl->il", *operands)
    assert nests.nest(pair).peak_bytes == 8 * (4 * 3 + 3 * 50 + 2 * 50)
    short = tw.Pattern.dense((k, tw.Space([1])))
    nests, pair = pair_of("kl,ij,jk->il", short, tw.Pattern.dense((i, j)), tw.Pattern.dense((j, k)))
    assert [step.plan.label for step in pair.steps] == ["kl,jk->lj", "lj,ij->il"]
    assert nests.nest(pair).peak_bytes == 8 * (4 + max(min(3 + 2 * 3, 3 + 4 * 3), 2 * 4 + 2))


def test_symmetric_operands_pass_as_a_whole() -> None:
    """Their unique blocks belong to several panels, and to several k tiles."""
    i, one = tw.Space([3, 3]), tw.Space([1])
    symmetric, plain = tw.Pattern.dense((i, i), tw.Symmetry(((0, 1), 1))), tw.Pattern.dense((i, i))
    vector = tw.Pattern.dense((one, i))
    for last, passing in ((symmetric, 27), (plain, 18)):
        nests, pair = pair_of("ij,jk,kl->il", vector, plain, last)
        assert nests.nest(pair).peak_bytes == 8 * (6 + passing + 3)
    for first, passing in ((symmetric, 27 + 6), (plain, 18 + 3)):
        nests, pair = pair_of("ij,jk,kl->il", vector, first, tw.Pattern.dense((i, one)))
        assert nests.nest(pair).peak_bytes == 8 * (6 + passing)


def test_loops_that_only_small_tensors_lack_stand_outside() -> None:
    """Tiles of x, then of p, then of j: the result stays for an x, integrals for an x and a p."""
    ao, mo, aux = tw.Space([10] * 10), tw.Space([10] * 8), tw.Space([10] * 10)
    orbitals = tw.Pattern.dense((ao, mo))
    nests, pair = pair_of("pqx,pi,qj->ijx", tw.Pattern.dense((ao, ao, aux)), orbitals, orbitals)
    best = nests.least(pair)
    assert best.loops == ("x", "p", "j")
    assert best.peak_bytes == 8 * (2 * 100 * 80 + 10 * 80 * 80 + 10 * 10 * 100 + 10**3)


def test_an_intermediate_that_is_small_beside_long_sums_fits_anyhow() -> None:
    """Both operands of the first step come k tile by k tile."""
    long, short = tw.Space([10] * 20), tw.Space([10])
    operands = [tw.Pattern.dense(spaces) for spaces in ((long, short), (short, long), (long, short))]
    (pair,) = tw.plan_chain("ij,jk,kl->il", *operands, memory="3kB").neighbours
    assert (pair.verdict, pair.nest.loops) == ("fits anyhow", ())
    assert pair.least_bytes == pair.whole_bytes == 3 * 10 * 10 * 8


def test_an_operand_of_both_steps_is_counted_once() -> None:
    i = tw.Space([4, 3])
    one, other, third = (tw.Pattern.dense((i, i)) for _ in range(3))
    different = tw.plan_chain("ij,jk,kl->il", one, other, third, memory="1MB").neighbours[0]
    assert (different.unfused_bytes, different.fused_bytes) == (6 * 49 * 8, 4 * 49 * 8)
    for operands, read in (((one, other, one), 6), ((one, one, one), 5)):
        same = tw.plan_chain("ij,jk,kl->il", *operands, memory="1MB").neighbours[0]
        assert (same.unfused_bytes, same.fused_bytes) == (read * 49 * 8, (len(set(map(id, operands))) + 1) * 49 * 8)


def test_steps_that_move_nothing_are_not_fused() -> None:
    i = tw.Space([4, 3])
    chain = tw.plan_chain("ij,jk,kl->il", *[tw.Pattern.empty((i, i))] * 3, memory="1MB")
    assert (chain.partition, chain.bound_bytes, chain.neighbours[0].spared_share) == ("1/2", 0, 0.0)


# Trees, types and options


def test_groups_of_a_tree_need_not_be_neighbours_in_the_order() -> None:
    i = tw.Space([5] * 4)
    operands = [tw.Pattern.dense((i, i)) for _ in range(12)]
    text = ",".join("abcdefghijklm"[at : at + 2] for at in range(12)) + "->am"
    chain = tw.plan_chain(text, *operands, memory="5kB")
    assert len(chain.steps) == 11
    assert sorted(number for group in chain.groups for number in group.steps) == list(range(1, 12))
    assert "+" in chain.partition
    assert max(len(group.steps) for group in chain.groups) > 1
    assert chain.partition in chain.explain()


def test_groups_have_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    i = tw.Space([5] * 4)
    text, operands = "ab,bc,cd,de,e->a", [*(tw.Pattern.dense((i, i)) for _ in range(4)), tw.Pattern.dense((i,))]
    assert tw.plan_chain(text, *operands, memory="1MB").partition == "1234"
    monkeypatch.setattr(chains, "MOST_FUSED", 3)
    assert max(len(group.steps) for group in tw.plan_chain(text, *operands, memory="1MB").groups) == 3


@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("complex128", 16)])
def test_bytes_follow_the_element_type(dtype: str, itemsize: int) -> None:
    i = tw.Space([2, 3])
    tensors = [tw.random((i, i), density=1.0, seed=seed, dtype=dtype) for seed in range(3)]
    chain = tw.plan_chain("ij,jk,kl->il", *tensors, memory="1MB")
    assert chain.dtype == np.dtype(dtype)
    assert chain.neighbours[0].intermediate_bytes == 25 * itemsize


def test_tensors_and_their_patterns_give_the_same_chain() -> None:
    i = tw.Space([2, 3])
    tensors = [tw.random((i, i), density=0.5, seed=seed) for seed in range(3)]
    patterns = [tensor.pattern for tensor in tensors]
    assert tw.plan_chain("ij,jk,kl->il", *tensors, memory=500) == tw.plan_chain("ij,jk,kl->il", *patterns, memory=500)


def test_a_diagonal_is_a_step() -> None:
    i = tw.Space([2, 3])
    cube, square = tw.Pattern.dense((i, i, i)), tw.Pattern.dense((i, i))
    chain = tw.plan_chain("iij,jk->ik", cube, square, memory=400)
    assert [step.flops for step in chain.steps] == [0, 250]
    assert chain.steps[0].bound_bytes == chain.steps[0].compulsory_bytes


def test_memory_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_MEMORY", "700B")
    i = tw.Space([4, 3])
    chain = tw.plan_chain("ij,jk,kl->il", *[tw.Pattern.dense((i, i))] * 3)
    assert chain.memory_bytes == 700


def test_screened_steps_move_less() -> None:
    i = tw.Space([2] * 8)
    p = tw.Pattern.decaying((i, i), length=1.0)
    whole = tw.plan_chain("ij,jk,kl->il", p, p, p, memory="1kB")
    screened = tw.plan_chain("ij,jk,kl->il", p, p, p, memory="1kB", tol=0.5)
    assert screened.neighbours[0].unfused_bytes < whole.neighbours[0].unfused_bytes


def test_explanation_has_every_figure() -> None:
    chain = transform_chain(12, "50kB", tile=4)
    text = str(chain)
    assert text == chain.explain()
    lines = text.splitlines()
    assert lines[0] == f"{TRANSFORM}  (float64, 50 kB)"
    for step in chain.steps:
        assert any(line.startswith(f"{step.number}: {step.label}") for line in lines)
    row = next(line for line in lines if line.startswith("2 and 3"))
    for part in ("166 kB", "666 kB", "334 kB", "332 kB (49.8 %)", " ".join(chain.neighbours[1].nest.loops), "fuse"):
        assert part in row
    assert f"all: {chain.partition}" in text
    assert "Futile: less than 10 % can be spared." in text
    assert chain._repr_html_().count("<table>") == 3
    assert repr(chain) == f"Chain('{TRANSFORM}', 4 steps, 50 kB, {chain.partition})"


# Errors


@pytest.mark.parametrize("text", ["ij,jk->ik", "ij->ji"])
def test_a_single_step_has_no_neighbours(text: str) -> None:
    p = tw.Pattern.dense((tw.Space([2]), tw.Space([2])))
    with pytest.raises(
        tw.InputError, match=rf"'{text}' is a single step\. Expected an expression of several.*tw\.plan"
    ):
        tw.plan_chain(text, *[p] * (text.count(",") + 1), memory="1MB")


@pytest.mark.parametrize("memory", ["much", -1, 1.5, "4 parsecs"])
def test_memory_that_is_none(memory: Any) -> None:
    p = tw.Pattern.dense((tw.Space([2]), tw.Space([2])))
    with pytest.raises(tw.InputError, match=rf"memory={memory!r} is no amount of memory\. Expected bytes"):
        tw.plan_chain("ij,jk,kl->il", p, p, p, memory=memory)


@pytest.mark.parametrize("memory", [0, 7])
def test_memory_without_room_for_an_element(memory: int) -> None:
    p = tw.Pattern.dense((tw.Space([2]), tw.Space([2])))
    with pytest.raises(tw.InputError, match=rf"memory={memory} bytes hold no element of 8 bytes\. Expected room"):
        tw.plan_chain("ij,jk,kl->il", p, p, p, memory=memory)


def test_operands_are_tensors_or_patterns() -> None:
    p: Any = np.eye(2)
    with pytest.raises(tw.InputError, match="Operand 0 of 'ij,jk,kl->il' is a ndarray"):
        tw.plan_chain("ij,jk,kl->il", p, p, p, memory="1MB")
