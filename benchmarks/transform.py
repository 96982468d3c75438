"""Four-index transforms from a molecule to all orbitals: time against PySCF, memory against the plan.

    python benchmarks/transform.py [--part time|memory|limit|budgets|nwchem|all] [--threads 2] [--reps 3] [--only REGEX]

`time`: integrals made on the fly and included. Every contender is a process of its own; they take turns. PySCF's
in-core way is ``mol.intor("int2e", aosym="s8")`` and ``ao2mo.kernel``, its other one ``ao2mo.outcore``. Both have the
system's OpenBLAS put before the one in PySCF's wheel, with a core type that suits the processor (peers/fair_blas.py),
and one thread in each of its calls, since PySCF calls it from threads of its own. Ours runs with free memory, and
within what PySCF's out-of-core transform took.
`memory`: growth of resident memory for every schedule, three sizes, against the plan's peak (Linux).
`limit`: a transform that the unfused schedule cannot do within a budget, in a control group that keeps it.
`budgets`: which schedule is taken within which budget; plans only.
`nwchem`: NWChem's transform of benzene, where it is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memory import growth_of
from out_of_core import limited
from peers.fair_blas import let_libraries_choose, system_blas
from tables import markdown
from timing import spread

OPENBLAS = Path("/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0")
EXAMPLES = Path(__file__).parents[1] / "examples"
MOST_TIME = 1.0
WITHIN = 0.10
CHECKS = 50


def waters(count: int) -> str:
    """Water molecules on a helix."""
    lines = []
    for number in range(count):
        turn = 0.9 * number
        x, y, z = 2.9 * np.cos(turn), 2.9 * np.sin(turn), 1.1 * number
        for element, dx, dy, dz in (("O", 0, 0, 0), ("H", 0.76, 0, 0.59), ("H", -0.76, 0, 0.59)):
            lines.append(f"{element} {x + dx:.6f} {y + dy:.6f} {z + dz:.6f}")
    return "\n".join(lines)


def benzene() -> str:
    """The molecule in examples/."""
    return "\n".join((EXAMPLES / "benzene.xyz").read_text().splitlines()[2:])


PROBLEMS: Mapping[str, tuple[Callable[[], str], str]] = {
    "4 waters/cc-pVDZ": (lambda: waters(4), "cc-pvdz"),
    "benzene/cc-pVDZ": (benzene, "cc-pvdz"),
    "6 waters/cc-pVDZ": (lambda: waters(6), "cc-pvdz"),
    "benzene/6-31++G**": (benzene, "6-31++g**"),
}
"""Molecules with about 100 to 160 functions."""

BUDGET_RATES = (1e11, 3e7)
"""Flops and integrals per second for which budgets are planned."""

SHARES = (1.0, 0.95, 0.8, 0.65, 0.5, 0.35, 0.2, 0.1, 0.05)
"""Budgets, of what the fastest schedule takes."""

SIZES = (("2 waters", 2), ("3 waters", 3), ("5 waters", 5))
"""For memory."""


def molecule(atoms: str, basis: str) -> Any:
    """A PySCF molecule and orthonormal orbitals of it, the same in every process."""
    from pyscf import gto

    mol = gto.M(atom=atoms, basis=basis, verbose=0)
    overlap = mol.intor_symmetric("int1e_ovlp")
    values, vectors = np.linalg.eigh(overlap)
    draw = np.random.default_rng(0).standard_normal((mol.nao, mol.nao))
    return mol, (vectors / np.sqrt(values)) @ np.linalg.qr(draw)[0]


# ---- contenders, each in a process of its own ----


def ours(mol: Any, orbitals: Any, memory: int | None, threads: int) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """The transform of this package, planning included."""
    import tilewise as tw
    from tilewise.chemistry import Transform

    engine = tw.engine("threads", workers=threads).__enter__()
    told: dict[str, Any] = {}

    def run() -> Any:
        job = Transform(mol, orbitals, memory=memory, engine=engine)
        told["how"] = f"{job.plan().schedule} ({job.plan().variant or 'all at once'})"
        told["projected"] = job.plan().peak_bytes
        job.kernel()
        told["stages"] = {name: round(seconds, 2) for name, seconds in job.plan().runs[-1].stages}
        return job.tensor

    def look(tensor: Any) -> Any:
        from tilewise.chemistry import pack_integrals

        return pack_integrals(tensor)[:CHECKS, :CHECKS].tolist()

    run.told = told  # type: ignore[attr-defined]
    return run, look


def pyscf_in_core(mol: Any, orbitals: Any, memory: int | None, threads: int) -> tuple[Any, Any]:
    """All integrals in memory, then PySCF's transform."""
    from pyscf import ao2mo, lib

    lib.num_threads(threads)
    return (
        lambda: ao2mo.kernel(mol.intor("int2e", aosym="s8"), orbitals),
        lambda found: found[:CHECKS, :CHECKS].tolist(),
    )


