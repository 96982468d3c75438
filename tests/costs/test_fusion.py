"""The theorems on fusion: against the best schedules of tiny chains, listings that count their words, and formulas."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.costs import product_bound_words
from tilewise.costs.fusion import (
    full_reuse_words,
    fusion_bounds_words,
    futile_capacity_words,
    group_bound_words,
    least_reuse_words,
    list_partitions,
    pair_capacity_words,
    parse_partition,
    partition_bound_words,
    partition_text,
    step_bound_words,
    tensor_sizes,
)
from tilewise.errors import InputError

Word = tuple[str, int, int]
Work = list[tuple[Word, Word, Word]]
"""Multiplications: two words, and the word that their product is added to."""

# The best schedule of a few multiplications


def least_traffic(work: Work, capacity: int) -> int | None:
    """Words that the best schedule moves, of all there are; None if there is none.

    What is only read lies beyond the level, what is made and never read has to be there at the end. A state is what
    the level holds, what is done, and which words have a valid copy beyond.
    """
    words = sorted({word for triple in work for word in triple})
    bit = {word: 1 << at for at, word in enumerate(words)}
    triples = [(bit[a] | bit[b], bit[c]) for a, b, c in work]
    makers = {m: sum(1 << at for at, (_, c) in enumerate(triples) if c == m) for m in bit.values()}
    readers = {m: sum(1 << at for at, (ab, _) in enumerate(triples) if ab & m) for m in bit.values()}
    made = sum(m for m in bit.values() if makers[m])
    final = sum(m for m in bit.values() if makers[m] and not readers[m])
    everything = (1 << len(work)) - 1
    start = (0, 0, sum(bit.values()) & ~made)
    best, queue = {start: 0}, deque([(0, start)])
    while queue:
        cost, state = queue.popleft()
        if best[state] < cost:
            continue
        held, done, saved = state
        if done == everything and final & ~saved == 0:
            return cost
        following: list[tuple[int, tuple[int, int, int]]] = []
        for at, (ab, c) in enumerate(triples):
            ready = all(makers[m] & ~done == 0 for m in bit.values() if ab & m)
            if not done >> at & 1 and ready and (ab | c) & ~held == 0:
                following.append((0, (held, done | 1 << at, saved & ~c)))
        room = held.bit_count() < capacity
        for m in bit.values():
            if held & m:
                dead = readers[m] & ~done == 0 and (not final & m or bool(saved & m))
                if dead or (not room and saved & m):
                    following.append((0, (held & ~m, done, saved)))
                if not saved & m and makers[m] & done:
                    following.append((1, (held, done, saved | m)))
            elif room and saved & m and (readers[m] | makers[m]) & ~done:
                following.append((1, (held | m, done, saved)))
            elif room and makers[m] and not makers[m] & done:
                following.append((0, (held | m, done, saved)))
        for price, reached in following:
            if cost + price < best.get(reached, 1 << 30):
                best[reached] = cost + price
                (queue.append if price else queue.appendleft)((cost + price, reached))
    return None


def first_step(n_i: int, n_j: int) -> Work:
    """O[j] += A[i,j] B[i]."""
    return [(("A", i, j), ("B", i, 0), ("O", 0, j)) for i in range(n_i) for j in range(n_j)]


def second_step(n_j: int, matrix: str = "D") -> Work:
    """C += O[j] D[j]."""
    return [(("O", 0, j), (matrix, j, 0), ("C", 0, 0)) for j in range(n_j)]


@pytest.mark.parametrize(("n_i", "n_j", "capacity"), [(2, 2, 3), (2, 2, 4), (1, 3, 3), (3, 1, 3), (3, 2, 3)])
def test_fusion_lemma_on_best_schedules(n_i: int, n_j: int, capacity: int) -> None:
    one, two = least_traffic(first_step(n_i, n_j), capacity), least_traffic(second_step(n_j), capacity)
    both = least_traffic(first_step(n_i, n_j) + second_step(n_j), capacity)
    assert one is not None
    assert two is not None
    assert both is not None
    outer = n_i * n_j + n_i + n_j + 1
    assert group_bound_words([one, two], [n_j], outer) <= both <= one + two
    steps = [
        step_bound_words(n_i * n_j, capacity, [n_i * n_j, n_i], n_j),
        step_bound_words(n_j, capacity, [n_j, n_j], 1),
    ]
    assert steps[0] <= one
    assert steps[1] <= two
    assert group_bound_words(steps, [n_j], outer) <= both


def test_lemma_says_more_than_operands_and_result_in_a_tight_level() -> None:
    one, two = least_traffic(first_step(3, 2), 3), least_traffic(second_step(2), 3)
    assert (one, two, least_traffic(first_step(3, 2) + second_step(2), 3)) == (13, 5, 16)
    assert group_bound_words([13, 5], [2], outer_words=12) == 14


def test_no_schedule_has_less_than_three_words() -> None:
    assert least_traffic(first_step(1, 1), 2) is None
    assert least_traffic(first_step(1, 1), 3) == 3


def test_an_operand_of_both_steps_comes_once() -> None:
    """C = sum_ij A[i,j] b[i] b[j]: the lemma as the paper has it says nine, and seven words are enough."""
    both = first_step(2, 2) + second_step(2, "B")
    steps = [step_bound_words(4, 20, [4, 2], 2), step_bound_words(2, 20, [2, 2], 1)]
    assert least_traffic(both, 20) == 7
    assert group_bound_words(steps, [2], 7) == 9
    assert group_bound_words(steps, [2], 7, shared_words=2) == 7


@pytest.mark.parametrize(("n_i", "n_j"), [(2, 2), (1, 3), (3, 1)])
def test_pair_capacity_is_enough_for_the_best_schedule(n_i: int, n_j: int) -> None:
    both = first_step(n_i, n_j) + second_step(n_j)
    compulsory = n_i * n_j + n_i + n_j + 1
    assert least_traffic(both, pair_capacity_words((n_i, 1), (n_j, 1))) == compulsory


# Bounds of chains

COUNTS = st.integers(0, 10**6)


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Tensors along a chain, coefficients, and bounds of its steps at some capacity."""
    steps = draw(st.integers(1, 6))
    tensors = draw(st.lists(COUNTS, min_size=steps + 1, max_size=steps + 1))
    beside = draw(st.lists(COUNTS, min_size=steps, max_size=steps))
    work = draw(st.lists(st.integers(0, 10**9), min_size=steps, max_size=steps))
    capacity = draw(st.integers(3, 10**6))
    bounds = [step_bound_words(work[at], capacity, [tensors[at], beside[at]], tensors[at + 1]) for at in range(steps)]
    return tensors, beside, bounds


