"""Selection rules: the blocks whose tile labels combine to a target, found without listing the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError
from tilewise.spaces.integers import parse_integer, parse_integers
from tilewise.spaces.tiling import LABELS, Space

__all__ = ["Rule", "allowed_blocks"]

_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on the labels of a block's tiles: combined over the modes they give `target`.

    Irreps combine by XOR; spins and charges by addition, each with the sign of its mode.

    Examples
    --------
    >>> from tilewise.spaces import Rule
    >>> Rule("spin", signs=(1, 1, -1, -1))
    Rule(label='spin', target=0, signs=(1, 1, -1, -1))
    """

    label: str
    """Kind of label: "irrep", "spin" or "charge"."""
    target: int = 0
    """What the labels of an allowed block combine to."""
    signs: tuple[int, ...] | None = None
    """+1, -1 or 0 (mode left out) per mode; None is +1 for every mode. For irreps -1 is the same as +1."""

    def __post_init__(self) -> None:
        if self.label not in LABELS:
            raise InputError(f"Label {self.label!r} is unknown. Labels are {LABELS}. Use one of these.")
        remedy = f"Write Rule({self.label!r}, target=0, signs=(1, -1)) with one sign per mode."
        target = parse_integer(self.target, f"The target of the {self.label} rule", remedy)
        object.__setattr__(self, "target", target)
        if self.label == "irrep" and target < 0:
            raise InputError(f"The target of the irrep rule is {target}. Irreps are numbered from 0. {remedy}")
        if self.signs is None:
            return
        signs = parse_integers(self.signs, f"The signs of the {self.label} rule", remedy)
        if signs.ndim != 1 or not np.isin(signs, (-1, 0, 1)).all():
            raise InputError(f"The {self.label} rule has the signs {self.signs}. Each is +1, -1 or 0. {remedy}")
        object.__setattr__(self, "signs", tuple((abs(signs) if self.label == "irrep" else signs).tolist()))

    def contributions(self, spaces: Sequence[Space]) -> list[_Ints]:
        """What each tile of each mode adds (or XORs) to the block's sum."""
        signs = (1,) * len(spaces) if self.signs is None else self.signs
        if len(signs) != len(spaces):
            raise InputError(
                f"The {self.label} rule has {len(signs)} signs {signs} for {len(spaces)} modes. "
                "One sign per mode is expected. Add or remove signs; 0 leaves a mode out."
            )
        parts = []
        for mode, (space, sign) in enumerate(zip(spaces, signs, strict=True)):
            labels = space.label(self.label) if sign else np.zeros(space.ntiles, dtype=np.int64)
            if labels is None:
                raise InputError(
                    f"Mode {mode} ({space!r}) has no {self.label} labels. The {self.label} rule needs them. "
                    f"Give the space {self.label}=[...] or leave the mode out with sign 0."
                )
            parts.append(labels if self.label == "irrep" else sign * labels)
        return parts


def allowed_blocks(
    spaces: Sequence[Space], rules: Sequence[Rule] = (), ascending: Sequence[Sequence[int]] = ()
) -> _Ints:
    """Blocks that all rules allow, in lexicographic order, as an array (blocks, modes).

    Partial sums of labels are grouped mode by mode into a layered graph, whose nodes that cannot
    reach the target are cut; its paths are the allowed blocks. The cost is that of the result plus,
    per mode, (different partial sums) x (tiles): labels are few, so their sums are too.

    Parameters
    ----------
    spaces : sequence of Space
        One per mode.
    rules : sequence of Rule
        Conditions that hold at once; none allows every block.
    ascending : sequence of sequences of int
        Groups of modes within which tile numbers must not decrease.

    Examples
    --------
    >>> from tilewise.spaces import Rule, Space, allowed_blocks
    >>> alpha_beta = Space([2, 3], spin=[1, -1])
    >>> allowed_blocks((alpha_beta, alpha_beta), [Rule("spin", signs=(1, -1))])
    array([[0, 0],
           [1, 1]])
    """
    everything = Rule("charge", signs=(0,) * len(spaces))
    layers = _layers(spaces, rules or (everything,))
    before = {mode: group[at] for group in map(sorted, ascending) for at, mode in enumerate(group[1:])}
    columns: list[_Ints] = []
    node = np.zeros(1 if layers is not None else 0, dtype=np.int64)
    for mode, (live, step) in enumerate(layers or ()):
        counts = live.sum(axis=1)
        tiles = np.nonzero(live)[1]
        start = np.cumsum(counts) - counts
        taken = counts[node]
        row = np.repeat(np.arange(node.size), taken)
        shift = start[node] - (np.cumsum(taken) - taken)
        tile = tiles[np.arange(row.size) + np.repeat(shift, taken)]
        if mode in before:
            kept = tile >= columns[before[mode]][row]
            row, tile = row[kept], tile[kept]
        node = step[node[row], tile]
        columns = [column[row] for column in columns] + [tile]
    if not columns:
        return np.zeros((node.size, len(spaces)), dtype=np.int64)
    return np.stack(columns, axis=1).astype(np.int64, copy=False)


