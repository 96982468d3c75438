"""CCSD and (T) of molecules: time against PySCF and NWChem, memory within a budget, the ladder's rate.

    python benchmarks/ccsd.py [--part time|triples|memory|ladder|nwchem|all] [--threads 2] [--reps 3] [--cycles 6]
                              [--problems REGEX] [--trial]

Every contender is a process of its own that solves the same mean field; they take turns. An iteration is everything
from one set of amplitudes to the next, DIIS and energy included; the first of each run is left out. PySCF has the
system's OpenBLAS put before the one in its wheel, with a core type that suits the processor (peers/fair_blas.py) and
one thread in each call, since it calls BLAS from threads of its own.

`time`: seconds per iteration of ours and of PySCF, which holds all its integrals in memory, and the difference of the
converged energies.
`triples`: the (T) correction alone.
`memory`: growth of resident memory from a solved mean field on: PySCF with its own defaults, then ours within a third
of that, in a control group; and the time per iteration against ours with free memory (Linux). The time within the
budget is taken twice: where the system keeps what was written to scratch files in memory that nobody uses, and in the
control group, whose share of that memory is counted too, so that tensors on disk come from the disk.
`ladder`: flops of the particle-particle ladder per second over the dense GEMM peak, sampled between the runs; also with
the time of folding, which makes its pair combinations and those of smaller terms, and adds up the results.
`nwchem`: NWChem's tensor contraction engine, one rank per thread, where it is installed: one run of its own mean field,
before ours.

Energies that differ, and contenders that fail, end the run with exit code 1 after all else is done.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

from memory import growth_of
from molecules import PROBLEMS, TRIAL, least_bytes
from out_of_core import limited
from peers import dense, mkl, nwchem_ccsd
from peers.contender import NotInstalled
from peers.fair_blas import let_libraries_choose, system_blas
from peers.process import WorkerFailed
from peers.pyscf_ccsd import PyscfCCSD, environment, limits
from tables import markdown, with_range
from timing import Spread, seconds_of, spread, wait_quiet
from transform import OPENBLAS

MOST_TRIPLES = 1.2
BUDGET_SHARE = 1 / 3
MOST_GROWTH = 1.0
LEAST_BUDGET = 100_000_000
"""In bytes; a smaller one would measure the interpreter."""
GROUP_MARGIN = 1.1
"""The control group of a run within a budget may grow by this times the budget."""
MOST_SLOWDOWN = 2.0
LEAST_OF_PEAK = 0.75
TOLERANCE = 1e-10
"""Of converged correlation energies, hartree."""
NEVER = 1e-13
"""A tolerance that is not reached within a few iterations."""
MOST_CYCLES = 60
WARM_UP_CYCLES = 2
ENERGY_LIMIT = 1e-8
NWCHEM_LIMIT = 1e-6
"""Largest difference of energies; NWChem has other constants."""
PAUSE_SECONDS = 0.5
"""Between contenders: idle threads of a BLAS spin for a while."""
PYSCF_SHARE = 2 / 3
"""Of the machine's memory, for PySCF where its time is measured."""


TIMED: Mapping[str, float] = {
    "benzene/cc-pVDZ": 0.8,
    "benzene/cc-pVDZ, D2h": 0.35,
    "4 waters/cc-pVDZ": 0.8,
    "2 waters/aug-cc-pVTZ, frozen core": 0.8,
}
"""Problems of `time`, and how much of PySCF's time an iteration may take."""
TRIPLES = ("3 waters/cc-pVDZ", "benzene/cc-pVDZ, frozen core")
CONFINED = ("benzene/cc-pVDZ", "2 waters/aug-cc-pVTZ, frozen core")
LADDERS = tuple(TIMED)
NWCHEM = ("benzene/cc-pVDZ, frozen core, D2h", "benzene/cc-pVDZ, frozen core", "4 waters/cc-pVDZ")


# ---- contenders, each in a process of its own ----


