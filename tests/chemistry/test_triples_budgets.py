"""Budgets of CCSD(T): what the triples need is known before the iteration."""

from __future__ import annotations

from typing import Any

import pytest

import tilewise as tw
from chemistry.cc_cases import least_memory, mean_field_of, tight_mean_field
from tilewise.chemistry import CCSD, CCSD_T, ccsd_t
from tilewise.chemistry.triples import TriplesPlan, plan_within
from tilewise.errors import MemoryBudgetError

CARBON_TETRAFLUORIDE = "C 0 0 0; F 0.76 0.76 0.76; F -0.76 -0.76 0.76; F -0.76 0.76 -0.76; F 0.76 -0.76 -0.76"


@pytest.fixture(scope="module")
def fluoride() -> Any:
    return tight_mean_field(CARBON_TETRAFLUORIDE, "sto-3g")


def test_triples_that_do_not_fit_are_refused_before_the_iteration(fluoride: Any) -> None:
    """Eight workers need more for the triples than for the iteration."""
    with tw.engine("threads", workers=8):
        least = least_memory(CCSD, fluoride, tile=4)
        CCSD(fluoride, tile=4, memory=least).plan()
        with pytest.raises(MemoryBudgetError, match=rf"CCSD\(T\) needs .* The budget is {least} bytes") as found:
            CCSD_T(fluoride, tile=4, memory=least).plan()
        enough = found.value.least_bytes
        assert enough > least
        assert f"Give memory={enough} or more" in str(found.value)
        assert CCSD_T(fluoride, tile=4, memory=enough).plan().peak_bytes <= enough


@pytest.mark.parametrize("integrals", ["exact", "df"])
@pytest.mark.parametrize("workers", [1, 8])
def test_what_can_be_planned_can_be_run(workers: int, integrals: str) -> None:
    water = mean_field_of("water", "6-31g")
    with tw.engine("threads", workers=workers):
        least = least_memory(CCSD_T, water, tile=4, integrals=integrals)
        method = CCSD_T(water, tile=4, integrals=integrals, memory=least, force=True, max_cycle=2).run()
        free = CCSD_T(water, integrals=integrals, force=True, max_cycle=2).run()
    assert method.e_t == pytest.approx(free.e_t, rel=0, abs=1e-10)


@pytest.mark.parametrize("share", [0, 2])
def test_the_plan_before_is_the_plan_after(share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-ins of tensors count as the tensors do."""
    water, plans = mean_field_of("water", "6-31g"), []

    def note(*arguments: Any) -> TriplesPlan:
        plans.append(plan_within(*arguments))
        return plans[-1]

    with tw.engine("threads", workers=3):
        memory = least_memory(CCSD_T, water, tile=4) * (1 + share)
        monkeypatch.setattr(ccsd_t, "plan_within", note)
        method = CCSD_T(water, tile=4, memory=memory, force=True, max_cycle=1).run()
        after = method.plan_triples()
    assert (plans[-1].peak_bytes, plans[-1].budget) == (after.peak_bytes, after.budget)
