"""Settings of coupled cluster: what is set when, what is refused, and what people see of a run."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from pyscf import cc

import tilewise as tw
from chemistry.cc_cases import TIGHT, converge_pyscf, mean_field_of, tight_mean_field
from chemistry.molecules import HYDROGEN, WATER, mean_field
from tilewise.chemistry import CCSD, CCSD_T, MP2
from tilewise.chemistry import method as module
from tilewise.chemistry.method_plan import reserved_bytes, with_reserve
from tilewise.errors import ConvergenceError, InputError, MemoryBudgetError
from tilewise.tensors.drafts import parse_scratch

SAME = 1e-8


@pytest.fixture(scope="module")
def water() -> Any:
    return mean_field_of("water", "6-31g")


@pytest.fixture(scope="module")
def theirs(water: Any) -> Any:
    """PySCF's CCSD."""
    return converge_pyscf(cc.CCSD(water))


@pytest.mark.parametrize("name", ["no_such_thing", "kernel", "_plan", "plan", "level_shfit"])
def test_unknown_settings_are_refused(water: Any, name: str) -> None:
    given: dict[str, Any] = {name: 1}
    message = rf"CCSD has no setting '{name}'\. Expected one of .*max_cycle.* Correct the name\."
    for attempt in (CCSD, lambda mf, **options: CCSD(mf).run(**options), lambda mf, **options: CCSD(mf).set(**options)):
        with pytest.raises(InputError, match=message):
            attempt(water, **given)


@pytest.mark.parametrize("name", ["e_tot", "nocc", "t1", "e_hf", "peak_bytes"])
def test_results_are_no_settings(water: Any, name: str) -> None:
    with pytest.raises(InputError, match=rf"CCSD has no setting '{name}'"):
        CCSD(water).set(**{name: 1})


LATE: tuple[dict[str, Any], ...] = (
    {"frozen": 1},
    {"tile": 2},
    {"integrals": "cholesky", "cholesky_tol": 1e-2},
    {"integrals": "df", "auxbasis": "weigend"},
    {"frozen": [0, 12], "tile": 3, "integrals": "df"},
)


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("kind", [CCSD, MP2])
def test_what_is_set_late_counts(water: Any, kind: Any, late: dict[str, Any]) -> None:
    """As in PySCF, by ``method.run(frozen=1)`` and by assignment, before a plan and after a run."""
    expected = kind(water, **late).run()
    made, planned, done = kind(water), kind(water), kind(water, integrals="cholesky").run()
    planned.plan()
    done.set(integrals="exact")
    for name, value in late.items():
        setattr(planned, name, value)
    for method in (made.run(**late), planned.run(), done.run(**late)):
        assert method.e_corr == pytest.approx(expected.e_corr, rel=0, abs=1e-12)
        assert method.spaces.occ == expected.spaces.occ


def test_what_is_set_late_is_checked(water: Any) -> None:
    method = CCSD(water).run()
    with pytest.raises(InputError, match="frozen=-1 is negative"):
        method.frozen = -1
    with pytest.raises(InputError, match="tile size is 0"):
        method.tile = 0
    with pytest.raises(InputError, match="integrals='dense' is unknown"):
        method.run(integrals="dense")
    with pytest.raises(InputError, match="auxbasis='weigend' was given with integrals='exact'"):
        method.run(integrals="exact", auxbasis="weigend")
    with pytest.raises(InputError, match=r"tol=0\.001 was given with integrals='df'"):
        MP2(water, integrals="df").run(tol=1e-3)


