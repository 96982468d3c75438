"""Products on devices: what crosses against the lower bound, compute queues, and transfers beside the products.

    python benchmarks/devices.py [--part herault|capacity|queues|prefetch|all] [--library numpy] [--reps 5]
                                 [--folder DIR]

The library "numpy" stands in for devices: their memory is memory of this computer, limited, metered and filled by real
copies. What crosses is the same on real devices; rates and times are not. With --folder, `capacity` and `queues` draw a
picture each (PNG and SVG).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

import tilewise as tw
from problems import Problem, each_block, irregular_problem, projection_error, uniform_problem
from tables import markdown, with_range
from tilewise.plans.devices import Blocked, block_bytes, bound_bytes, list_products
from tilewise.plans.work import Product
from tilewise.reports.plots import plot_series, save_plot
from tilewise.trace import Trace
from timing import STAT, Spread, busy_seconds, spread, wait_quiet

PRODUCT = "ik,kn->in"
SEED = 2032

HERAULT_TILES, HERAULT_ROWS, HERAULT_INNER = (32, 128), 400, 4000
DENSITIES = (0.1, 0.25, 0.5, 1.0)
DEVICES = (1, 2, 4)
SHARES = (0.5, 2.0, 4.0)
ENOUGH_SHARE = 2.0  # with a capacity of so many times A the target holds
MOST_MOVED = 2.0

CAPACITY = 8_000_000
SQUARES = (400, 500, 600, 640, 800, 1000, 1400, 2000)
SQUARE_TILES, SQUARE_DENSITY = (32, 128), 0.8
CACHE_RUNS = 3  # what a cache moves depends on when products end

QUEUES = (1, 2, 4)
TILE_SIZES = (32, 64, 96, 128, 192, 256)
QUEUE_GFLOP = 2.0

PREFETCH_TILES = (64, 256)
PREFETCH = {"M << N = K": (512, 6144, 2.0), "square": (2048, 2048, 0.5)}  # rows, inner extent, capacity / A
PACES = (1.0, 2.0, 4.0)
COMPARABLE = (0.5, 2.0)
LEAST_HIDDEN = 0.8
QUIET_SECONDS = 20.0  # how long a part that takes times waits for others

Operands = tuple[tw.BlockTensor, tw.BlockTensor]
Crossed = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Devices:
    """What `tw.engine` is told."""

    capacity: int
    """Bytes of memory of each."""
    count: int = 1
    """How many there are."""
    schedule: str = "blocked"
    """Holds and chunks, or a cache."""
    queues: int = 2
    """Products that each computes at once."""
    bandwidth: float | None = None
    """GB/s that transfers are slowed down to."""
    stationary: int | None = None
    """The operand that is held; the planner's choice if None."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run on devices."""

    plan: tw.Plan
    """What was run."""
    trace: Trace
    """What happened."""
    result: tw.BlockTensor
    """What it gave."""

    @property
    def in_bytes(self) -> tuple[int, int]:
        """Bytes of each operand that came to a device."""
        left, right = (sum(level.in_bytes[number] for level in self.trace.levels) for number in (0, 1))
        return left, right

    @property
    def in_blocks(self) -> tuple[int, int]:
        """Blocks of each operand that came to a device."""
        left, right = (sum(level.in_blocks[number] for level in self.trace.levels) for number in (0, 1))
        return left, right

    @property
    def out_bytes(self) -> int:
        """Bytes of the result that left the devices."""
        return sum(level.out_bytes for level in self.trace.levels)

    @property
    def moved_bytes(self) -> int:
        """Bytes that crossed both ways."""
        return sum(self.in_bytes) + self.out_bytes

    @property
    def neighbour_bytes(self) -> int:
        """Bytes that came from another device."""
        return sum(level.neighbour_bytes for level in self.trace.levels)

    @property
    def peak_bytes(self) -> int:
        """The most that a device held."""
        return max(level.peak_bytes for level in self.trace.levels)

    @property
    def bound_bytes(self) -> int:
        """What crosses at the least."""
        assert self.plan.placement is not None
        return bound_bytes(self.plan, self.plan.placement.devices)

    @property
    def needed_bytes(self) -> tuple[int, int]:
        """Bytes of each operand that some product needs, counted once."""
        assert isinstance(self.plan.work, Product)
        products, sizes = list_products(self.plan.work), block_bytes(self.plan)
        return int(sizes[0][np.unique(products.left)].sum()), int(sizes[1][np.unique(products.right)].sum())


