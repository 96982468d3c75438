"""CCSD of NWChem's tensor contraction engine, from Debian's package: its table of iterations."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peers.contender import NotInstalled
from peers.fair_blas import system_blas

ITERATION = re.compile(r"^ *(\d+) +(\d+\.\d+) +(-?\d+\.\d+) +(\d+\.\d+) +(\d+\.\d+) *$", re.MULTILINE)
"""Number, residual, correlation energy, processor seconds, wall seconds."""
ENERGY = re.compile(r"CCSD correlation energy / hartree = +(-?\d+\.\d+)")
THRESHOLD = 1e-7
MEMORY = "memory stack 1000 mb heap 100 mb global 4000 mb"
"""Of each rank; two hold the integrals of benzene without symmetry."""
GRACE_SECONDS = 20
"""How long the launcher has to end its ranks."""


class NwchemFailed(Exception):
    """NWChem ended, or was ended, without an iteration; the text has the end of its output."""


@dataclass(frozen=True, slots=True)
class NwchemRun:
    """What NWChem printed."""

    seconds: tuple[float, ...]
    """Wall seconds of each iteration, to a tenth."""
    energy: float | None
    """Correlation energy in hartree; None where it was ended before it converged."""


def unique_atoms(atoms: str) -> list[str]:
    """The atoms from which D2h makes all others; its planes are those of the coordinates."""
    lines = [line.split() for line in atoms.splitlines()]
    return [" ".join(line) for line in lines if all(float(coordinate) >= 0 for coordinate in line[1:])]


def input_text(atoms: str, basis: str, frozen: int, symmetry: bool) -> str:
    """The input file; frozen orbitals are the lowest, symmetry is D2h or none."""
    geometry = ["symmetry d2h", *unique_atoms(atoms)] if symmetry else atoms.splitlines()
    lines = [
        "start ccsd",
        MEMORY,
        f"geometry units angstrom{'' if symmetry else ' noautosym'}",
        *geometry,
        "end",
        "basis spherical",
        f"* library {basis}",
        "end",
        "scf",
        "thresh 1e-8",
        "end",
        "tce",
        *([f"freeze core {frozen}"] if frozen else []),
        "ccsd",
        f"thresh {THRESHOLD:.0e}",
        "end",
        "task tce energy",
    ]
    return "\n".join(lines) + "\n"


def parse_output(text: str) -> NwchemRun:
    """The iterations and the energy of an output, also of one that was cut off."""
    _, _, table = text.partition("CCSD iterations")
    energy = ENERGY.search(table)
    seconds = tuple(float(row[4]) for row in ITERATION.findall(table))
    return NwchemRun(seconds, float(energy.group(1)) if energy else None)


def run(atoms: str, basis: str, frozen: int, symmetry: bool, ranks: int, limit_seconds: float) -> NwchemRun:
    """Run on so many ranks with one thread each; ended after a while, it gives the iterations it finished."""
    launcher = shutil.which("mpirun")
    if launcher is None or shutil.which("nwchem") is None:
        raise NotInstalled("nwchem or mpirun not found: apt-get install nwchem openmpi-bin")
    command = [launcher, "--allow-run-as-root", "-n", str(ranks), "nwchem", "ccsd.nw"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "ccsd.nw").write_text(input_text(atoms, basis, frozen, symmetry))
        text = _output(command, folder, limit_seconds)
    found = parse_output(text)
    if not found.seconds:
        raise NwchemFailed(f"no iteration of NWChem within {limit_seconds:g} s; it ended with {text.strip()[-400:]!r}")
    return found


def _output(command: Sequence[str], folder: str, limit_seconds: float) -> str:
    """Standard output of a command that may be told to end; SIGTERM to the launcher reaches the ranks."""
    environment = {**os.environ, **system_blas().environment, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            return process.communicate(timeout=limit_seconds)[0]
        except subprocess.TimeoutExpired:
            process.terminate()
            return process.communicate(timeout=GRACE_SECONDS)[0]
