"""Two ranks of one thread against two threads of one process, and against DBCSR on two ranks.

    python benchmarks/ranks.py [--only irregular_64-256] [--reps 5] [--scale 1.0] [--peers dbcsr | none]

Block-sparse products with irregular blocks in [64, 256] and [512, 2048] (`problems.py`). All contenders store their
operands once and take turns, one sample each per round; DBCSR's driver is started anew for each of its samples and runs
one product before that is not timed. A sample of ranks is from a barrier to the end of the last of them. "Planned
before" times `tw.execute` for both of ours, "with planning" times `tw.einsum`; DBCSR always has to find the blocks that
meet. Ratios are of samples of the same round: median (smallest to largest). The second table has what each rank did in
which share of the run of median time (Ozog et al. 2013, Fig. 6), from the spans of the trace: *idle* is waiting for
other ranks of the node, the *rest* is what has no span, such as allocating the result, norms and the trace itself.

Exits with 1 if a checksum differs, with 2 if tilewise fails or its product is wrong.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from launchers import find_program
from measurement import LEAST_SAMPLES, OURS, PAUSE_SECONDS, Record
from peers import dbcsr
from peers.fair_blas import SystemBlas, let_libraries_choose, system_blas
from peers.process import Worker, WorkerFailed
from problems import Problem, all_problems, save
from tables import markdown, mismatch_lines, notes, number, with_range
from targets import geometric_mean
from timing import Spread, spread, wait_quiet

HERE = Path(__file__).resolve().parent
RANK_WORKER = HERE / "peers" / "rank_worker.py"
RANKS = 2
ACTIONS: Mapping[str, str] = {"execute": "planned before", "einsum": "with planning"}
THREADS, SHARED, PEER = "threads", "ranks", "dbcsr"
TARGETS: Mapping[str, float] = {THREADS: 0.9, PEER: 1.0}
"""Speed of two ranks over that of the others, planned before."""

RATIO_HEADER = ("problem", "GFLOP", "ours", "ranks / threads", "ranks / DBCSR on 2 ranks")
SHARE_HEADER = ("problem", "rank", "busy %", "communication %", "idle %", "rest %")


class RankWorker(Worker):
    """Tilewise on several ranks, behind the same pipe."""

    def __init__(self, problem: Path, mpiexec: str, ranks: int) -> None:
        self.name = "tilewise_ranks"
        self._log = problem.with_suffix(f".{self.name}.log")
        with self._log.open("w") as errors:
            self._process = subprocess.Popen(
                [mpiexec, "-n", str(ranks), sys.executable, str(RANK_WORKER), str(problem)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            first = self._answer()
        except WorkerFailed:
            self.close()
            raise
        self.skipped = ""
        self.actions = cast("list[str]", first["ready"])
        self.flops = cast(int, first["flops"])

    def trace(self) -> list[list[float]]:
        """For each rank, the shares of the last run in which it computed, fetched and waited."""
        return cast("list[list[float]]", self._ask("trace")["trace"])


@dataclass(slots=True)
class Sampled(Record):
    """All samples of one problem."""

    shares: list[list[list[float]]] = field(default_factory=list)
    """For each round and each rank: the shares of a run in which it computed, fetched and waited."""

    def ratio(self, action: str, other: str) -> Spread | None:
        """Speed of the ranks over that of another contender, round by round."""
        theirs = self.seconds.get(other if other == PEER else f"{other}.{action}")
        if not theirs:
            return None
        return spread([b / a for a, b in zip(self.seconds[f"{SHARED}.{action}"], theirs, strict=True)])


@dataclass(frozen=True, slots=True)
class Contenders:
    """Who takes turns on one problem."""

    problem: Path
    """Its file."""
    ours: Mapping[str, Worker]
    """Tilewise on threads and on ranks."""
    peer: dbcsr.Setting | None
    """DBCSR; None if it does not take part."""
    blas: SystemBlas
    """The BLAS that it calls."""

    def warm_up(self, record: Sampled) -> None:
        """Run everything of ours once, and keep the checksums."""
        for name, worker in self.ours.items():
            for action in ACTIONS:
                worker.seconds(action)
                record.add_checksum(f"{name}.{action}", worker.checksum())

    def sample(self, record: Sampled) -> None:
        """One sample of each."""
        for action in ACTIONS:
            for name, worker in self.ours.items():
                time.sleep(PAUSE_SECONDS)
                record.add(f"{name}.{action}", worker.seconds(action))
                if isinstance(worker, RankWorker) and action == "execute":
                    record.shares.append(worker.trace())
        if self.peer is not None and PEER not in record.skipped:
            self._sample_peer(self.peer, record)

    def _sample_peer(self, setting: dbcsr.Setting, record: Sampled) -> None:
        time.sleep(PAUSE_SECONDS)
        try:
            done = dbcsr.run(setting, self.problem, self.blas, 1, 0.0)
        except dbcsr.DriverFailed as failure:
            record.skipped[PEER] = str(failure)
            record.seconds.pop(PEER, None)
            return
        record.add(PEER, float(done["seconds"][0]))
        record.add_checksum(PEER, done["checksum"])


def measure(problem: Problem, args: argparse.Namespace, mpiexec: str, folder: Path) -> Sampled:
    """All rounds of one problem."""
    record = Sampled(problem.name, problem.flops, problem.products)
    path, blas = save(problem, folder), system_blas()
    peer = find_peer(args, record)
    with ExitStack() as stack:
        ours = {
            THREADS: stack.enter_context(Worker(OURS, path, RANKS, {})),
            SHARED: stack.enter_context(RankWorker(path, mpiexec, RANKS)),
        }
        contenders = Contenders(path, ours, peer, blas)
        contenders.warm_up(record)
        record.foreign_cores.append(wait_quiet(args.wait))
        end = time.monotonic() + args.budget
        for taken in range(args.reps):
            if taken >= LEAST_SAMPLES and time.monotonic() > end:
                break
            contenders.sample(record)
        for name, worker in ours.items():
            record.add_checksum(f"{name}.einsum", worker.checksum())
    path.unlink()
    return record


def find_peer(args: argparse.Namespace, record: Record) -> dbcsr.Setting | None:
    """DBCSR as it is packaged on two ranks of one thread; why not is noted."""
    if args.peers == "none":
        return None
    if why := dbcsr.missing(args.build):
        record.skipped[PEER] = why
        return None
    return next(setting for setting in dbcsr.settings(args.build, RANKS) if setting.ranks == RANKS)


def ratio_rows(record: Sampled) -> Iterator[tuple[str, ...]]:
    """Two lines for a problem."""
    for action, how in ACTIONS.items():
        found = [record.ratio(action, other) for other in TARGETS]
        ratios = ["-" if ratio is None else with_range(ratio) for ratio in found]
        yield (record.problem, number(record.flops * 1e-9), how, *ratios)


def share_rows(record: Sampled) -> Iterator[tuple[str, ...]]:
    """One line for each rank, of the round in which the ranks took the median time."""
    seconds = record.seconds[f"{SHARED}.execute"]
    middle = seconds.index(statistics.median_low(seconds))
    for rank, (busy, fetching, waiting) in enumerate(record.shares[middle]):
        cells = (busy, fetching, waiting, 1 - busy - fetching - waiting)
        yield (record.problem, str(rank), *(f"{100 * share:.1f}" for share in cells))


def target_row(records: Sequence[Sampled], other: str) -> tuple[str, ...]:
    """The worst problem against a target, and the mean."""
    limit = TARGETS[other]
    found = [(ratio.median, r.problem) for r in records if (ratio := r.ratio("execute", other)) is not None]
    text = f"speed of 2 ranks at least {limit:g} of {'DBCSR on 2 ranks' if other == PEER else '2 threads'}"
    if not found:
        return text, "-", "", "-", "not measured"
    worst, where = min(found)
    mean = geometric_mean([value for value, _ in found]) or 0.0
    return text, f"{worst:.2f}", where, f"{mean:.2f}", "met" if worst >= limit else "NOT MET"


def report(records: Sequence[Sampled], blas: SystemBlas) -> str:
    """All tables."""
    compared = sum(len(values) for record in records for values in record.checksums.values())
    wrong = mismatch_lines(records)
    core = f"DBCSR's OpenBLAS core type {blas.core or 'unknown'}, its memory pools on."
    return "\n\n".join(
        [
            core,
            markdown(RATIO_HEADER, [cells for record in records for cells in ratio_rows(record)]),
            markdown(SHARE_HEADER, [cells for record in records for cells in share_rows(record)]),
            markdown(
                ("target, planned before", "worst", "measured on", "geometric mean", "verdict"),
                [target_row(records, other) for other in TARGETS],
            ),
            "\n".join(f"- {note}" for note in notes(records)),
            "\n".join([f"Checksums: {compared} compared, {len(wrong)} differ.", *wrong]),
        ]
    )


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", default="^irregular", metavar="REGEX", help="problems whose name matches")
    parser.add_argument("--peers", choices=(PEER, "none"), default=PEER)
    parser.add_argument("--reps", type=int, default=5, help="rounds for each problem")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the work of each problem")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds for each problem, after three rounds")
    parser.add_argument("--wait", type=float, default=10.0, help="seconds to wait for a quiet machine")
    parser.add_argument("--build", type=Path, default=HERE / "build", help="folder of the DBCSR drivers")
    return parser.parse_args()


def main() -> int:
    """Measure and print; the exit code."""
    args = parse_arguments()
    let_libraries_choose()
    mpiexec = find_program("mpiexec")
    if mpiexec is None:
        raise SystemExit("There is no mpiexec; pip install mpich has one.")
    chosen = [problem for problem in all_problems(args.scale) if re.search(args.only, problem.name)]
    if not chosen:
        raise SystemExit(f"--only {args.only!r} matches no problem; python benchmarks/problems.py lists them")
    records = []
    with tempfile.TemporaryDirectory(prefix="ranks_") as folder:
        for problem in chosen:
            try:
                records.append(measure(problem, args, mpiexec, Path(folder)))
            except WorkerFailed as failure:
                print(f"tilewise failed: {failure}", file=sys.stderr)
                return 2
            print(*(" ".join(cells) for cells in ratio_rows(records[-1])), sep="\n", file=sys.stderr, flush=True)
    print(report(records, system_blas()))
    return 1 if mismatch_lines(records) else 0


if __name__ == "__main__":
    sys.exit(main())
