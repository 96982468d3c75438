"""Equations as text: what terms become, what is refused, and which terms are left or needed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.errors import InputError
from tilewise.expressions.equations import Reference, Statement, needed_statements, parse_equations, without_tensors


def printed(text: str) -> list[str]:
    return [str(each) for each in parse_equations(text)]


@pytest.mark.parametrize(
    ("line", "terms"),
    [
        ("r[ia] = f[ia]", ["r[ia] = f[ia]"]),
        ("r[ia] = -f[ia]", ["r[ia] = -f[ia]"]),
        ("  r[ia]=+ f[ia]-g[ai]  ", ["r[ia] = f[ia]", "r[ia] += -g[ai]"]),
        ("r[ia] = f[ia] - 1/2 t[kc] v[kcia]", ["r[ia] = f[ia]", "r[ia] += -0.5 t[kc] v[kcia]"]),
        ("r[ia] = 2 f[ia] + 0.25 g[ia]", ["r[ia] = 2 f[ia]", "r[ia] += 0.25 g[ia]"]),
        ("r[ia] = 3/4f[ia] - 2.g[ia]", ["r[ia] = 0.75 f[ia]", "r[ia] += -2 g[ia]"]),
        ("e[] = f[ia] t[ia]", ["e[] = f[ia] t[ia]"]),
        ("R_s1[xp] = T_s[xq] V[pq] W[qq]", ["R_s1[xp] = T_s[xq] V[pq] W[qq]"]),
        ("S[xp] = fold T[iajb]", ["S[xp] = fold T[iajb]"]),
        ("S[xp] = -2 fold T[iajb] + U[xp]", ["S[xp] = -2 fold T[iajb]", "S[xp] += U[xp]"]),
        ("r[iajb] = V[iajb] + unfold S[xp] A[XP]", ["r[iajb] = V[iajb]", "r[iajb] += unfold S[xp] A[XP]"]),
        ("folded[xp] = unfolded[xp]", ["folded[xp] = unfolded[xp]"]),
    ],
)
def test_a_line_becomes_terms(line: str, terms: list[str]) -> None:
    assert printed(line) == terms


def test_a_term_has_all_its_parts() -> None:
    first, second, third = parse_equations("r[ia] = f[ia] - 1/3 t[kc] v[kcia]  @singles\nr[ia] += unfold s[xp] a[XP]")
    target = Reference("r", "ia")
    assert first == Statement(target, False, 1.0, (Reference("f", "ia"),), "contract", "singles")
    assert second == Statement(
        target, True, -1 / 3, (Reference("t", "kc"), Reference("v", "kcia")), "contract", "singles"
    )
    assert third == Statement(target, True, 1.0, (Reference("s", "xp"), Reference("a", "XP")), "unfold", "")
    assert (first.expression, second.expression) == ("ia->ia", "kc,kcia->ia")
    assert (str(target), str(third)) == ("r[ia]", "r[ia] += unfold s[xp] a[XP]")


def test_comments_and_empty_lines_are_left_out() -> None:
    assert printed("\n# nothing\n  # f[ia] = g[ia]\n\nr[ia] = f[ia]\n") == ["r[ia] = f[ia]"]
    assert parse_equations("") == ()


def test_lines_add_to_what_was_made() -> None:
    text = "r[ia] = f[ia] @one\ns[ia] = r[ia]\nr[ia] += -g[ia] + 2 s[ia] @two"
    assert printed(text) == ["r[ia] = f[ia]", "s[ia] = r[ia]", "r[ia] += -g[ia]", "r[ia] += 2 s[ia]"]
    assert [each.group for each in parse_equations(text)] == ["one", "", "two", "two"]


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("nothing", "nothing"),
        ("r[ia] f[ia]", r"r\[ia\] f\[ia\]"),
        ("r = f[ia]", r"r = f\[ia\]"),
        ("r[i1] = f[ia]", r"r\[i1\] = f\[ia\]"),
        ("r[ia] =", "nothing on its right side"),
        ("r[ia] = @group", "nothing on its right side"),
        ("r[ia] = f[ia] g", "g"),
        ("r[ia] = f[ia] + ", r"\+"),
        ("r[ia] = f[ia] 2 g[ia]", r"2 g\[ia\]"),
        ("r[ia] = 1/ f[ia]", r"1/ f\[ia\]"),
        ("r[ia] = -- f[ia]", r"-- f\[ia\]"),
        ("r[ia] = f[ia] * g[ia]", r"\* g\[ia\]"),
        ("r[ia] -= f[ia]", r"r\[ia\] -= f\[ia\]"),
        ("r[ia] = f[ia] @one @two", "@one"),
    ],
)
def test_what_is_not_understood_is_shown(line: str, where: str) -> None:
    expected = (
        rf"The equation .* is not understood at '{where}'\. Expected a line such as 'r\[ia\] = .*'\. Correct it\."
    )
    with pytest.raises(InputError, match=expected):
        parse_equations(line)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("r[ia] += f[ia]", "adds to r, which no line before has made"),
        ("r[ia] = f[ia]\nr[ia] = g[ia]", "makes r, which a line before has made"),
    ],
)
def test_a_tensor_is_made_once(text: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"{message}\. Expected '=' on the first line of a tensor and '\+=' on later"):
        parse_equations(text)


EXAMPLE = """
X[ia] = t1[ic] f[ca]
Y[ia] = X[ia] + g[ia]
Z[ia] = X[ia]
P[xp] = fold Z[ia]
Q[XP] = fold Z[ia]
G[xp] = fold g[ia]
H[XP] = fold g[ia]
r[ia] = Z[ia] + Y[ia]
r[ia] += unfold P[xp] Q[XP]
r[ia] += unfold G[xp] H[XP]
u[ia] = unfold P[xp] Q[XP]
"""


def test_terms_without_tensors_that_are_zero() -> None:
    """What is made of zeros alone is zero, and the first term that is left makes its target."""
    left = without_tensors(parse_equations(EXAMPLE), ("t1",))
    assert [str(each) for each in left] == [
        "Y[ia] = g[ia]",
        "G[xp] = fold g[ia]",
        "H[XP] = fold g[ia]",
        "r[ia] = Y[ia]",
        "r[ia] += unfold G[xp] H[XP]",
    ]


def test_nothing_is_zero() -> None:
    every = parse_equations(EXAMPLE)
    assert without_tensors(every, ()) == every
    assert without_tensors(every, ("t1", "g")) == ()


def test_terms_that_results_are_made_of() -> None:
    every = parse_equations("a[i] = f[i]\nb[i] = a[i]\nc[i] = a[i]\na[i] += g[i]\nd[i] = a[i] + c[i]\na[i] += h[i]")
    assert [str(each) for each in needed_statements(every, ("b",))] == ["a[i] = f[i]", "b[i] = a[i]"]
    assert [str(each) for each in needed_statements(every, ("d",))] == [
        "a[i] = f[i]",
        "c[i] = a[i]",
        "a[i] += g[i]",
        "d[i] = a[i]",
        "d[i] += c[i]",
    ]
    assert needed_statements(every, ("b", "d", "a")) == every
    assert needed_statements(every, ("f",)) == ()


NAMES = st.sampled_from(("t1", "t2", "V", "g_ov"))
INDICES = st.text("ijabXp", max_size=4)
REFERENCES = st.builds(Reference, NAMES, INDICES)
FACTORS = st.sampled_from((1.0, -1.0, 2.0, 0.5, -0.25, 1.5))


@given(st.lists(st.tuples(FACTORS, st.lists(REFERENCES, min_size=1, max_size=3)), min_size=1, max_size=4), INDICES)
def test_printed_terms_can_be_read_again(terms: list[tuple[float, list[Reference]]], letters: str) -> None:
    target = Reference("r", letters)
    made = tuple(Statement(target, n > 0, factor, tuple(of)) for n, (factor, of) in enumerate(terms))
    assert parse_equations("\n".join(map(str, made))) == made
