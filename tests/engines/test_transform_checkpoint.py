"""Transforms that are stopped, killed or find their checkpoint damaged, and go on: the same bits, or a clear error."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engines.processes import source_environment
from engines.test_transform import AO, CASES, integrals, orbitals, source_of
from references import stored_bytes
from tilewise.engines.threads import ThreadsEngine
from tilewise.engines.transform import Outcome, run_transform
from tilewise.engines.transform.checkpoint import (
    FIXED,
    HEAD_BYTES,
    Checkpoint,
    Heading,
    digest_transform,
    open_checkpoint,
    parse_checkpoint,
    read_variant,
)
from tilewise.errors import InputError, StorageError
from tilewise.plans.transform import Problem, Variant
from tilewise.plans.transform.schedules import cost_of, list_variants
from tilewise.tensors.drafts import SUFFIX

Array = npt.NDArray[np.float64]
HOST = ThreadsEngine(2)
KINDS = ("unfused", "fused12-34", "recompute", "fused1234", "fused1234-inner")


class Stopped(Exception):
    """Ends a run from outside."""


class Job:
    """A transform that can be run again and again."""

    def __init__(self, case: str, path: Path, host: ThreadsEngine = HOST) -> None:
        spaces, equal, sign = CASES[case]
        self.problem, self.path, self.host = Problem.of(AO, spaces, equal, sign), path, host
        self.a, self.matrices = integrals(AO.size, sign), orbitals(AO.size, spaces, equal)
        self.source = source_of(self.problem, self.a)

    @property
    def digest(self) -> bytes:
        return digest_transform(self.problem, self.matrices, [self.a])

    def run(self, variant: Variant, stop: Callable[[], None] | None = None) -> Outcome:
        """With a checkpoint; `stop` is called after each pass over rows and each block that was made."""
        budget = cost_of(self.problem, variant, self.host.workers).peak_bytes
        told = None if stop is None else lambda flops, made: stop()
        with open_checkpoint(self.path, Heading(self.digest, variant)) as saved:
            return run_transform(
                self.host, self.problem, variant, self.source, self.matrices, budget, None, told, saved=saved
            )

    @staticmethod
    def wait() -> None:
        """As `stop`: a run of small tensors takes long enough to be killed in the middle."""
        time.sleep(0.02)

    def unbroken(self, variant: Variant) -> Outcome:
        return run_transform(self.host, self.problem, variant, self.source, self.matrices, 10**12)

    def stop_after(self, variant: Variant, calls: int) -> bool:
        """Run until so many calls; whether it was stopped before the end."""
        left = [calls]

        def stop() -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Stopped

        try:
            self.run(variant, stop)
        except Stopped:
            return True
        return False


def variants(problem: Problem) -> list[Variant]:
    """Every kind, with the most and with the fewest parts."""
    found: dict[tuple[Any, ...], list[Variant]] = {}
    for variant in list_variants(problem):
        key = variant.schedule, variant.keeps, variant.rows_held, variant.spills_result
        found.setdefault(key, []).append(variant)
    return list(dict.fromkeys(each for same in found.values() for each in (same[0], same[-1])))


@pytest.mark.parametrize(
    "case",
    ["full", *(pytest.param(case, marks=pytest.mark.slow) for case in ("vvov, antisymmetric", "irreps", "vvoo"))],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_stopped_anywhere_goes_on_to_the_same_bits(tmp_path: Path, case: str, kind: str) -> None:
    job = Job(case, tmp_path / "c")
    for variant in (each for each in variants(job.problem) if each.schedule == kind):
        whole = job.unbroken(variant)
        calls = 0
        while job.stop_after(variant, calls):
            found = job.run(variant)
            assert stored_bytes(found.tensor) == stored_bytes(whole.tensor)
            assert found.flops <= whole.flops
            assert found.integrals <= whole.integrals
            assert list(tmp_path.iterdir()) == []
            calls += 1
        assert calls > 2


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_done_is_not_done_again(tmp_path: Path, kind: str) -> None:
    job = Job("full", tmp_path / "c")
    for variant in (each for each in variants(job.problem) if each.schedule == kind):
        whole, flops, made = job.unbroken(variant), [], []
        calls = 0
        while job.stop_after(variant, calls):
            found = job.run(variant)
            flops.append(found.flops)
            made.append(found.integrals)
            calls += 1
        assert flops == sorted(flops, reverse=True)
        assert made == sorted(made, reverse=True)
        if len(variant.parts) != 1:  # a single pass or slab has to be done as a whole
            assert flops[-1] < 0.75 * whole.flops
            assert made[-1] < whole.integrals


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_stopped_again_and_again_comes_to_its_end(tmp_path: Path, kind: str) -> None:
    job = Job("full", tmp_path / "c")
    for variant in (each for each in variants(job.problem) if each.schedule == kind):
        calls = 0
        while job.stop_after(variant, calls):
            calls += 1
        assert not job.path.exists()


def test_an_unbroken_run_with_a_checkpoint_counts_what_its_plan_says(tmp_path: Path) -> None:
    job = Job("full", tmp_path / "c")
    for variant in list_variants(job.problem):
        cost, found = cost_of(job.problem, variant, HOST.workers), job.run(variant)
        assert (found.flops, found.integrals, found.peak_bytes) == (cost.flops, cost.integrals, cost.peak_bytes)
        assert (found.written_bytes, found.read_bytes) == (cost.written_bytes, cost.read_bytes)


def test_the_number_of_workers_may_be_another(tmp_path: Path) -> None:
    job, variant = Job("full", tmp_path / "c"), Variant("fused12-34", keeps=True)
    whole = job.unbroken(variant)
    assert job.stop_after(variant, count_calls(job, variant) - 2)
    found = Job("full", tmp_path / "c", ThreadsEngine(1)).run(variant)
    assert found.flops < whole.flops
    assert stored_bytes(found.tensor) == stored_bytes(whole.tensor)


def test_a_source_that_fails_loses_nothing_that_was_done(tmp_path: Path) -> None:
    job, variant = Job("full", tmp_path / "c"), Variant("fused12-34")
    whole, good = job.unbroken(variant), job.source
    for _ in range(4):  # each brings the six blocks of one more row
        job.source = Failing(good, 8)  # type: ignore[assignment]
        with pytest.raises(OSError, match="no more"):
            job.run(variant)
    job.source = good
    found = job.run(variant)
    assert found.integrals == int(job.problem.row_elements[4:].sum()) < whole.integrals
    assert stored_bytes(found.tensor) == stored_bytes(whole.tensor)


class Failing:
    needed = None

    def __init__(self, source: Any, reads: int) -> None:
        self.source, self.reads = source, reads

    def read(self, row: int, column: int, out: Array) -> None:
        self.reads -= 1
        if self.reads < 0:
            raise OSError("no more")
        self.source.read(row, column, out)


# Damage


def count_calls(job: Job, variant: Variant) -> int:
    """How often a whole run says how far it is."""
    calls: list[None] = []
    job.run(variant, lambda: calls.append(None))
    return len(calls)


def stopped(tmp_path: Path, variant: Variant, before: int = 2) -> tuple[Job, bytes]:
    """A job that was stopped some calls before its end, and the bytes of its checkpoint."""
    job = Job("full", tmp_path / "c")
    assert job.stop_after(variant, count_calls(job, variant) - before)
    return job, job.path.read_bytes()


HALF_DONE = [
    Variant("fused12-34", keeps=True),
    Variant("recompute", parts=((0, 1), (1, 2))),
    Variant("fused1234-inner", parts=((0, 1), (1, 2), (2, 3))),
]


@pytest.mark.parametrize("variant", HALF_DONE, ids=lambda variant: variant.schedule)
def test_a_file_that_is_cut_off_anywhere(tmp_path: Path, variant: Variant) -> None:
    job, content = stopped(tmp_path, variant)
    whole, first = stored_bytes(job.unbroken(variant).tensor), len(Heading(job.digest, variant).packed())
    assert len(content) > first + HEAD_BYTES
    for length in [*range(first + 60), *random.Random(0).sample(range(first, len(content)), 40)]:
        job.path.write_bytes(content[:length])
        if length < first:
            with pytest.raises(StorageError, match=r"is no checkpoint|is damaged: its first bytes"):
                job.run(variant)
            assert job.path.read_bytes() == content[:length]
        else:
            assert stored_bytes(job.run(variant).tensor) == whole


@pytest.mark.parametrize("variant", HALF_DONE, ids=lambda variant: variant.schedule)
def test_a_byte_that_changed(tmp_path: Path, variant: Variant) -> None:
    job, content = stopped(tmp_path, variant)
    whole, rng = stored_bytes(job.unbroken(variant).tensor), random.Random(0)
    first = len(Heading(job.digest, variant).packed())
    for at in [*range(first + 40), *rng.sample(range(first, len(content)), 40)]:
        changed = bytearray(content)
        changed[at] ^= 1 << rng.randrange(8)
        job.path.write_bytes(changed)
        if at < first:
            with pytest.raises(StorageError, match=r"is no checkpoint|is damaged|has version"):
                job.run(variant)
            assert job.path.read_bytes() == changed
        else:
            assert stored_bytes(job.run(variant).tensor) == whole


def test_units_behind_a_damaged_one_are_cut_off(tmp_path: Path) -> None:
    variant = HALF_DONE[0]
    job, content = stopped(tmp_path, variant)
    with open_checkpoint(job.path, Heading(job.digest, variant)) as saved:
        units = list(saved.units.values())
    assert len(units) > 2
    changed = bytearray(content)
    changed[units[1].begin] ^= 1
    job.path.write_bytes(changed)
    with open_checkpoint(job.path, Heading(job.digest, variant)) as saved:
        assert list(saved.units.values()) == units[:1]
    assert job.path.read_bytes() == content[: units[0].begin + units[0].length]


@pytest.mark.parametrize("content", [b"", b"my letters", bytes(500)])
def test_a_file_that_is_no_checkpoint_is_left_alone(tmp_path: Path, content: bytes) -> None:
    job = Job("full", tmp_path / "c")
    job.path.write_bytes(content)
    with pytest.raises(StorageError, match=r"c is no checkpoint of a transform\. Expected one"):
        job.run(Variant("unfused"))
    with pytest.raises(StorageError, match="is no checkpoint"):
        read_variant(job.path, job.digest)
    assert job.path.read_bytes() == content


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = stopped(tmp_path, HALF_DONE[0])
    monkeypatch.setattr("tilewise.engines.transform.checkpoint.VERSION", 3)
    with pytest.raises(StorageError, match=r"has version 2 of the format .* reads version 3\. Use"):
        read_variant(job.path, job.digest)


# Other transforms


def test_a_checkpoint_of_another_transform_is_refused_and_kept(tmp_path: Path) -> None:
    variant = HALF_DONE[0]
    job, content = stopped(tmp_path, variant)
    job.matrices = [matrix * (1 + 1e-15) for matrix in job.matrices]
    with pytest.raises(InputError, match=r"c belongs to another transform .* Remove the file, or name another"):
        job.run(variant)
    with pytest.raises(InputError, match="belongs to another transform"):
        read_variant(job.path, job.digest)
    assert job.path.read_bytes() == content


def test_a_checkpoint_of_another_variant_is_refused_and_kept(tmp_path: Path) -> None:
    job, content = stopped(tmp_path, HALF_DONE[0])
    with pytest.raises(InputError, match=r"begun with fused12-34 \(integrals kept\), .* planned with unfused \(all at"):
        job.run(Variant("unfused"))
    assert job.path.read_bytes() == content


def test_every_variant_is_read_as_it_was_written(tmp_path: Path) -> None:
    job = Job("full", tmp_path / "c")
    for variant in list_variants(job.problem):
        with open_checkpoint(job.path, Heading(job.digest, variant)):
            assert read_variant(job.path, job.digest) == variant
        job.path.unlink()
    assert read_variant(job.path, job.digest) is None
    assert FIXED.size % 8 == 0


def test_digests_tell_transforms_apart(tmp_path: Path) -> None:
    digests = {Job(case, tmp_path / "c").digest for case in CASES}
    assert len(digests) == len(CASES)
    job = Job("full", tmp_path / "c")
    assert digest_transform(job.problem, job.matrices, [b"ab", b"c"]) != digest_transform(
        job.problem, job.matrices, [b"a", b"bc"]
    )


# Other jobs, other disks


def test_two_jobs_at_once_are_refused(tmp_path: Path) -> None:
    job, variant = Job("full", tmp_path / "c"), Variant("fused12-34")
    with (
        open_checkpoint(job.path, Heading(job.digest, variant)),
        pytest.raises(StorageError, match=r"c is in use by another job .* Wait until it has ended, or name another"),
    ):
        job.run(variant)
    assert job.run(variant).flops


def test_the_lock_holds_after_a_slab_has_replaced_the_file(tmp_path: Path) -> None:
    variant = HALF_DONE[2]
    job, refused = Job("full", tmp_path / "c"), []

    def look() -> None:
        with pytest.raises(StorageError, match="in use by another job"):
            job.run(variant)
        refused.append(True)

    job.run(variant, look)
    assert len(refused) > 10


def full(*arguments: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("variant", HALF_DONE, ids=lambda variant: variant.schedule)
def test_a_disk_that_is_full_leaves_what_was_there(
    tmp_path: Path, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In the last slab nothing is written any more.
    job, content = stopped(tmp_path, variant, count_calls(Job("full", tmp_path / "c"), variant) // 2)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(StorageError, match=r"c cannot be written: No space left.*What was there is unchanged"):
            job.run(variant)
    assert job.path.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    assert stored_bytes(job.run(variant).tensor) == stored_bytes(job.unbroken(variant).tensor)


def test_a_write_that_ends_half_way_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = HALF_DONE[0]
    job, content = stopped(tmp_path, variant)
    real, left = os.pwrite, [100]

    def short(handle: int, view: memoryview, at: int) -> int:
        if not left[0]:
            full()
        count = real(handle, view[: left[0]], at)
        left[0] -= count
        return count

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", short)
        with pytest.raises(StorageError, match="No space left"):
            job.run(variant)
    assert job.path.read_bytes() == content


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"in a folder that does not exist\. Expected .* Make it"):
        parse_checkpoint(tmp_path / "none" / "c")
    with pytest.raises(StorageError, match="is a folder"):
        parse_checkpoint(tmp_path)
    with pytest.raises(InputError, match="5 is no path"):
        parse_checkpoint(5)  # type: ignore[arg-type]


def test_a_file_that_changed_while_it_was_in_use_is_noticed(tmp_path: Path) -> None:
    variant = HALF_DONE[0]
    job, _ = stopped(tmp_path, variant)
    with open_checkpoint(job.path, Heading(job.digest, variant)) as saved:
        (kind, number), unit = next(iter(saved.units.items()))
        room = np.empty(unit.length // 8)
        saved.read(kind, number, [room])
        with pytest.raises(StorageError, match="not those that were written"):
            saved.read(kind, number, [room[:-1]])
        os.pwrite(saved.handle, b"x", unit.begin + 3)
        with pytest.raises(StorageError, match=r"not those that were written\. Expected .* Remove the file"):
            saved.read(kind, number, [room])
    assert isinstance(saved, Checkpoint)


# Kills

KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from engines.test_transform_checkpoint import Job, slow_variant
job = Job("full", Path(sys.argv[2]))
job.unbroken(slow_variant(job, sys.argv[3], 0.0))  # what is compiled is compiled now
variant = slow_variant(job, sys.argv[3], 0.002)
print("ready", flush=True)
job.run(variant, job.wait)
"""