def pyscf_out_of_core(mol: Any, orbitals: Any, memory: int | None, threads: int) -> tuple[Any, Any]:
    """PySCF's transform through files."""
    import h5py
    from pyscf import ao2mo, lib

    lib.num_threads(threads)
    folder = tempfile.mkdtemp()

    def run() -> str:
        path = os.path.join(folder, "integrals.h5")
        if os.path.exists(path):
            os.remove(path)
        ao2mo.outcore.full(mol, orbitals, path, verbose=0)
        return path

    def look(path: str) -> Any:
        with h5py.File(path) as file:
            found = file["eri_mo"][:CHECKS, :CHECKS].tolist()
        shutil.rmtree(folder)
        return found

    return run, look


CONTENDERS: Mapping[str, Callable[..., tuple[Any, Any]]] = {
    "ours": ours,
    "pyscf in core": pyscf_in_core,
    "pyscf out of core": pyscf_out_of_core,
}


def serve(args: argparse.Namespace) -> None:
    """Answer the requests of the parent: run, or run and measure memory."""
    atoms, basis = json.loads(args.molecule)
    small = CONTENDERS[args.worker](*molecule("He 0 0 0; He 0 0 2", "cc-pvdz"), None, args.threads)
    small[0]()
    run, look = CONTENDERS[args.worker](*molecule(atoms, basis), args.memory, args.threads)
    result: Any = None
    for line in sys.stdin:
        answer: dict[str, Any] = {}
        if line.strip() == "run":
            result = None
            begin = time.perf_counter()
            result = run()
            answer["seconds"] = time.perf_counter() - begin
        elif line.strip() == "grow":
            result = None
            answer["growth"] = growth_of(run)
        else:
            answer["look"] = look(result)
        print(json.dumps(answer | getattr(run, "told", {})), flush=True)


