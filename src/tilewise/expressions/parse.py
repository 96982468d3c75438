"""Einsum strings to index tuples, and the check that operands agree on their spaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import NoReturn

from tilewise.errors import InputError
from tilewise.spaces import Space
from tilewise.spaces.differences import labels_text, tiles_text

ELLIPSIS = "..."


@dataclass(frozen=True, slots=True)
class Expression:
    """An einsum string, taken apart: one letter per mode of every operand and of the result.

    Modes covered by ``...`` have letters of their own, so an expression never contains an ellipsis.

    Examples
    --------
    >>> from tilewise.expressions import Expression
    >>> expression = Expression((("i", "k"), ("k", "j")), ("i", "j"))
    >>> expression.label(), expression.summed
    ('ik,kj->ij', ('k',))
    """

    operands: tuple[tuple[str, ...], ...]
    """The indices of each operand, one letter per mode; a letter may repeat."""
    output: tuple[str, ...]
    """The indices of the result, each once."""
    ellipsis: tuple[str, ...] = field(default=(), compare=False)
    """The letters that stand for the modes under ``...``, left to right."""

    @property
    def ndims(self) -> tuple[int, ...]:
        """The number of modes of each operand."""
        return tuple(map(len, self.operands))

    @property
    def indices(self) -> tuple[str, ...]:
        """All different indices, in order of first appearance."""
        return tuple(dict.fromkeys(index for operand in self.operands for index in operand))

    @property
    def summed(self) -> tuple[str, ...]:
        """The indices that do not appear in the result, in order of first appearance."""
        return tuple(index for index in self.indices if index not in self.output)

    def label(self) -> str:
        """The expression as an explicit einsum string, such as ``"ijcd,cdab->ijab"``."""
        return ",".join(map("".join, self.operands)) + "->" + "".join(self.output)

    def __str__(self) -> str:
        return self.label()


def parse_expression(text: str, ndims: tuple[int, ...]) -> Expression:
    """Take an einsum string apart by NumPy's rules.

    Indices are single letters of any alphabet; blanks are ignored. Without ``->`` the result has the modes
    under ``...`` first, then the indices that appear exactly once, in alphabetical (code point) order. Modes
    under ``...`` are aligned from the right. Nothing is stretched: equal indices need equal spaces.

    Parameters
    ----------
    text : str
        The einsum string.
    ndims : tuple of int
        The number of modes of each operand.

    Returns
    -------
    Expression
        The same object for the same arguments while it stays in the cache.

    Raises
    ------
    InputError
        If the string is malformed or does not fit the operands.

    Examples
    --------
    >>> from tilewise.expressions import parse_expression
    >>> parse_expression("ijcd,cdab->ijab", (4, 4)).output
    ('i', 'j', 'a', 'b')
    >>> parse_expression("...k,kj", (3, 2)).label()
    'ABk,kj->ABj'
    """
    check_text(text)
    return _parse(text, ndims)


def check_text(text: object) -> None:
    """An einsum expression is a string."""
    if not isinstance(text, str):
        raise InputError(
            f"The einsum expression is of type {type(text).__name__}. Expected a string such as 'ik,kj->ij'. "
            "Put the string first and the operands after it; lists of index numbers are not taken."
        )


@lru_cache(maxsize=1024)
def _parse(text: str, ndims: tuple[int, ...]) -> Expression:
    left, output = _split_arrow(text)
    terms = left.split(",")
    if len(terms) != len(ndims):
        raise InputError(
            f"The einsum string {text!r} names {_count(len(terms), 'operand')}, but {len(ndims)} "
            f"{'was' if len(ndims) == 1 else 'were'} given. Expected one comma-separated term per operand. "
            "Add or remove terms or operands until the numbers agree."
        )
    subscripts = [_split_letters(term, f"operand {number}", text) for number, term in enumerate(terms)]
    covered = [_modes_under_ellipsis(subscripts[i], ndim, i, text) for i, ndim in enumerate(ndims)]
    result = None if output is None else _split_letters(output, "the output", text)
    dots = _letters_for_ellipsis(max(covered, default=0), subscripts)
    operands = tuple(_fill(term, dots[len(dots) - n :]) for term, n in zip(subscripts, covered, strict=True))
    if result is None:
        return Expression(operands, dots + _letters_that_appear_once(subscripts), dots)
    _check_output(result, operands, dots, text)
    return Expression(operands, _fill(result, dots), dots)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _split_arrow(text: str) -> tuple[str, str | None]:
    """The text without blanks, left and right of the arrow; None where there is no arrow."""
    parts = text.replace(" ", "").split("->")
    if len(parts) > 2:
        raise InputError(
            f"The einsum string {text!r} contains {len(parts) - 1} arrows '->'. Expected one, or none for "
            "the implicit output. Keep the arrow that stands before the output indices."
        )
    return parts[0], parts[1] if len(parts) == 2 else None


def _split_letters(term: str, place: str, text: str) -> tuple[str, ...]:
    """The letters of one term, with ``...`` as one entry."""
    before, dots, after = term.partition(ELLIPSIS)
    symbols = (*before, *([dots] if dots else []), *after)
    for symbol in symbols:
        if symbol != ELLIPSIS and not symbol.isalpha():
            _raise_bad_symbol(symbol, place, text)
    return symbols


def _raise_bad_symbol(symbol: str, place: str, text: str) -> NoReturn:
    if symbol == ".":
        raise InputError(
            f"The einsum string {text!r} has a '.' outside an ellipsis in {place}. Expected dots only as one "
            "'...' per term. Write '...' once, or remove the dot."
        )
    if symbol in "->":
        raise InputError(
            f"The einsum string {text!r} has a stray {symbol!r} in {place}. Expected it only in an "
            "arrow '->'. Complete the arrow or remove the character."
        )
    if symbol == ",":
        raise InputError(
            f"The einsum string {text!r} has a ',' in {place}. Expected one result, hence no comma after "
            "'->'. Remove the comma."
        )
    raise InputError(
        f"The einsum string {text!r} has the character {symbol!r} in {place}. Expected single letters as "
        "indices, and ',', '->', '...' or blanks between them. "
        "Rename the index to a letter that is not in use."
    )


def _modes_under_ellipsis(symbols: tuple[str, ...], ndim: int, number: int, text: str) -> int:
    """How many modes of operand `number` stand under ``...``."""
    dotted = ELLIPSIS in symbols
    letters = len(symbols) - dotted
    if ndim == letters or (dotted and ndim > letters):
        return ndim - letters
    wanted = f"at least {letters}" if dotted else str(letters)
    remedy = "add or remove letters" if dotted or ndim < letters else "name the other modes or add '...'"
    raise InputError(
        f"Operand {number} has {_count(ndim, 'mode')}, but its term {''.join(symbols)!r} in the einsum "
        f"string {text!r} is for {wanted}. Expected one letter per mode. "
        f"Either pass another operand {number}, or {remedy}."
    )


def _letters_for_ellipsis(number: int, subscripts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Letters in no operand: capitals first, then small letters, then what Unicode has."""
    used = {symbol for symbols in subscripts for symbol in symbols}
    free = (letter for letter in _alphabet() if letter not in used)
    return tuple(next(free) for _ in range(number))


