"""`Machine`: rates and capacities of a computer, measured or described, and the file they are kept in."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError

__all__ = ["Machine", "cpu_model", "host_caches", "host_cores", "host_memory", "machine_folder"]

VERSION = 1
"""Version of the machine file; others are refused."""

DEFAULT_RATES = ((4, 0.5), (8, 2.0), (16, 5.0), (32, 8.0), (64, 10.0), (128, 12.0), (512, 15.0))
"""Block edges and GF/s per core that a processor of the last ten years exceeds."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates and capacities of one computer.

    `Machine.measured` gives this computer, `Machine.load` one by its name or file. Nothing is measured here:
    ``tilewise doctor`` does that and stores the file.

    Examples
    --------
    >>> from tilewise.machine import Machine
    >>> box = Machine("box", cores=2, gemm_rates=((16, 8.0), (64, 32.0)), copy_rate=10.0, permute_rate=5.0)
    >>> float(box.gemm_rate(32)), box.is_measured
    (16.0, False)
    """

    name: str
    """What explain and doctor print."""
    cores: int
    """Cores that a process may use."""
    gemm_rates: tuple[tuple[int, float], ...]
    """Block edge and GF/s (float64) per core of block-sparse products at it, all cores busy; edges ascend."""
    copy_rate: float
    """GB/s of all cores together when they copy, bytes read and written counted."""
    permute_rate: float
    """GB/s of all cores together when they permute modes into new memory, bytes read and written counted."""
    peak_rate: float = 0.0
    """GF/s (float64) per core of a large dense product; 0 if unknown."""
    start_seconds: float = 2e-4
    """Seconds that a run takes before its first block product."""
    memory_bytes: int = 0
    """Bytes of main memory that a process may use; 0 if unknown."""
    cache_bytes: tuple[int, ...] = ()
    """Bytes of the data caches as one core sees them, the nearest first; empty if unknown."""
    blas: str = ""
    """The BLAS library that was faster on large blocks; empty if unknown."""
    is_measured: bool = False
    """Whether the rates were measured on the computer they are for."""

    def __post_init__(self) -> None:
        rates = (self.copy_rate, self.permute_rate, *(rate for _, rate in self.gemm_rates))
        if not self.gemm_rates or not all(0 < rate < math.inf for rate in rates):
            raise InputError(
                f"The rates of machine {self.name!r} are {rates} GB/s and GF/s. Each must be positive and finite, and "
                "at least one GEMM rate is needed. Measure them with `tilewise doctor`."
            )
        edges = [edge for edge, _ in self.gemm_rates]
        if edges[0] < 1 or any(a >= b for a, b in pairwise(edges)):
            raise InputError(
                f"The GEMM rates of machine {self.name!r} are for the block edges {edges}. Edges must ascend from 1 "
                "or more. Sort them and leave out what is double."
            )
        counts = (self.cores - 1, self.memory_bytes, self.peak_rate, self.start_seconds, *self.cache_bytes)
        if not all(0 <= count < math.inf for count in counts):
            raise InputError(
                f"Machine {self.name!r} has {self.cores} cores, {self.memory_bytes} bytes of memory, caches "
                f"{self.cache_bytes}, a peak of {self.peak_rate} GF/s and starts in {self.start_seconds} s. One core "
                "or more and no negative number are expected. Correct it, or measure with `tilewise doctor`."
            )

    @classmethod
    def default(cls) -> Machine:
        """The cores, memory and caches of this computer, with rates that hardly any computer falls short of."""
        return cls(
            name="a modest computer",
            cores=host_cores(),
            gemm_rates=DEFAULT_RATES,
            copy_rate=4.0,
            permute_rate=2.0,
            peak_rate=DEFAULT_RATES[-1][1],
            memory_bytes=host_memory(),
            cache_bytes=host_caches(),
        )

    @classmethod
    def measured(cls) -> Machine:
        """The rates that ``tilewise doctor`` stored for this computer, else `default`, which says it is not measured.

        A file that cannot be read is left out with a warning.
        """
        path = cls.host_file()
        if not path.exists():
            return cls.default()
        try:
            return _read(path)
        except InputError as error:
            warnings.warn(f"{error} Until then, default rates are used.", stacklevel=2)
            return cls.default()

    @classmethod
    def load(cls, name_or_path: str | os.PathLike[str]) -> Machine:
        """A machine from a file, or by the name of a file in the user's folder of machines.

        Parameters
        ----------
        name_or_path : str or path
            A path ends in ``.json``; a name does not. ``"default"`` is the machine without measured rates.
        """
        if not isinstance(name_or_path, (str, os.PathLike)):
            raise InputError(
                f"Machine.load was given {name_or_path!r}. Expected a name or the path of a .json file. Correct it."
            )
        path = Path(name_or_path)
        if str(name_or_path) == "default":
            return cls.default()
        if path.suffix != ".json":
            path = machine_folder() / f"{name_or_path}.json"
        if not path.is_file():
            known = sorted(found.stem for found in machine_folder().glob("*.json"))
            raise InputError(
                f"There is no machine {str(name_or_path)!r}: {path} is not a file. Known names are "
                f"{', '.join(['default', *known])}. Use one of them, the path of a .json file, or run `tilewise "
                "doctor`."
            )
        return _read(path)

    @staticmethod
    def host_file() -> Path:
        """Where the rates of this kind of processor are kept."""
        words = re.sub(r"[^a-z0-9]+", "-", cpu_model().lower()).strip("-")
        return machine_folder() / f"{words or 'host'}.json"

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the machine to a file, by default the one of this computer; the file is whole or not there.

        Returns
        -------
        Path
            Where it was written.
        """
        target = self.host_file() if path is None else Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.stem, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"version": VERSION, **asdict(self)}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        return target

    def gemm_rate(self, edge: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """GF/s per core of products of blocks with this edge, linear in logarithms between the known edges."""
        known = np.array(self.gemm_rates, np.float64)
        at = np.log(np.maximum(np.asarray(edge, np.float64), 1e-9))
        rates = np.exp(np.interp(at, np.log(known[:, 0]), np.log(known[:, 1])))
        # Rounded so that the rate at a known edge is the known rate, not its last bit off.
        return np.asarray(np.round(rates, 9))

    @property
    def near_bytes(self) -> int:
        """Bytes of the second-level data cache of one core, 1 MiB if unknown."""
        return self.cache_bytes[1] if len(self.cache_bytes) > 1 else 1 << 20


def check_machine(machine: object) -> None:
    """Raise if a user gives something else for a machine."""
    if not isinstance(machine, Machine):
        raise InputError(
            f"machine={machine!r} is no machine. Expected a Machine, or None for this computer. Make one with "
            "tw.Machine.load(name)."
        )


def _read(path: Path) -> Machine:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return _parse(found)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"The machine file {path} cannot be used ({error}). A file written by `tilewise doctor` of this version is "
            "expected. Run `tilewise doctor` to write it anew, or remove it."
        ) from error


