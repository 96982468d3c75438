"""What the ranks of two nodes do for `nodes.py`: dense products on given grids, and what crosses between the nodes.

    mpiexec -n 4 python benchmarks/node_products.py FILE [--gflop 40] [--tile 128] [--only square,large_k]

Operands lie where their grid first needs them, so that what crosses is what the formula of Irmler et al. (2023, 2)
counts, and no redistribution.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

import tilewise as tw
from namespaces import sent_bytes
from tilewise.engines.mpi import MpiEngine
from tilewise.engines.mpi.spread import Spread, make_spread
from tilewise.machine import Machine
from tilewise.plans import Plan, Product
from tilewise.plans.crossings import Crossings
from tilewise.plans.grids import Grid, map_nodes, shape_text
from tilewise.plans.layout import Layout
from tilewise.plans.shares import Shares, share_on_grid
from tilewise.plans.sharing import Request, Sharing, make_rates
from tilewise.plans.traffic import Traffic, list_uses
from tilewise.tensors import BlockTensor

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

TEXT = "ik,kj->ij"
NODES = RANKS_PER_NODE = 2
ROW_BY_ROW = Grid((2, 2, 1), (1, 2, 1))
"""Rows and columns on as square a grid as there is, ranks numbered row by row: a node has one row."""

SHAPES = {
    "square": (1, 1, 1),
    "large_k": (1, 1, 10),
    "large_m": (10, 1, 1),
    "large_n": (1, 10, 1),
    "small_k": (10, 10, 1),
}
"""Rows, columns and k of each product, in short edges; the large N is not in the paper."""

MAPPINGS = ("row by row", "mapped", "chosen")
"""Ranks row by row; the same shape with nodes laid where least crosses; the shape and the nodes that `plan` chooses."""

SETTLING_SECONDS = 0.1
"""After which the acknowledgements of what was sent have been sent too."""

ROUNDING = 1e-10


@dataclass(frozen=True, slots=True)
class Crossed:
    """One product on one grid, and what crossed between the nodes."""

    shape: str
    """One of `SHAPES`."""
    extents: tuple[int, int, int]
    """Rows, columns and k."""
    mapping: str
    """One of `MAPPINGS`."""
    grid: str
    """Ranks along rows, columns and k."""
    inside: str
    """Those of them on one node."""
    formula_bytes: int
    """V of Irmler et al. (2023, 2)."""
    planned_bytes: int
    """What the plan says."""
    counted_bytes: int
    """What the engine counted in the run."""
    interface_bytes: int
    """What went over the interfaces, headers and acknowledgements included."""
    error: float
    """Relative error of the product, applied to a vector."""


def extents(shape: str, gflop: float, tile: int) -> tuple[int, int, int]:
    """Rows, columns and k of a product with about so much work, in whole tiles."""
    ratios = SHAPES[shape]
    edge = (gflop * 1e9 / (2 * np.prod(ratios))) ** (1 / 3)
    m, n, k = (max(round(ratio * edge / tile), 2) * tile for ratio in ratios)
    return m, n, k


def fibre_bytes(m: int, n: int, k: int) -> tuple[float, float, float]:
    """What crosses each cut along rows, columns and k: B, A and C."""
    return 8.0 * k * n, 8.0 * m * k, 8.0 * m * n


def on_axes(grid: Grid, plan: Plan) -> Grid:
    """A grid of rows and columns of the result as one of the plan's rows and columns, or the other way round."""
    assert isinstance(plan.work, Product)
    if not plan.work.swapped:
        return grid
    turned = [(axes[1], axes[0], axes[2]) for axes in (grid.shape, grid.inside)]
    return Grid(*turned)


def shares_on(plan: Plan, grid: Grid) -> Shares:
    """Who does what on a grid of rows and columns of the result."""
    rates = make_rates(plan, Machine.measured())
    best = Crossings(plan).weigh([on_axes(grid, plan)], rates).best
    return share_on_grid(plan, best.grid, RANKS_PER_NODE, best.row_group, best.col_group, best.segment_group)


def first_needed(plan: Plan, shares: Shares) -> list[Ints]:
    """For each operand, the first rank along its fibre that needs each block: its home in the formula."""
    uses = list_uses(plan)
    rank, owners = shares.chain[uses.target, shares.group[uses.segment]], []
    for operand, block in zip(plan.operands, uses.blocks, strict=True):
        owner = np.full(operand.pattern.nnz_blocks, shares.ranks - 1)
        np.minimum.at(owner, block, rank)
        owners.append(owner)
    return owners


def place(engine: MpiEngine, pattern: tw.Pattern, owner: Ints, seed: int) -> BlockTensor:
    """A tensor of random elements whose blocks are where one wants them; elements do not depend on that."""
    storage = make_spread(engine.node, pattern, Layout(engine.ranks, owner), np.float64, zero=False)
    for row, begin in zip(storage.held.tolist(), storage.own_offsets.tolist(), strict=True):
        size = int(storage.sizes[row])
        storage.own[begin : begin + size] = np.random.default_rng([seed, row]).standard_normal(size)
    engine.world.meet()
    tensor = BlockTensor(pattern, storage, engine)
    tensor.replace_norms(storage.norms())
    return tensor


