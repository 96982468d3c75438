"""Equations over named tensors: results of a dense interpreter, lifetimes, peaks and budgets."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewise as tw
from engines.test_folding import coulomb_like, exchanged_tensor, pair_basis
from references import assert_sound, dense, stored_bytes
from tilewise.chemistry.amplitudes import CCSD_EQUATIONS, DRCCD_EQUATIONS
from tilewise.engines.base import current_engine
from tilewise.engines.folding import Folding, fold
from tilewise.expressions.equations import Statement, parse_equations
from tilewise.iteration import Given, Iteration, Letters, allowed_pattern, bytes_on_rank
from tilewise.patterns import Pattern, Symmetry
from tilewise.plans import Plan
from tilewise.spaces import Pairs, Space
from tilewise.tensors.elsewhere import make_elsewhere
from tilewise.tensors.files import ScratchFile
from tilewise.trace import MEMORY

Array = npt.NDArray[Any]
Tensors = dict[str, tw.BlockTensor]

PLENTY = 10**10


def make_letters(occ: Space, vir: Space) -> Letters:
    """i j k l and a b c d, x y (X Y) and p q (P Q) for pairs of them."""
    letters: dict[str, Space | Pairs] = {}
    for space, plain, even, odd in ((occ, "ijkl", "xy", "XY"), (vir, "abcd", "pq", "PQ")):
        letters |= dict.fromkeys(plain, space)
        letters |= dict.fromkeys(even, Pairs.of(space, 1)) | dict.fromkeys(odd, Pairs.of(space, -1))
    return letters


PLAIN = make_letters(Space([2, 1]), Space([3, 1, 2]))
LABELLED = make_letters(Space([2, 1], irrep=[0, 1]), Space([3, 1, 2], irrep=[1, 0, 1]))
ONE_PAIR = make_letters(Space([1]), Space([1, 1]))


OCCUPIED = frozenset("ijklxyXY")


def pair_bases(letters: Letters, two: str, modes: str) -> tuple[Array, Array, str]:
    """The pairs of the modes 0 and 2 and those of the modes 1 and 3, and how a matrix has them."""
    turned = (two[0] in OCCUPIED) != (modes[0] in OCCUPIED)
    rows, cols = (letters[letter] for letter in (two[::-1] if turned else two))
    assert isinstance(rows, Pairs)
    assert isinstance(cols, Pairs)
    return pair_basis(rows), pair_basis(cols), "yx" if turned else "xy"


def interpret(statements: Sequence[Statement], letters: Letters, given: Mapping[str, Array]) -> dict[str, Array]:
    """What equations mean, with dense arrays."""
    known = dict(given)
    for each in statements:
        arrays = [known[operand.name] for operand in each.operands]
        if each.kind == "fold":
            rows, cols, order = pair_bases(letters, each.target.letters, each.operands[0].letters)
            value = np.einsum(f"xpr,pqrs,yqs->{order}", rows, arrays[0], cols)
        elif each.kind == "unfold":
            value = np.zeros(1)
            for operand, array in zip(each.operands, arrays, strict=True):
                rows, cols, order = pair_bases(letters, operand.letters, each.target.letters)
                value = value + np.einsum(f"xpr,{order},yqs->pqrs", rows, array, cols)
        else:
            value = np.einsum(each.expression, *arrays)
        known[each.target.name] = each.factor * value + (known[each.target.name] if each.adds else 0)
    return known


def random_tensors(letters: Letters, named: Mapping[str, str], seed: int = 0) -> Tensors:
    """All blocks that irreps allow, random."""
    made = {}
    for number, (name, indices) in enumerate(named.items()):
        pattern = allowed_pattern(letters, indices)
        made[name] = tw.random(pattern=pattern, seed=seed + number)
    return made


def patterns_of(tensors: Tensors) -> dict[str, Given]:
    return {name: tensor.pattern for name, tensor in tensors.items()}


def check_results(text: str, letters: Letters, tensors: Tensors, results: Sequence[str], **options: Any) -> Iteration:
    """Run equations and compare with the interpreter; given tensors stay as they are."""
    statements = parse_equations(text)
    before = {name: stored_bytes(tensor) for name, tensor in tensors.items()}
    whole = Iteration(statements, letters, patterns_of(tensors), results, **({"memory": PLENTY} | options))
    found = whole.run(tensors)
    expected = interpret(statements, letters, {name: dense(tensor) for name, tensor in tensors.items()})
    assert list(found) == list(results)
    for name in results:
        assert_sound(found[name])
        scale = max(1.0, float(np.abs(expected[name]).max(initial=0)))
        np.testing.assert_allclose(dense(found[name]), expected[name], rtol=0, atol=1e-10 * scale)
    assert before == {name: stored_bytes(tensor) for name, tensor in tensors.items()}
    return whole


# Results


@pytest.mark.parametrize("letters", [PLAIN, LABELLED, ONE_PAIR], ids=["plain", "irreps", "one pair"])
@pytest.mark.parametrize(
    "text",
    [
        "r[ia] = v[ia]",
        "r[ia] = -1/2 v[ia] + 3 w[ia]",
        "r[ia] = v[ia] - v[ja] h[ij] + 2 h[ij] w[ja]",
        "r[ia] = t[iakb] v[kb] - t[kaib] v[kb] + t[icjd] t[jdka] v[kc]",
        "r[ia] = v[ia]\nr[ia] += t[kaic] w[kc] + v[ka] w[kc] v[ic]",
        "X[iajb] = t[ibja]\nY[iajb] = X[iajb]\nr[iajb] = Y[jaib] + X[iajb]",
        "X[ij] = h[ij]\nY[ij] = 2 X[ij]\nX[ij] += h[jk] Y[ki]\nr[ij] = X[ij] - Y[ji]",
        "r[ac] = 2 t[kakc]",
        "e[] = t[iajb] t[iajb]\nr[] = e[] + 1/4 v[ia] w[ia]",
    ],
)
def test_terms_are_what_numpy_makes_of_them(text: str, letters: Letters) -> None:
    tensors = random_tensors(letters, {"v": "ia", "w": "ia", "h": "ij", "t": "iajb"})
    check_results(text, letters, tensors, ["r"])


FOLDED = """
T[iajb] = t[iajb] + v[ia] v[jb]
S[xp] = 3 fold T[iajb]
S[xp] += 1/2 fold u[iajb]
A[XP] = fold T[iajb]
P[xp] = W[xy] S[yp]
Q[XP] = A[XP]
r[iajb] = t[jbia]
r[iajb] += unfold P[xp] Q[XP]
s[iajb] = unfold S[xp] A[XP]
"""


@pytest.mark.parametrize("letters", [PLAIN, LABELLED, ONE_PAIR], ids=["plain", "irreps", "one pair"])
def test_pairs_in_equations(letters: Letters) -> None:
    occ, vir = letters["i"], letters["a"]
    assert isinstance(occ, Space)
    assert isinstance(vir, Space)
    tensors = random_tensors(letters, {"v": "ia", "W": "xy"})
    tensors |= {"t": exchanged_tensor(occ, vir, 1), "u": exchanged_tensor(occ, vir, 2)}
    check_results(FOLDED, letters, tensors, ["r", "s"])


def ccsd_tensors(letters: Letters, seed: int) -> Tensors:
    """Random tensors with the symmetries that amplitudes and integrals have."""
    occ, vir = letters["i"], letters["a"]
    assert isinstance(occ, Space)
    assert isinstance(vir, Space)
    plain = {"t1": "ia", "Vp": "iajb", "L": "iajb", "J": "iakc", "ooov": "kilc", "ovvv": "akcd"}
    plain |= {"f_oo": "ij", "f_ov": "ia", "f_vv": "ab"}
    plain |= {"oooo_s": "yx", "oooo_a": "YX", "ov_s": "yp", "ov_a": "YP"}
    made = random_tensors(letters, plain, seed)
    made |= {"t2": exchanged_tensor(occ, vir, seed + 50), "V": exchanged_tensor(occ, vir, seed + 51)}
    integrals = tw.from_dense(coulomb_like(vir, seed + 52), (vir,) * 4)
    for name, letter in (("vv_s", "p"), ("vv_a", "P")):
        pairs = letters[letter]
        assert isinstance(pairs, Pairs)
        made[name] = fold(integrals, Folding(pairs, pairs), Symmetry(((0, 1), 1)))
    return made


@pytest.mark.parametrize("letters", [PLAIN, LABELLED, ONE_PAIR], ids=["plain", "irreps", "one pair"])
@pytest.mark.parametrize("reproducible", [False, True])
def test_the_equations_of_coupled_cluster(letters: Letters, reproducible: bool) -> None:
    tensors = ccsd_tensors(letters, 7)
    whole = check_results(CCSD_EQUATIONS, letters, tensors, ["r1", "r2"], reproducible=reproducible)
    assert whole.flops == sum(flops for _, flops in whole.by_group().values())
    assert set(whole.by_group()) == {"dressing", "singles", "pairs", "folding", "ladder", "rings", "fock"}
    check_results(DRCCD_EQUATIONS, letters, tensors, ["r2"])


# Lifetimes and peaks

CHAIN = """
A[iajb] = t[iakc] t[kcjb]            @one
B[iajb] = A[ibja] + t[iajb]          @two
A[iajb] += 2 t[jaib]                 @one
C[ab] = A[iakb] h[ik]                @two
r[iajb] = 2 B[iajb] + t[iajc] C[cb]  @three
D[ij] = h[ij]                        @three
"""
CHAIN_GIVEN = {"t": "iajb", "h": "ij"}
MIDDLE = make_letters(Space([4, 3]), Space([6, 5]))


def live_bytes(
    statements: Sequence[Statement], letters: Letters, given: Sequence[str], results: Sequence[str]
) -> list[int]:
    """Bytes of all tensors from their first line to their last, at each term."""
    indices = {each.target.name: each.target.letters for each in statements}
    indices |= {each.name: each.letters for s in statements for each in s.operands if each.name in given}
    first, last = dict.fromkeys(given, -1), dict.fromkeys([*given, *results], len(statements))
    for number, each in enumerate(statements):
        for name in (each.target.name, *(operand.name for operand in each.operands)):
            first.setdefault(name, number)
            last[name] = max(last.get(name, 0), number)
    size = {name: allowed_pattern(letters, text).nbytes() for name, text in indices.items()}
    return [sum(size[n] for n in size if first[n] <= at <= last[n]) for at in range(len(statements))]


def test_temporary_tensors_live_from_the_first_line_to_the_last() -> None:
    statements = parse_equations(CHAIN)
    tensors = random_tensors(MIDDLE, CHAIN_GIVEN)
    whole = Iteration(statements, MIDDLE, patterns_of(tensors), ["r"], memory=PLENTY)
    expected = live_bytes(statements, MIDDLE, list(CHAIN_GIVEN), ["r"])
    assert [step.held_bytes for step in whole.steps] == expected
    assert whole.peak_bytes == max(held + step.added_bytes for held, step in zip(expected, whole.steps, strict=True))
    assert [step.frees for step in whole.steps] == [(), (), (), (), ("A",), ("B",), ("C",), ("D",)]


def test_what_is_not_needed_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a term runs there are just the tensors that were planned for."""
    tensors = random_tensors(MIDDLE, CHAIN_GIVEN)
    given_bytes = sum(tensor.nbytes for tensor in tensors.values())
    whole = Iteration(parse_equations(CHAIN), MIDDLE, patterns_of(tensors), ["r"], memory=PLENTY)
    seen: dict[int, weakref.ref[Array]] = {}
    held = []

    def remember(name: str, target: tw.BlockTensor, term: str) -> None:
        seen[id(target.arena.own)] = weakref.ref(target.arena.own)

    def count() -> None:
        alive = [array for each in seen.values() if (array := each()) is not None]
        held.append(given_bytes + sum(array.nbytes for array in alive))

    whole.run(tensors, between=count, check=remember)
    new = [0 if step.statement.adds else whole.pattern_of(step.statement).nbytes() for step in whole.steps]
    assert held == [step.held_bytes - own for step, own in zip(whole.steps, new, strict=True)]


