"""Index groups of pairwise contractions, and unary steps."""

from __future__ import annotations

import pytest

from tilewise.errors import InputError
from tilewise.expressions import Contraction, Pair, Reduction, lower_pair, lower_single, parse_expression


def pair(text: str) -> Pair:
    return lower_pair(parse_expression(text, tuple(map(len, text.split("->")[0].split(",")))))


@pytest.mark.parametrize(
    ("text", "batch", "m", "n", "k"),
    [
        ("ijcd,cdab->ijab", "", "ij", "ab", "cd"),
        ("ik,kj->ji", "", "i", "j", "k"),
        ("bik,bkj->bij", "b", "i", "j", "k"),
        ("ij,ij->ji", "ji", "", "", ""),
        ("i,j->ij", "", "i", "j", ""),
        ("ij,ij->", "", "", "", "ij"),
        (",->", "", "", "", ""),
        (",i->i", "", "", "i", ""),
    ],
)
def test_groups(text: str, batch: str, m: str, n: str, k: str) -> None:
    product = pair(text).contraction
    assert ("".join(product.batch), "".join(product.m), "".join(product.n), "".join(product.k)) == (
        batch,
        m,
        n,
        k,
    )
    assert product.label() == text


@pytest.mark.parametrize(
    ("text", "k", "left", "right", "result"),
    [
        ("ikl,klj->ij", "kl", "plain", "plain", "plain"),
        ("kli,jkl->ji", "kl", "transposed", "transposed", "transposed"),
        ("ikl,lkj->ij", "kl", "plain", "permuted", "plain"),
        ("kil,lkj->ij", "lk", "permuted", "plain", "plain"),
        ("kil,ljk->ij", "kl", "permuted", "permuted", "plain"),
        ("ijk,kab->iajb", "k", "plain", "plain", "permuted"),
        ("jik,kab->ijab", "k", "permuted", "plain", "plain"),
        ("ibk,bkj->bij", "k", "permuted", "plain", "plain"),
    ],
)
def test_order_of_k_leaves_operands_in_place(text: str, k: str, left: str, right: str, result: str) -> None:
    product = pair(text).contraction
    assert "".join(product.k) == k
    assert (product.left_form, product.right_form, product.result_form) == (left, right, result)


@pytest.mark.parametrize(
    ("text", "left", "right", "product"),
    [
        ("ij,jk->ik", None, None, "ij,jk->ik"),
        ("ijx,jk->ik", "ijx->ij", None, "ij,jk->ik"),
        ("iij,jk->ik", "iij->ij", None, "ij,jk->ik"),
        ("lxki,klj->ij", "lxki->ikl", None, "ikl,klj->ij"),
        ("kil,lkxj->ij", None, "lkxj->lkj", "kil,lkj->ij"),
        ("xkil,lkxj->ijx", None, None, "xkil,lkxj->ijx"),
        ("ix,yj->ij", "ix->i", "yj->j", "i,j->ij"),
        ("xx,yy->", "xx->", "yy->", ",->"),
        ("kkj,kki->ij", "kkj->jk", "kki->ki", "jk,ki->ij"),
    ],
)
def test_unary_steps_come_first(text: str, left: str | None, right: str | None, product: str) -> None:
    lowered = pair(text)
    assert (lowered.left and lowered.left.label()) == left
    assert (lowered.right and lowered.right.label()) == right
    assert lowered.contraction.label() == product


@pytest.mark.parametrize("text", ["lxki,klj->ij", "klj,lxki->ji", "xkbi,kjb->ijb"])
def test_a_reduced_operand_comes_out_in_place(text: str) -> None:
    lowered = pair(text)
    reduced = lowered.contraction.left_form if lowered.left else lowered.contraction.right_form
    assert reduced == "plain"


@pytest.mark.parametrize(
    ("text", "repeated", "summed", "permutation", "is_copy"),
    [
        ("ij->ij", "", "", (0, 1), True),
        ("ijk->kij", "", "", (2, 0, 1), False),
        ("iij->ji", "i", "", None, False),
        ("ijki->k", "i", "ij", None, False),
        ("->", "", "", (), True),
    ],
)
def test_reduction(text: str, repeated: str, summed: str, permutation: tuple[int, ...] | None, is_copy: bool) -> None:
    step = lower_single(parse_expression(text, (len(text.split("->")[0]),)))
    assert ("".join(step.repeated), "".join(step.summed)) == (repeated, summed)
    assert (step.permutation, step.is_copy, step.label()) == (permutation, is_copy, text)


@pytest.mark.parametrize(
    ("left", "right", "result", "message"),
    [
        (
            "ijx",
            "jk",
            "ik",
            "right operand of 'ijx,jk->ik' has the indices 'jk', but its groups are 'jxk'",
        ),
        ("iij", "jk", "ik", "left operand .* 'iij', but its groups are"),
        ("ij", "jkx", "ik", "right operand .* 'jkx', but its groups are 'jk'"),
    ],
)
def test_contraction_without_unary_steps_is_refused(left: str, right: str, result: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Contraction.of(tuple(left), tuple(right), tuple(result))


def test_wrong_number_of_operands() -> None:
    with pytest.raises(InputError, match=r"'i,i->' has 2 operands\. Expected 1"):
        lower_single(parse_expression("i,i", (1, 1)))
    with pytest.raises(InputError, match=r"'ii->' has 1 operands\. Expected 2"):
        lower_pair(parse_expression("ii", (2,)))


def test_lowered_values_are_hashable_and_equal() -> None:
    assert pair("ij,jk->ik") is pair("ij,jk->ik")
    assert hash(Reduction(("i",), ())) == hash(Reduction(("i",), ()))