def inner_words(partition: str, tensors: Sequence[int]) -> int:
    groups = parse_partition(partition, len(tensors) - 1)
    return sum(tensors[number] for group in groups for number in group[:-1])


@given(chains())
def test_fusing_spares_twice_the_intermediates_by_the_bound(chain: tuple[list[int], list[int], list[int]]) -> None:
    tensors, beside, bounds = chain
    for partition in list_partitions(len(bounds)):
        found = partition_bound_words(partition, tensors, beside, bounds)
        assert found == sum(bounds) - 2 * inner_words(partition, tensors)
        assert found >= tensors[0] + sum(beside) + tensors[-1]


@given(chains(), st.data())
def test_bounds_are_monotonic_and_not_below_what_groups_read_and_write(
    chain: tuple[list[int], list[int], list[int]], data: st.DataObject
) -> None:
    tensors, beside, _ = chain
    weak = data.draw(st.lists(COUNTS, min_size=len(beside), max_size=len(beside)))
    found = {p: partition_bound_words(p, tensors, beside, weak) for p in list_partitions(len(beside))}
    for coarse, fine in itertools.product(found, repeat=2):
        groups = [set(group) for group in parse_partition(coarse, len(beside))]
        if all(any(set(part) <= group for group in groups) for part in parse_partition(fine, len(beside))):
            assert found[coarse] <= found[fine]
    for partition, bound in found.items():
        groups_of = parse_partition(partition, len(beside))
        outer = sum(tensors[group[0] - 1] + tensors[group[-1]] for group in groups_of) + sum(beside)
        assert bound >= outer