class Slow:
    needed = None

    def __init__(self, source: Any, seconds: float) -> None:
        self.source, self.seconds = source, seconds

    def read(self, row: int, column: int, out: Array) -> None:
        time.sleep(self.seconds)
        self.source.read(row, column, out)


def slow_variant(job: Job, kind: str, seconds: float) -> Variant:
    """Make the integrals of a job come slowly; a variant of a kind that does without keeping them."""
    job.source = Slow(source_of(job.problem, job.a), seconds)  # type: ignore[assignment]
    return [each for each in list_variants(job.problem) if each.schedule == kind and not each.keeps][-1]


def kill(path: Path, kind: str, seconds: float, *, begun: bool) -> int:
    """Kill a process some time after it began to transform, or after it has saved a unit; how many units it left."""
    job = Job("full", path)
    heading = Heading(job.digest, slow_variant(job, kind, 0.0))
    arguments = [sys.executable, "-c", KILLED, str(Path(__file__).parents[1]), str(path), kind]
    process = subprocess.Popen(arguments, env=source_environment(), stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    while begun and process.poll() is None and not has_units(path, heading):
        time.sleep(0.001)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    if not path.exists():
        return 0
    with open_checkpoint(path, heading) as saved:
        return len(saved.units)


def has_units(path: Path, heading: Heading) -> bool:
    try:
        return path.stat().st_size > len(heading.packed())
    except FileNotFoundError:
        return False


def go_on(path: Path, kind: str) -> Outcome:
    """Let a killed job come to its end here: the bits are those of an unbroken run, and nothing is left."""
    job = Job("full", path)
    variant = slow_variant(job, kind, 0.0)
    found = job.run(variant)
    assert stored_bytes(found.tensor) == stored_bytes(job.unbroken(variant).tensor)
    assert not [left for left in path.parent.iterdir() if left.name.endswith(SUFFIX) or left == path]
    return found


@pytest.mark.parametrize("kind", ["fused12-34", "fused1234"])
def test_killed_jobs(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "c"
    units = [kill(path, kind, 0.01, begun=True) for _ in range(2)]
    assert max(units) > 0
    found = go_on(path, kind)
    job = Job("full", path)
    assert found.flops < job.unbroken(slow_variant(job, kind, 0.0)).flops


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_killed_jobs(tmp_path: Path, kind: str) -> None:
    rng, units = random.Random(1), []
    for _ in range(10):
        units += [kill(tmp_path / "c", kind, rng.uniform(0.0, 0.1), begun=begun) for begun in (False, True)]
        go_on(tmp_path / "c", kind)
    assert sum(count > 0 for count in units) >= 5
