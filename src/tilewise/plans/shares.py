"""Who does which part of a product that several ranks share.

Three families come down to the same thing, a rank for every result block and every group of k segments:

- *stationary* (Herault et al. 2020, 3.1 to 3.2.1): on p x q ranks, the columns of the stationary operand are dealt by
  flops to the q grid columns, the panels of the streamed one go round the p grid rows;
- *owner* (Ozog et al. 2013): a balancer gives every result block to a rank;
- *summa* (Irmler et al. 2023): rows, columns and k segments are dealt to the three axes of a grid that is laid over
  nodes so that little crosses between them.

Where k is cut, every group is summed from zero by its rank, and the sums are added in a fixed order, inside each node
first, and by the rank that has the first of them at last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.plans.balance import cut_evenly, deal_mirrored
from tilewise.plans.cells import piece_of_segment
from tilewise.plans.grids import Grid, total_by
from tilewise.plans.layout import Layout
from tilewise.plans.plan import Plan
from tilewise.plans.work import Product, Sum

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ALGORITHMS = ("auto", "stationary", "owner", "summa")
"""Names that ``algorithm=`` takes."""


@dataclass(frozen=True, slots=True)
class Shares:
    """A rank for every result block and every group of k segments."""

    algorithm: str
    """The family that it comes from."""
    ranks: int
    """How many ranks there are."""
    ranks_per_node: int
    """How many of them share a node."""
    grid: Grid | None
    """The grid of ranks; None if there is none."""
    group: Ints
    """Group of each k segment."""
    chain: Ints
    """For each result block (row) and each group of k segments (column), the rank that sums it."""

    @property
    def additions(self) -> tuple[tuple[int, int], ...]:
        """Which group's sums are added to which other's, in order: inside each node first, then at the owners.

        Only a grid says which groups share a node; others are added one by one, as one rank would.
        """
        near = 1 if self.grid is None or len(self.grid.inside) < 3 else self.grid.inside[2]
        inside = [(group, group - group % near) for group in range(self.groups) if group % near]
        return (*inside, *((group, 0) for group in range(near, self.groups, near)))

    @property
    def groups(self) -> int:
        """Groups of k segments."""
        return int(self.chain.shape[1])

    def node(self, rank: Any) -> Any:
        """The node of a rank, or of each of several."""
        return rank // self.ranks_per_node

    def layout(self, group: int = 0) -> Layout:
        """Who sums each result block over a group; who sums the first one owns the result."""
        return Layout(self.ranks, np.ascontiguousarray(self.chain[:, group]))

    def wanted(self, rank: int, group: int) -> npt.NDArray[np.bool_]:
        """The result blocks that a rank sums over a group."""
        return np.asarray(self.chain[:, group] == rank)


def panels_of_blocks(plan: Plan) -> tuple[Ints, Ints]:
    """The row panel and the column panel of each result block."""
    work = plan.work
    assert isinstance(work, Product)
    row, col = (np.zeros(plan.result.nnz_blocks, np.int64) for _ in range(2))
    row[work.cells.block] = work.row_strips.panel[work.cells.row]
    col[work.cells.block] = work.col_strips.panel[work.cells.col]
    return row, col


def block_flops(plan: Plan) -> Floats:
    """What each result block costs: floating-point operations, or elements of a sum."""
    work = plan.work
    if isinstance(work, Sum):
        return work.elements.astype(np.float64)
    return total_by(work.cells.block, work.cells.flops, plan.result.nnz_blocks)


def one_group(plan: Plan) -> Ints:
    """All k segments in one group."""
    return np.zeros(plan.work.choices.segments if isinstance(plan.work, Product) else 1, np.int64)


def share_by_owner(plan: Plan, ranks: int, ranks_per_node: int, rank_of_block: Ints | None = None) -> Shares:
    """Each result block to one rank: neighbours together, in runs of nearly equal work, unless it is said who."""
    if rank_of_block is None:
        rank_of_block = np.repeat(np.arange(ranks), np.diff(cut_evenly(block_flops(plan), ranks)))
    return Shares("owner", ranks, ranks_per_node, None, one_group(plan), rank_of_block[:, None])


def share_by_pieces(plan: Plan, ranks: int, ranks_per_node: int) -> Shares:
    """The sums of a product with few cells: each piece of k is summed from zero anyhow, and may be by another rank."""
    work = plan.work
    assert isinstance(work, Product)
    choices, cells = work.choices, work.cells
    group = piece_of_segment(np.arange(choices.segments), choices.segments, choices.pieces)
    present = np.unique(piece_of_segment(work.terms[:, 3].astype(np.int64) >> 1, choices.segments, choices.pieces))
    blocks = plan.result.nnz_blocks
    weight = total_by(present[cells.piece] * blocks + cells.block, cells.flops, choices.pieces * blocks)
    rank = np.repeat(np.arange(ranks), np.diff(cut_evenly(weight, ranks)))
    chain = np.ascontiguousarray(rank.reshape(choices.pieces, blocks).T)
    return Shares("owner", ranks, ranks_per_node, None, group, chain)


def share_stationary(plan: Plan, ranks: int, ranks_per_node: int, replicas: int, stationary: int) -> Shares:
    """The panels of the stationary operand dealt by flops to the columns of a grid with `replicas` rows.

    Parameters
    ----------
    plan : Plan
        The product.
    ranks, ranks_per_node : int
        How many there are.
    replicas : int
        Rows of the grid, p: the stationary operand is needed p times.
    stationary : int
        Number of the stationary operand.
    """
    assert isinstance(plan.work, Product)
    row, col = panels_of_blocks(plan)
    is_rows = (stationary == 0) != plan.work.swapped
    held, passing = (row, col) if is_rows else (col, row)
    columns = ranks // replicas
    weight = total_by(held, block_flops(plan), int(held.max(initial=-1)) + 1)
    place: Ints = passing % replicas * columns + deal_mirrored(weight, columns)[held]
    # On one node: neighbours along a grid row, which the streamed operand passes.
    shape = (replicas, columns)
    return Shares("stationary", ranks, ranks_per_node, Grid(shape, (1, 1)), one_group(plan), place[:, None])


def share_on_grid(
    plan: Plan, grid: Grid, ranks_per_node: int, row_group: Ints, col_group: Ints, segment_group: Ints
) -> Shares:
    """Row panels, column panels and k segments on the axes of a grid."""
    row, col = panels_of_blocks(plan)
    ranks = grid.ranks()
    return Shares("summa", grid.size, ranks_per_node, grid, segment_group, ranks[row_group[row], col_group[col]])
