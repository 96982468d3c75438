"""Orbitals beside a checkpoint: one file for both commands, whole or refused, and never that of another job."""

from __future__ import annotations

import errno
import hashlib
import os
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import scf, solvent
from pyscf.tools import fcidump

from chemistry.cc_cases import without_file
from chemistry.molecules import HYDROGEN, WATER, make_mol, mean_field
from tilewise.chemistry import inputs, kept_orbitals
from tilewise.chemistry.fcidump import read_fcidump, reference
from tilewise.chemistry.integrals import hartree_fock
from tilewise.chemistry.kept_orbitals import find_orbitals, keep_orbitals, orbital_file, read_archive, write_archive
from tilewise.chemistry.reference import SAME_ENERGY, Reference, parse_reference
from tilewise.engines.threads import ThreadsEngine
from tilewise.errors import InputError, StorageError

ANOTHER = r"run\.h5\.orbitals has the orbitals of another Hamiltonian, .* by up to \S+ hartree, .* Remove it, or name"


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


def check_told_apart(first: Reference, again: Reference, other: Reference, folder: Path) -> None:
    """Orbitals that were kept are found again, and refused for another Hamiltonian of the same energy."""
    path, engine = folder / "run.h5", ThreadsEngine(1)
    assert abs(first.e_tot - other.e_tot) < SAME_ENERGY
    keep_orbitals(first, path, engine)
    np.testing.assert_array_equal(find_orbitals(again, path, engine).occupied, first.occupied)
    with pytest.raises(InputError, match=ANOTHER):
        find_orbitals(other, path, engine)


def in_a_field(strength: float, tol: float = 1e-12) -> Reference:
    """Nitrogen, whose energy depends on a field only in second order."""
    mol = make_mol("N 0 0 0.549; N 0 0 -0.549", "6-31g")
    mf, core = scf.RHF(mol), scf.hf.get_hcore(mol) + strength * mol.intor_symmetric("int1e_r")[2]
    mf.get_hcore = lambda *_: core
    return parse_reference(without_file(mf.run(conv_tol=tol)), None)


def test_orbitals_of_another_field_are_refused(tmp_path: Path) -> None:
    check_told_apart(in_a_field(0.0), in_a_field(0.0, 1e-9), in_a_field(1e-3), tmp_path)


def in_a_solvent(model: str, frozen: bool, eps: float, tol: float = 1e-12) -> Reference:
    mf = getattr(solvent, model)(scf.RHF(make_mol(WATER, "sto-3g")))
    mf.with_solvent.eps = eps
    without_file(mf.run(conv_tol=tol)).with_solvent.frozen = frozen
    return parse_reference(mf, None)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("model", ["ddCOSMO", "PCM"])
def test_orbitals_of_another_solvent_are_refused(model: str, frozen: bool, tmp_path: Path) -> None:
    first, again = in_a_solvent(model, frozen, 78.3), in_a_solvent(model, frozen, 78.3, 1e-9)
    check_told_apart(first, again, in_a_solvent(model, frozen, 78.4), tmp_path)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_solvent_stays_as_it_is(frozen: bool) -> None:
    mf = without_file(solvent.PCM(scf.RHF(make_mol(WATER, "sto-3g"))).run(conv_tol=1e-12))
    mf.with_solvent.frozen = frozen
    energy, potential = mf.with_solvent.e, np.array(mf.with_solvent.v)
    parse_reference(mf, None)
    assert mf.with_solvent.e == pytest.approx(energy, rel=0, abs=1e-10)
    np.testing.assert_allclose(mf.with_solvent.v, potential, rtol=0, atol=1e-10)


def test_orbitals_of_other_integrals_of_one_electron_are_refused(tmp_path: Path) -> None:
    """Of two files with the same of two electrons."""
    fcidump.from_scf(mean_field(HYDROGEN, "6-31g"), str(tmp_path / "FCIDUMP"))
    dump = read_fcidump(tmp_path / "FCIDUMP")
    changed = dump.h1.copy()
    changed[0, 3] = changed[3, 0] = changed[0, 3] + 1e-3
    first, other = (parse_reference(reference(each), None) for each in (dump, replace(dump, h1=changed)))
    check_told_apart(first, first, other, tmp_path)


def test_a_mean_field_of_another_energy_is_refused(tmp_path: Path) -> None:
    first, engine = parse_reference(mean_field(HYDROGEN, "6-31g"), None), ThreadsEngine(1)
    keep_orbitals(first, tmp_path / "run.h5", engine)
    with pytest.raises(InputError, match=r"of another mean field, whose energy is -1\.\d+ hartree\. .* Remove it"):
        find_orbitals(replace(first, e_tot=first.e_tot + 1e-3), tmp_path / "run.h5", engine)


def test_orbitals_that_do_not_say_what_they_belong_to_are_refused(tmp_path: Path) -> None:
    first, engine, path = parse_reference(mean_field(HYDROGEN, "6-31g"), None), ThreadsEngine(1), tmp_path / "run.h5"
    keep_orbitals(first, path, engine)
    arrays = read_archive(orbital_file(path), "")
    orbital_file(path).unlink()
    write_archive(orbital_file(path), {name: array for name, array in arrays.items() if name != "core"})
    with pytest.raises(StorageError, match=r"run\.h5\.orbitals does not say which Hamiltonian .* Remove it, or name"):
        find_orbitals(first, path, engine)


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
