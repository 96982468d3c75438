"""The MPI engine under ``mpiexec``: its suite on 1 to 4 ranks, and what happens when a rank fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewise as tw
from engines.processes import TESTS, ranks, source_environment
from plans.enumeration import work_of
from tilewise.engines.mpi import world
from tilewise.plans.shares import share_by_owner

pytest.importorskip("mpi4py")
SUITE = Path(__file__).parent / "mpi_suite.py"
SHARING = [str(Path(__file__).parent / name) for name in ("mpi_sharing_suite.py", "mpi_budget_suite.py")]
TRANSFORMS = Path(__file__).parent / "mpi_transform_suite.py"
OF_TENSORS = ("tensors/test_access.py", "tensors/test_arithmetic.py", "tensors/test_tilings.py", "test_factories.py")
PER_NODE = "TILEWISE_TEST_RANKS_PER_NODE"


def pytest_passes(count: int, *arguments: str) -> None:
    """Run pytest on so many ranks; the suites look in the environment for what they are asked to do."""
    done = ranks(count, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count(" passed") == count


@pytest.mark.parametrize(
    ("count", "settings"), [(1, "one-worker"), (2, "one-worker two-workers"), (3, "nodes-of-one"), (4, "nodes-of-two")]
)
def test_the_suite_of_engines_passes(count: int, settings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_TEST_SETTINGS", settings)
    pytest_passes(count, str(SUITE))


@pytest.mark.parametrize(
    ("count", "nodes"), [(2, "all"), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((3, "1"), (4, "2")))]
)
def test_ranks_share_as_planned(count: int, nodes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_TEST_NODES", nodes)
    monkeypatch.setenv("TILEWISE_TEST_QUICK", "1")
    pytest_passes(count, *SHARING)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "nodes", "workers"), [(1, "all", 1), (2, "all 1", 1), (2, "all", 2), (3, "all 1 2", 1), (4, "all 1 2", 1)]
)
def test_ranks_share_as_planned_on_all_nodes_and_with_threads(
    count: int, nodes: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWISE_TEST_NODES", nodes)
    monkeypatch.setenv("TILEWISE_TEST_WORKERS", str(workers))
    pytest_passes(count, *SHARING)


@pytest.mark.parametrize(
    ("count", "nodes"),
    [(2, "all 1"), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, "all"), (3, "all"), (4, "2")))],
)
def test_ranks_share_transforms(count: int, nodes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_TEST_NODES", nodes)
    pytest_passes(count, str(TRANSFORMS))


@pytest.mark.slow
@pytest.mark.parametrize(("count", "nodes"), [(1, "all"), (2, "all 1"), (4, "all 2")])
def test_ranks_share_transforms_of_larger_molecules(count: int, nodes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_TEST_NODES", nodes)
    pytest_passes(count, str(TRANSFORMS), "-m", "slow")


@pytest.mark.parametrize("per_node", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_tensors_are_what_they_are_on_one_rank(per_node: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of tensors, with every tensor spread over two ranks."""
    monkeypatch.setenv(PER_NODE, str(per_node))
    pytest_passes(2, "-p", "engines.mpi_everywhere", *(str(TESTS / name) for name in OF_TENSORS))


@pytest.mark.slow
def test_contractions_are_what_they_are_on_one_rank() -> None:
    pytest_passes(2, "-p", "engines.mpi_everywhere", str(TESTS / "test_contract.py"))


FAILING = """
import numpy as np
import tilewise as tw

space = tw.Space([30] * 4)
with tw.engine("mpi") as engine:
    def make(block):
        if engine.world.rank == 1 and block == (2, 0):
            raise ValueError("no such integral")
        return np.ones((30, 30))

    lazy = tw.from_function(make, (space, space))
    for _ in range(1000):
        tw.einsum("ij,jk->ik", lazy, lazy)
"""


def test_a_rank_that_fails_ends_all_ranks_with_its_message() -> None:
    done = ranks(3, "-c", FAILING)
    assert done.returncode != 0
    assert "Rank 1 of 3 failed" in done.stderr
    assert "raised ValueError for block (2, 0): no such integral" in done.stderr


