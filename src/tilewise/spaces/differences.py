"""Spaces in words, where an error has to say in what they differ."""

from __future__ import annotations

from collections.abc import Sequence

from tilewise.spaces.tiling import Space


def modes_text(left: Sequence[Space], right: Sequence[Space]) -> str:
    """In what the modes of two tensors that are not equal differ first."""
    if len(left) != len(right):
        return f"{len(left)} modes against {len(right)}"
    mode, one, other = next((n, a, b) for n, (a, b) in enumerate(zip(left, right, strict=True)) if a != b)
    return f"mode {mode} has {difference_text(one, other)}"


def difference_text(one: Space, other: Space) -> str:
    """In what two spaces that are not equal differ."""
    if one.size != other.size:
        return f"{one.size} elements against {other.size}"
    if one.sizes.tolist() != other.sizes.tolist():
        return f"{tiles_text(one)} against {tiles_text(other)}"
    return f"{labels_text(one)} against {labels_text(other)}"


def labels_text(space: Space) -> str:
    """The labels, shortened."""
    kinds = (("spin", space.spin), ("irrep", space.irrep), ("charge", space.charge))
    found = [f"{name} {labels.tolist()!s:.40}" for name, labels in kinds if labels is not None]
    return " and ".join(found) or "no labels"


def tiles_text(space: Space) -> str:
    """The tile sizes, shortened in the middle where there are many."""
    sizes = [str(size) for size in space.sizes]
    shown = sizes if len(sizes) <= 8 else [*sizes[:4], "...", *sizes[-3:]]
    return f"{space.ntiles} tiles [{', '.join(shown)}]"