class Method(Protocol):
    """What a process can be asked to do."""

    def iterate(self, cycles: int) -> dict[str, Any]:
        """Run so many iterations; seconds of each but the first."""


class Correlation(Method, Protocol):
    """A contender that computes energies."""

    def triples(self, tolerance: float, cycles: int) -> dict[str, Any]:
        """The (T) energy and its time."""


class Ours:
    """CCSD of this package."""

    def __init__(self, mf: Any, frozen: int, memory: int | None) -> None:
        self._mf = mf
        self._options: dict[str, Any] = {"frozen": frozen, "memory": memory, "verbose": 0}

    def iterate(self, cycles: int) -> dict[str, Any]:
        """So many iterations; what each but the first took, term by term too."""
        from tilewise.chemistry import CCSD

        stamps: list[float] = []  # one per iteration, as PySCF's are taken
        options = self._options | {"callback": lambda _: stamps.append(time.perf_counter())}
        job = CCSD(self._mf, conv_tol=NEVER, max_cycle=cycles, **options).run()
        terms = [dict(record.terms) for record in job.timings[1:]]
        found = {"seconds": [end - begin for begin, end in pairwise(stamps)], "terms": terms}
        return found | {"energy": job.e_corr, "planned": job.peak_bytes}

    def converge(self, tolerance: float, cycles: int) -> dict[str, Any]:
        """The converged correlation energy, and the time from the mean field on."""
        from tilewise.chemistry import CCSD

        begin = time.perf_counter()
        job = CCSD(self._mf, **self._options, **limits(tolerance, cycles)).run()
        found = {"energy": job.e_corr, "cycles": job.cycles, "converged": job.converged}
        return found | {"seconds": time.perf_counter() - begin}

    def triples(self, tolerance: float, cycles: int) -> dict[str, Any]:
        """The (T) energy and its time."""
        from tilewise.chemistry import CCSD_T

        job = CCSD_T(self._mf, **self._options, **limits(tolerance, cycles)).run()
        return {"energy": job.e_t, "seconds": job.seconds_t, "converged": job.converged}


class Gemm:
    """The dense peak of a library: one product takes the place of an iteration."""

    def __init__(self, make: dense.MakeGemm, threads: int) -> None:
        size = dense.sample_size(make, threads)
        self._call, self._flops = dense.square_gemm(make, size, threads), 2 * size**3

    def iterate(self, cycles: int) -> dict[str, Any]:
        """So many products, and one before that is not timed."""
        self._call()
        return {"seconds": [seconds_of(self._call) for _ in range(cycles)], "flops": self._flops}


GEMMS: Mapping[str, dense.MakeGemm] = {"openblas": dense.numpy_dgemm, "mkl": mkl.dgemm}
METHODS: Mapping[str, Callable[[Any, int, int | None], Correlation]] = {"ours": Ours, "pyscf": PyscfCCSD}


def engine_of(name: str, threads: int) -> AbstractContextManager[Any]:
    """Our engine around our own contender."""
    if name != "ours":
        return nullcontext()
    import tilewise as tw

    return tw.engine("threads", workers=threads)


def made(args: argparse.Namespace) -> Method:
    """The contender of this process, after a small job of the same kind."""
    if args.worker in GEMMS:
        return Gemm(GEMMS[args.worker], args.threads)
    problem, make = PROBLEMS[args.problem], METHODS[args.worker]
    small = replace(PROBLEMS[TRIAL], symmetry=problem.symmetry)
    mf = small.mean_field()
    trial = make(mf, small.frozen, None if args.memory is None else least_memory(mf, small.frozen))
    trial.iterate(WARM_UP_CYCLES)
    trial.triples(TOLERANCE, MOST_CYCLES)
    return make(problem.mean_field(), problem.frozen, args.memory)


def least_memory(mf: Any, frozen: int) -> int:
    """The smallest budget that ours will do with."""
    from tilewise.chemistry import CCSD_T

    return least_bytes(lambda memory: CCSD_T(mf, frozen, memory=memory, verbose=0).plan())