def operands(problem: Problem) -> Operands:
    """The matrices of a problem as tensors."""
    row, inner, col = (tw.Space(sizes) for sizes in (problem.m, problem.k, problem.n))
    return tw.from_blocks(dict(each_block(problem.a)), (row, inner)), tw.from_blocks(
        dict(each_block(problem.b)), (inner, col)
    )


def run(pair: Operands, devices: Devices, library: str, plan: tw.Plan | None = None) -> Outcome:
    """Multiply on devices, by a plan that was made for them before if there is one."""
    with tw.engine(
        "device",
        capacity=devices.capacity,
        devices=devices.count,
        library=library,
        schedule=devices.schedule,
        queues=devices.queues,
        bandwidth=devices.bandwidth,
        stationary=devices.stationary,
    ):
        made = tw.plan(PRODUCT, *pair) if plan is None else plan
        assert isinstance(made, tw.Plan)
        result = tw.execute(made, *pair)
    return Outcome(made, made.runs[-1], result)


def sampled(actions: Mapping[str, Callable[[], Outcome]], reps: int) -> dict[str, list[Trace]]:
    """Traces of each action, `reps` of them, in turns so that drift of the machine meets all alike.

    One run of each comes before and does not count.
    """
    for action in actions.values():
        action()
    traces: dict[str, list[Trace]] = {name: [] for name in actions}
    for _ in range(reps):
        for name, action in actions.items():
            traces[name].append(action().trace)
    return traces


def clocks() -> tuple[float, float, float]:
    """Seconds: on the wall, of all processors, and of those what this process used."""
    own = time.process_time()
    return time.monotonic(), busy_seconds() if STAT.exists() else own, own


def others_since(begin: tuple[float, float, float]) -> str:
    """How much other processes took from what was timed."""
    wall, everybody, own = (now - before for now, before in zip(clocks(), begin, strict=True))
    return f"\nOther processes used {max(everybody - own, 0) / wall:.2f} of a processor meanwhile."


def verdict(met: bool) -> str:
    """The word for a target."""
    return "met" if met else "NOT MET"


def megabytes(value: float) -> str:
    """Bytes as MB."""
    return f"{value * 1e-6:.1f}"


# Herault et al. 2020: a short A, a square B ---------------------------------------------------------------

HERAULT_HEADER = (
    "density",
    "devices",
    "capacity / A",
    "held",
    "holds",
    "A crossed: plan, trace",
    "B crossed: plan, trace",
    "C crossed: plan, trace",
    "B and C once",
    "plan = trace",
    "peak / capacity: plan, trace",
    "moved / bound",
    "from host MB",
    "from neighbours MB",
)


def crossings(outcome: Outcome, placement: Blocked) -> tuple[Crossed, Crossed]:
    """How often A, B and C crossed: as planned, and as it was counted in the run."""
    once = (*outcome.needed_bytes, outcome.plan.result_bytes)
    planned, counted = (*placement.in_bytes, placement.out_bytes), (*outcome.in_bytes, outcome.out_bytes)
    (a, b, c), (x, y, z) = ([size / own for size, own in zip(sizes, once, strict=True)] for sizes in (planned, counted))
    return (a, b, c), (x, y, z)


def herault_row(outcome: Outcome, share: float) -> tuple[str, ...]:
    """Crossings, memory and movement of one run."""
    placement = outcome.plan.placement
    assert isinstance(placement, Blocked)
    planned, counted = crossings(outcome, placement)
    capacity = placement.devices.capacity
    equal = (placement.in_blocks, placement.in_bytes, placement.out_bytes) == (
        outcome.in_blocks,
        outcome.in_bytes,
        outcome.out_bytes,
    )
    ratio = outcome.moved_bytes / outcome.bound_bytes
    fits = max(placement.peak_bytes, outcome.peak_bytes) <= capacity
    return (
        "AB"[placement.stationary],
        f"{len(placement.holds)}",
        *(f"{plan:.2f}, {trace:.2f}" for plan, trace in zip(planned, counted, strict=True)),
        verdict(planned[1:] == counted[1:] == (1.0, 1.0)),
        "yes" if equal else "NO",
        f"{placement.peak_bytes / capacity:.2f}, {outcome.peak_bytes / capacity:.2f} ({verdict(fits)})",
        f"{ratio:.2f}" + (f" ({verdict(ratio <= MOST_MOVED)})" if share >= ENOUGH_SHARE else ""),
        megabytes(sum(outcome.in_bytes) - outcome.neighbour_bytes),
        megabytes(outcome.neighbour_bytes),
    )


