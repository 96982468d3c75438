"""The orbitals of a run beside its checkpoint: a second Hartree-Fock gives others, by rounding and by signs."""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.chemistry.identity import function_numbers
from tilewise.chemistry.reference import SAME_ENERGY, Reference
from tilewise.engines.transform.checkpoint import parse_checkpoint
from tilewise.errors import InputError, StorageError
from tilewise.tensors import Engine
from tilewise.tensors.drafts import draft

__all__ = ["keep_orbitals"]


def keep_orbitals(reference: Reference, checkpoint: str | os.PathLike[str], engine: Engine) -> Reference:
    """The reference with the orbitals that lie beside a checkpoint; if there are none, these are written.

    Parameters
    ----------
    reference : Reference
        What the mean field of this run came to.
    checkpoint : str or Path
        The checkpoint.
    engine : Engine
        Whose first rank reads and writes.
    """

    def take() -> Reference:
        begun = parse_checkpoint(checkpoint)
        path = begun.with_name(f"{begun.name}.orbitals")
        if path.exists():
            return _read(path, reference)
        if begun.exists():
            raise StorageError(
                f"{path} is missing. Expected the orbitals that the amplitudes in {begun.name} belong to. Put it back "
                f"beside it, or remove {begun.name} to begin anew."
            )
        _write(path, reference)
        return reference

    found = engine.of_first(_arrays(engine.agree(take, once=True) or reference))
    return replace(reference, **found)


DAMAGES = (OSError, ValueError, KeyError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What reading a damaged archive of arrays may raise."""


def _arrays(reference: Reference) -> dict[str, Any]:
    names = ("occupied", "virtual", "fock", "irreps", "e_tot", "active")
    return {name: getattr(reference, name) for name in names}


def _digest(integrals: Any) -> npt.NDArray[np.uint8]:
    """What tells a molecule, or an array of integrals, from others."""
    summary = hashlib.blake2b(digest_size=32)
    tables: Iterable[Any] = (integrals,)
    if hasattr(integrals, "_bas"):
        tables = function_numbers(integrals)
        summary.update(f"{integrals.nelectron} {integrals.spin}".encode())
    for table in tables:
        summary.update(np.ascontiguousarray(table).tobytes())
    return np.frombuffer(summary.digest(), np.uint8)


def _write(path: Path, reference: Reference) -> None:
    arrays = {name: value for name, value in _arrays(reference).items() if value is not None}
    with draft(path) as handle, os.fdopen(os.dup(handle), "wb") as stream:
        np.savez(stream, origin=_digest(reference.integrals), **arrays)


def _read(path: Path, reference: Reference) -> Reference:
    remedy = f"Remove it and {path.stem}, or name another with checkpoint=."
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            found: dict[str, Any] = {name: arrays[name] for name in arrays.files}
    except DAMAGES as error:
        raise StorageError(
            f"{path} cannot be read: {error}. Expected orbitals as they were written. {remedy}"
        ) from error
    own = _arrays(reference)
    same = {"origin", *(name for name, value in own.items() if value is not None)} == set(found)
    same = same and np.array_equal(found.pop("origin"), _digest(reference.integrals))
    same = same and all(found[name].shape == np.shape(own[name]) for name in found)
    same = same and np.array_equal(found["active"], reference.active)
    if not same or abs(float(found["e_tot"]) - reference.e_tot) > SAME_ENERGY:
        raise InputError(
            f"{path} has the orbitals of another molecule, basis, point group, or choice of frozen orbitals. Expected "
            f"those of this run. {remedy}"
        )
    return replace(reference, **(found | {"e_tot": float(found["e_tot"])}))
