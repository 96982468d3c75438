"""Tensors of two pairs of modes to pairs of elements and back, block by block.

A tensor x(p, q, r, s) = x(r, s, p, q) is a matrix over the pairs (p, r) and (q, s).  Over normalised symmetric and
antisymmetric pairs it falls into two blocks, X+ and X-, with

    X(pr, qs) = w(pr) w(qs) (x(p, q, r, s) +- x(p, s, r, q))  for p >= r, q >= s,

where w is 1/sqrt(2) for a pair of equal elements, else 1.  A matrix is given as all its elements one after the other,
and a part of it as where it begins and how far apart its rows and its columns are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewise.engines.kernels.compile import compiled

HALF = np.sqrt(0.5)


@compiled
def _pair(first: int, second: int, length: int, same: bool, sign: int) -> int:
    """The place of a pair, first >= second if both are of the same tile, in its tile of pairs."""
    if not same:
        return first * length + second
    return first * (first + sign) // 2 + second


@compiled
def fold_block(
    x: Any, y: Any, has_x: bool, has_y: bool, sign: int, same_rows: bool, same_cols: bool, out: Any, place: Any
) -> None:
    """Fill a part of X from the blocks x(P, Q, R, S) and y = x(P, S, R, Q)."""
    at, row_step, col_step = place
    n_p, n_q, n_r, n_s = x.shape
    for p in range(n_p):
        for r in range(p + (1 if sign > 0 else 0) if same_rows else n_r):
            row = _pair(p, r, n_r, same_rows, sign)
            row_weight = HALF if same_rows and p == r else 1.0
            for q in range(n_q):
                last = q + (1 if sign > 0 else 0) if same_cols else n_s
                begin = at + row * row_step + _pair(q, 0, n_s, same_cols, sign) * col_step
                for s in range(last):
                    value = x[p, q, r, s] if has_x else 0.0
                    if has_y:
                        value += sign * y[p, s, r, q]
                    out[begin + s * col_step] = row_weight * value
                if same_cols and sign > 0:
                    out[begin + q * col_step] *= HALF


@compiled
def unfold_block(
    plus: Any,
    minus: Any,
    places: Any,
    has_plus: bool,
    has_minus: bool,
    same_rows: bool,
    same_cols: bool,
    turned: Any,
    out: Any,
) -> None:
    """Add to the block x(P, Q, R, S) what X+ and X- say of it.

    `turned` says whether P < R and whether Q < S: then the blocks are those of the pairs (R, P) and (S, Q).
    """
    n_p, n_q, n_r, n_s = out.shape
    at, row_step, col_step = places[0]
    odd_at, odd_row_step, odd_col_step = places[1]
    for p in range(n_p):
        for r in range(n_r):
            # x(p, q, r, s) = x(r, s, p, q): exchanged rows exchange the columns too.
            flipped = turned[0] or (same_rows and p < r)
            high, low, length = (r, p, n_p) if flipped else (p, r, n_r)
            row = at + _pair(high, low, length, same_rows, 1) * row_step
            odd_row = odd_at + _pair(high, low, length, same_rows, -1) * odd_row_step
            row_factor = 0.5 / HALF if same_rows and p == r else 0.5
            no_odd = not has_minus or (same_rows and p == r)
            for q in range(n_q):
                for s in range(n_s):
                    back = turned[1] or (same_cols and q < s)
                    above, below, width = (s, q, n_q) if back else (q, s, n_s)
                    factor = row_factor / HALF if same_cols and q == s else row_factor
                    value = 0.0
                    if has_plus:
                        value = plus[row + _pair(above, below, width, same_cols, 1) * col_step]
                    if not no_odd and not (same_cols and q == s):
                        odd = minus[odd_row + _pair(above, below, width, same_cols, -1) * odd_col_step]
                        value += -odd if back != flipped else odd
                    out[p, q, r, s] += factor * value
