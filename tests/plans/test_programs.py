"""Programs: the steps of many-operand expressions, their lifetimes and figures."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewise as tw
from strategies import EinsumCase, einsum_cases
from tilewise.plans import Plan


@settings(max_examples=100)
@given(st.integers(2, 4).flatmap(lambda n: einsum_cases(n, "float64")))
def test_every_tensor_is_made_before_it_is_read_and_freed_after(case: EinsumCase) -> None:
    program = tw.plan(case.text, *case.tensors)
    if isinstance(program, Plan):
        assert len(case.tensors) <= 2
        return
    operands = len(case.tensors)
    alive = set(range(operands))
    read: set[int] = set()
    for step in program.steps:
        assert alive >= set(step.inputs)
        assert step.result not in alive
        assert len(step.plan.operands) == len(step.inputs)
        alive.add(step.result)
        read |= set(step.inputs)
        for number in step.frees:
            assert number >= operands
            alive.remove(number)
    assert alive == {*range(operands), program.steps[-1].result}
    assert read >= set(range(operands))


@settings(max_examples=50)
@given(st.integers(3, 4).flatmap(lambda n: einsum_cases(n, "float64")))
def test_figures_are_those_of_the_steps(case: EinsumCase) -> None:
    program = tw.plan(case.text, *case.tensors)
    assert isinstance(program, tw.Program)
    plans = [step.plan for step in program.steps]
    assert program.flops == sum(plan.flops for plan in plans)
    assert program.tasks == sum(plan.tasks for plan in plans)
    assert program.products == sum(plan.products for plan in plans)
    assert program.calls == sum(plan.calls for plan in plans)
    assert program.result is plans[-1].result
    assert program.peak_bytes >= max(plan.peak_bytes for plan in plans)
    assert [o is t.pattern for o, t in zip(program.operands, case.tensors, strict=True)] == [True] * len(case.tensors)


def test_peak_counts_the_intermediates_that_live() -> None:
    space = tw.Space([10] * 4)
    pattern = tw.Pattern.dense((space, space))
    program = tw.plan("ij,jk,kl,lm->im", *[pattern] * 4)
    assert isinstance(program, tw.Program)
    last = program.steps[-1].plan
    assert program.peak_bytes >= 2 * pattern.nbytes() + last.packed_bytes


@pytest.mark.parametrize("operands", [2, 3, 5])
def test_a_chain_costs_its_cheapest_order(operands: int) -> None:
    """Vector first: nothing larger than a vector is ever made."""
    space = tw.Space([5] * 4)
    matrix, vector = tw.Pattern.dense((space, space)), tw.Pattern.dense((space,))
    letters = "abcdefg"
    text = ",".join(letters[i : i + 2] for i in range(operands)) + f",{letters[operands]}->a"
    program = tw.plan(text, *[matrix] * operands, vector)
    assert program.flops == operands * 2 * 20 * 20


def test_an_operand_of_two_steps_comes_once_in_the_bound() -> None:
    """With all of it in a cache, nothing but the two operands and the result has to move."""
    i = tw.Space([7])
    twice, once = tw.random((i, i)), tw.random((i, i), seed=1)
    machine = tw.Machine("box", 1, ((8, 1.0),), copy_rate=1.0, permute_rate=1.0, cache_bytes=(10**6, 10**9))
    program = tw.plan("ij,jk,kl->il", twice, once, twice, machine=machine)
    assert program.lower_bound_bytes == 3 * 49 * 8