@given(st.integers(1, 10**9), st.integers(3, 10**6), st.lists(COUNTS, max_size=3), COUNTS)
def test_step_bound_is_the_larger_one(work: int, capacity: int, read: list[int], written: int) -> None:
    bound = step_bound_words(work, capacity, read, written)
    assert bound == max(sum(read) + written, int(product_bound_words(work, capacity)))
    assert step_bound_words(work, capacity, read, written, uses=4) <= bound


@pytest.mark.parametrize("steps", [1, 2, 4, 9, 10, 12])
def test_partitions_are_all_there_are_and_can_be_read_back(steps: int) -> None:
    found = list_partitions(steps)
    assert len(set(found)) == 2 ** (steps - 1)
    for partition in found:
        assert partition_text(parse_partition(partition, steps)) == partition
    assert len(parse_partition(found[0], steps)) == steps
    assert parse_partition(found[-1], steps) == (tuple(range(1, steps + 1)),)


def test_numbers_of_many_steps_are_joined() -> None:
    assert list_partitions(10)[-1] == "1+2+3+4+5+6+7+8+9+10"
    assert parse_partition("1/2+3/4/5/6/7/8/9+10", 10)[-1] == (9, 10)


@pytest.mark.parametrize("partition", ["", "12/3", "12/43", "1/2/3/4/5", "12//34", "1 2/34", "12/34/", "ab/cd"])
def test_other_texts_are_no_partitions(partition: str) -> None:
    with pytest.raises(InputError, match=r"is no partition of 4 steps\. Expected .* such as '1/2/3/4'"):
        parse_partition(partition, 4)


@pytest.mark.parametrize("steps", [0, 17])
def test_number_of_steps_is_limited(steps: int) -> None:
    with pytest.raises(InputError, match=f"A chain of {steps} steps .* Expected 1 to 16"):
        list_partitions(steps)


def test_lists_have_the_length_of_the_chain() -> None:
    with pytest.raises(InputError, match="There are 3 tensors, 1 coefficients and 2 bounds"):
        partition_bound_words("12", [1, 2, 3], [1])
    with pytest.raises(InputError, match="There are 3 tensors, 2 coefficients and 3 bounds"):
        partition_bound_words("12", [1, 2, 3], step_bounds=[1, 2, 3])


# Theorem 5.2


def test_bounds_of_all_fusions_of_the_transform() -> None:
    a, o1, o2, o3, c = sizes = (1, 10, 100, 1000, 10000)
    assert fusion_bounds_words(sizes) == {
        "1/2/3/4": a + 2 * o1 + 2 * o2 + 2 * o3 + c,
        "12/3/4": a + 2 * o2 + 2 * o3 + c,
        "1/23/4": a + 2 * o1 + 2 * o3 + c,
        "1/2/34": a + 2 * o1 + 2 * o2 + c,
        "12/34": a + 2 * o2 + c,
        "123/4": a + 2 * o3 + c,
        "1/234": a + 2 * o1 + c,
        "1234": a + c,
    }


@given(st.integers(2, 300), st.integers(1, 8))
def test_order_of_fusions_with_packed_pairs(n: int, spatial: int) -> None:
    sizes = tensor_sizes(n, (n, n, n, n), first_equal=True, second_equal=True, spatial=spatial)
    found = fusion_bounds_words(sizes)
    assert found["1234"] <= found["12/34"] < found["123/4"] <= found["1/2/3/4"]
    assert found["12/34"] == min(bound for partition, bound in found.items() if partition != "1234")


def test_order_of_fusions_is_another_one_for_few_orbitals() -> None:
    found = fusion_bounds_words(tensor_sizes(100, (10, 90, 10, 90)))
    assert found["123/4"] < found["12/34"]
    equal = fusion_bounds_words((7, 7, 7, 7, 7))
    assert equal["123/4"] == equal["12/34"]


# Theorem 5.1


