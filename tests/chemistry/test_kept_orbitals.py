"""Orbitals beside a checkpoint: one file for both commands, whole or refused, and never that of another job."""

from __future__ import annotations

import errno
import hashlib
import os
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chemistry.molecules import HYDROGEN, make_mol, mean_field
from tilewise.chemistry import inputs, kept_orbitals
from tilewise.chemistry.integrals import hartree_fock
from tilewise.chemistry.kept_orbitals import find_orbitals, keep_orbitals, orbital_file, read_archive, write_archive
from tilewise.chemistry.reference import parse_reference
from tilewise.engines.threads import ThreadsEngine
from tilewise.errors import StorageError


def say_nothing(line: str) -> None:
    pass


def test_only_the_first_of_two_writes(tmp_path: Path) -> None:
    path = orbital_file(tmp_path / "run.h5")
    assert path.name == "run.h5.orbitals"
    assert write_archive(path, {"a": np.arange(3)})
    content = path.read_bytes()
    assert not write_archive(path, {"a": np.arange(4)})
    assert path.read_bytes() == content
    assert [each.name for each in tmp_path.iterdir()] == ["run.h5.orbitals"]
    np.testing.assert_array_equal(read_archive(path, "")["a"], np.arange(3))


def test_a_link_leads_to_where_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert write_archive(tmp_path / "link", {"a": np.arange(3)})
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").is_file()


def test_a_file_that_another_job_removed_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, calls = os.link, []

    def lose(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == 1:
            source.unlink()
        link(source, target)

    monkeypatch.setattr(os, "link", lose)
    assert write_archive(tmp_path / "kept", {"a": np.arange(3)})
    assert len(calls) == 2
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert write_archive(tmp_path / "kept", {"a": np.arange(3)})
    assert not write_archive(tmp_path / "kept", {"a": np.arange(4)})
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]
    assert len(read_archive(tmp_path / "kept", "")["a"]) == 3


def test_a_transform_takes_the_orbitals_of_a_job_that_was_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mol, kept = make_mol(HYDROGEN, "6-31g"), tmp_path / "c.orbitals"
    others: list[Any] = []

    def late(mol: Any) -> Any:
        monkeypatch.setattr(inputs, "hartree_fock", hartree_fock)
        others.append(inputs.molecule_mean_field(mol, say_nothing, kept))
        solved = hartree_fock(mol)
        solved.mo_coeff = -solved.mo_coeff
        return solved

    monkeypatch.setattr(inputs, "hartree_fock", late)
    found = inputs.molecule_mean_field(mol, say_nothing, kept)
    np.testing.assert_array_equal(found.mo_coeff, others[0].mo_coeff)


def test_of_two_jobs_that_begin_with_one_checkpoint_the_slower_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mf, path = mean_field(HYDROGEN, "6-31g"), tmp_path / "run.h5"
    first = parse_reference(mf, None)
    mf.mo_coeff = -mf.mo_coeff
    second = parse_reference(mf, None)
    engine, write = ThreadsEngine(1), kept_orbitals._write

    def late(path: Path, reference: Any) -> bool:
        monkeypatch.setattr(kept_orbitals, "_write", write)
        keep_orbitals(first, tmp_path / "run.h5", engine)
        return write(path, reference)

    monkeypatch.setattr(kept_orbitals, "_write", late)
    with pytest.raises(StorageError, match="has just been written by another job"):
        keep_orbitals(second, path, engine)
    np.testing.assert_array_equal(find_orbitals(second, path, engine).occupied, first.occupied)
    keep_orbitals(first, path, engine)


def test_an_archive_of_unknown_compression_is_damaged(tmp_path: Path) -> None:
    mol, kept = make_mol(HYDROGEN, "6-31g"), tmp_path / "c.orbitals"
    inputs.molecule_mean_field(mol, say_nothing, kept)
    content = bytearray(kept.read_bytes())
    with zipfile.ZipFile(kept) as opened:
        entry = content.index(b"PK\x01\x02", opened.start_dir)
    content[entry + 10] = 99
    kept.write_bytes(content)
    with pytest.raises(StorageError, match=r"c\.orbitals cannot be read: .* Remove it and c, or name another"):
        inputs.molecule_mean_field(mol, say_nothing, kept)


@pytest.mark.parametrize("shape", [(70, 70, 70), (1000, 343)])
def test_integrals_are_known_without_a_copy(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).standard_normal(shape)
    expected = hashlib.blake2b(array.tobytes(), digest_size=32).digest()
    tracemalloc.start()
    found = kept_orbitals._digest(array)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.tobytes() == expected
    assert peak < array.nbytes // 10
