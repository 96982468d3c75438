"""Einsum strings: what is accepted, what each error says, and the check of spaces."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tilewise.errors import InputError
from tilewise.expressions import Expression, check_spaces, parse_expression
from tilewise.spaces import Space


@pytest.mark.parametrize(
    ("text", "ndims", "label"),
    [
        ("ijcd,cdab->ijab", (4, 4), "ijcd,cdab->ijab"),
        (" i j, jk -> ik ", (2, 2), "ij,jk->ik"),
        ("ik,kj", (2, 2), "ik,kj->ij"),
        ("bA", (2,), "bA->Ab"),
        ("ii", (2,), "ii->"),
        ("iij", (3,), "iij->j"),
        ("", (0,), "->"),
        (",", (0, 0), ",->"),
        ("i,,j->ji", (1, 0, 1), "i,,j->ji"),
        ("...k,kj", (3, 2), "ABk,kj->ABj"),
        ("...k,k...", (3, 2), "ABk,kB->AB"),
        ("k...,...k->...", (1, 3), "k,ABk->AB"),
        ("A...B", (3,), "ACB->CAB"),
        ("...i->i", (1,), "i->i"),
        ("i->...i", (1,), "i->i"),
        ("...->...", (0,), "->"),
        ("λμ,μé->λé", (2, 2), "λμ,μé->λé"),
        ("μ,λ", (1, 1), "μ,λ->λμ"),
    ],
)
def test_accepted(text: str, ndims: tuple[int, ...], label: str) -> None:
    expression = parse_expression(text, ndims)
    assert expression.label() == str(expression) == label
    assert expression.ndims == ndims
    assert parse_expression(label, ndims) == expression


def test_second_call_returns_the_same_object() -> None:
    assert parse_expression("ij,jk", (2, 2)) is parse_expression("ij,jk", (2, 2))


def test_more_ellipsis_modes_than_the_alphabet_has_letters() -> None:
    expression = parse_expression("...a,a", (61, 1))
    assert len(set(expression.indices)) == 61
    assert all(index.isalpha() for index in expression.indices)


def test_parts_of_an_expression() -> None:
    expression = parse_expression("ijj,jk...->...i", (3, 3))
    assert expression.indices == ("i", "j", "k", "A")
    assert expression.summed == ("j", "k")
    assert expression.ellipsis == ("A",)


@pytest.mark.parametrize(
    ("text", "ndims", "message"),
    [
        ("ij->ik", (2,), "output index 'k' of .* 'ij->ik' appears in no operand.*some of 'ij'.*Remove 'k'"),
        ("...->A", (1,), "output index 'A' .* appears in no operand"),
        ("ij->iij", (2,), "output index 'i' .* appears 2 times in 'iij'.*Keep one 'i'"),
        ("i...->...i...", (2,), r"'\.' outside an ellipsis in the output"),
        ("ij,jk->ik", (2,), "names 2 operands, but 1 was given.*Add or remove terms"),
        ("ij", (2, 2), "names 1 operand, but 2 were given"),
        ("", (), "names 1 operand, but 0 were given"),
        (
            "ij,jk->ik",
            (2, 3),
            "Operand 1 has 3 modes, but its term 'jk' .* is for 2.*name the other modes or",
        ),
        ("ij,jk->ik", (1, 2), "Operand 0 has 1 mode, but its term 'ij' .* is for 2.*add or remove letters"),
        ("ij...", (1,), r"Operand 0 has 1 mode, but its term 'ij\.\.\.' .* is for at least 2"),
        ("i1->i", (2,), "character '1' in operand 0.*Rename"),
        ("i\tj", (2,), r"character '\\t' in operand 0"),
        ("i_->i", (2,), "character '_' in operand 0"),
        ("ij->i,j", (2,), "',' in the output.*Remove the comma"),
        ("ij->i->j", (2,), "contains 2 arrows.*Keep the arrow"),
        ("ij-i", (3,), "stray '-' in operand 0.*Complete the arrow"),
        ("ij>i", (3,), "stray '>' in operand 0"),
        ("ij.k", (3,), r"'\.' outside an ellipsis in operand 0.*Write '\.\.\.' once"),
        ("...i...", (3,), r"'\.' outside an ellipsis in operand 0"),
        ("i,....", (1, 1), r"'\.' outside an ellipsis in operand 1"),
        ("...i->i", (3,), r"output 'i' .* has no '\.\.\.', but the '\.\.\.' of the operands covers 2 modes"),
        (("ij", "jk"), (2, 2), "expression is of type tuple.*Put the string first"),
        (b"ij,jk", (2, 2), "expression is of type bytes"),
        ([0, 1], (2,), "expression is of type list"),
        (None, (2,), "expression is of type NoneType"),
    ],
)
def test_rejected(text: Any, ndims: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_expression(text, ndims)


OCC = Space([4, 6, 5], name="occ")
VIR = Space([8, 8], name="vir")
RETILED = Space([8, 7])
LABELLED = Space([4, 6, 5], irrep=[0, 1, 0])


def test_spaces_of_indices() -> None:
    twin = Space([8, 8], name="another name")
    found = check_spaces(parse_expression("ia,ajj->i", (2, 3)), [(OCC, VIR), (twin, OCC, OCC)])
    assert found == {"i": OCC, "a": VIR, "j": OCC}
    assert list(found) == ["i", "a", "j"]


@pytest.mark.parametrize(
    ("text", "spaces", "message"),
    [
        (
            "ij,jk->ik",
            [(OCC, VIR), (OCC, VIR)],
            (
                "Index 'j' of 'ij,jk->ik' stands for different extents: 16 elements in operand 0 ('ij', mode "
                "1, space 'vir'), 15 elements in operand 1 ('jk', mode 0, space 'occ'). Expected equal"
            ),
        ),
        (
            "ii",
            [(OCC, VIR)],
            "in operand 0 ('ii', mode 0, space 'occ'), 16 elements in operand 0 ('ii', mode 1",
        ),
        (
            "ij,j->i",
            [(VIR, OCC), (RETILED,)],
            (
                "different tiles, though 15 elements each: 3 tiles [4, 6, 5] in operand 0 ('ij', mode 1, "
                "space 'occ'), 2 tiles [8, 7] in operand 1 ('j', mode 0). Expected equal spaces wherever an "
                "index appears. Bring operand 1 onto the tiles of operand 0 with tw.retile."
            ),
        ),
        ("i,i->", [(OCC,), (LABELLED,)], "different labels of the same 3 tiles"),
        ("i,i,i->", [(OCC,), (OCC,), (VIR,)], "('i', mode 0, space 'occ'), 16 elements in operand 2"),
        ("...i,...->...i", [(OCC, VIR), (VIR,)], "Index 'A' (mode 0 under '...')"),
        ("i,i->", [(Space([1] * 10),), (Space([2] * 5),)], "10 tiles [1, 1, 1, 1, ..., 1, 1, 1]"),
    ],
)
def test_spaces_that_differ(text: str, spaces: list[tuple[Space, ...]], message: str) -> None:
    expression = parse_expression(text, tuple(map(len, spaces)))
    with pytest.raises(InputError, match=re.escape(message)):
        check_spaces(expression, spaces)


def test_expressions_compare_by_their_indices() -> None:
    assert parse_expression("...i", (2,)) == Expression((("A", "i"),), ("A", "i"))
