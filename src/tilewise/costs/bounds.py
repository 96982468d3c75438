"""Lower bounds on data movement: what no order of the same products can go below.

A level is a memory with room for S words (elements); everything else lies beyond it. A bound counts the words
that cross into or out of the level. It holds for any pattern of blocks, any order and any tiling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewise.errors import InputError


def product_bound_words(multiplications: float, capacity_words: float, uses: float = 1.0) -> float:
    """Words that a product must move through a level with room for `capacity_words`.

    Cut the run into segments of S moved words each. During one, at most 2 S different words are at hand: S that
    were there and S that came. With a, b and c words of A, B and C among them, no more than sqrt(a b c) scalar
    multiplications can be done (Loomis and Whitney), at most (2 S / 3)^(3/2) since a + b + c <= 2 S. So V
    multiplications need V / (2 S / 3)^(3/2) segments, of which all but the last move S words::

        Q >= sqrt(27/8) V / sqrt(S) - S

    Rajbhandari et al. (2017), section 4, quote the leading term of such a bound with the factor 1.73, from
    Dongarra et al. (2008). It is a bound for any set of multiplications a_ik b_kj, so also for a block-sparse
    product.

    Parameters
    ----------
    multiplications : float
        V: multiplications of two elements; half the flops of real elements, an eighth of those of complex ones.
    capacity_words : float
        S: elements that the level holds; may be infinite.
    uses : float
        In how many places one stored word can stand, for A times for B: 1 for two tensors without symmetry. A
        tensor with two exchangeable modes gives 2, a tensor times itself gives 4. Then only sqrt(uses a b c)
        multiplications bound a segment.

    Returns
    -------
    float
        Words; 0 if the bound says nothing.

    Examples
    --------
    >>> from tilewise.costs import product_bound_words
    >>> round(product_bound_words(1000**3, 100_000))
    5709475
    """
    if not (multiplications >= 0 and capacity_words > 0 and uses >= 1):
        raise InputError(
            f"There is no bound for {multiplications} multiplications, a level of {capacity_words} words and {uses} "
            "uses of each. Expected V >= 0, S > 0 and uses >= 1. Correct the counts."
        )
    if math.isinf(capacity_words):
        return 0.0
    leading = math.sqrt(27 / 8) * multiplications / math.sqrt(capacity_words * uses)
    return max(leading - capacity_words, 0.0)


def compulsory_bytes(operand_bytes: Sequence[int], result_bytes: int) -> int:
    """Bytes that move however large the level is: each operand comes once, the result leaves once."""
    return sum(operand_bytes) + result_bytes


def movement_bound_bytes(
    compulsory: int, multiplications: float, itemsize: int, capacity_bytes: float, uses: float = 1.0
) -> int:
    """Bytes that a product must move through a level: the larger of the compulsory ones and `product_bound_words`.

    Parameters
    ----------
    compulsory : int
        Bytes of the operands and of the result, see `compulsory_bytes`.
    multiplications, uses : float
        As in `product_bound_words`.
    itemsize : int
        Bytes of one element.
    capacity_bytes : float
        Bytes that the level holds; may be infinite.

    Examples
    --------
    >>> from tilewise.costs import movement_bound_bytes
    >>> movement_bound_bytes(24_000_000, 1000**3, 8, capacity_bytes=float("inf"))
    24000000
    """
    words = product_bound_words(multiplications, capacity_bytes / itemsize, uses)
    return max(compulsory, math.floor(words * itemsize))


def fused_bound_bytes(compulsory: int, step_bounds: Sequence[int], intermediate_bytes: Sequence[int]) -> int:
    """Bytes that a chain of steps must move, however the steps are interleaved.

    The Fusion Lemma (Rajbhandari et al. 2017, section 5): a schedule that fuses two steps over an intermediate O
    spares at most its writing and its reading, ``IO(12) >= IO(1) + IO(2) - 2 |O|``. Whatever is spared, the
    operands come once and the result leaves once.

    Parameters
    ----------
    compulsory : int
        Bytes of the operands of the whole chain and of its result.
    step_bounds : sequence of int
        Lower bound of each step alone.
    intermediate_bytes : sequence of int
        Bytes of each intermediate, once for each step that reads it.
    """
    return max(compulsory, sum(step_bounds) - 2 * sum(intermediate_bytes))