def _layers(spaces: Sequence[Space], rules: Sequence[Rule]) -> list[tuple[_Bools, _Ints]] | None:
    """Per mode, for each partial sum and tile: can the target still be reached, and which sum comes next.

    None if the target cannot be reached at all.
    """
    parts = [rule.contributions(spaces) for rule in rules]
    if any(space.ntiles == 0 for space in spaces):
        return None
    labels = [np.stack([part[mode] for part in parts], axis=1) for mode in range(len(spaces))]
    steps, reachable = _partial_sums(labels, rules)
    layers = []
    for near, after, kind in reversed(steps):
        live = np.zeros_like(near)
        live[near] = reachable[after[near]]
        reachable = np.asarray(live.any(axis=1))
        layers.append((live[:, kind], after[:, kind]))
    return layers[::-1] if reachable.size and reachable.all() else None


def _partial_sums(labels: Sequence[_Ints], rules: Sequence[Rule]) -> tuple[list[tuple[_Bools, _Ints, _Ints]], _Bools]:
    """Per mode, for each partial sum and different label: is the target near, and which sum comes next.

    Near means within the range of what the following modes can add. The third array of each step is
    the label of each tile; the second result says which of the last sums are the target.
    """
    xor = np.array([rule.label == "irrep" for rule in rules])
    target = np.array([rule.target for rule in rules], dtype=np.int64)
    least = _sums_after([values.min(axis=0) for values in labels], target.size)
    most = _sums_after([values.max(axis=0) for values in labels], target.size)
    sums = np.zeros((1, target.size), dtype=np.int64)
    steps = []
    for values, low, high in zip(labels, least, most, strict=True):
        classes, kind = _unique_rows(values)
        left, right = sums[:, None, :], classes[None, :, :]
        pairs = np.where(xor, left ^ right, left + right)
        missing = target - pairs
        inside = (low <= missing) & (missing <= high)
        inside[:, :, xor] = True
        near = inside.all(axis=2)
        after = np.zeros(near.shape, dtype=np.int64)
        sums, after[near] = _unique_rows(pairs[near])
        steps.append((near, after, kind))
    return steps, np.all(sums == target, axis=1)


def _sums_after(extremes: Sequence[_Ints], rules: int) -> _Ints:
    """For each mode, the sum of a quantity over the modes that follow it."""
    table = np.array(extremes, dtype=np.int64).reshape(len(extremes), rules)
    following: _Ints = table.sum(axis=0) - np.cumsum(table, axis=0)
    return following


def _unique_rows(rows: _Ints) -> tuple[_Ints, _Ints]:
    """Different rows and the number of the one each row equals."""
    number = np.zeros(len(rows), dtype=np.int64)
    first = number[:1]
    for column in rows.T:
        value = np.unique(column, return_inverse=True)[1]
        code = number * (int(value.max(initial=0)) + 1) + value
        first, number = np.unique(code, return_index=True, return_inverse=True)[1:]
    return rows[first], number