class Contender:
    """The near end of such a process."""

    def __init__(self, name: str, atoms: str, basis: str, threads: int, memory: int | None = None) -> None:
        command = [sys.executable, __file__, "--worker", name, "--molecule", json.dumps([atoms, basis])]
        command += ["--threads", str(threads)] + ([] if memory is None else ["--memory", str(memory)])
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads))
        if name != "ours":
            # PySCF calls BLAS from threads of its own: more threads in each call would only be in each other's way.
            environment |= {**system_blas().environment, "OPENBLAS_NUM_THREADS": "1"}
            if OPENBLAS.exists():
                environment["LD_PRELOAD"] = str(OPENBLAS)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, what: str) -> dict[str, Any]:
        """Send a request and wait for the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def time_problem(name: str, threads: int, reps: int) -> list[tuple[str, ...]]:
    """Ours with free memory and within PySCF's peak, against both ways of PySCF."""
    make, basis = PROBLEMS[name]
    atoms = make()
    first = Contender("pyscf out of core", atoms, basis, threads)
    peak = first.ask("grow")["growth"]
    first.close()
    made = {
        "pyscf in core": Contender("pyscf in core", atoms, basis, threads),
        "pyscf out of core": Contender("pyscf out of core", atoms, basis, threads),
        "ours": Contender("ours", atoms, basis, threads),
        "ours, in its memory": Contender("ours", atoms, basis, threads, peak),
    }
    samples: dict[str, list[float]] = {contender: [] for contender in made}
    told: dict[str, dict[str, Any]] = {}
    for _ in range(reps):
        for contender, process in made.items():
            told[contender] = process.ask("run")
            samples[contender].append(told[contender]["seconds"])
    looks = {contender: np.array(process.ask("look")["look"]) for contender, process in made.items()}
    for process in made.values():
        process.close()
    times = {contender: spread(values) for contender, values in samples.items()}
    fastest = min(times["pyscf in core"].median, times["pyscf out of core"].median)
    size = molecule(atoms, basis)[0].nao
    rows = []
    for contender, limit in (("ours", fastest), ("ours, in its memory", times["pyscf out of core"].median)):
        ratio = times[contender].median / limit
        error = np.abs(looks[contender] - looks["pyscf in core"]).max()
        rows.append(
            (
                name,
                str(size),
                contender if contender == "ours" else f"ours within {peak * 1e-6:.0f} MB",
                told[contender]["how"],
                f"{ratio:.2f} ({'met' if ratio <= MOST_TIME else 'NOT MET'})",
                *(
                    f"{times[contender].median / times[peer].median:.2f}"
                    for peer in ("pyscf in core", "pyscf out of core")
                ),
                f"{times[contender].median:.2f} ({times[contender].low:.2f} to {times[contender].high:.2f})",
                ", ".join(f"{stage} {seconds}" for stage, seconds in told[contender]["stages"].items()),
                f"{error:.0e}",
            )
        )
    return rows


def part_time(args: argparse.Namespace) -> None:
    """The table of times."""
    blas = system_blas()
    print(f"PySCF with {'the system OpenBLAS' if OPENBLAS.exists() else 'its own BLAS'}, core type {blas.core}.\n")
    rows = [
        row for name in PROBLEMS if re.search(args.only, name) for row in time_problem(name, args.threads, args.reps)
    ]
    header = (
        "problem",
        "n",
        "contender",
        "schedule",
        "time / target",
        "/ PySCF in core",
        "/ out of core",
        "seconds",
        "stages",
        "largest difference",
    )
    print(markdown(header, rows))


# ---- memory ----


def grow(args: argparse.Namespace) -> None:
    """Run one schedule in this process; print projected and measured bytes."""
    import tilewise as tw
    from tilewise.chemistry import Transform

    atoms, basis = json.loads(args.molecule)
    with tw.engine("threads", workers=args.threads):
        Transform(*molecule("He 0 0 0; He 0 0 2", "cc-pvdz"), schedule=args.schedule, tile=4).kernel()
        problem = molecule(atoms, basis)
        memory = None
        if args.schedule in ("recompute", "fused1234", "fused1234-inner"):  # with little memory, several parts
            try:
                Transform(*problem, schedule=args.schedule, tile=24, memory=1).plan()
            except tw.MemoryBudgetError as error:
                memory = int(1.2 * error.least_bytes)
        if args.share < 1:  # so little that halves, and then the result, go to disk
            memory = int(args.share * Transform(*problem, schedule=args.schedule, tile=24).plan().peak_bytes)
        job = Transform(*problem, schedule=args.schedule, tile=24, memory=memory)
        plan = job.plan()
        measured = growth_of(job.kernel)
    print(json.dumps({"projected": plan.peak_bytes, "measured": measured, "how": str(plan.variant)}))