def applied(engine: MpiEngine, x: Floats, tensor: BlockTensor) -> Floats:
    """A vector times a matrix, each rank with the blocks that it owns."""
    rows, cols = tensor.spaces
    found = np.zeros(cols.size)
    assert isinstance(tensor.storage, Spread)
    for i, j in tensor.pattern.index[tensor.storage.held].tolist():
        block = tensor.block((i, j))
        found[cols.offsets[j] : cols.offsets[j] + cols.sizes[j]] += (
            x[rows.offsets[i] : rows.offsets[i] + rows.sizes[i]] @ block
        )
    return np.asarray(engine.world.sum(found))


def product_error(engine: MpiEngine, A: BlockTensor, B: BlockTensor, C: BlockTensor) -> float:
    """Relative difference of x'C and (x'A)B."""
    x = np.random.default_rng(0).standard_normal(A.shape[0])
    expected = applied(engine, applied(engine, x, A), B)
    return float(np.linalg.norm(applied(engine, x, C) - expected) / np.linalg.norm(expected))


def interface_bytes(engine: MpiEngine) -> int:
    """What both nodes have sent each other so far."""
    engine.world.gather(None)  # until all are done
    time.sleep(SETTLING_SECONDS)
    leads = engine.world.neighbours.rank == 0
    return sum(engine.world.gather(sent_bytes() if leads else 0))


def planned(plan: Plan, A: BlockTensor, B: BlockTensor, shares: Shares | None, owners: Sequence[Ints]) -> Plan:
    """The plan for placed operands: with given shares, or with those that the library chooses on a grid."""
    made = tw.plan(TEXT, A, B, algorithm="summa")
    assert isinstance(made, Plan)
    if shares is None:
        return made
    request = Request(shares.ranks, shares.ranks_per_node, "summa")
    return replace(made, sharing=Sharing(request, Traffic(plan, shares, tuple(owners), shares.group)))


def measure(engine: MpiEngine, shape: str, mapping: str, gflop: float, tile: int) -> Crossed:
    """One product."""
    m, n, k = extents(shape, gflop, tile)
    rows, cols, inner = (tw.Space.uniform(size, tile=tile) for size in (m, n, k))
    patterns = tw.Pattern.dense((rows, inner)), tw.Pattern.dense((inner, cols))
    plan = tw.plan(TEXT, *patterns, algorithm="summa")
    assert isinstance(plan, Plan)
    assert plan.sharing is not None
    shares, words = plan.sharing.shares, fibre_bytes(m, n, k)
    if mapping != "chosen":
        mapped = ROW_BY_ROW if mapping == "row by row" else map_nodes(ROW_BY_ROW.shape, words, RANKS_PER_NODE)
        assert mapped is not None
        shares = shares_on(plan, mapped)
    assert shares.grid is not None
    grid = on_axes(shares.grid, plan)
    owners = first_needed(plan, shares)
    A, B = (place(engine, patterns[number], owners[number], seed=number) for number in range(2))
    made = planned(plan, A, B, None if mapping == "chosen" else shares, owners)
    before = interface_bytes(engine)
    C = tw.execute(made, A, B)
    crossed = interface_bytes(engine) - before
    assert made.sharing is not None
    return Crossed(
        shape=shape,
        extents=(m, n, k),
        mapping=mapping,
        grid=shape_text(grid.shape),
        inside=shape_text(grid.inside),
        formula_bytes=round(grid.volume(words)),
        planned_bytes=int(made.sharing.traffic.between_bytes.sum()),
        counted_bytes=sum(rank.between_bytes for rank in made.runs[-1].ranks),
        interface_bytes=crossed,
        error=product_error(engine, A, B, C),
    )


def measure_all(engine: MpiEngine, shapes: Sequence[str], gflop: float, tile: int) -> Iterator[Crossed]:
    """All products on all grids."""
    for shape in shapes:
        for mapping in MAPPINGS:
            yield measure(engine, shape, mapping, gflop, tile)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What products are made."""
    parser.add_argument("--gflop", type=float, default=40.0, help="work of each product")
    parser.add_argument("--tile", type=int, default=128, help="edge of all tiles")
    parser.add_argument("--only", type=parse_shapes, default=tuple(SHAPES), help=f"some of {','.join(SHAPES)}")


def parse_shapes(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    names = tuple(text.split(","))
    if unknown := sorted(set(names) - set(SHAPES)):
        raise argparse.ArgumentTypeError(f"no product is called {', '.join(unknown)}; use some of {', '.join(SHAPES)}")
    return names


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("file", type=Path, help="where the first rank writes what was found")
    add_options(parser)
    args = parser.parse_args()
    with tw.engine("mpi", workers=1) as engine:
        assert isinstance(engine, MpiEngine)
        world = engine.world
        if (world.nodes, world.ranks_per_node) != (NODES, RANKS_PER_NODE):
            raise SystemExit(f"MPI sees {world.nodes} nodes of {world.ranks_per_node} ranks. Expected 2 of 2.")
        found = [asdict(each) for each in measure_all(engine, args.only, args.gflop, args.tile)]
        if world.rank == 0:
            args.file.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