def test_a_tensor_that_changes_its_name_is_not_copied() -> None:
    text = "A[iajb] = t[iakc] t[kcjb]\nB[iajb] = A[iajb]\nB[iajb] += t[iajb]\nC[iajb] = B[jbia]\nr[iajb] = C[iajb]"
    tensors = random_tensors(MIDDLE, CHAIN_GIVEN)
    whole = check_results(text, MIDDLE, tensors, ["r"])
    assert [step.plan is None for step in whole.steps] == [False, True, False, False, True]
    size = tensors["t"].nbytes
    assert whole.steps[1].held_bytes == whole.steps[0].held_bytes
    assert whole.steps[3].held_bytes == whole.steps[0].held_bytes + size


def test_given_tensors_and_results_are_copied_when_they_are_renamed() -> None:
    tensors = random_tensors(MIDDLE, CHAIN_GIVEN)
    whole = check_results("A[ij] = h[ij]\nA[ij] += h[ji]\nr[ij] = A[ij]\nr[ij] += h[ij]", MIDDLE, tensors, ["A", "r"])
    assert all(step.plan is not None for step in whole.steps)


def test_groups_add_up() -> None:
    tensors = random_tensors(MIDDLE, CHAIN_GIVEN)
    whole = Iteration(parse_equations(CHAIN), MIDDLE, patterns_of(tensors), ["r"], memory=PLENTY)
    flops = {group: flops for group, (_, flops) in whole.by_group().items()}
    occ, vir = 7, 11
    assert flops["one"] == 2 * occ**3 * vir**3
    assert flops == {
        group: sum(step.flops for step in whole.steps if step.statement.group == group)
        for group in ("one", "two", "three")
    }
    assert whole.flops == sum(flops.values())
    assert whole.seconds == pytest.approx(sum(seconds for seconds, _ in whole.by_group().values()))


