"""One- and two-operand expressions lowered to what engines run: a reduction, or a matrix product."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tilewise.errors import InputError
from tilewise.expressions.parse import Expression

Indices = tuple[str, ...]
Form = Literal["plain", "transposed", "permuted"]


@dataclass(frozen=True, slots=True)
class Reduction:
    """A step on one operand: permutation, diagonal, trace or sum of its modes.

    An index that repeats in `operand` selects a diagonal; an index that is not in `result` is summed.

    Examples
    --------
    >>> from tilewise.expressions import Reduction
    >>> step = Reduction(("i", "j", "i", "k"), ("k", "i"))
    >>> step.repeated, step.summed, step.permutation
    (('i',), ('j',), None)
    """

    operand: Indices
    """The indices of the operand; one may repeat."""
    result: Indices
    """The indices of the result, each once and each in the operand."""

    @property
    def repeated(self) -> Indices:
        """The indices of which the diagonal is taken."""
        return tuple(dict.fromkeys(i for i in self.operand if self.operand.count(i) > 1))

    @property
    def summed(self) -> Indices:
        """The indices that are summed, each once."""
        return tuple(dict.fromkeys(i for i in self.operand if i not in self.result))

    @property
    def permutation(self) -> tuple[int, ...] | None:
        """The mode of the operand behind each mode of the result; None if modes vanish."""
        if len(self.operand) != len(self.result):
            return None
        return tuple(map(self.operand.index, self.result))

    @property
    def is_copy(self) -> bool:
        """Whether the result is the operand as it is."""
        return self.operand == self.result

    def label(self) -> str:
        """The step as an einsum string."""
        return Expression((self.operand,), self.result).label()


@dataclass(frozen=True, slots=True)
class Contraction:
    """A product of two operands as matrices: C(batch, m, n) += sum over k of A(batch, m, k) B(batch, k, n).

    No index repeats within an operand, and none is summed in one operand alone. Make it with `of`.

    Examples
    --------
    >>> from tilewise.expressions import Contraction
    >>> product = Contraction.of(tuple("ijcd"), tuple("cdab"), tuple("ijab"))
    >>> product.m, product.n, product.k, product.batch
    (('i', 'j'), ('a', 'b'), ('c', 'd'), ())
    """

    left: Indices
    """The indices of the left operand A in the order of its modes."""
    right: Indices
    """The indices of the right operand B in the order of its modes."""
    result: Indices
    """The indices of the result C in the order of its modes."""
    batch: Indices
    """The indices in A, B and C, in result order."""
    m: Indices
    """The indices in A and C only, in result order."""
    n: Indices
    """The indices in B and C only, in result order."""
    k: Indices
    """The indices in A and B only, in the order that leaves more operands as they are."""

    @classmethod
    def of(cls, left: Indices, right: Indices, result: Indices) -> Contraction:
        """Sort the indices into groups.

        The m, n and batch groups stand in result order. The k group stands in the order of the left operand,
        unless only the right operand can then be used without a permutation.
        """
        batch = tuple(i for i in result if i in left and i in right)
        m = tuple(i for i in result if i not in right)
        n = tuple(i for i in result if i not in left)
        k = tuple(i for i in left if i not in result)
        if matrix_form(left, batch, m, k) == "permuted":
            k_right = tuple(i for i in right if i not in result)
            if matrix_form(right, batch, k_right, n) != "permuted":
                k = k_right
        contraction = cls(left, right, result, batch, m, n, k)
        contraction.check()
        return contraction

    def check(self) -> None:
        """Raise if the groups are not exactly the indices of the operands and of the result."""
        for name, indices, groups in (
            ("left operand", self.left, self.batch + self.m + self.k),
            ("right operand", self.right, self.batch + self.k + self.n),
            ("result", self.result, self.batch + self.m + self.n),
        ):
            if sorted(indices) != sorted(groups) or len(set(indices)) != len(indices):
                raise InputError(
                    f"The {name} of {self.label()!r} has the indices {''.join(indices)!r}, but its "
                    f"groups are {''.join(groups)!r}. Expected every index once, and in at least two of the "
                    "three tensors. Take diagonals and sums first (lower_pair does)."
                )

    @property
    def left_form(self) -> Form:
        """How A's modes stand: batch m k is plain, batch k m is transposed, anything else is permuted."""
        return matrix_form(self.left, self.batch, self.m, self.k)

    @property
    def right_form(self) -> Form:
        """How B's modes stand: batch k n is plain, batch n k is transposed, anything else is permuted."""
        return matrix_form(self.right, self.batch, self.k, self.n)

    @property
    def result_form(self) -> Form:
        """How C's modes stand: batch m n is plain, batch n m is transposed, anything else is permuted."""
        return matrix_form(self.result, self.batch, self.m, self.n)

    def label(self) -> str:
        """The contraction as an einsum string."""
        return Expression((self.left, self.right), self.result).label()


def matrix_form(indices: Indices, batch: Indices, rows: Indices, columns: Indices) -> Form:
    """Say how a tensor's modes stand as a stack of matrices.

    A plain or transposed block goes to GEMM where it lies; a permuted one has to be copied first.
    """
    if indices == batch + rows + columns:
        return "plain"
    return "transposed" if indices == batch + columns + rows else "permuted"


@dataclass(frozen=True, slots=True)
class Pair:
    """A two-operand expression, lowered: a reduction of each operand where needed, then one contraction."""

    left: Reduction | None
    """What is done to the left operand first; None if nothing."""
    right: Reduction | None
    """What is done to the right operand first; None if nothing."""
    contraction: Contraction
    """The product of the (reduced) operands."""


def lower_single(expression: Expression) -> Reduction:
    """Lower a one-operand expression.

    Examples
    --------
    >>> from tilewise.expressions import lower_single, parse_expression
    >>> lower_single(parse_expression("iji->j", (3,))).summed
    ('i',)
    """
    _require_operands(expression, 1)
    return Reduction(expression.operands[0], expression.output)


@lru_cache(maxsize=1024)
def lower_pair(expression: Expression) -> Pair:
    """Lower a two-operand expression.

    A repeated index of an operand becomes a diagonal, an index of one operand alone that is not in the output
    is summed; both happen before the product. An operand that is reduced anyway leaves the reduction in the
    order the product wants, so that it is not copied twice.

    Examples
    --------
    >>> from tilewise.expressions import lower_pair, parse_expression
    >>> pair = lower_pair(parse_expression("kixk,kj->ij", (4, 2)))
    >>> pair.left.label(), pair.right, pair.contraction.label()
    ('kixk->ik', None, 'ik,kj->ij')
    """
    _require_operands(expression, 2)
    (left, right), output = expression.operands, expression.output
    kept_left = tuple(dict.fromkeys(i for i in left if i in right or i in output))
    kept_right = tuple(dict.fromkeys(i for i in right if i in left or i in output))
    draft = Contraction.of(kept_left, kept_right, output)
    k = draft.k
    if kept_left != left and kept_right == right:
        k = tuple(i for i in right if i not in output)
    new_left = left if kept_left == left else draft.batch + draft.m + k
    new_right = right if kept_right == right else draft.batch + k + draft.n
    return Pair(
        None if new_left == left else Reduction(left, new_left),
        None if new_right == right else Reduction(right, new_right),
        Contraction.of(new_left, new_right, output),
    )


def _require_operands(expression: Expression, number: int) -> None:
    given = len(expression.operands)
    if given != number:
        raise InputError(
            f"The expression {expression.label()!r} has {given} operands. Expected {number}. "
            "Split a longer expression into pairs first (find_order does)."
        )
