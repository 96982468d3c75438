"""Equations as text: sums of products of named tensors, line by line.

    F[ac]  = f[ac] + 2 X[kakc] - Y[kakc]
    R[xp] += T[xq] V[pq]             @ladder
    S[xp]  = fold T[iajb]
    r[iajb] += unfold S[xp] A[XP]

A line makes a tensor, or adds to one that a line before made.  Letters are indices, as in an einsum string; ``fold``
and ``unfold`` go to pairs of elements and back; ``@`` names the group that the line's work is counted under.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from tilewise.errors import InputError

__all__ = ["Reference", "Statement", "needed_statements", "parse_equations", "without_tensors"]

_TENSOR = r"([A-Za-z]\w*)\[([A-Za-z]*)\]"
_LINE = re.compile(rf"\s*{_TENSOR}\s*(\+?=)\s*(.*?)\s*(?:@(\w+))?\s*")
_TERM = re.compile(r"\s*([+-]?)\s*(\d+(?:/\d+|\.\d*)?)?\s*(fold\b|unfold\b)?((?:\s*[A-Za-z]\w*\[[A-Za-z]*\])+)\s*")


@dataclass(frozen=True, slots=True)
class Reference:
    """A tensor as a term names it."""

    name: str
    """Name of the tensor."""
    letters: str
    """An index for each mode."""

    def __str__(self) -> str:
        return f"{self.name}[{self.letters}]"


@dataclass(frozen=True, slots=True)
class Statement:
    """One term of one line: the target is made of it, or it is added to the target."""

    target: Reference
    """What is made or added to."""
    adds: bool
    """Whether the target exists already."""
    factor: float
    """Number in front."""
    operands: tuple[Reference, ...]
    """The tensors that are multiplied."""
    kind: str = "contract"
    """``"contract"``, ``"fold"`` or ``"unfold"``."""
    group: str = ""
    """What the work is counted under."""

    @property
    def expression(self) -> str:
        """The term as an einsum string."""
        return f"{','.join(each.letters for each in self.operands)}->{self.target.letters}"

    def __str__(self) -> str:
        factor = "" if self.factor in (1, -1) else f"{abs(self.factor):g} "
        sign = "-" if self.factor < 0 else ""
        verb = "" if self.kind == "contract" else f"{self.kind} "
        product = " ".join(map(str, self.operands))
        return f"{self.target} {'+=' if self.adds else '='} {sign}{factor}{verb}{product}"


def parse_equations(text: str) -> tuple[Statement, ...]:
    """The terms of some lines in order; empty lines and those that begin with # are left out.

    Examples
    --------
    >>> from tilewise.expressions.equations import parse_equations
    >>> for term in parse_equations("r[ia] = f[ia] - 1/2 t[kc] v[kcia]"):
    ...     print(term, term.expression)
    r[ia] = f[ia] ia->ia
    r[ia] += -0.5 t[kc] v[kcia] kc,kcia->ia
    """
    found: list[Statement] = []
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            found += _parse_line(line, {each.target.name for each in found})
    return tuple(found)


def _parse_line(line: str, known: Collection[str]) -> list[Statement]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise _not_understood(line, line.strip())
    name, letters, equals, terms, group = match.groups()
    target, adds = Reference(name, letters), equals == "+="
    if adds != (name in known):
        raise InputError(
            f"{line.strip()!r} {'adds to' if adds else 'makes'} {name}, which {'no line' if adds else 'a line'} before "
            "has made. Expected '=' on the first line of a tensor and '+=' on later ones. Correct it."
        )
    made, at = [], 0
    while at < len(terms):
        term = _TERM.match(terms, at)
        if term is None or (at and not term[1]):
            raise _not_understood(line, terms[at:])
        number = Fraction(term[2]) if term[2] else Fraction(1)
        factor = float(-number if term[1] == "-" else number)
        operands = tuple(Reference(*each) for each in re.findall(_TENSOR, term[4]))
        made.append(Statement(target, adds or bool(at), factor, operands, term[3] or "contract", group or ""))
        at = term.end()
    if not made:
        raise _not_understood(line, "nothing on its right side")
    return made


def _not_understood(line: str, what: str) -> InputError:
    return InputError(
        f"The equation {line.strip()!r} is not understood at {what!r}. Expected a line such as 'r[ia] = f[ia] - 1/2 "
        "t[kc] v[kcia]'. Correct it."
    )


def without_tensors(statements: Iterable[Statement], zero: Collection[str]) -> tuple[Statement, ...]:
    """The terms that are left if some tensors are zero; what is made of nothing else is zero too."""
    gone, kept = set(zero), list[Statement]()
    made: set[str] = set()
    remaining = list(statements)
    targets = {each.target.name for each in remaining}
    while True:
        made = {each.target.name for each in remaining if not _vanishes(each, gone)}
        empty = targets - made - gone
        if not empty:
            break
        gone |= empty
    for each in remaining:
        if not _vanishes(each, gone):
            first = each.target.name not in {old.target.name for old in kept}
            kept.append(replace(each, adds=not first))
    return tuple(kept)


def _vanishes(statement: Statement, zero: Collection[str]) -> bool:
    names = [each.name for each in statement.operands]
    return all(name in zero for name in names) if statement.kind == "unfold" else any(name in zero for name in names)


def needed_statements(statements: Sequence[Statement], results: Collection[str]) -> tuple[Statement, ...]:
    """The terms that some results are made of."""
    wanted, kept = set(results), list[Statement]()
    for each in reversed(statements):
        if each.target.name in wanted:
            kept.append(each)
            wanted.update(operand.name for operand in each.operands)
    return tuple(reversed(kept))
