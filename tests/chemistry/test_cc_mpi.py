"""Coupled cluster under ``mpiexec``: its suite on 1 to 4 ranks, and a rank that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chemistry.cc_cases import BASES, RANKED
from engines.processes import ranks

pytest.importorskip("mpi4py")
SUITE = str(Path(__file__).parent / "mpi_cc_suite.py")
ENERGIES = str(Path(__file__).parent / "mpi_energies_suite.py")
BITS = "TILEWISE_TEST_BITS"


def pytest_passes(count: int, *arguments: str, suite: str = SUITE) -> None:
    """Run a suite on so many ranks."""
    done = ranks(count, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", suite, *arguments)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count(" passed") == count


def leave_bits(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """Have one rank write down its results."""
    monkeypatch.setenv(BITS, str(folder))
    pytest_passes(1, "-k", "bits_are_those", *arguments)


def test_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_TEST_NODES", "all")
    leave_bits(tmp_path, monkeypatch)
    pytest_passes(2)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "nodes"), [(1, "all"), (2, "1"), (3, "all"), (4, "2")])
def test_more_ranks_and_molecules(count: int, nodes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_TEST_NODES", nodes)
    leave_bits(tmp_path, monkeypatch, "-m", "slow or not slow")
    pytest_passes(count, "-m", "slow or not slow")


@pytest.mark.slow
@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("part", [0, 1])
def test_energies_of_many_molecules(
    part: int, count: int, basis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two jobs for each basis: one would be long where ranks outnumber cores."""
    cases = [case for case in RANKED if case.basis == basis][part::2]
    assert len(cases) == 6
    expected = tmp_path / "energies.json"
    expected.write_text(json.dumps({case.key: case.expected() for case in cases}))
    monkeypatch.setenv("TILEWISE_TEST_ENERGIES", str(expected))
    pytest_passes(count, suite=ENERGIES)


FAILING = """
import tilewise as tw
from chemistry.molecules import WATER, mean_field
from tilewise.chemistry import CCSD

mf = mean_field(WATER, "sto-3g")
with tw.engine("mpi") as engine:
    def fail(facts):
        if engine.rank == 1 and facts["cycle"] == 2:
            raise ValueError("no third cycle")

    CCSD(mf, tile=2, callback=fail, max_cycle=1000, conv_tol_normt=1e-300).run()
"""


def test_a_rank_that_fails_ends_all_ranks_with_its_message() -> None:
    done = ranks(3, "-c", FAILING)
    assert done.returncode != 0
    assert "Rank 1 of 3 failed" in done.stderr
    assert "ValueError: no third cycle" in done.stderr
