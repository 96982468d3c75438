"""Block-sparse products: tilewise, the dense peak and the block-sparse peers, in one interleaved run.

    python benchmarks/block_gemm.py [--only REGEX] [--peers dbcsr,numpy_blocks | none] [--threads 2]
                                    [--reps 7] [--scale 1.0] [--json out.json] [--markdown out.md]

Exits with 1 if a checksum differs, with 2 if tilewise fails or its product is wrong.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from figures import figures
from measurement import DBCSR, PYTHON_PEERS, Record, Settings, measure
from peers.fair_blas import SystemBlas, let_libraries_choose, system_blas
from peers.process import WorkerFailed
from problems import Problem, all_problems
from tables import mismatch_lines, one_line, report

HERE = Path(__file__).resolve().parent
ALL_PEERS = (DBCSR, *PYTHON_PEERS)


def parse_peers(text: str) -> tuple[str, ...]:
    """Names separated by commas, or none."""
    if text == "none":
        return ()
    names = tuple(text.split(","))
    if unknown := sorted(set(names) - set(ALL_PEERS)):
        known = ", ".join(ALL_PEERS)
        raise argparse.ArgumentTypeError(f"no peer is called {', '.join(unknown)}; use none or some of {known}")
    return names


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", default="", metavar="REGEX", help="problems whose name matches")
    parser.add_argument("--peers", type=parse_peers, default=ALL_PEERS, help=f"none, or some of {','.join(ALL_PEERS)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=7, help="samples per contender and problem")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the work of each problem")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds per contender and problem")
    parser.add_argument("--wait", type=float, default=10.0, help="seconds to wait for a quiet machine")
    parser.add_argument("--build", type=Path, default=HERE / "build", help="folder of the DBCSR drivers")
    parser.add_argument("--json", type=Path, help="write all samples to this file")
    parser.add_argument("--markdown", type=Path, help="write the report to this file")
    return parser.parse_args(argv)


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return found.group(1) if found else platform.processor()


def core_type(blas: SystemBlas) -> str:
    """Which kernels DBCSR's BLAS uses."""
    if not blas.core:
        return "no system OpenBLAS found"
    chosen = "" if blas.core == blas.detected else f", set by OPENBLAS_CORETYPE since it detected {blas.detected}"
    return f"OpenBLAS core type {blas.core}{chosen}"


def numpy_core() -> str:
    """Which kernels NumPy's BLAS uses in the processes of contenders."""
    command = [sys.executable, "-c", "import json, numpy, threadpoolctl as t; print(json.dumps(t.threadpool_info()))"]
    pools = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return ", ".join(
        f"{pool['internal_api']} core type {pool.get('architecture', '?')}"
        for pool in pools
        if pool["user_api"] == "blas"
    )


def heading(args: argparse.Namespace, blas: SystemBlas, numpy_blas: str) -> list[str]:
    """What was run on what."""
    versions = []
    for package in ("tilewise", "numpy", "scipy", "numba", "mkl", "torch"):
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{package} -")
    samples = f"medians (smallest to largest) of up to {args.reps} interleaved samples, ratios of medians"
    return [
        f"Processor: {processor()}; {args.threads} threads; {samples}.",
        f"DBCSR runs with its memory pools on, {core_type(blas)}; NumPy with {numpy_blas}.",
        f"Versions: {', '.join(versions)}.",
        *([f"Work scaled by {args.scale:g}: targets are for scale 1."] if args.scale != 1.0 else []),
    ]


def selected(args: argparse.Namespace) -> list[Problem]:
    """The problems asked for."""
    found = [problem for problem in all_problems(args.scale) if re.search(args.only, problem.name)]
    if not found:
        raise SystemExit(f"--only {args.only!r} matches no problem; python benchmarks/problems.py lists them")
    return found


def measure_all(args: argparse.Namespace, blas: SystemBlas, lines: Sequence[str]) -> list[Record]:
    """All records; a line on stderr as each problem is done."""
    records = []
    with tempfile.TemporaryDirectory(prefix="block_gemm_") as folder:
        settings = Settings(
            peers=args.peers,
            threads=args.threads,
            reps=args.reps,
            budget_seconds=args.budget,
            wait_seconds=args.wait,
            build=args.build,
            folder=Path(folder),
            blas=blas,
        )
        for problem in selected(args):
            record = measure(problem, settings)
            records.append(record)
            print(one_line(figures(record)), file=sys.stderr, flush=True)
            if args.json:  # after each problem, so that a run that is stopped leaves its samples
                write_json(args.json, lines, records)
    return records


def write_json(path: Path, lines: Sequence[str], records: Sequence[Record]) -> None:
    """All samples so far."""
    content = {"heading": lines, "records": [record.as_json() for record in records]}
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> int:
    """Measure, print, write; the exit code."""
    args = parse_arguments()
    let_libraries_choose()
    blas = system_blas()
    lines = heading(args, blas, numpy_core())
    try:
        records = measure_all(args, blas, lines)
    except WorkerFailed as failure:
        print(f"tilewise failed: {failure}", file=sys.stderr)
        return 2
    text = report(records, [figures(record) for record in records], lines)
    print(text)
    if args.markdown:
        args.markdown.write_text(text)
    return 1 if mismatch_lines(records) else 0


if __name__ == "__main__":
    sys.exit(main())
