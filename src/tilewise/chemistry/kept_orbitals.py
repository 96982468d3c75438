"""The orbitals of a run beside its checkpoint: a second Hartree-Fock gives others, by rounding and by signs."""

from __future__ import annotations

import hashlib
import os
import secrets
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.chemistry.checkpoint import check_manifest
from tilewise.chemistry.identity import molecule_digest
from tilewise.chemistry.reference import SAME_ENERGY, Reference
from tilewise.engines.transform.checkpoint import parse_checkpoint
from tilewise.errors import InputError, StorageError
from tilewise.tensors import Engine
from tilewise.tensors.drafts import SUFFIX, draft

__all__ = ["find_orbitals", "keep_orbitals", "orbital_file", "read_archive", "write_archive"]


SAME_CORE = 1e-8
"""Elements of the Hamiltonian of one electron that differ by more, in hartree, belong to different ones."""

SAME_DIGITS = 1e-10
"""The same as a part of large elements, whose rounding is larger."""

DAMAGES = (OSError, ValueError, KeyError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What reading a damaged archive of arrays may raise."""


def orbital_file(checkpoint: Path) -> Path:
    """Where the orbitals that a checkpoint belongs to are kept."""
    return checkpoint.with_name(f"{checkpoint.name}.orbitals")


def read_archive(path: Path, remedy: str) -> dict[str, Any]:
    """The arrays that `write_archive` wrote.

    Parameters
    ----------
    path : Path
        The file.
    remedy : str
        What to do about one that is damaged.
    """
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except DAMAGES as error:
        # NumPy's own words advise to trust the file.
        reason = (error.strerror if isinstance(error, OSError) else None) or "it is damaged"
        raise StorageError(
            f"{path} cannot be read: {reason}. Expected orbitals as they were written. {remedy}"
        ) from error


def write_archive(path: Path, arrays: Mapping[str, Any]) -> bool:
    """Write arrays to a new file; False, and nothing is changed, if there is one: of two jobs the first one counts."""
    target = path.resolve()
    while True:
        whole = target.with_name(f".{secrets.token_hex(8)}{SUFFIX}")
        with draft(whole) as handle, os.fdopen(os.dup(handle), "wb") as stream:
            np.savez(stream, **arrays)
        try:
            return _publish(whole, target)
        except FileNotFoundError:
            continue  # another job took it for the draft of a killed one
        except OSError as error:
            raise StorageError(
                f"{path} cannot be written: {error.strerror}. Expected a folder that takes new files. Check the path "
                "and its permissions."
            ) from error
        finally:
            whole.unlink(missing_ok=True)


def _publish(whole: Path, target: Path) -> bool:
    """Give a file its name, unless another has it."""
    try:
        os.link(whole, target)
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise
    except OSError:  # some file systems have no second names; between these two lines another job may be first
        if target.exists():
            return False
        os.replace(whole, target)
    return True


def find_orbitals(reference: Reference, checkpoint: str | os.PathLike[str], engine: Engine) -> Reference:
    """The reference with the orbitals that lie beside a checkpoint, as it is if there are none yet.

    Parameters
    ----------
    reference : Reference
        What the mean field of this run came to.
    checkpoint : str or Path
        The checkpoint.
    engine : Engine
        Whose first rank reads.
    """

    def find() -> Reference:
        begun = parse_checkpoint(checkpoint)
        path, goes_on = orbital_file(begun), begun.exists()  # in this order: another job may just begin
        if path.exists():
            return _read(path, reference)
        if goes_on:
            check_manifest(begun)
            raise StorageError(
                f"{path} is missing. Expected the orbitals that the amplitudes in {begun.name} belong to. Put it back "
                f"beside it, or remove {begun.name} to begin anew."
            )
        return reference

    found = engine.of_first(_arrays(engine.agree(find, once=True) or reference))
    return replace(reference, **found)


def keep_orbitals(reference: Reference, checkpoint: Path, engine: Engine) -> None:
    """Write the orbitals of a run that begins beside its checkpoint, or raise if another job was faster."""

    def keep() -> None:
        path = orbital_file(checkpoint)
        if not path.exists() and _write(path, reference):
            return
        kept, own = _arrays(_read(path, reference)), _arrays(reference)
        if not all(np.array_equal(kept[name], own[name]) for name in own):
            raise StorageError(
                f"{path} has just been written by another job. Expected one job for each checkpoint. Wait until it has "
                "ended, or name another with checkpoint=."
            )

    engine.agree(keep, once=True)


def _arrays(reference: Reference) -> dict[str, Any]:
    names = ("occupied", "virtual", "fock", "irreps", "e_tot", "active")
    return {name: getattr(reference, name) for name in names}


def _digest(integrals: Any) -> npt.NDArray[np.uint8]:
    """What tells a molecule, or an array of integrals, from others."""
    if hasattr(integrals, "_bas"):
        return np.frombuffer(molecule_digest(integrals), np.uint8)
    content = np.ascontiguousarray(integrals).data.cast("B")
    return np.frombuffer(hashlib.blake2b(content, digest_size=32).digest(), np.uint8)


def _write(path: Path, reference: Reference) -> bool:
    arrays = {name: value for name, value in _arrays(reference).items() if value is not None}
    return write_archive(path, {"origin": _digest(reference.integrals), "core": reference.core} | arrays)


def _read(path: Path, reference: Reference) -> Reference:
    both = f"it and {path.stem}" if path.with_name(path.stem).exists() else "it"
    remedy = f"Remove {both}, or name another with checkpoint=."
    found = read_archive(path, remedy)
    if "core" not in found:
        raise StorageError(
            f"{path} does not say which Hamiltonian its orbitals belong to. Expected a file of this version of "
            f"tilewise. {remedy}"
        )
    own = _arrays(reference) | {"core": reference.core}
    same = {"origin", *(name for name, value in own.items() if value is not None)} == set(found)
    same = same and np.array_equal(found.pop("origin"), _digest(reference.integrals))
    same = same and all(found[name].shape == np.shape(own[name]) for name in found)
    if not same or not np.array_equal(found["active"], reference.active):
        raise InputError(
            f"{path} has the orbitals of another molecule, basis, point group, or choice of frozen orbitals. Expected "
            f"those of this run. {remedy}"
        )
    kept = replace(reference, **(found | {"e_tot": float(found["e_tot"])}))
    _check_hamiltonian(path, kept, reference, remedy)
    return kept


def _check_hamiltonian(path: Path, kept: Reference, own: Reference, remedy: str) -> None:
    """Raise if orbitals belong to another Hamiltonian; energies alone tell only those that are far apart."""
    if not np.allclose(kept.core, own.core, rtol=SAME_DIGITS, atol=SAME_CORE):
        most = float(np.abs(kept.core - own.core).max())
        raise InputError(
            f"{path} has the orbitals of another Hamiltonian, whose part of one electron differs by up to {most:.2g} "
            f"hartree, as in another field or solvent. Expected that of this run. {remedy}"
        )
    if abs(kept.e_tot - own.e_tot) > SAME_ENERGY:
        raise InputError(
            f"{path} has the orbitals of another mean field, whose energy is {kept.e_tot:.8f} hartree. Expected that "
            f"of this run, {own.e_tot:.8f}. {remedy}"
        )
