"""What fusing the steps of a chain can spare, and how much memory it takes: the theorems of Rajbhandari et al. (2017).

A chain is a row of contractions, each of which reads what the one before it made; the four-index transform is one::

    O1[a,j,k,l] = sum_i A[i,j,k,l] B1[a,i]        O3[a,b,c,l] = sum_k O2[a,b,k,l] B3[c,k]
    O2[a,b,k,l] = sum_j O1[a,j,k,l] B2[b,j]        C[a,b,c,d] = sum_l O3[a,b,c,l] B4[d,l]

Steps are numbered from 1. A partition such as ``"12/34"`` says which neighbours are fused: within a group they
are interleaved, between groups the intermediate leaves the level and comes back. Everything is counted in words
(elements), and no element of an intermediate is computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from tilewise.costs.bounds import fused_bound_bytes, movement_bound_bytes
from tilewise.errors import InputError

Sizes = tuple[int, int, int, int, int]
"""Words of A, O1, O2, O3 and C."""

MOST_STEPS = 16
"""Steps of a chain all of whose partitions are listed: each further step doubles them."""

DIGITS = 9
"""Up to this many steps, the numbers of a group stand side by side."""


# Section 4: bounds of steps and of groups


def step_bound_words(
    multiplications: float, capacity_words: float, read_words: Sequence[int], written_words: int, uses: float = 1.0
) -> int:
    """Words that one contraction must move (section 5.1): ``max(sqrt(27/8) V / sqrt(S) - S, |read| + |written|)``.

    The paper has 1.73 for the factor and no ``- S``; `tilewise.costs.product_bound_words` derives the form used here.

    Parameters
    ----------
    multiplications, capacity_words, uses : float
        V, S and how often a stored word stands, as in `tilewise.costs.product_bound_words`.
    read_words : sequence of int
        Words of each operand.
    written_words : int
        Words of the result.

    Examples
    --------
    >>> from tilewise.costs.fusion import step_bound_words
    >>> n = 100
    >>> step_bound_words(n**5, n**2, [n**4, n**2], n**4), step_bound_words(n**5, n**2 / 100, [n**4, n**2], n**4)
    (200010000, 1837117207)
    """
    return movement_bound_bytes(sum(read_words) + written_words, multiplications, 1, capacity_words, uses)


def group_bound_words(
    step_bounds: Sequence[int], inner_words: Sequence[int], outer_words: int, shared_words: int = 0
) -> int:
    """Words that fused steps must move (Lemma 4.2, the Fusion Lemma), for any way of interleaving them.

    ``IO(12) >= IO(1) + IO(2) - 2 |O1|``, and for more steps the same with all intermediates between them; never
    below what the group reads and writes itself. The paper's proof takes steps to have nothing in common but the
    intermediate. An operand of several of them may come once for all, so it is taken off as often as it is counted
    too much; that is enough for bounds of `step_bound_words`, whose product terms hold for sums of products as well.

    Parameters
    ----------
    step_bounds : sequence of int
        Lower bound of each step alone.
    inner_words : sequence of int
        Words of the intermediates that are made and read within the group.
    outer_words : int
        Words of the operands that come from outside, each once, and of what the last step makes.
    shared_words : int
        Words of operands that are counted in more than one step, for each step but one.

    Examples
    --------
    >>> from tilewise.costs.fusion import group_bound_words
    >>> group_bound_words([210, 220], inner_words=[100], outer_words=150)
    230
    """
    return fused_bound_bytes(outer_words, [*step_bounds, -shared_words], inner_words)


# Section 5.3: partitions


def partition_text(groups: Sequence[Sequence[int]]) -> str:
    """A partition as text: ``12/34``; with more than nine steps, numbers are joined by ``+``.

    Examples
    --------
    >>> from tilewise.costs.fusion import partition_text
    >>> partition_text([(1, 2), (3, 4)])
    '12/34'
    """
    joint = "" if sum(map(len, groups)) <= DIGITS else "+"
    return "/".join(joint.join(map(str, group)) for group in groups)


def parse_partition(partition: str, steps: int) -> tuple[tuple[int, ...], ...]:
    """The groups of a partition of a chain, in order.

    Examples
    --------
    >>> from tilewise.costs.fusion import parse_partition
    >>> parse_partition("12/34", steps=4)
    ((1, 2), (3, 4))
    """
    parts = partition.split("/")
    names = [list(part) if steps <= DIGITS else part.split("+") for part in parts]
    groups = tuple(tuple(int(name) if name.isdecimal() else 0 for name in part) for part in names)
    if [number for group in groups for number in group] != list(range(1, steps + 1)) or not all(groups):
        every = [(number,) for number in range(1, steps + 1)]
        raise InputError(
            f"{partition!r} is no partition of {steps} steps. Expected every step once, in order, such as "
            f"{partition_text(every)!r}, or with fewer strokes. Correct it."
        )
    return groups


def list_partitions(steps: int) -> tuple[str, ...]:
    """All ways to fuse neighbours of a chain, none of them first, all of them last.

    Examples
    --------
    >>> from tilewise.costs.fusion import list_partitions
    >>> list_partitions(3)
    ('1/2/3', '1/23', '12/3', '123')
    """
    if not 1 <= steps <= MOST_STEPS:
        raise InputError(
            f"A chain of {steps} steps has too few or too many partitions. Expected 1 to {MOST_STEPS} steps. "
            "Look at a part of it."
        )
    found = []
    for fused in product((False, True), repeat=steps - 1):
        groups = [[1]]
        for number, joined in enumerate(fused, start=2):
            if joined:
                groups[-1].append(number)
            else:
                groups.append([number])
        found.append(partition_text(groups))
    return tuple(found)


def partition_bound_words(
    partition: str,
    tensors: Sequence[int],
    coefficients: Sequence[int] | None = None,
    step_bounds: Sequence[int] | None = None,
) -> int:
    """Words that a chain must move if its steps are fused as a partition says: the sum over its groups (section 5.3).

    Parameters
    ----------
    partition : str
        Such as ``"12/34"``.
    tensors : sequence of int
        Words of the tensors along the chain: its input, the intermediates, its result.
    coefficients : sequence of int, optional
        Words of the other operand of each step, 0 for one that an earlier step has, which may still be there. Left
        out, they are not counted, as in the paper.
    step_bounds : sequence of int, optional
        Lower bound of each step alone; what it reads and writes by default.

    Examples
    --------
    >>> from tilewise.costs.fusion import partition_bound_words
    >>> partition_bound_words("12/3", [10, 20, 30, 40])
    110
    """
    steps = len(tensors) - 1
    beside = [0] * steps if coefficients is None else list(coefficients)
    if len(beside) != steps or (step_bounds is not None and len(step_bounds) != steps):
        raise InputError(
            f"There are {len(tensors)} tensors, {len(beside)} coefficients and "
            f"{steps if step_bounds is None else len(step_bounds)} bounds of steps. Expected one tensor more than "
            "steps, and one of the others for each step. Correct the lists."
        )
    bounds = step_bounds or [tensors[at] + beside[at] + tensors[at + 1] for at in range(steps)]
    total = 0
    for group in parse_partition(partition, steps):
        first, last = group[0] - 1, group[-1]
        outer = tensors[first] + sum(beside[first:last]) + tensors[last]
        total += group_bound_words(bounds[first:last], tensors[first + 1 : last], outer)
    return total


def fusion_bounds_words(sizes: Sizes) -> dict[str, int]:
    """Words that the four-index transform must move under each fusion (Theorem 5.2), once S exceeds some n^2.

    ``IO(1234) >= |A| + |C|``, ``IO(12/34) = |A| + 2 |O2| + |C|``, ``IO(123/4) >= |A| + 2 |O3| + |C|`` and so on;
    coefficient matrices are not counted. The theorem's order, ``IO(1234) <= IO(12/34) < IO(123/4)``, needs
    ``|O2| < |O3|``: so with packed pairs, but not where all sizes are equal or few orbitals make O3 the smaller one.

    Examples
    --------
    >>> from tilewise.costs.fusion import fusion_bounds_words, tensor_sizes
    >>> found = fusion_bounds_words(tensor_sizes(100, (100, 100, 100, 100), first_equal=True, second_equal=True))
    >>> found["1234"] < found["12/34"] < found["123/4"] < found["1/2/3/4"]
    True
    """
    return {partition: partition_bound_words(partition, sizes) for partition in list_partitions(4)}


# Section 5.1 and 5.2: when fusing a pair pays


def pair_capacity_words(first: tuple[int, int], second: tuple[int, int]) -> int:
    """Capacity from which two fused steps of a transform move ``|A| + |O2|`` (Theorem 5.1): the loops of Listing 6.

    For ``O1[a,j,..] = sum_i A[i,j,..] B1[a,i]`` and ``O2[a,b,..] = sum_j O1[a,j,..] B2[b,j]`` the level holds B1,
    B2, one slice ``O1[*,*]``, one column ``A[*]`` and one element of O2::

        S >= n_i n_a + n_j n_b + n_a n_j + n_i + 1              (3 n^2 + n + 1 for equal extents)

    B1 and B2 come once on top of ``|A| + |O2|``; the theorem leaves them out as lower orders. The condition is
    sufficient, not necessary.

    Parameters
    ----------
    first, second : (int, int)
        Extents that each step sums and makes: (n_i, n_a) and (n_j, n_b).

    Examples
    --------
    >>> from tilewise.costs.fusion import pair_capacity_words
    >>> pair_capacity_words((100, 100), (100, 100)), pair_capacity_words((100, 10), (100, 20))
    (30101, 4101)
    """
    (n_i, n_a), (n_j, n_b) = first, second
    _check_counts("Extents", n_i, n_a, n_j, n_b)
    return n_i * n_a + n_j * n_b + n_a * n_j + n_i + 1


def futile_capacity_words(multiplications: float, intermediate_words: int, share: float = 1.0) -> float:
    """Capacity below which fusing two steps spares less than a share of what they move (section 5.1).

    At most ``2 |O|`` are spared of at least ``sqrt(27/8) V / sqrt(S)`` (V of both steps, lower orders left out),
    less than the share of it if::

        S < (27/8) (share V / (2 |O|))^2                        (share = 1 and equal extents: 27/8 n^2)

    The paper has 3 n^2, of the factor 1.73, and says *much less than* that: at a share of 1 nothing is ruled out
    yet, and from a share of 1/2 on what the steps read and write is the larger bound.

    Parameters
    ----------
    multiplications : float
        V: multiplications of both steps together; ``(n_i + n_b) |O|`` in a transform.
    intermediate_words : int
        Words of what the first step makes and the second one reads.
    share : float
        Share of the traffic without fusion, above 0, at most 1.

    Examples
    --------
    >>> from tilewise.costs.fusion import futile_capacity_words
    >>> n = 100
    >>> futile_capacity_words(2 * n**5, n**4), futile_capacity_words(2 * n**5, n**4, share=0.1)
    (33750.0, 337.5)
    """
    if not (multiplications >= 0 and intermediate_words > 0 and 0 < share <= 1):
        raise InputError(
            f"There is no capacity for {multiplications} multiplications, an intermediate of {intermediate_words} "
            f"words and a share of {share}. Expected V >= 0, |O| > 0 and 0 < share <= 1. Correct the counts."
        )
    return 27 / 8 * (share * multiplications / (2 * intermediate_words)) ** 2


# Section 6: full reuse


def least_reuse_words(sizes: Sizes) -> int:
    """Capacity that a transform with ``IO = |A| + |C|`` needs (Theorem 6.1): ``min(|A|, |O1|, |O2|, |O3|, |C|)``.

    Theorem 6.2 says ``S >= |C|`` for symmetric tensors: in Table 1 that is the smallest of the five. Where only one
    pair is packed A may be smaller, and the argument of Theorem 6.1, which holds for packed pairs too, gives no more
    than the minimum. With spatial symmetry it takes irreps of equal size.

    Examples
    --------
    >>> from tilewise.costs.fusion import least_reuse_words, tensor_sizes
    >>> sizes = tensor_sizes(100, (100, 100, 100, 100), first_equal=True, second_equal=True, spatial=8)
    >>> least_reuse_words(sizes), sizes[-1]
    (3187813, 3187813)
    """
    return min(sizes)


def full_reuse_words(
    functions: int,
    orbitals: tuple[int, int, int, int],
    *,
    width: int = 1,
    first_equal: bool = False,
    second_equal: bool = False,
    spatial: float = 1.0,
) -> int:
    """Capacity that is enough for ``IO = |A| + |C|`` (section 6.2): C stays while one loop runs over l (Listing 7).

    For each l, or `width` of them at a time, two intermediates are there at once; coefficient matrices and a column
    of A, lower orders that the paper leaves out, are counted::

        S >= |C| + T max(n_a n^2 + |ab| n, |ab| n + |ab| n_c) + n (n_a + n_b + n_c) + T n_d + n        (|C| + 2 n^3)

    ``|ab|`` is ``n_a (n_a + 1) / 2`` for equal matrices, else ``n_a n_b``. A is read once only if its k and l are not
    packed: with ``k >= l`` the slices of k and of l share elements, and the loop reads nearly twice of A.

    Parameters
    ----------
    functions, orbitals, first_equal, second_equal, spatial
        As in `tensor_sizes`.
    width : int
        T: how many l are done at a time.

    Examples
    --------
    >>> from tilewise.costs.fusion import full_reuse_words
    >>> n = 100
    >>> full_reuse_words(n, (n, n, n, n)) - n**4 - 2 * n**3 == 3 * n**2 + 2 * n
    True
    """
    sizes = tensor_sizes(functions, orbitals, first_equal=first_equal, second_equal=second_equal, spatial=spatial)
    a, b, c, d = orbitals
    if not 1 <= width <= functions:
        raise InputError(
            f"width={width} is no number of l to do at a time. Expected 1 to {functions}, the AO functions. Correct it."
        )
    pairs = _pairs(a, b, first_equal)
    slices = max(a * functions**2 + pairs * functions, pairs * functions + pairs * c)
    return sizes[-1] + width * slices + functions * (a + b + c) + width * d + functions


# Table 1


def tensor_sizes(
    functions: int,
    orbitals: tuple[int, int, int, int],
    *,
    first_equal: bool = False,
    second_equal: bool = False,
    spatial: float = 1.0,
) -> Sizes:
    """Words of A, O1, O2, O3 and C of the four-index transform (Table 1), lower orders included.

    ``A[ij,kl]``, ``O1[a,j,kl]``, ``O2[ab,kl]``, ``O3[ab,c,l]`` and ``C[ab,cd]``: pairs of AO functions are packed
    (i >= j, k >= l), pairs of orbitals where their coefficient matrices are equal. The paper has the leading terms
    for n orbitals everywhere: n^4 times 1/4, 1/2, 1/4, 1/2 and 1/(4 s).

    Parameters
    ----------
    functions : int
        n: AO functions.
    orbitals : (int, int, int, int)
        Orbitals a, b, c and d.
    first_equal, second_equal : bool
        Whether the matrices of a and b, of c and d are equal.
    spatial : float
        s: by how much spatial symmetry reduces C.

    Examples
    --------
    >>> from tilewise.costs.fusion import tensor_sizes
    >>> tensor_sizes(10, (10, 10, 10, 10), first_equal=True, second_equal=True)
    (3025, 5500, 3025, 5500, 3025)
    >>> tensor_sizes(10, (2, 8, 2, 8))
    (3025, 1100, 880, 320, 256)
    """
    _check_counts("AO functions and orbitals", functions, *orbitals)
    if not spatial >= 1:
        raise InputError(
            f"spatial={spatial} is no factor by which symmetry reduces C. Expected 1 (none) or more. Correct it."
        )
    a, b, c, d = orbitals
    atomic, left = _pairs(functions, functions, True), _pairs(a, b, first_equal)
    right = _pairs(c, d, second_equal)
    result = math.ceil(left * right / spatial)
    return atomic**2, a * functions * atomic, left * atomic, left * c * functions, result


def _check_counts(what: str, *counts: int) -> None:
    if min(counts) < 0:
        raise InputError(f"{what} are {counts}. Expected counts that are not negative. Correct them.")


def _pairs(first: int, second: int, equal: bool) -> int:
    """Pairs of two indices: all of them, or ``n (n + 1) / 2`` where they may be exchanged."""
    if equal and first != second:
        raise InputError(
            f"Coefficient matrices with {first} and {second} orbitals are said to be equal. Expected the same number "
            "for both. Correct the orbitals, or say that the matrices differ."
        )
    return first * (first + 1) // 2 if equal else first * second