@pytest.mark.parametrize(
    ("kind", "late", "message"),
    [
        (CCSD, {"integrals": "density"}, "integrals='density' is unknown"),
        (MP2, {"integrals": "density"}, "integrals='density' is unknown"),
        (CCSD, {"auxbasis": "weigend"}, "auxbasis='weigend' was given with integrals='exact'"),
        (MP2, {"auxbasis": "weigend"}, "auxbasis='weigend' was given with integrals='exact'"),
        (MP2, {"cholesky_tol": 1e-4}, r"cholesky_tol=0\.0001 was given with integrals='exact'"),
        (CCSD, {"integrals": "df", "cholesky_tol": 1e-4}, r"cholesky_tol=0\.0001 was given with integrals='df'"),
        (CCSD, {"integrals": "cholesky", "cholesky_tol": 0.0}, r"cholesky_tol=0\.0 is no tolerance"),
    ],
)
def test_a_plan_takes_no_integrals_that_a_run_would_refuse(
    water: Any, kind: Any, late: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        kind(water).set(**late).plan()


@pytest.mark.parametrize("integrals", ["exact", "cholesky"])
@pytest.mark.parametrize("kind", [MP2, CCSD])
def test_fitted_mean_fields_are_not_mixed_with_other_integrals(kind: Any, integrals: str) -> None:
    mf = mean_field(WATER, "sto-3g", density_fit=True)
    assert kind(mf).integrals == kind(mf, integrals="df").integrals == "df"
    with pytest.raises(InputError, match=f"integrals='{integrals}' was given with a mean field whose energy and Fock"):
        kind(mf, integrals=integrals)
    with pytest.raises(InputError, match=r"or pass a mean field without density_fit\(\)\."):
        kind(mf).set(integrals=integrals).plan()


def test_scratch_is_looked_at_once(water: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def count(folder: Any) -> str:
        looked.append(folder)
        return parse_scratch(folder)

    monkeypatch.setattr(module, "parse_scratch", count)
    assert CCSD(water, scratch=tmp_path).scratch == str(tmp_path)
    assert looked == [tmp_path]
    assert CCSD(water).scratch is None


@pytest.mark.parametrize("needed", [0, 1, 1000, 10**6, *range(3 * 10**8, 5 * 10**8, 10**7), 10**12])
def test_a_budget_with_the_reserve_is_just_enough(needed: int) -> None:
    memory = with_reserve(needed)
    assert needed <= memory - reserved_bytes(memory) <= needed + 2


def test_a_run_that_fails_leaves_no_results_of_the_one_before(water: Any) -> None:
    triples = CCSD_T(water).run()
    with pytest.raises(ConvergenceError):
        triples.run(max_cycle=1)
    assert (triples.e_corr, triples.e_t) == (None, None)
    for kind in (CCSD, MP2):
        method = kind(water).run()
        with pytest.raises(MemoryBudgetError):
            method.run(memory=1000)
        assert method.e_corr is None
        assert method.e_tot is None
        assert method.t2 is None
        assert not getattr(method, "converged", False)


@pytest.mark.parametrize("name", ["ladder", "memory", "diis_space", "reproducible"])
def test_a_plan_is_made_anew_for_what_is_set_after_it(water: Any, name: str) -> None:
    """By plain assignment, as people do with PySCF's objects."""
    value: Any = {"ladder": "none", "memory": 10**9, "diis_space": 9, "reproducible": True}[name]
    method = CCSD(water)
    before = method.plan()
    setattr(method, name, value)
    assert method.plan() is not before
    method.kernel()
    assert method.e_corr == pytest.approx(CCSD(water, **{name: value}).run().e_corr, rel=0, abs=1e-12)


def test_a_plan_for_another_engine_is_not_run(water: Any) -> None:
    method = CCSD(water)
    before = method.plan()
    with tw.engine("threads", workers=1) as chosen:
        method.run()
        assert method.plan() is not before
        assert method.plan().engine is chosen


def test_memory_in_megabytes(water: Any) -> None:
    method = CCSD(water, memory="2GB")
    assert method.max_memory == 2000
    method.max_memory = 500
    assert (method.memory, method.plan().budget) == (500_000_000, 500_000_000)
    assert CCSD(water, max_memory=100).plan().budget == 100_000_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"conv_tol": -1.0}, r"conv_tol=-1\.0 is no tolerance"),
        ({"conv_tol_normt": "small"}, r"conv_tol_normt='small' is no tolerance"),
        ({"max_cycle": -1}, "max_cycle=-1 is negative"),
        ({"diis_space": -2}, "diis_space=-2 is negative"),
        ({"iterative_damping": 0.0}, r"iterative_damping=0\.0 is no part of a step"),
        ({"conv_tol": float("inf")}, "conv_tol=inf is no tolerance"),
        ({"diis_space": "a"}, "diis_space="),
        ({"callback": 3}, "callback=3 cannot be called"),
        ({"reproducible": "no"}, "reproducible='no' is neither. Expected True or False"),
        ({"max_memory": "x"}, "max_memory='x' is no size"),
        ({"checkpoint": 5}, "5 is no path"),
        ({"verbose": "a"}, "verbose="),
    ],
)
def test_settings_without_sense_are_refused(water: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CCSD(water, **settings).run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile": 0}, "The tile size is 0"),
        ({"tile": 1.5}, r"The tile size is 1\.5"),
        ({"integrals": "none"}, "integrals='none' is unknown. Expected one of exact, df, cholesky"),
        ({"progress": 3}, "progress=3 cannot be called"),
        ({"frozen": 5}, "leaves none of the 5 occupied orbitals"),
        ({"memory": "much"}, "much"),
    ],
)
def test_arguments_without_sense_are_refused(water: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CCSD(water, **options)


@pytest.mark.parametrize("settings", [{"diis": False}, {"diis_space": 0}, {"diis_start_cycle": 4}, {"diis_space": 12}])
def test_any_extrapolation_leads_to_the_same_energy(water: Any, theirs: Any, settings: dict[str, Any]) -> None:
    method = CCSD(water, **{**TIGHT, **settings}).run()
    assert method.converged
    assert method.e_corr == pytest.approx(theirs.e_corr, rel=0, abs=SAME)


def test_damping_leads_to_the_same_energy(water: Any, theirs: Any) -> None:
    method = CCSD(water, iterative_damping=0.7, **TIGHT).run()
    assert method.converged
    assert method.e_corr == pytest.approx(theirs.e_corr, rel=0, abs=SAME)


def test_callback_is_called_after_each_iteration(water: Any) -> None:
    seen: list[dict[str, Any]] = []
    method = CCSD(water, callback=seen.append).run()
    assert [facts["cycle"] for facts in seen] == list(range(1, method.cycles + 1))
    assert seen[-1]["e_corr"] == method.e_corr
    assert {"cycle", "e_corr", "de", "norm", "amplitudes"} <= set(seen[0])
    assert method.outcome is not None
    assert [facts["norm"] for facts in seen] == [cycle.norm for cycle in method.outcome.history]


@pytest.mark.parametrize("verbose", [0, 2, 3, 4])
def test_verbose_prints_as_pyscf_does(verbose: int) -> None:
    mf = tight_mean_field(HYDROGEN, "6-31g")
    mf.mol.stdout = io.StringIO()
    method = CCSD(mf, verbose=verbose).run()
    printed = mf.mol.stdout.getvalue().splitlines()
    if verbose < 3:
        assert not printed
        return
    assert printed[-1] == f"E(CCSD) = {method.e_tot:.12f}  E_corr = {method.e_corr:.12f}"
    cycles = [
        line for line in printed if re.match(r"cycle = \d+  E_corr\(CCSD\) = -0\.\d+  dE = .* norm\(t1,t2\)", line)
    ]
    assert len(cycles) == (method.cycles if verbose > 3 else 0)


def test_progress_gets_lines(water: Any) -> None:
    lines: list[str] = []
    method = CCSD(water, progress=lines.append).run()
    assert sum(line.startswith("cycle = ") for line in lines) == method.cycles
    assert lines[-1].startswith("E(CCSD) = ")


def test_iterations_are_timed(water: Any) -> None:
    method = CCSD(water).run()
    assert len(method.timings) == method.cycles
    groups = method.timings[-1].terms
    assert {"ladder", "rings", "pairs", "singles"} <= set(groups)
    assert all(seconds > 0 for seconds, _ in groups.values())