@pytest.mark.parametrize("extents", [(3, 3, 3, 3), (4, 2, 3, 1), (2, 5, 1, 4), (1, 1, 1, 1)])
def test_listing_6_runs_in_the_capacity_and_moves_operands_and_result(extents: tuple[int, int, int, int]) -> None:
    """Fused loops over k and l, with every word in the level counted."""
    n_i, n_a, n_j, n_b = extents
    rng = np.random.default_rng(0)
    A, B1, B2 = rng.random((n_i, n_j, 2, 3)), rng.random((n_a, n_i)), rng.random((n_b, n_j))
    made, moved, peak = np.zeros((n_a, n_b, 2, 3)), B1.size + B2.size, 0
    for k, m in np.ndindex(2, 3):
        inner = np.zeros((n_a, n_j))
        for j in range(n_j):
            column = A[:, j, k, m].copy()
            moved += column.size
            inner[:, j] = B1 @ column
            peak = max(peak, B1.size + B2.size + inner.size + column.size)
        for a, b in np.ndindex(n_a, n_b):
            made[a, b, k, m] = inner[a] @ B2[b]
            moved += 1
            peak = max(peak, B1.size + B2.size + inner.size + 1)
    np.testing.assert_allclose(made, np.einsum("ijkl,ai,bj->abkl", A, B1, B2))
    assert moved == A.size + B1.size + B2.size + made.size
    # The column is gone before an element of the result is there; the theorem has room for both.
    assert pair_capacity_words((n_i, n_a), (n_j, n_b)) == peak + 1


def test_pair_capacity_of_equal_extents() -> None:
    for n in (1, 7, 100):
        assert pair_capacity_words((n, n), (n, n)) == 3 * n**2 + n + 1
    with pytest.raises(InputError, match=r"Extents are \(3, 4, -1, 2\)\. Expected counts that are not negative"):
        pair_capacity_words((3, 4), (-1, 2))


@pytest.mark.parametrize("share", [0.05, 0.1, 0.25, 0.45])
def test_fusing_is_futile_below_a_capacity(share: float) -> None:
    n = 1000
    at = futile_capacity_words(2 * n**5, n**4, share)
    for factor, is_futile in ((0.98, True), (1.02, False)):
        bounds = [step_bound_words(n**5, factor * at, [n**4, n**2], n**4)] * 2
        spared = sum(bounds) - group_bound_words(bounds, [n**4], 2 * n**4 + 2 * n**2)
        assert (spared < share * sum(bounds)) == is_futile


def test_futile_capacity_has_the_scale_of_the_paper() -> None:
    n = 100
    assert futile_capacity_words(2 * n**5, n**4) == 27 / 8 * n**2
    assert futile_capacity_words((30 + 50) * n**4, n**4) == 27 / 8 * 40**2
    assert futile_capacity_words(2 * n**5, n**4, 0.5) < pair_capacity_words((n, n), (n, n))


@pytest.mark.parametrize(("work", "words", "share"), [(-1, 1, 1.0), (1, 0, 1.0), (1, 1, 0.0), (1, 1, 1.5)])
def test_futile_capacity_refuses_wrong_counts(work: int, words: int, share: float) -> None:
    with pytest.raises(InputError, match=rf"no capacity for {work} multiplications, an intermediate of {words} words"):
        futile_capacity_words(work, words, share)


# Table 1


@given(st.integers(1, 5), st.tuples(*[st.integers(1, 5)] * 4), st.booleans(), st.booleans())
def test_sizes_are_those_of_all_unique_tuples(
    n: int, orbitals: tuple[int, int, int, int], first_equal: bool, second_equal: bool
) -> None:
    a, b, c, d = orbitals
    b, d = a if first_equal else b, c if second_equal else d

    def count(extents: tuple[int, ...], *packed: int) -> int:
        every = itertools.product(*map(range, extents))
        return sum(all(index[at] >= index[at + 1] for at in packed) for index in every)

    left, right = ((0,) if first_equal else ()), ((2,) if second_equal else ())
    assert tensor_sizes(n, (a, b, c, d), first_equal=first_equal, second_equal=second_equal) == (
        count((n, n, n, n), 0, 2),
        count((a, n, n, n), 2),
        count((a, b, n, n), *left, 2),
        count((a, b, c, n), *left),
        count((a, b, c, d), *left, *right),
    )


def test_leading_terms_of_table_1() -> None:
    n = 2000
    sizes = tensor_sizes(n, (n, n, n, n), first_equal=True, second_equal=True, spatial=8)
    np.testing.assert_allclose(np.array(sizes) / n**4, [1 / 4, 1 / 2, 1 / 4, 1 / 2, 1 / 32], rtol=2e-3)