def grow(method: Method, cycles: int, group_bytes: int | None) -> dict[str, Any]:
    """Growth of resident memory over a run from the mean field on, perhaps in a control group."""
    answer: dict[str, Any] = {}

    def action() -> None:
        answer.update(method.iterate(cycles))

    with nullcontext("") if group_bytes is None else limited(group_bytes) as group:
        return {"growth": growth_of(action), "group": group} | answer


def serve(args: argparse.Namespace) -> None:
    """Answer the requests of the parent, each a line of JSON: the name of what to do and its arguments."""
    # Libraries may print: the answers keep the original output, everything else goes to stderr.
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with engine_of(args.worker, args.threads):
        method = made(args)
        channel.write(json.dumps({"ready": args.worker}) + "\n")
        for line in sys.stdin:
            action, arguments = json.loads(line)
            answer = grow(method, *arguments) if action == "grow" else getattr(method, action)(*arguments)
            channel.write(json.dumps(answer) + "\n")


class Worker:
    """The near end of such a process; it is made when the process has nothing more to prepare."""

    def __init__(self, name: str, problem: str, args: argparse.Namespace, memory: int | None = None) -> None:
        self.name = f"{name} on {problem}"
        command = [sys.executable, __file__, "--worker", name, "--problem", problem, "--threads", str(args.threads)]
        threading: Mapping[str, str] = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(args.threads))
        self._process = subprocess.Popen(
            command + ([] if memory is None else ["--memory", str(memory)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment(args.threads, args.blas_threads) if name == "pyscf" else threading)},
        )
        self._answer("start")

    def ask(self, action: str, *arguments: Any) -> dict[str, Any]:
        """Send a request and wait for the answer."""
        assert self._process.stdin is not None
        time.sleep(PAUSE_SECONDS)
        with suppress(BrokenPipeError):  # there will be no answer either
            self._process.stdin.write(json.dumps([action, arguments]) + "\n")
            self._process.stdin.flush()
        return self._answer(action)

    def converge(self) -> dict[str, Any]:
        """The converged energy; without convergence it has failed."""
        return self._converged(self.ask("converge", TOLERANCE, MOST_CYCLES))

    def triples(self) -> dict[str, Any]:
        """The (T) energy and its time."""
        return self._converged(self.ask("triples", TOLERANCE, MOST_CYCLES))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # the process may have ended before it read its last request
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _answer(self, action: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"{self.name}: the process ended with code {self._process.wait()} in {action!r}.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _converged(self, answer: dict[str, Any]) -> dict[str, Any]:
        if not answer["converged"]:
            raise WorkerFailed(f"{self.name}: not converged to {TOLERANCE} hartree in {MOST_CYCLES} iterations.")
        return answer


@contextmanager
def working(name: str, problem: str, args: argparse.Namespace, memory: int | None = None) -> Iterator[Worker]:
    """A contender that ends with the block."""
    worker = Worker(name, problem, args, memory)
    try:
        yield worker
    finally:
        worker.close()


# ---- samples and verdicts ----


def in_turns(workers: Mapping[str, Worker], args: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Answers of `iterate`, one of each contender per round."""
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
    for _ in range(args.reps):
        for name, worker in workers.items():
            answers[name].append(worker.ask("iterate", args.cycles))
    return answers


def per_iteration(answers: Sequence[Mapping[str, Any]]) -> Spread:
    """Seconds per iteration over all rounds."""
    return spread([seconds for answer in answers for seconds in answer["seconds"]])


def ratios(mine: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> str:
    """The quotient of all medians, and the range of those of single rounds."""
    rounds = [per_iteration([a]).median / per_iteration([b]).median for a, b in zip(mine, theirs, strict=True)]
    return f"{per_iteration(mine).median / per_iteration(theirs).median:.2f} ({min(rounds):.2f} to {max(rounds):.2f})"


def verdict(met: bool) -> str:
    """The word of the tables."""
    return "met" if met else "NOT MET"


def free_bytes() -> int:
    """What PySCF may hold where its time is measured."""
    return int(PYSCF_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def disagreement(where: str, mine: float, theirs: float, limit: float = ENERGY_LIMIT) -> list[str]:
    """A line if two energies differ by more."""
    if abs(mine - theirs) <= limit:
        return []
    return [f"{where}: ours {mine:.10f}, theirs {theirs:.10f} hartree: they differ by more than {limit}."]


def say_quiet(args: argparse.Namespace) -> None:
    """Wait for a quiet machine, and say how quiet it was."""
    print(f"Other processes used {wait_quiet(args.wait):.2f} of a processor at the start.\n", flush=True)


Row = tuple[tuple[str, ...], list[str]]
"""A line of a table, and what was wrong with it."""


@dataclass(frozen=True, slots=True)
class Part:
    """One table."""

    measure: Callable[[str, argparse.Namespace], Row]
    """Makes a problem's line."""
    names: tuple[str, ...]
    """Its problems."""
    header: str
    """Headings, parted as in the table."""

    def run(self, args: argparse.Namespace) -> list[str]:
        """Print the table of the problems that were asked for; return what was wrong."""
        lines, complaints = [], []
        for name in [TRIAL] if args.trial else [name for name in self.names if re.search(args.problems, name)]:
            try:
                line, wrong = self.measure(name, args)
            except (WorkerFailed, NotInstalled, nwchem_ccsd.NwchemFailed) as failure:
                complaints.append(f"{name}: {failure}")
                continue
            lines.append(line)
            complaints += wrong
        print(markdown(self.header.split(" | "), lines))
        return complaints


# ---- the parts ----


def time_problem(name: str, args: argparse.Namespace) -> Row:
    """One line of `time`."""
    with working("pyscf", name, args, free_bytes()) as theirs, working("ours", name, args) as mine:
        found = {"pyscf": theirs.converge(), "ours": mine.converge()}
        answers = in_turns({"pyscf": theirs, "ours": mine}, args)
    own, other = (per_iteration(answers[contender]) for contender in ("ours", "pyscf"))
    target = TIMED.get(name)
    line = (
        name,
        PROBLEMS[name].size(),
        with_range(own),
        with_range(other),
        ratios(answers["ours"], answers["pyscf"]),
        "-" if target is None else f"{target} ({verdict(own.median / other.median <= target)})",
        f"{found['ours']['seconds']:.1f}, {found['ours']['cycles']}",
        f"{found['pyscf']['seconds']:.1f}, {found['pyscf']['cycles']}",
        f"{abs(found['ours']['energy'] - found['pyscf']['energy']):.0e}",
    )
    return line, disagreement(name, found["ours"]["energy"], found["pyscf"]["energy"])


def triples_problem(name: str, args: argparse.Namespace) -> Row:
    """One line of `triples`."""
    with working("pyscf", name, args, free_bytes()) as theirs, working("ours", name, args) as mine:
        rounds = [(mine.triples(), theirs.triples()) for _ in range(args.reps)]
    own, other = (spread([answer["seconds"] for answer in answers]) for answers in zip(*rounds, strict=True))
    each = [a["seconds"] / b["seconds"] for a, b in rounds]
    energies = [answer["energy"] for answer in rounds[-1]]
    line = (
        name,
        PROBLEMS[name].size(),
        with_range(own),
        with_range(other),
        f"{own.median / other.median:.2f} ({min(each):.2f} to {max(each):.2f})",
        f"{MOST_TRIPLES} ({verdict(own.median / other.median <= MOST_TRIPLES)})",
        f"{abs(energies[0] - energies[1]):.0e}",
    )
    return line, disagreement(f"(T) of {name}", energies[0], energies[1])


def grown(contender: str, name: str, args: argparse.Namespace, memory: int | None = None) -> dict[str, Any]:
    """Growth of a contender in a fresh process; within a budget, in a control group too."""
    with working(contender, name, args, memory) as worker:
        return worker.ask("grow", args.cycles, None if memory is None else int(GROUP_MARGIN * memory))


def memory_problem(name: str, args: argparse.Namespace) -> Row:
    """One line of `memory`."""
    theirs, free = grown("pyscf", name, args), grown("ours", name, args)
    budget = max(LEAST_BUDGET, int(BUDGET_SHARE * theirs["growth"]))
    confined = [grown("ours", name, args, budget) for _ in range(args.reps)]
    with working("ours", name, args) as wide, working("ours", name, args, budget) as narrow:
        answers = in_turns({"wide": wide, "narrow": narrow}, args)
    most = max(answer["growth"] for answer in confined)
    growth = most / budget
    slowdown = per_iteration(answers["narrow"]).median / per_iteration(answers["wide"]).median
    line = (
        name,
        f"{theirs['growth'] * 1e-6:.0f}",
        f"{free['growth'] * 1e-6:.0f} ({free['planned'] * 1e-6:.0f})",
        f"{budget * 1e-6:.0f}",
        f"{most * 1e-6:.0f} ({confined[0]['planned'] * 1e-6:.0f})",
        f"{growth:.2f} ({verdict(growth <= MOST_GROWTH)})",
        confined[0]["group"],
        with_range(per_iteration(answers["wide"])),
        with_range(per_iteration(answers["narrow"])),
        f"{ratios(answers['narrow'], answers['wide'])}: {verdict(slowdown <= MOST_SLOWDOWN)}",
        ratios(confined, answers["wide"]),
    )
    return line, disagreement(f"{name} after {args.cycles} iterations", confined[0]["energy"], free["energy"])


NO_WORK = (0.0, 0)
"""Of a group of terms that an iteration has not, such as the ladder's slices where the integrals are held."""


def term_rate(answers: Sequence[Mapping[str, Any]], *terms: str) -> Spread:
    """GF/s of terms taken together, iteration by iteration."""
    parts = [[record[term] for term in terms] for answer in answers for record in answer["terms"]]
    return spread([1e-9 * sum(flops for _, flops in each) / sum(seconds for seconds, _ in each) for each in parts])


def term_share(answers: Sequence[Mapping[str, Any]], term: str) -> float:
    """A term's part of the time of all iterations."""
    spent = sum(record.get(term, NO_WORK)[0] for answer in answers for record in answer["terms"])
    return float(spent / sum(seconds for answer in answers for seconds in answer["seconds"]))


def ladder_problem(name: str, args: argparse.Namespace) -> Row:
    """One line of `ladder`."""
    libraries = ["openblas"] + (["mkl"] if mkl.mkl_path() else [])
    with ExitStack() as stack:
        workers = {other: stack.enter_context(working(other, name, args)) for other in (*libraries, "ours")}
        answers = in_turns(workers, args)
    own = answers["ours"]
    peaks = {library: per_iteration(answers[library]).per(1e-9 * answers[library][0]["flops"]) for library in libraries}
    best = max(peaks, key=lambda library: peaks[library].median)
    ladder, rings = term_rate(own, "ladder"), term_rate(own, "rings")
    of_peak = ladder.median / peaks[best].median
    line = (
        name,
        PROBLEMS[name].size(),
        f"{with_range(peaks[best])} {best}",
        with_range(ladder),
        f"{of_peak:.2f} ({verdict(of_peak >= LEAST_OF_PEAK)})",
        f"{term_rate(own, 'ladder', 'folding').median / peaks[best].median:.2f}",
        with_range(rings),
        f"{ladder.median / rings.median:.2f} ({verdict(ladder.median >= rings.median)})",
        *(f"{100 * term_share(own, term):.0f}" for term in ("ladder", "ladder slices", "rings")),
    )
    return line, []


def nwchem_problem(name: str, args: argparse.Namespace) -> Row:
    """One line of `nwchem`."""
    problem = PROBLEMS[name]
    theirs = nwchem_ccsd.run(
        problem.atoms(), problem.basis, problem.frozen, problem.symmetry, args.threads, args.nwchem_seconds
    )
    with working("ours", name, args) as worker:
        energy = worker.converge()["energy"]
        answers = in_turns({"ours": worker}, args)["ours"]
    own, other = per_iteration(answers), spread(theirs.seconds[1:] or theirs.seconds)
    line = (
        name,
        problem.size(),
        with_range(own),
        with_range(other),
        f"{len(theirs.seconds)}{' (ended)' if theirs.energy is None else ''}",
        f"{own.median / other.median:.2f}" if other.median else "-",  # it prints tenths of a second
        "-" if theirs.energy is None else f"{abs(energy - theirs.energy):.0e}",
    )
    return line, [] if theirs.energy is None else disagreement(name, energy, theirs.energy, NWCHEM_LIMIT)


PARTS: Mapping[str, Part] = {
    "time": Part(
        time_problem,
        tuple(TIMED),
        "problem | occupied/virtual | ours s per iteration | PySCF s per iteration | ours / PySCF (rounds) | "
        "at most | ours converged s, iterations | PySCF converged s, iterations | energies differ by",
    ),
    "triples": Part(
        triples_problem,
        TRIPLES,
        "problem | occupied/virtual | ours (T) s | PySCF (T) s | ours / PySCF (rounds) | at most | energies differ by",
    ),
    "memory": Part(
        memory_problem,
        CONFINED,
        "problem | PySCF grew MB | ours, free (planned) MB | budget MB | ours within it (planned) MB | "
        f"growth / budget | control group of {GROUP_MARGIN} times | free s per iteration | "
        f"within it s per iteration | ratio (rounds), at most {MOST_SLOWDOWN:g} | ratio in the control group",
    ),
    "ladder": Part(
        ladder_problem,
        LADDERS,
        f"problem | occupied/virtual | dense peak GF/s | ladder GF/s | of peak, at least {LEAST_OF_PEAK} | "
        "with folding | rings GF/s | ladder / rings, at least 1 | ladder % of time | its slices % | rings %",
    ),
    "nwchem": Part(
        nwchem_problem,
        NWCHEM,
        "problem | occupied/virtual | ours s per iteration | NWChem s per iteration | "
        "its iterations | ours / NWChem | energies differ by",
    ),
}


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=3, help="rounds of all contenders")
    parser.add_argument("--cycles", type=int, default=6, help="iterations of one run")
    parser.add_argument("--problems", default="", help="problems whose names match")
    parser.add_argument("--trial", action="store_true", help="one water molecule in place of all problems")
    parser.add_argument("--wait", type=float, default=60.0, help="seconds to wait for a quiet machine before a part")
    parser.add_argument("--blas-threads", type=int, default=1, help="threads in each BLAS call of PySCF")
    parser.add_argument("--nwchem-seconds", type=float, default=600.0, help="after which a run of NWChem is ended")
    parser.add_argument("--worker", choices=(*METHODS, *GEMMS), help=argparse.SUPPRESS)
    parser.add_argument("--problem", choices=sorted(PROBLEMS), help=argparse.SUPPRESS)
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the parts that were asked for."""
    args = arguments().parse_args(argv)
    if args.worker:
        serve(args)
        return
    let_libraries_choose()
    library = "the system's OpenBLAS" if OPENBLAS.exists() else "its own BLAS"
    print(f"{args.threads} threads. PySCF with {library}, core type {system_blas().core or 'unknown'}.\n")
    complaints: list[str] = []
    for name, part in PARTS.items():
        if args.part in (name, "all"):
            print(f"## {name}\n")
            say_quiet(args)
            complaints += part.run(args)
            print(flush=True)
    if complaints:
        raise SystemExit("\n".join(complaints))


if __name__ == "__main__":
    main()