def too_small(error: tw.MemoryBudgetError) -> tuple[str, ...]:
    """What stands where no holds and chunks fit."""
    dashes = ("-",) * (len(HERAULT_HEADER) - 3)
    return (*dashes[:-3], f"needs {error.least_bytes / error.budget:.2f} x the capacity", *dashes[-2:])


def herault(library: str) -> Iterator[str]:
    """Crossings over densities, devices and capacities; bits and errors of the results."""
    rows: list[tuple[str, ...]] = []
    errors: list[float] = []
    compared = differing = 0
    for density in DENSITIES:
        problem = irregular_problem(HERAULT_TILES, HERAULT_ROWS, HERAULT_INNER, density, SEED)
        pair, first = operands(problem), None
        for count, share in ((count, share) for count in DEVICES for share in SHARES):
            head = f"{density:g}", f"{count}", f"{share:g}"
            try:
                outcome = run(pair, Devices(int(share * pair[0].nbytes), count, stationary=1), library)
            except tw.MemoryBudgetError as error:
                rows.append((*head, *too_small(error)))
                continue
            rows.append((*head, *herault_row(outcome, share)))
            if first is None:
                first = outcome.result
                errors.append(projection_error(problem, blocks_of(first)))
            compared += 1
            differing += float((outcome.result - first).norm()) != 0.0
    m, k, n = problem.shape
    yield (
        f"M x K x N = {m} x {k} x {n}, tiles of {HERAULT_TILES[0]} to {HERAULT_TILES[1]}. How often a matrix crossed: "
        "bytes that did over bytes of its blocks that some product needs. B is held, as in the paper. Targets: "
        "B and C cross once, "
        f"peak <= capacity, moved <= {MOST_MOVED:g} x bound where the capacity is at least {ENOUGH_SHARE:g} x A.\n"
    )
    yield markdown(HERAULT_HEADER, rows)
    yield (
        f"\n{compared} results, {differing} of them with other bits than the first of their density; the first ones "
        f"have errors of at most {max(errors):.1e}."
    )