# Running


def test_a_second_run_uses_the_same_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (random_tensors(MIDDLE, CHAIN_GIVEN, seed) for seed in (0, 10))
    whole = Iteration(parse_equations(CHAIN), MIDDLE, patterns_of(first), ["r"], memory=PLENTY)
    plans = [step.plan for step in whole.steps]

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("plans are made once")

    monkeypatch.setattr("tilewise.iteration.plan", refuse)
    results = [dense(whole.run(tensors)["r"]) for tensors in (first, second, first)]
    assert [step.plan for step in whole.steps] == plans
    assert [len(step.seconds) for step in whole.steps] == [3] * len(plans)
    assert np.array_equal(results[0], results[2])
    expected = interpret(parse_equations(CHAIN), MIDDLE, {name: dense(tensor) for name, tensor in second.items()})
    np.testing.assert_allclose(results[1], expected["r"], rtol=0, atol=1e-9)


def test_measured_times_replace_projected_ones() -> None:
    tensors = random_tensors(MIDDLE, CHAIN_GIVEN)
    whole = Iteration(parse_equations(CHAIN), MIDDLE, patterns_of(tensors), ["r"], memory=PLENTY)
    assert whole.seconds == sum(step.plan.seconds for step in whole.steps if step.plan is not None)
    whole.run(tensors)
    assert whole.seconds == sum(step.seconds[0] for step in whole.steps)
    for _ in range(2):
        whole.run(tensors)
    assert whole.seconds == sum(sorted(step.seconds)[1] for step in whole.steps)
    latest = sum(seconds for seconds, _ in whole.by_group(latest=True).values())
    assert latest == pytest.approx(sum(step.seconds[2] for step in whole.steps), rel=1e-12)


