"""Tensors in files: the same bits back, a clear error for anything damaged, and never half a file."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilewise as tw
from engines.processes import source_environment
from references import stored_bytes
from strategies import spaces, tensors
from tilewise.tensors import files
from tilewise.tensors.drafts import SUFFIX
from tilewise.tensors.files import ScratchFile, sum_words


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors(), st.floats(0, 1e300), st.booleans())
def test_what_is_loaded_has_the_bits_that_were_saved(
    tmp_path: Path, tensor: tw.BlockTensor, bound: float, on_disk: bool
) -> None:
    tensor.error_bound = bound
    tensor.save(tmp_path / "t.h5")
    loaded = tw.load(tmp_path / "t.h5", on_disk=on_disk)
    assert loaded.in_memory is not on_disk
    loaded.check()
    assert loaded.pattern.spaces == tensor.pattern.spaces
    assert loaded.symmetry == tensor.symmetry
    assert loaded.dtype == tensor.dtype
    again = loaded.copy()
    assert stored_bytes(again)[:2] == stored_bytes(tensor)[:2]
    assert (again.pattern.norms <= tensor.pattern.norms).all()
    assert again.error_bound == bound
    assert [p.name for p in tmp_path.iterdir()] == ["t.h5"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spaces(labels=True), st.sampled_from((None, "occ", "Räume")))
def test_spaces_keep_names_labels_and_order(tmp_path: Path, labelled: tw.Space, name: str | None) -> None:
    named = tw.Space(labelled.sizes, name, irrep=labelled.irrep, spin=labelled.spin, charge=labelled.charge)
    clustered = tw.Space.clustered([[0, 0, 9], [0, 0, 0], [0, 0, 8]], ntiles=2)
    tw.random((named, clustered), 0.5).save(tmp_path / "t.h5")
    first, second = tw.load(tmp_path / "t.h5").spaces
    assert (first, first.name) == (named, name)
    np.testing.assert_array_equal(second.order, clustered.order)


def test_a_tensor_on_disk_outlives_its_name(tmp_path: Path) -> None:
    i = tw.Space([3, 2])
    tensor = tw.random((i, i))
    tensor.save(tmp_path / "t.h5")
    on_disk = tw.load(tmp_path / "t.h5", on_disk=True)
    (tensor * 2).save(tmp_path / "t.h5")
    np.testing.assert_array_equal(on_disk.to_dense(), tensor.to_dense())
    np.testing.assert_array_equal(tw.load(tmp_path / "t.h5").to_dense(), 2 * tensor.to_dense())


def test_any_hdf5_program_can_read_the_elements(tmp_path: Path) -> None:
    i = tw.Space([3, 2])
    tensor = tw.random((i, i), dtype="complex64")
    tensor.save(tmp_path / "t.h5")
    with h5py.File(tmp_path / "t.h5") as file:
        np.testing.assert_array_equal(file["data"][...], tensor.arena.data)
        np.testing.assert_array_equal(file["index"][...], tensor.pattern.index)


def test_generated_tensors_are_saved_block_by_block(tmp_path: Path) -> None:
    i = tw.Space([3, 2])
    made = tw.from_function(lambda index: np.full([int(i.sizes[t]) for t in index], float(sum(index))), (i, i))
    made.save(tmp_path / "t.h5")
    np.testing.assert_array_equal(tw.load(tmp_path / "t.h5").to_dense(), made.to_dense())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    i = tw.Space([20, 30, 7], name="i")
    tw.random((i, i), 0.8).save(tmp_path / "t.h5")
    return tmp_path / "t.h5"


def damage(content: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, cut off, moved or added."""
    at, length = rng.randrange(len(content)), rng.choice((1, 1, 8, 300))
    kind = rng.choice(("flip", "flip", "zero", "cut", "drop", "add"))
    if kind == "flip":
        return content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]
    if kind == "zero":
        return content[:at] + bytes(length) + content[at + length :]
    if kind == "cut":
        return content[:at]
    if kind == "drop":
        return content[:at] + content[at + length :]
    return content[:at] + rng.randbytes(length) + content[at:]


def test_a_damaged_file_is_an_error_or_intact(saved: Path) -> None:
    whole = stored_bytes(tw.load(saved))
    content, rng = saved.read_bytes(), random.Random(0)
    errors = 0
    for _ in range(300):
        saved.write_bytes(damage(content, rng))
        try:
            assert stored_bytes(tw.load(saved)) == whole
        except tw.StorageError as error:
            errors += str(saved) in str(error)
    assert errors > 200