def part_memory(args: argparse.Namespace) -> None:
    """The table of growths."""
    from tilewise.plans.transform import SCHEDULES

    rows, command = [], [sys.executable, __file__, "--threads", str(args.threads)]
    for schedule, share in (*((each, 1.0) for each in SCHEDULES), ("fused12-34", 0.7), ("fused12-34", 0.4)):
        for name, count in SIZES:
            chosen = json.dumps([waters(count), "aug-cc-pvdz"])
            done = subprocess.run(
                [*command, "--schedule", schedule, "--share", str(share), "--molecule", chosen],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise SystemExit(f"{schedule} failed: {done.stderr.strip()[-400:]}")
            found = json.loads(done.stdout.splitlines()[-1])
            ratio = found["measured"] / found["projected"]
            rows.append(
                (
                    schedule,
                    found["how"],
                    name,
                    f"{found['projected'] * 1e-6:.1f}",
                    f"{found['measured'] * 1e-6:.1f}",
                    f"{ratio:.3f} ({'met' if abs(ratio - 1) <= WITHIN else 'NOT MET'})",
                )
            )
    print(markdown(("schedule", "how", "aug-cc-pVDZ", "projected MB", "measured MB", "measured / projected"), rows))


# ---- budgets ----


def part_budgets(args: argparse.Namespace) -> None:
    """Which schedule is taken within which budget; plans only, with rates like those of a core or two."""
    from tilewise import MemoryBudgetError, Space
    from tilewise.plans.transform import Problem, Rates, plan_transform

    rows = []
    for size, tile in ((60, 20), (114, 19), (160, 32)):
        problem = Problem.of(Space.uniform(size, tile), (Space.uniform(size, tile),) * 4, (True, True))
        free = plan_transform(problem, 1 << 62, args.threads, Rates(*BUDGET_RATES)).peak_bytes
        for share in SHARES:
            budget = int(share * free)
            try:
                made = plan_transform(problem, budget, args.threads, Rates(*BUDGET_RATES))
                found = (made.schedule, str(made.variant), f"{made.peak_bytes * 1e-6:.1f}", f"{made.seconds:.2f}")
                moved = f"{made.moved_bytes / made.chosen.cost.bound_bytes:.2f}" if made.moved_bytes else ""
            except MemoryBudgetError as error:
                found, moved = ("nothing fits", "", f"at least {error.least_bytes * 1e-6:.1f}", ""), ""
            rows.append((str(size), str(tile), f"{budget * 1e-6:.1f}", f"{share:.2f}", *found, moved))
    flops, integrals = BUDGET_RATES
    print(f"At {flops:.0e} flop/s and {integrals:.0e} integrals/s; budgets against what is taken without a limit.\n")
    header = ("n", "tile", "budget MB", "of free", "schedule", "how", "peak MB", "seconds", "disk / bound")
    print(markdown(header, rows))


# ---- NWChem ----


def nwchem_seconds(threads: int) -> float | None:
    """Wall time of the transform in NWChem's tensor contraction engine for benzene/cc-pVDZ; None if it is not there."""
    launcher = shutil.which("mpirun")
    if launcher is None or shutil.which("nwchem") is None:
        return None
    lines = ["start benzene", "memory total 4000 mb", "geometry units angstrom noautosym", benzene(), "end"]
    lines += [
        "basis spherical",
        "* library cc-pvdz",
        "end",
        "tce",
        "2eorb",
        "2emet 13",
        "mp2",
        "end",
        "task tce energy",
    ]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "benzene.nw").write_text("\n".join(lines) + "\n")
        command = [launcher, "--allow-run-as-root", "-n", str(threads), "nwchem", "benzene.nw"]
        environment = {**os.environ, **system_blas().environment, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    found = re.search(r"4-electron integrals stored.*?wall time / sec\s+[\d.]+\s+([\d.]+)", done.stdout, re.DOTALL)
    return float(found.group(1)) if found else None


def part_nwchem(args: argparse.Namespace) -> None:
    """NWChem's transform against ours, one after the other."""
    seconds = nwchem_seconds(args.threads)
    if seconds is None:
        print("NWChem is not installed, or did not run.")
        return
    process = Contender("ours", benzene(), "cc-pvdz", args.threads)
    own = spread([process.ask("run")["seconds"] for _ in range(args.reps)])
    process.close()
    print(
        f"Benzene/cc-pVDZ, all orbitals: NWChem (TCE, 2emet 13, {args.threads} ranks) {seconds:.1f} s, ours "
        f"{own.median:.2f} s ({own.low:.2f} to {own.high:.2f}): {own.median / seconds:.2f} of it."
    )


# ---- a hard limit ----


def confine(args: argparse.Namespace) -> None:
    """Transform where the unfused schedule cannot, in a control group that ends this process should it grow more."""
    import tilewise as tw
    from tilewise.chemistry import Transform, pack_integrals

    mol, orbitals = molecule(benzene(), "cc-pvdz")
    with tw.engine("threads", workers=args.threads):
        Transform(*molecule("He 0 0 0; He 0 0 2", "cc-pvdz"), schedule="fused1234-inner", tile=4).kernel()
        try:
            Transform(mol, orbitals, schedule="fused1234-inner", tile=16, memory=1).plan()
        except tw.MemoryBudgetError as error:
            budget = int(1.1 * error.least_bytes)
        try:
            Transform(mol, orbitals, schedule="unfused", tile=16, memory=budget).plan()
            refused = 0
        except tw.MemoryBudgetError as error:
            refused = error.least_bytes
        job = Transform(mol, orbitals, schedule="fused1234-inner", tile=16, memory=budget)
        job.plan()
        with limited(int((1 + WITHIN) * budget)) as limit:
            measured = growth_of(job.kernel)
    assert job.tensor is not None
    found = pack_integrals(job.tensor)[:CHECKS, :CHECKS]
    exact = np.array(pyscf_in_core(mol, orbitals, None, args.threads)[0]())[:CHECKS, :CHECKS]
    answer = {"budget": budget, "refused": refused, "measured": measured, "limit": limit}
    print(json.dumps(answer | {"how": str(job.plan().variant), "error": float(np.abs(found - exact).max())}))


def part_limit(args: argparse.Namespace) -> None:
    """Benzene/cc-pVDZ within a budget and a control group in which the unfused schedule cannot run."""
    command = [sys.executable, __file__, "--confine", "--threads", str(args.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"The transform in a control group failed ({done.returncode}): {done.stderr.strip()[-400:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    met = found["refused"] > found["budget"] and found["measured"] <= (1 + WITHIN) * found["budget"]
    print(
        f"Benzene/cc-pVDZ, budget {found['budget'] * 1e-6:.0f} MB: unfused is refused, it needs "
        f"{found['refused'] * 1e-6:.0f} MB; fused1234-inner ({found['how']}) grew by {found['measured'] / 1e6:.0f} MB; "
        f"control group of 1.1 times the budget: {found['limit']}; largest difference from PySCF {found['error']:.0e}: "
        f"{'met' if met and found['error'] < 1e-10 else 'NOT MET'}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--part", choices=("time", "memory", "limit", "budgets", "nwchem", "all"), default="all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--only", default="", help="problems of `time` whose names match")
    parser.add_argument("--worker", choices=sorted(CONTENDERS), help=argparse.SUPPRESS)
    parser.add_argument("--molecule", help=argparse.SUPPRESS)
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--share", type=float, default=1.0, help=argparse.SUPPRESS)
    parser.add_argument("--schedule", help=argparse.SUPPRESS)
    parser.add_argument("--confine", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        serve(args)
    elif args.schedule:
        grow(args)
    elif args.confine:
        confine(args)
    else:
        let_libraries_choose()
        for name, part in (
            ("time", part_time),
            ("memory", part_memory),
            ("limit", part_limit),
            ("budgets", part_budgets),
            ("nwchem", part_nwchem),
        ):
            if args.part in (name, "all"):
                print(f"## {name}\n")
                part(args)
                print()


if __name__ == "__main__":
    main()