def test_what_comes_from_elsewhere_is_told_apart() -> None:
    """Reading h from disk is nothing that its terms compute: it is counted as their slices, without flops."""
    tensors = random_tensors(MIDDLE, CHAIN_GIVEN)
    given = patterns_of(tensors) | {"h": make_elsewhere(tensors["h"].pattern, current_engine())}
    whole = Iteration(parse_equations(CHAIN), MIDDLE, given, ["r"], memory=PLENTY)
    assert set(whole.by_group()) == {"one", "two", "three"}
    whole.run(tensors | {"h": on_disk(tensors["h"])})
    for latest in (False, True):
        groups = whole.by_group(latest=latest)
        assert set(groups) == {"one", "two", "two slices", "three", "three slices"}
        assert groups["two slices"][1] == groups["three slices"][1] == 0
        assert min(seconds for seconds, _ in groups.values()) > 0
        assert sum(seconds for seconds, _ in groups.values()) == pytest.approx(whole.seconds, rel=1e-12)
    (read,) = (level for level in plan_of(whole, "C").runs[-1].of(MEMORY))
    assert whole.by_group()["two slices"][0] == read.waited_seconds


def plan_of(whole: Iteration, target: str) -> Plan:
    """The plan of the term that makes a tensor."""
    made = next(step.plan for step in whole.steps if step.statement.target.name == target)
    assert isinstance(made, Plan)
    return made


def test_callers_are_asked_between_terms_and_see_each_target() -> None:
    tensors = random_tensors(MIDDLE, CHAIN_GIVEN)
    whole = Iteration(parse_equations(CHAIN), MIDDLE, patterns_of(tensors), ["r"], memory=PLENTY)
    seen: list[str] = []
    whole.run(
        tensors, between=lambda: seen.append("between"), check=lambda name, target, term: seen.append(f"{name}: {term}")
    )
    assert seen[::2] == ["between"] * len(whole.steps)
    assert seen[1::2] == [f"{step.statement.target.name}: {step.statement}" for step in whole.steps]


@pytest.mark.parametrize("number", [0, 3, 7])
def test_callers_may_stop_it(number: int) -> None:
    tensors = random_tensors(MIDDLE, CHAIN_GIVEN)
    whole = Iteration(parse_equations(CHAIN), MIDDLE, patterns_of(tensors), ["r"], memory=PLENTY)
    calls = iter(range(100))

    def stop() -> None:
        if next(calls) == number:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        whole.run(tensors, between=stop)
    assert sum(len(step.seconds) for step in whole.steps) == number


