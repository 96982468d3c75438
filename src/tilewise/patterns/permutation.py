"""`Symmetry`: groups of modes under whose permutation a tensor keeps its value or changes its sign."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations, product

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.spaces import Space
from tilewise.spaces.differences import difference_text
from tilewise.spaces.integers import parse_integer

__all__ = ["Symmetry"]

_Ints = npt.NDArray[np.int64]
Group = tuple[tuple[int, ...], int]


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Symmetry:
    """Groups of modes, each symmetric (+1) or antisymmetric (-1) under any exchange of two of its modes.

    Parameters
    ----------
    *groups : (modes, sign)
        `modes` are two or more mode numbers, in no other group; `sign` is +1 or -1.

    Examples
    --------
    >>> from tilewise.patterns import Symmetry
    >>> Symmetry(((0, 1), -1), ((2, 3), -1))      # t_ijab = -t_jiab = -t_ijba
    Symmetry(((0, 1), -1), ((2, 3), -1))
    """

    groups: tuple[Group, ...]
    """(modes, sign) per group; modes ascend, groups are ordered by their first mode."""

    def __init__(self, *groups: tuple[Iterable[int], int]) -> None:
        parsed = sorted(_parse_group(group) for group in groups)
        modes = [mode for group, _ in parsed for mode in group]
        twice = sorted({mode for mode in modes if modes.count(mode) > 1})
        if twice:
            raise InputError(
                f"Mode {twice[0]} appears more than once in the symmetry groups {tuple(parsed)}. "
                "A mode belongs to at most one group. Merge the groups or drop the mode from one of them."
            )
        object.__setattr__(self, "groups", tuple(parsed))

    def __repr__(self) -> str:
        return f"Symmetry({', '.join(map(repr, self.groups))})"

    def check_spaces(self, spaces: Sequence[Space]) -> None:
        """Raise an `InputError` unless all modes exist and those of one group have equal spaces."""
        for modes, _ in self.groups:
            if modes[-1] >= len(spaces):
                raise InputError(
                    f"The symmetry group {modes} names mode {modes[-1]} of a tensor with {len(spaces)} "
                    f"modes. Modes run from 0 to {len(spaces) - 1}. Correct the group or the spaces."
                )
            for mode in modes[1:]:
                if spaces[mode] != spaces[modes[0]]:
                    raise InputError(
                        f"Modes {modes[0]} ({spaces[modes[0]]!r}) and {mode} ({spaces[mode]!r}) are in one symmetry "
                        f"group, but differ: {difference_text(spaces[modes[0]], spaces[mode])}. Modes that are "
                        "exchanged need equal spaces (tile sizes and labels). "
                        "Use one space for both modes or take them out of the group."
                    )

    def operations(self, ndim: int) -> tuple[_Ints, npt.NDArray[np.float64]]:
        """All permutations of modes, the identity first: axes (operations, ndim) and their signs.

        The tensor T obeys `T == sign * np.transpose(T, axes)` for each of them.
        """
        axes = [list(range(ndim))]
        signs = [1.0]
        choices = [[(modes, order, sign) for order in permutations(modes)] for modes, sign in self.groups]
        for combination in list(product(*choices))[1:]:
            axes.append(list(range(ndim)))
            signs.append(1.0)
            for modes, order, sign in combination:
                for mode, source in zip(modes, order, strict=True):
                    axes[-1][mode] = source
                signs[-1] *= _sign(order, sign)
        return np.array(axes, dtype=np.int64).reshape(len(axes), ndim), np.array(signs)

    def multiplicity(self, index: _Ints) -> _Ints:
        """Number of blocks of the full tensor that each unique block (row of `index`) stands for."""
        number = np.ones(len(index), dtype=np.int64)
        for modes, _ in self.groups:
            run = np.ones(len(index), dtype=np.int64)
            repeats = np.ones(len(index), dtype=np.int64)
            for left, right in pairwise(modes):
                run = np.where(index[:, left] == index[:, right], run + 1, 1)
                repeats *= run  # ends as the product of (length of each run of equal tiles)!
            number *= math.factorial(len(modes)) // repeats
        return number

    def ascends(self, index: _Ints) -> npt.NDArray[np.bool_]:
        """Whether each row is a unique block: its tile numbers do not decrease within any group."""
        good = np.ones(len(index), dtype=np.bool_)
        for modes, _ in self.groups:
            for left, right in pairwise(modes):
                good &= index[:, left] <= index[:, right]
        return good

    def ascending(self, index: _Ints) -> _Ints:
        """A copy of `index` with the tile numbers of each row sorted within each group."""
        ordered = index.copy()
        for modes, _ in self.groups:
            ordered[:, modes] = np.sort(index[:, modes], axis=1)
        return ordered

    def locate(self, block: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], float]:
        """The unique block, the axes and the sign that give one block of the full tensor.

        Returns `(unique, axes, sign)` with `full_block == sign * np.transpose(unique_block, axes)`, the
        same that `expand` lists for all blocks.

        Examples
        --------
        >>> from tilewise.patterns import Symmetry
        >>> Symmetry(((0, 1), -1)).locate((5, 2))
        ((2, 5), (1, 0), -1.0)
        """
        unique, axes, sign = list(block), list(range(len(block))), 1.0
        for modes, group_sign in self.groups:
            order = sorted(modes, key=lambda mode: block[mode])
            for place, mode in zip(modes, order, strict=True):
                unique[place] = block[mode]
                axes[mode] = place
            sign *= _sign(tuple(axes[mode] for mode in modes), group_sign)
        return tuple(unique), tuple(axes), sign

    def relabelled(self, axes: Sequence[int]) -> Symmetry:
        """The symmetry of `np.transpose(T, axes)` for a tensor T with this one."""
        place = {mode: new for new, mode in enumerate(axes)}
        return Symmetry(*((tuple(place[mode] for mode in modes), sign) for modes, sign in self.groups))


def _parse_group(group: tuple[Iterable[int], int]) -> Group:
    remedy = "Write each group as (modes, sign), such as Symmetry(((0, 1), -1))."
    try:
        modes, sign = group
        listed = tuple(modes)
    except (TypeError, ValueError) as error:
        raise InputError(f"{group!r} is no symmetry group. (modes, sign) is expected. {remedy}") from error
    numbers = tuple(sorted(parse_integer(mode, "A mode of a symmetry group", remedy) for mode in listed))
    if len(numbers) < 2 or numbers[0] < 0:
        raise InputError(
            f"The symmetry group {group!r} has the modes {numbers}. Two or more modes, numbered from 0, "
            f"are expected. {remedy}"
        )
    if isinstance(sign, bool) or sign not in (1, -1):
        raise InputError(f"The sign of the symmetry group {group!r} is {sign!r}. It is +1 or -1. {remedy}")
    return numbers, int(sign)


def _sign(order: Sequence[int], sign: int) -> float:
    """`sign` to the power of the number of exchanges that sort `order`."""
    inversions = sum(left > right for at, left in enumerate(order) for right in order[at + 1 :])
    return float(sign) if inversions % 2 else 1.0