def _parse(found: Any) -> Machine:
    """The machine of a decoded file; what does not fit raises ValueError, TypeError or KeyError."""
    if not isinstance(found, Mapping) or found.get("version") != VERSION:
        raise ValueError(f"no machine of version {VERSION}")
    names = {field.name for field in fields(Machine)}
    unknown = sorted(set(found) - names - {"version"})
    if unknown:
        raise ValueError(f"unknown entries {', '.join(unknown)}")
    return Machine(
        name=_text(found["name"]),
        cores=_int(found["cores"]),
        gemm_rates=tuple((_int(edge), _float(rate)) for edge, rate in found["gemm_rates"]),
        copy_rate=_float(found["copy_rate"]),
        permute_rate=_float(found["permute_rate"]),
        peak_rate=_float(found["peak_rate"]),
        start_seconds=_float(found["start_seconds"]),
        memory_bytes=_int(found["memory_bytes"]),
        cache_bytes=tuple(_int(size) for size in found["cache_bytes"]),
        blas=_text(found["blas"]),
        is_measured=bool(found["is_measured"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value


def machine_folder() -> Path:
    """The user's folder of machine files: ``tilewise`` in XDG_CACHE_HOME, or in ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "tilewise"


def cpu_model() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        if found:
            return found.group(1).strip()
    return platform.processor() or platform.machine() or "unknown processor"


def host_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def host_memory() -> int:
    """Bytes of main memory this process may use: the container's limit if there is one; 0 if unknown."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
    for limit in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        try:
            total = min(total, int(limit.read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return total


def host_caches() -> tuple[int, ...]:
    """Bytes of the data caches of the first core, the nearest first; empty if the system does not say."""
    sizes: list[tuple[int, int]] = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level, size = ((folder / name).read_text().strip() for name in ("type", "level", "size"))
            unit = {"K": 1 << 10, "M": 1 << 20}.get(size[-1:], 1)
            if kind != "Instruction":
                sizes.append((int(level), int(size.rstrip("KM")) * unit))
        except (OSError, ValueError):
            continue
    return tuple(size for _, size in sorted(sizes))