def test_what_is_neither_given_nor_made_is_named() -> None:
    statements = parse_equations("r[ij] = h[ij] + g[ij]")
    with pytest.raises(tw.InputError, match=r"r\[ij\] \+= g\[ij\] reads g, which is neither given nor made before"):
        Iteration(statements, MIDDLE, {"h": allowed_pattern(MIDDLE, "ij")}, ["r"], memory=PLENTY)


# Budgets


def on_disk(tensor: tw.BlockTensor) -> tw.BlockTensor:
    scratch = ScratchFile(tensor.pattern, tensor.dtype)
    for row, (_, block) in enumerate(tensor.blocks()):
        scratch.write(row, np.array(block), float(tensor.pattern.norms[row]))
    return scratch.tensor(current_engine())


def refused(memory: int, *problem: Any) -> tw.MemoryBudgetError | None:
    """What is said about a budget that is too small."""
    try:
        Iteration(*problem, memory=memory)
    except tw.MemoryBudgetError as error:
        return error
    return None


def least_budget(*problem: Any) -> int:
    """The least that errors lead to, from next to nothing."""
    memory = 8
    while (error := refused(memory, *problem)) is not None:
        assert error.budget == memory < error.least_bytes
        assert f"needs {error.least_bytes} bytes" in str(error)
        assert f"The budget is {memory}. Give more with memory=." in str(error)
        memory = error.least_bytes
    return memory


def test_an_error_says_how_much_is_needed() -> None:
    statements = parse_equations(CHAIN)
    given = patterns_of(random_tensors(MIDDLE, CHAIN_GIVEN))
    free = Iteration(statements, MIDDLE, given, ["r"], memory=PLENTY).peak_bytes
    assert least_budget(statements, MIDDLE, given, ["r"]) <= free


@settings(max_examples=20)
@given(share=st.floats(0, 1), away=st.sets(st.sampled_from(("t", "h"))))
def test_budgets_are_kept_and_results_are_the_same(share: float, away: set[str]) -> None:
    check_within_budget(CHAIN, MIDDLE, random_tensors(MIDDLE, CHAIN_GIVEN), ["r"], share, away)


LARGER = make_letters(Space([3, 2]), Space([4, 5]))
LARGE = ("ovvv", "vv_s", "vv_a", "L", "J")
"""Integrals that leave memory first."""


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("away", [0, 2, 5])
def test_budgets_of_coupled_cluster(share: float, away: int) -> None:
    check_within_budget(CCSD_EQUATIONS, LARGER, ccsd_tensors(LARGER, 3), ["r1", "r2"], share, set(LARGE[:away]))


def check_within_budget(
    text: str, letters: Letters, tensors: Tensors, results: Sequence[str], share: float, away: set[str]
) -> None:
    """Between the least and what everything takes, the plan keeps to the budget, and the results are what they are."""
    statements = parse_equations(text)
    given = patterns_of(tensors) | {name: make_elsewhere(tensors[name].pattern, current_engine()) for name in away}
    free = Iteration(statements, letters, given, results, memory=PLENTY).peak_bytes
    least = least_budget(statements, letters, given, results)
    memory = int(least + share * max(free - least, 0))
    whole = Iteration(statements, letters, given, results, memory=memory)
    assert whole.peak_bytes <= memory
    placed = {name: on_disk(tensor) if name in away else tensor for name, tensor in tensors.items()}
    found = whole.run(placed)
    expected = interpret(statements, letters, {name: dense(tensor) for name, tensor in tensors.items()})
    for name in results:
        scale = max(1.0, float(np.abs(expected[name]).max()))
        np.testing.assert_allclose(found[name].to_dense(), expected[name], rtol=0, atol=1e-10 * scale)


# Patterns


def test_patterns_of_indices() -> None:
    plain = allowed_pattern(PLAIN, "iaxP")
    assert plain.nnz_blocks == 2 * 3 * 3 * 5
    assert allowed_pattern(PLAIN, "").nnz_blocks == 1
    labelled = allowed_pattern(LABELLED, "iaXp")
    spaces = labelled.spaces
    assert spaces[2] == Pairs.of(spaces[0], -1).space
    for index in labelled.index.tolist():
        total = 0
        for space, tile in zip(spaces, index, strict=True):
            assert space.irrep is not None
            total ^= int(space.irrep[tile])
        assert total == 0
    assert 0 < labelled.nnz_blocks < Pattern.dense(spaces).nnz_blocks


def test_one_process_holds_all_bytes() -> None:
    pattern = allowed_pattern(MIDDLE, "iajb")
    assert bytes_on_rank(pattern, current_engine()) == pattern.nbytes()