def test_sizes_refuse_what_cannot_be() -> None:
    with pytest.raises(InputError, match=r"matrices with 3 and 4 orbitals are said to be equal\. Expected the same"):
        tensor_sizes(5, (3, 4, 2, 2), first_equal=True)
    with pytest.raises(InputError, match=r"spatial=0\.5 is no factor .* Expected 1 \(none\) or more"):
        tensor_sizes(5, (3, 3, 2, 2), spatial=0.5)
    with pytest.raises(InputError, match=r"AO functions and orbitals are \(-5, 3, 3, 2, 2\)"):
        tensor_sizes(-5, (3, 3, 2, 2))


# Theorems 6.1 and 6.2


@given(st.integers(1, 100), st.tuples(*[st.integers(0, 99)] * 2), st.integers(1, 8))
def test_the_result_is_the_least_that_full_reuse_needs(n: int, orbitals: tuple[int, int], spatial: int) -> None:
    a, c = (min(count, n) for count in orbitals)
    sizes = tensor_sizes(n, (a, a, c, c), first_equal=True, second_equal=True, spatial=spatial)
    assert least_reuse_words(sizes) == sizes[-1]
    enough = full_reuse_words(n, (a, a, c, c), first_equal=True, second_equal=True, spatial=spatial)
    assert enough > least_reuse_words(sizes)


def test_with_one_pair_packed_the_input_may_be_the_least() -> None:
    sizes = tensor_sizes(10, (10, 10, 10, 10), first_equal=True)
    assert least_reuse_words(sizes) == sizes[0] < sizes[-1]


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("orbitals", [(4, 4, 4, 4), (3, 3, 2, 1), (1, 1, 4, 3), (6, 6, 6, 2)])
def test_listing_7_runs_in_the_capacity(orbitals: tuple[int, int, int, int], width: int, equal: bool) -> None:
    """One loop over l, the result in the level all the time; every word that is there is counted."""
    n, (a, b, c, d) = 4, orbitals
    rng = np.random.default_rng(0)
    A = rng.random((n, n, n, n))
    A = A + A.transpose(1, 0, 2, 3)
    B1, B3, B4 = rng.random((a, n)), rng.random((c, n)), rng.random((d, n))
    B2 = B1 if equal else rng.random((b, n))
    rows, cols = np.tril_indices(a) if equal else (np.repeat(np.arange(a), b), np.tile(np.arange(b), a))
    made, peak = np.zeros((len(rows), c, d)), 0
    fixed = made.size + B1.size + B2.size + B3.size + d * width
    for low in range(0, n, width):
        part = slice(low, low + width)
        one = np.einsum("ijkl,ai->ajkl", A[..., part], B1)
        peak = max(peak, fixed + one.size + n)
        two = np.einsum("xjkl,xj->xkl", one[rows], B2[cols])
        peak = max(peak, fixed + one.size + two.size)
        three = np.einsum("xkl,ck->xcl", two, B3)
        peak = max(peak, fixed + two.size + three.size)
        made += np.einsum("xcl,dl->xcd", three, B4[:, part])
    expected = np.einsum("ijkl,ai,bj,ck,dl->abcd", A, B1, B2, B3, B4)[rows, cols]
    np.testing.assert_allclose(made, expected)
    enough = full_reuse_words(n, orbitals, width=width, first_equal=equal)
    assert peak <= enough <= peak + n


def test_full_reuse_takes_the_result_and_two_slices() -> None:
    n = 50
    assert full_reuse_words(n, (n, n, n, n)) == n**4 + 2 * n**3 + 3 * n**2 + 2 * n
    wide = full_reuse_words(n, (n, n, n, n), width=5)
    assert wide == n**4 + 5 * 2 * n**3 + 3 * n**2 + 5 * n + n


@pytest.mark.parametrize("width", [0, 51])
def test_full_reuse_refuses_other_widths(width: int) -> None:
    with pytest.raises(InputError, match=rf"width={width} is no number of l .* Expected 1 to 50"):
        full_reuse_words(50, (5, 5, 5, 5), width=width)