def blocks_of(tensor: tw.BlockTensor) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Index and elements of each block."""
    for index in map(tuple, tensor.pattern.index.tolist()):
        yield index, tensor.block(index)


# TESSE 2018, Fig. 4: growing past the capacity ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Size:
    """What one size moves."""

    extent: int
    """Rows, inner extent and columns."""
    problem_bytes: int
    """Operands and result."""
    cache_bytes: Spread
    """Moved with the memory of the device as a cache."""
    blocked_bytes: int
    """Moved by holds and chunks."""
    bound_bytes: int
    """Moved at the least."""

    @property
    def met(self) -> str:
        """Whether holds and chunks move less than any run with the cache; a target past the capacity only."""
        if self.problem_bytes <= CAPACITY:
            return "-"
        if self.blocked_bytes == self.bound_bytes:
            return "at the bound"
        return verdict(self.blocked_bytes < self.cache_bytes.low)


def grow(extent: int, library: str) -> Size:
    """Multiply square matrices of one size under both schedules."""
    pair = operands(irregular_problem(SQUARE_TILES, extent, extent, SQUARE_DENSITY, SEED))
    blocked, cache = Devices(CAPACITY), Devices(CAPACITY, schedule="cache")
    cached = spread([run(pair, cache, library).moved_bytes for _ in range(CACHE_RUNS)])
    outcome = run(pair, blocked, library)
    total = sum(tensor.nbytes for tensor in pair) + outcome.result.nbytes
    return Size(extent, total, cached, outcome.moved_bytes, outcome.bound_bytes)


def capacity(library: str, folder: Path | None) -> Iterator[str]:
    """What both schedules move while the problem outgrows the device."""
    sizes = [grow(extent, library) for extent in SQUARES]
    rows = [
        (
            f"{size.extent}",
            megabytes(size.problem_bytes),
            f"{size.problem_bytes / CAPACITY:.2f}",
            f"{megabytes(size.cache_bytes.low)} to {megabytes(size.cache_bytes.high)}",
            megabytes(size.blocked_bytes),
            megabytes(size.bound_bytes),
            f"{size.cache_bytes.median / size.bound_bytes:.2f}",
            f"{size.blocked_bytes / size.bound_bytes:.2f}",
            f"{size.blocked_bytes / size.cache_bytes.median:.2f}",
            size.met,
        )
        for size in sizes
    ]
    yield (
        f"Square matrices, density {SQUARE_DENSITY:g}, tiles of {SQUARE_TILES[0]} to {SQUARE_TILES[1]}, one device of "
        f"{megabytes(CAPACITY)} MB, {CACHE_RUNS} runs with the cache. Target: holds and chunks move less than each run "
        "with the cache once the problem is larger than the device.\n"
    )
    header = ("extent", "problem MB", "problem / capacity", "cache MB", "blocked MB", "bound MB")
    yield markdown((*header, "cache / bound", "blocked / bound", "blocked / cache", "blocked < cache"), rows)
    if folder is not None:
        yield from picture_capacity(sizes, folder)


def picture_capacity(sizes: Sequence[Size], folder: Path) -> Iterator[str]:
    """Moved bytes against the size of the problem."""
    lines: dict[str, list[tuple[float, float]]] = {
        "cache (least recently used goes)": [(size.problem_bytes, size.cache_bytes.median) for size in sizes],
        "holds and chunks": [(size.problem_bytes, size.blocked_bytes) for size in sizes],
        "lower bound": [(size.problem_bytes, size.bound_bytes) for size in sizes],
    }
    axes = plot_series(
        {name: [(round(x * 1e-6, 1), y * 1e-6) for x, y in points] for name, points in lines.items()},
        xlabel="operands and result, MB",
        ylabel="moved to and from the device, MB",
        title="A product that outgrows the memory of a device",
        log="xy",
        marks={"memory of the device": CAPACITY * 1e-6},
    )
    yield from said(save_plot(axes, folder / "devices_capacity"))


def said(paths: Sequence[Path]) -> Iterator[str]:
    """A line for what was written."""
    yield f"\nWritten: {', '.join(path.name for path in paths)}"


# TESSE 2018, Fig. 2: tile sizes and queues ----------------------------------------------------------------


def queue_costs(library: str, reps: int) -> dict[tuple[int, int], Spread]:
    """Seconds per GFLOP for each tile size and number of queues; everything fits on the device."""
    pairs = {size: operands(uniform_problem(size, 1.0, QUEUE_GFLOP, SEED)) for size in TILE_SIZES}
    keys = {f"{size} {number}": (size, number) for size in TILE_SIZES for number in QUEUES}
    actions: dict[str, Callable[[], Outcome]] = {}
    for name, (size, number) in keys.items():
        devices = Devices(1_000_000_000, queues=number)
        plan = run(pairs[size], devices, library).plan
        actions[name] = partial(run, pairs[size], devices, library, plan)
    traces = sampled(actions, reps)
    return {key: spread([1e9 * trace.seconds / trace.flops for trace in traces[name]]) for name, key in keys.items()}


def queues(library: str, reps: int, folder: Path | None) -> Iterator[str]:
    """Rates relative to the best of the run."""
    wait_quiet(QUIET_SECONDS)
    begin = clocks()
    costs = queue_costs(library, reps)
    best = min(cost.median for cost in costs.values())
    rows = [(f"{size}", *(with_range(costs[size, number].per(best)) for number in QUEUES)) for size in TILE_SIZES]
    yield (
        f"Dense products of about {QUEUE_GFLOP:g} GFLOP that fit on one device. Rates relative to the best median of "
        f"the run ({1 / best:.1f} GF/s), with the range of {reps} samples.\n"
    )
    yield markdown(("tile size", *(named(number) for number in QUEUES)), rows)
    yield others_since(begin)
    if folder is None:
        return
    axes = plot_series(
        {named(number): [(size, best / costs[size, number].median) for size in TILE_SIZES] for number in QUEUES},
        xlabel="rows and columns of a tile",
        ylabel="rate / best rate of the run",
        title=f"Compute queues of a device ({library})",
        log="x",
    )
    yield from said(save_plot(axes, folder / "devices_queues"))


def named(number: int) -> str:
    """A number of queues."""
    return f"{number} queue{'s' if number > 1 else ''}"


# Prefetching ----------------------------------------------------------------------------------------------

PREFETCH_HEADER = (
    "problem",
    "capacity / A",
    "holds",
    "chunks",
    "bandwidth GB/s",
    "reached GB/s",
    "transfer s",
    "compute s",
    "transfer / compute",
    "wall s",
    "hidden",
    "target",
)


def prefetch_row(
    name: str, share: float, bandwidth: float | None, plan: tw.Plan, traces: list[Trace]
) -> tuple[str, ...]:
    """Medians of one problem at one bandwidth."""
    placement = plan.placement
    assert isinstance(placement, Blocked)
    levels = [trace.levels[0] for trace in traces]
    transfer, compute = (
        spread([getattr(level, f"{what}_seconds") for level in levels]).median for what in ("transfer", "compute")
    )
    hidden = spread([level.hidden for level in levels])
    judged = bandwidth is not None and COMPARABLE[0] <= transfer / compute <= COMPARABLE[1]
    return (
        name,
        f"{share:g}",
        f"{len(placement.holds)}",
        f"{sum(len(hold.chunks) for hold in placement.holds)}",
        "-" if bandwidth is None else f"{bandwidth:.2f}",
        f"{placement.moved_bytes * 1e-9 / transfer:.2f}",
        f"{transfer:.2f}",
        f"{compute:.2f}",
        f"{transfer / compute:.2f}",
        f"{spread([trace.seconds for trace in traces]).median:.2f}",
        with_range(hidden),
        verdict(hidden.median >= LEAST_HIDDEN) if judged else "-",
    )


def prefetch_rows(name: str, library: str, reps: int) -> Iterator[tuple[str, ...]]:
    """One problem without pacing, then with transfers that should take about as long as the products."""
    rows, inner, share = PREFETCH[name]
    pair = operands(irregular_problem(PREFETCH_TILES, rows, inner, 1.0, SEED))
    free = Devices(int(share * pair[0].nbytes))
    plan = run(pair, free, library).plan
    assert isinstance(plan.placement, Blocked)
    unpaced = sampled({name: partial(run, pair, free, library, plan)}, reps)[name]
    yield prefetch_row(name, share, None, plan, unpaced)
    compute = spread([trace.levels[0].compute_seconds for trace in unpaced]).median
    rates = {f"{pace}": pace * sum(plan.placement.in_bytes) * 1e-9 / compute for pace in PACES}
    paced = {pace: Devices(free.capacity, bandwidth=rate) for pace, rate in rates.items()}
    actions = {pace: partial(run, pair, devices, library, plan) for pace, devices in paced.items()}
    for pace, traces in sampled(actions, reps).items():
        yield prefetch_row(name, share, rates[pace], plan, traces)


def prefetch(library: str, reps: int) -> Iterator[str]:
    """How much of the shorter of transfers and products goes on beside the other."""
    paces = ", ".join(f"{pace:g}" for pace in PACES)
    yield (
        f"All blocks there, tiles of {PREFETCH_TILES[0]} to {PREFETCH_TILES[1]}, one device. Transfers run free, then "
        f"at {paces} times the bandwidth at which what comes would take as long as the products did. Target where "
        f"transfer / compute is {COMPARABLE[0]:g} to {COMPARABLE[1]:g}: {LEAST_HIDDEN:g} of the shorter or more is "
        f"hidden. Medians of {reps} runs, with the range.\n"
    )
    wait_quiet(QUIET_SECONDS)
    begin = clocks()
    yield markdown(PREFETCH_HEADER, [row for name in PREFETCH for row in prefetch_rows(name, library, reps)])
    yield others_since(begin)


def main() -> None:
    """Print the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--part", choices=("herault", "capacity", "queues", "prefetch", "all"), default="all")
    parser.add_argument("--library", default="numpy", help="what drives the devices")
    parser.add_argument("--reps", type=int, default=5, help="samples of each time")
    parser.add_argument("--folder", type=Path, help="where pictures go; none are drawn by default")
    args = parser.parse_args()
    parts: dict[str, Callable[[], Iterator[str]]] = {
        "herault": lambda: herault(args.library),
        "capacity": lambda: capacity(args.library, args.folder),
        "queues": lambda: queues(args.library, args.reps, args.folder),
        "prefetch": lambda: prefetch(args.library, args.reps),
    }
    for name, part in parts.items():
        if args.part in (name, "all"):
            begin = time.perf_counter()
            print(f"## {name}\n")
            for line in part():
                print(line, flush=True)
            print(f"\n{name}: {time.perf_counter() - begin:.0f} s\n")


if __name__ == "__main__":
    main()