def _alphabet() -> Iterator[str]:
    yield from "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    yield from (chr(point) for point in count(0x3B1) if chr(point).isalpha())


def _fill(symbols: tuple[str, ...], dots: tuple[str, ...]) -> tuple[str, ...]:
    """Put the letters `dots` where ``...`` stands."""
    if ELLIPSIS not in symbols:
        return symbols
    place = symbols.index(ELLIPSIS)
    return symbols[:place] + dots + symbols[place + 1 :]


def _letters_that_appear_once(subscripts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    symbols = [symbol for term in subscripts for symbol in term if symbol != ELLIPSIS]
    return tuple(sorted(symbol for symbol in symbols if symbols.count(symbol) == 1))


def _check_output(
    result: tuple[str, ...], operands: tuple[tuple[str, ...], ...], dots: tuple[str, ...], text: str
) -> None:
    """Raise if an explicit output repeats an index, invents one, or loses the modes under ``...``."""
    known = {index for operand in operands for index in operand} - set(dots)
    for symbol in result:
        if symbol != ELLIPSIS and symbol not in known:
            raise InputError(
                f"The output index {symbol!r} of the einsum string {text!r} appears in no operand. Expected "
                f"some of {''.join(sorted(known))!r}. Remove {symbol!r} from the output or give it to an "
                "operand."
            )
        if result.count(symbol) > 1:
            raise InputError(
                f"The output index {symbol!r} of the einsum string {text!r} appears {result.count(symbol)} "
                f"times in {''.join(result)!r}. Expected each output index once. Keep one {symbol!r}."
            )
    if dots and ELLIPSIS not in result:
        raise InputError(
            f"The output {''.join(result)!r} of the einsum string {text!r} has no '...', but the '...' of "
            f"the operands covers {_count(len(dots), 'mode')}. Expected '...' in the output too. Add "
            "it, or give the modes letters of their own if they are to be summed."
        )


def check_spaces(expression: Expression, spaces: Sequence[tuple[Space, ...]]) -> dict[str, Space]:
    """Return the space of each index, after checking that all modes of an index have equal spaces.

    Parameters
    ----------
    expression : Expression
        A parsed expression.
    spaces : sequence of tuple of Space
        The spaces of each operand, one per mode.

    Returns
    -------
    dict
        The space of each index, in order of first appearance.

    Raises
    ------
    InputError
        If two modes with the same index have spaces that differ in extent, tiles or labels.

    Examples
    --------
    >>> from tilewise.expressions import check_spaces, parse_expression
    >>> from tilewise.spaces import Space
    >>> occ, vir = Space([4, 6], name="occ"), Space([8], name="vir")
    >>> check_spaces(parse_expression("ia,aj->ij", (2, 2)), [(occ, vir), (vir, occ)])["a"].name
    'vir'
    """
    found: dict[str, Space] = {}
    for indices, operand_spaces in zip(expression.operands, spaces, strict=True):
        for index, space in zip(indices, operand_spaces, strict=True):
            known = found.setdefault(index, space)
            if known is not space and known != space:
                _raise_mismatch(expression, spaces, index)
    return found


def _raise_mismatch(expression: Expression, spaces: Sequence[tuple[Space, ...]], index: str) -> NoReturn:
    """Say how the first two different spaces of `index` differ, and what to do."""
    modes = [
        (number, mode, spaces[number][mode])
        for number, indices in enumerate(expression.operands)
        for mode, letter in enumerate(indices)
        if letter == index
    ]
    first = modes[0]
    other = next(entry for entry in modes if entry[2] != first[2])
    one, two = first[2], other[2]
    if one.size != two.size:
        values, aspect = (f"{one.size} elements", f"{two.size} elements"), "extents"
        remedy = "Rename one of the two indices or pass operands over the same space."
    elif tuple(one.sizes) != tuple(two.sizes):
        values = (tiles_text(one), tiles_text(two))
        aspect = f"tiles, though {one.size} elements each"
        remedy = f"Bring operand {other[0]} onto the tiles of operand {first[0]} with tw.retile."
    else:
        values, aspect = (labels_text(one), labels_text(two)), f"labels of the same {one.ntiles} tiles"
        remedy = "Give both operands the same labelled space, or spaces without labels."
    places = [_place(expression, number, mode, space) for number, mode, space in (first, other)]
    raise InputError(
        f"{_index_text(expression, index)} of {expression.label()!r} stands for different {aspect}: "
        f"{values[0]} in {places[0]}, {values[1]} in {places[1]}. "
        f"Expected equal spaces wherever an index appears. {remedy}"
    )


def _index_text(expression: Expression, index: str) -> str:
    if index in expression.ellipsis:
        return f"Index {index!r} (mode {expression.ellipsis.index(index)} under '...')"
    return f"Index {index!r}"


def _place(expression: Expression, number: int, mode: int, space: Space) -> str:
    name = f", space {space.name!r}" if space.name else ""
    return f"operand {number} ({''.join(expression.operands[number])!r}, mode {mode}{name})"
