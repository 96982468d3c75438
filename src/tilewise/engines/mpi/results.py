"""Where the result of a step that ranks share goes: to a new tensor, or to one that is there."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import numpy.typing as npt

from tilewise.engines.mpi.homes import Home
from tilewise.engines.mpi.moves import Places, copy_own
from tilewise.engines.mpi.shared import SharedRun, own_squares
from tilewise.engines.mpi.spread import Spread
from tilewise.engines.targets import Target, find_slots, scale_target
from tilewise.plans.sharing import Pool
from tilewise.tensors import BlockTensor, Engine

Floats = npt.NDArray[np.float64]


def make_result(run: SharedRun, engine: Engine) -> BlockTensor:
    """The result as a new tensor, whose blocks the ranks own that computed them."""
    total, squares = run.sum_groups() if run.pool is None else _drawn(run, run.pool)
    result = BlockTensor(run.plan.result, total, engine)
    result.replace_norms(run.norms(squares, total, total.held, run.every))
    return result


def add_result(run: SharedRun, out: BlockTensor) -> None:
    """Add the result to a tensor that is there."""
    slots, rank = find_slots(run.plan.result, out.pattern), run.node.world.rank
    target, home = Target(out, slots, False, out.pattern.norms), Home.of(run.node, out, slots)
    run.node.world.meet()  # nobody reads it any more
    scale_target(target, run.call.beta)
    run.node.world.meet()
    if run.pool is not None and home.is_near:
        layout, squares = run.draw(run.pool, target)
        norms = run.norms(squares, out.arena, layout.blocks_of(rank), slots)
    elif run.pool is not None:
        norms = _draw_elsewhere(run, run.pool, home)
    elif run.shares.groups > 1:
        norms = _add_to_sums(run, home)
    elif home.is_near:
        norms = run.norms(run.compute([target]), out.arena, run.shares.layout().blocks_of(rank), slots)
    else:
        norms = _compute_elsewhere(run, home)
    target.settle(norms, run.call.beta)


def _drawn(run: SharedRun, pool: Pool) -> tuple[Spread, Floats]:
    """The result with the ranks that drew its blocks, and the squares of their blocks."""
    room, fresh = run.take_room(), run.plan.kernel != "loops"
    if not fresh and run.node.world.neighbours.rank == 0:
        room.data[...] = 0
    layout, squares = run.draw(pool, run.target(room, fresh=fresh))
    total = run.new(layout)
    copy_own(Places.of(room), Places.of(total), total.held, total.sizes * total.dtype.itemsize)
    return total, squares


def _draw_elsewhere(run: SharedRun, pool: Pool, home: Home) -> Floats:
    """Have tasks drawn that start from what a tensor holds, and bring their blocks back to it; their norms."""
    assert run.traffic.node_of_block is not None
    room = run.take_room()
    run.counts.moved.add(home.bring_to_nodes(run.traffic.node_of_block, Places.of(room)))
    layout, squares = run.draw(pool, run.target(room, fresh=False))
    norms = run.norms(squares, room, layout.blocks_of(run.node.world.rank), run.every)
    run.counts.moved.add(home.take_back(layout, Places.of(room)))
    return norms


def _compute_elsewhere(run: SharedRun, home: Home) -> Floats:
    """Compute where the parts are done, starting from what a tensor holds, and bring the sums back; their norms."""
    total = run.new(run.shares.layout())
    run.counts.moved.add(home.bring(total.layout, Places.of(total)))
    return _take_back(run, home, total, run.compute([run.target(total, fresh=False)]))


def _add_to_sums(run: SharedRun, home: Home) -> Floats:
    """Add what a tensor holds to the sums of all groups, and bring them back to it; their norms.

    Its blocks come to the sums as those of one more group would, so there is room for them.
    """
    total, _ = run.sum_groups()
    is_seen = home.layout is None or home.is_near
    with nullcontext() if is_seen else run.holding(total.layout) as brought:
        held = home.places if brought is None else Places.of(brought)
        if brought is not None:
            run.counts.moved.add(home.bring(total.layout, held))
        for block in total.held.tolist():
            part = total.view(block, int(total.sizes[block]))
            assert part is not None
            part += held.elements(block, int(home.sizes[block]), total.dtype)
    return _take_back(run, home, total, own_squares(total))


def _take_back(run: SharedRun, home: Home, total: Spread, squares: Floats) -> Floats:
    """Bring finished blocks to where they belong; their norms."""
    norms = run.norms(squares, total, total.held, run.every)  # for which all ranks have met
    run.counts.moved.add(home.take_back(total.layout, Places.of(total)))
    return norms