ALONE = """
import tilewise as tw

space = tw.Space([20] * 3)
tensor = tw.random((space, space))
with tw.engine("mpi") as engine:
    print(engine.world.size, tw.einsum("ij,jk->ik", tensor, tensor).pattern.nnz_blocks)
"""


def test_a_rank_alone_needs_no_launcher() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE], env=source_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "9"]
    assert not done.stderr


def test_ranks_that_do_not_know_of_each_other_are_refused() -> None:
    with pytest.raises(tw.TilewiseError, match=r"started 4 ranks \(PMI_SIZE\), but MPI sees one\. Expected one job"):
        world.check_launch(1, {"PMI_SIZE": "4"})
    world.check_launch(4, {"PMI_SIZE": "4"})
    world.check_launch(1, {"PMI_SIZE": "1", "SLURM_STEP_NUM_TASKS": "junk"})


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "2"])
def test_ranks_of_a_node_are_a_number(value: Any) -> None:
    with (
        pytest.raises(tw.InputError, match=r"is no number of ranks\. Expected an integer >= 1"),
        tw.engine("mpi", ranks_per_node=value),
    ):
        pass


def test_parts_that_follow_each_other_are_sent_as_one() -> None:
    begin, size = np.array([40, 0, 10, 25, 15]), np.array([5, 10, 5, 15, 10])
    assert world.joined(begin, size) == ([5, 15, 15, 10], [40, 0, 25, 15])


@given(st.integers(1, 9), st.floats(0.1, 1.0), st.integers(0, 9))
def test_neighbouring_blocks_of_equal_work_go_together(count: int, density: float, seed: int) -> None:
    space = tw.Space([3, 9, 5, 7] * 3)
    pattern = tw.Pattern.random((space, space), density, seed=seed)
    plan = tw.plan("ij,jk->ik", pattern, pattern)
    assert isinstance(plan, tw.Plan)
    rank = share_by_owner(plan, count, 2).chain[:, 0]
    assert len(rank) == plan.result.nnz_blocks
    assert (np.diff(rank) >= 0).all()
    assert not len(rank) or 0 <= rank.min() <= rank.max() < count
    cells = work_of(plan).cells
    work = np.bincount(cells.block, cells.flops, len(rank))
    shares = np.bincount(rank, work, count)
    assert shares.max() <= plan.flops / count + work.max(initial=0)


def test_one_rank_tells_for_all() -> None:
    pytest.importorskip("pyscf")
    molecule = TESTS.parent / "examples" / "water.xyz"
    done = ranks(2, "-m", "tilewise", "energy", str(molecule), "--basis", "sto-3g", "--engine", "mpi")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("E_tot(MP2)") == 1
    alone = subprocess.run(
        [sys.executable, "-m", "tilewise", "energy", str(molecule), "--basis", "sto-3g"],
        env=source_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert energy_line(alone.stdout) == energy_line(done.stdout)


def test_the_command_transforms_on_ranks(tmp_path: Path) -> None:
    """Also a result that ranks share."""
    molecule = TESTS.parent / "examples" / "water.xyz"
    out = tmp_path / "all.h5"
    command = ["-m", "tilewise", "transform", str(molecule), "--basis", "6-31g"]
    done = ranks(2, *command, "--engine", "mpi", "--out", str(out))
    assert done.returncode == 0, done.stderr
    alone = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=source_environment())
    norms = [
        next(line for line in text.splitlines() if line.startswith("norm")) for text in (done.stdout, alone.stdout)
    ]
    assert norms[0] == norms[1]
    assert tw.load(out).shape == (13, 13, 13, 13)


def test_ranks_say_what_is_wrong_in_a_line() -> None:
    pytest.importorskip("pyscf")
    done = ranks(2, "-m", "tilewise", "energy", "nowhere.xyz", "--engine", "mpi")
    assert done.returncode == 2
    assert "tilewise: There is no file nowhere.xyz" in done.stderr
    assert "Traceback" not in done.stderr


def energy_line(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("E_tot"))