def test_a_damaged_block_is_named_when_it_is_read(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    tensor = tw.load(saved)
    at = content.index(tensor.block((0, 0)).tobytes())
    content[at + 5] ^= 1
    saved.write_bytes(content)
    on_disk = tw.load(saved, on_disk=True)
    with pytest.raises(tw.StorageError, match=r"damaged: block \(0, 0\) does not match its checksum"):
        tw.einsum("ij,jk->ik", on_disk, tensor)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_another_type_is_converted_part_by_part(tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "READ_BYTES", 100)
    space = tw.Space([7, 5])
    tensor = tw.random((space, space), dtype=dtype)
    tensor.save(path := tmp_path / "tensor.h5")
    found = np.empty(35, np.complex128)
    on_disk = tw.load(path, on_disk=True)
    on_disk.storage.read(1, found)
    assert (found.reshape(7, 5) == tensor.block((0, 1))).all()
    content = bytearray(path.read_bytes())
    at = content.index(tensor.block((0, 1)).tobytes())
    content[at + 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(tw.StorageError, match=r"damaged: block \(0, 1\) does not match its checksum"):
        on_disk.storage.read(1, found)
    os.truncate(path, at + 120)
    with pytest.raises(tw.StorageError, match=r"damaged: block \(0, 1\) does not match its checksum"):
        on_disk.storage.read(1, found)


def test_a_disk_that_fails_is_named_with_the_block(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = tw.load(saved, on_disk=True)

    def fail(*arguments: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(tw.StorageError, match=r"Block \(0, 0\) of .* cannot be read: Input/output error\. Expected"):
        tw.einsum("ij,jk->ik", tensor, tensor)


@pytest.mark.parametrize("content", [b"", b"not a tensor", b"\x89HDF\r\n\x1a\n" + bytes(2000)])
def test_foreign_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.h5").write_bytes(content)
    with pytest.raises(tw.StorageError, match=r"t\.h5 is no file of tilewise\. Expected one that save\(\) wrote"):
        tw.load(tmp_path / "t.h5")


def test_another_version_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewise.tensors.files.VERSION", 2)
    with pytest.raises(tw.StorageError, match=r"has version 1 of the file format\. This tilewise reads version 2"):
        tw.load(saved)


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    tensor = tw.random((tw.Space([2]),))
    with pytest.raises(tw.StorageError, match=r"none\.h5 cannot be read: No such file or directory"):
        tw.load(tmp_path / "none.h5")
    with pytest.raises(tw.StorageError, match=r"cannot be written: No such file or directory.*Make the folder first"):
        tensor.save(tmp_path / "folder" / "t.h5")
    with pytest.raises(tw.StorageError, match="is a folder"):
        tensor.save(tmp_path)
    with pytest.raises(tw.InputError, match="5 is no path"):
        tensor.save(5)  # type: ignore[arg-type]


LIMITED = """
import resource, signal, sys
import tilewise as tw
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
i = tw.Space([100] * 3)
try:
    tw.random((i, i)).save(sys.argv[1])
except tw.StorageError as error:
    print(error)
"""


def test_a_disk_that_is_full_leaves_the_last_good_file(saved: Path) -> None:
    before = saved.read_bytes()
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, str(saved)],
        env=source_environment(),
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "cannot be written: File too large. What was there is unchanged." in run.stdout
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == ["t.h5"]


SAVING = """
import sys
import tilewise as tw
i = tw.Space([60] * 4)
both = [tw.random((i, i), seed=seed) for seed in (0, 1)]
both[0].save(sys.argv[1])
print("ready", flush=True)
while True:
    for tensor in both:
        tensor.save(sys.argv[1])
"""


def kill_while_saving(path: Path, trials: int) -> None:
    """Kill a process that saves all the time; what it leaves is one of the two tensors, whole."""
    i = tw.Space([60] * 4)
    both = {stored_bytes(tw.random((i, i), seed=seed))[0] for seed in (0, 1)}
    rng = random.Random(1)
    for _ in range(trials):
        process = subprocess.Popen([sys.executable, "-c", SAVING, str(path)], env=source_environment(), stdout=-1)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(rng.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert stored_bytes(tw.load(path))[0] in both
    tw.random((i,)).save(path.with_name("other.h5"))
    assert not [p for p in path.parent.iterdir() if p.name.endswith(SUFFIX)]


def test_a_killed_job_leaves_a_whole_file_and_drafts_that_the_next_one_removes(tmp_path: Path) -> None:
    kill_while_saving(tmp_path / "t.h5", 3)


@pytest.mark.slow
def test_one_hundred_killed_jobs(tmp_path: Path) -> None:
    kill_while_saving(tmp_path / "t.h5", 100)


LOADING = "import sys, tilewise as tw; t = tw.load(sys.argv[1]); sys.stdout.buffer.write(t.arena.data.tobytes())"


@pytest.mark.slow
def test_five_hundred_damaged_files_in_processes_of_their_own(saved: Path) -> None:
    content, rng, whole = saved.read_bytes(), random.Random(2), tw.load(saved).arena.data.tobytes()
    for _ in range(500):
        saved.write_bytes(damage(content, rng))
        run = subprocess.run(
            [sys.executable, "-c", LOADING, str(saved)], env=source_environment(), capture_output=True, timeout=60
        )
        if run.returncode:
            assert run.returncode == 1
            assert b"StorageError" in run.stderr
        else:
            assert run.stdout == whole


def test_a_draft_in_use_is_left_alone(tmp_path: Path) -> None:
    from tilewise.tensors.drafts import draft, remove_leftovers

    with draft(tmp_path / "t.h5") as handle:
        assert remove_leftovers(tmp_path) == []
        os.write(handle, b"x")
    assert (tmp_path / "t.h5").read_bytes() == b"x"


def test_a_copy_of_a_tensor_on_disk_shares_the_open_file(tmp_path: Path) -> None:
    space = tw.Space([3, 5])
    tensor = tw.random((space, space))
    tensor.save(tmp_path / "t.h5")
    first = tw.load(tmp_path / "t.h5", on_disk=True)
    second = copy.deepcopy(first)
    del first
    with open(tmp_path / "mine.txt", "w") as own:
        assert np.array_equal(second.to_dense(), tensor.to_dense())
        del second
        own.write("hello")
    assert (tmp_path / "mine.txt").read_text() == "hello"


def test_a_tensor_on_disk_is_not_pickled(tmp_path: Path) -> None:
    space = tw.Space([3])
    tw.random((space, space)).save(tmp_path / "t.h5")
    with pytest.raises(tw.InputError, match=r"cannot be pickled.*Pickle tensor\.copy\(\)"):
        pickle.dumps(tw.load(tmp_path / "t.h5", on_disk=True))


def ones(index: tuple[int, ...]) -> Any:
    return np.ones((3, 3))


def test_a_generated_tensor_is_copied_and_pickled() -> None:
    space = tw.Space([3])
    lazy = tw.from_function(ones, (space, space), thread_safe=False)
    for other in (copy.deepcopy(lazy), pickle.loads(pickle.dumps(lazy))):  # noqa: S301
        assert np.array_equal(other.to_dense(), np.ones((3, 3)))


def test_what_is_no_file_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    space = tw.Space([3])
    tensor = tw.random((space, space))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(tw.StorageError, match=r"is no file\. Expected the name of a file"):
        tw.load(pipe)
    with pytest.raises(tw.StorageError, match=r"is no file\. Expected the name of a file"):
        tensor.save(pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(tw.StorageError, match="cannot be written"):
        tensor.save(loop)


@pytest.mark.parametrize("name", ["a\0b", "~nobody-has-this-name/x"])
def test_a_path_that_is_none_is_named(name: str) -> None:
    space = tw.Space([3])
    with pytest.raises(tw.InputError, match="is no path"):
        tw.random((space, space)).save(name)
    with pytest.raises(tw.InputError, match="is no path"):
        tw.load(name)


def test_a_long_name_can_be_saved(tmp_path: Path) -> None:
    space = tw.Space([3])
    tensor = tw.random((space, space))
    tensor.save(tmp_path / ("x" * 240))
    assert np.array_equal(tw.load(tmp_path / ("x" * 240)).to_dense(), tensor.to_dense())
    with pytest.raises(tw.StorageError, match="cannot be written"):
        tensor.save(tmp_path / ("x" * 300))


# ---- scratch files ----


@given(st.binary(min_size=1, max_size=200), st.integers(0, 24), st.data())
def test_the_sum_of_words_notices_a_changed_bit(content: bytes, words: int, data: st.DataObject) -> None:
    """And does not depend on how bytes are parted, as long as words stay whole."""
    view = memoryview(content)
    assert sum_words(view[8 * words :], sum_words(view[: 8 * words])) == sum_words(view)
    changed = bytearray(content)
    changed[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert sum_words(memoryview(changed)) != sum_words(view)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_a_scratch_file_that_was_changed_is_noticed(dtype: str) -> None:
    tensor = tw.random((tw.Space([3, 2]), tw.Space([5])), dtype=dtype)
    scratch = ScratchFile(tensor.pattern, np.dtype(dtype))
    for row, (_, block) in enumerate(tensor.blocks()):
        scratch.write(row, block, 1.0)
    found = scratch.tensor(tensor.engine)
    np.testing.assert_array_equal(found.to_dense(), tensor.to_dense())
    os.pwrite(scratch.file.handle, b"\x81", int(scratch.begin[1]))
    found.block((0, 0))
    with pytest.raises(tw.TilewiseError, match=r"block \(1, 0\) does not match its checksum"):
        found.block((1, 0))
