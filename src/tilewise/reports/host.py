"""What this computer has: versions, BLAS libraries, optional packages, rates."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from tilewise.engines.blas import libraries, preferred_blas
from tilewise.engines.kernels.microkernel import REGISTER_BYTES
from tilewise.machine import Machine, cpu_model, host_caches, host_cores, host_memory
from tilewise.plans.explain import Report, Table, bytes_text, seconds_text

PACKAGES = ("numpy", "scipy", "numba", "opt_einsum", "threadpoolctl", "h5py", "rich")
"""What is always installed."""

EXTRAS = (
    ("pyscf", "chem", "molecules and integrals"),
    ("mkl", "mkl", "Intel's BLAS"),
    ("matplotlib", "plot", "pictures"),
    ("mpi4py", "mpi", "several computers"),
    ("mtkahypar", "partition", "partitions by shared data"),
    ("cupy-cuda12x", "cuda", "devices"),
)
"""Optional packages, the extra that brings each, and what it is for."""


def version_of(package: str) -> str | None:
    """The version of an installed package, None if it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def describe_host(machine: Machine) -> dict[str, Any]:
    """Everything that ``tilewise doctor`` prints, as plain values."""
    return {
        "tilewise": version_of("tilewise"),
        "python": platform.python_version(),
        "packages": {package: version_of(package) for package in PACKAGES},
        "cpu": cpu_model(),
        "cores": host_cores(),
        "memory_bytes": host_memory(),
        "cache_bytes": list(host_caches()),
        "register_bits": 8 * REGISTER_BYTES,
        "blas": [library.name for library in libraries()],
        "blas_used": preferred_blas(machine).name,
        "extras": {
            package: {"version": version_of(package), "for": purpose, "install": f"pip install 'tilewise[{extra}]'"}
            for package, extra, purpose in EXTRAS
        },
        "machine": asdict(machine),
    }


def host_report(facts: Mapping[str, Any], stored: Path | None) -> Report:
    """The facts as tables; `stored` is where the rates were just written, if they were."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    host = [
        ("Python", f"{facts['python']} with {versions}"),
        ("processor", f"{facts['cpu']}, {facts['cores']} cores, {facts['register_bits']}-bit registers"),
        ("memory", bytes_text(facts["memory_bytes"]) if facts["memory_bytes"] else "unknown"),
        ("caches", ", ".join(map(bytes_text, facts["cache_bytes"])) or "unknown"),
        *(("BLAS", _blas_text(name, facts["blas_used"])) for name in facts["blas"]),
    ]
    extras = [(name, *_extra_cells(extra)) for name, extra in facts["extras"].items()]
    tables = (
        Table("This computer", ("", ""), tuple(host), figures=False),
        Table("Optional packages", ("", "version", "for", "install with"), tuple(extras), figures=False),
        Table("Rates", ("", "measured" if facts["machine"]["is_measured"] else "default"), _rates(facts["machine"])),
    )
    return Report(f"tilewise {facts['tilewise'] or '(not installed)'}", tables, _notes(facts, stored))


def _blas_text(name: str, used: str | None) -> str:
    return f"{name} (used for large blocks)" if name == used else name


def _extra_cells(extra: Mapping[str, Any]) -> tuple[str, str, str]:
    if extra["version"] is not None:
        return extra["version"], extra["for"], ""
    return "missing", extra["for"], extra["install"]


def _rates(machine: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    products = [(f"blocks of {edge}", f"{rate:.3g} GF/s per core") for edge, rate in machine["gemm_rates"]]
    return (
        *products,
        ("large dense product", f"{machine['peak_rate']:.3g} GF/s per core"),
        ("copy", f"{machine['copy_rate']:.3g} GB/s"),
        ("permutation", f"{machine['permute_rate']:.3g} GB/s"),
        ("start of a run", seconds_text(machine["start_seconds"])),
    )


def _notes(facts: Mapping[str, Any], stored: Path | None) -> tuple[str, ...]:
    if stored is not None:
        return (f"The rates are stored in {stored}",)
    if facts["machine"]["is_measured"]:
        return (f"The rates are read from {Machine.host_file()}",)
    return ("These rates are a cautious guess: run `tilewise doctor` without --no-measure to measure this computer.",)
