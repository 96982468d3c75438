"""Block-sparse products as one writes them with NumPy, SciPy and torch."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from peers.contender import Contender, NotInstalled, equal_block_size
from peers.stacks import Pairs, chunks, meeting_pairs, stacked
from problems import Floats, Problem, blocks, checksum_blocks, checksum_stack

Grid = dict[tuple[int, ...], Any]


def by_row(grid: Grid) -> dict[int, list[tuple[int, Any]]]:
    """The blocks of each tile row as (tile column, block)."""
    rows: dict[int, list[tuple[int, Any]]] = {}
    for (k, j), block in grid.items():
        rows.setdefault(k, []).append((j, block))
    return rows


def numpy_blocks(problem: Problem, threads: int) -> Contender:
    """Dictionaries of blocks, C[i, j] += A[i, k] @ B[k, j]."""
    a_blocks, b_blocks = blocks(problem.a), blocks(problem.b)

    def multiply() -> Grid:
        rows, result = by_row(b_blocks), Grid()
        for (i, k), a in a_blocks.items():
            for j, b in rows.get(k, ()):
                c = result.get((i, j))
                if c is None:
                    result[i, j] = a @ b
                else:
                    c += a @ b
        return result

    return Contender({"run": multiply}, problem.flops, lambda c: checksum_blocks(problem, c.items()))


def numpy_batched(problem: Problem, threads: int) -> Contender:
    """Equal blocks: gather the pairs that meet, one matmul, sum by block of C."""
    size, columns = equal_block_size(problem), len(problem.n)
    a, b = stacked(problem.a), stacked(problem.b)

    def multiply() -> tuple[Pairs, Floats]:
        pairs = meeting_pairs(a, b, columns)
        out = np.empty((len(pairs.target), size, size))
        for pair, block in chunks(pairs, size):
            products = np.matmul(a.data[pairs.a[pair]], b.data[pairs.b[pair]])
            np.add.reduceat(products, pairs.first[block] - pair.start, axis=0, out=out[block])
        return pairs, out

    return Contender({"run": multiply}, problem.flops, lambda c: _stack_sum(problem, *c))


def scipy_bsr(problem: Problem, threads: int) -> Contender:
    """SciPy's BSR times BSR."""
    size, (m, k, n) = equal_block_size(problem), problem.shape
    bsr_array = import_module("scipy.sparse").bsr_array
    left, right = stacked(problem.a), stacked(problem.b)
    a = bsr_array((left.data, left.indices, left.starts), shape=(m, k))
    b = bsr_array((right.data, right.indices, right.starts), shape=(k, n))

    def checksum(c: Any) -> float:
        c = c if c.format == "bsr" else c.tobsr((size, size))
        rows = np.repeat(np.arange(len(problem.m)), np.diff(c.indptr))
        return checksum_stack(problem, rows, c.indices.astype(np.int64), c.data)

    return Contender({"run": lambda: a @ b}, problem.flops, checksum)


def torch_blocks(problem: Problem, threads: int) -> Contender:
    """Dictionaries of blocks, C[i, j].addmm_(A[i, k], B[k, j])."""
    torch = _torch(threads)
    a_blocks = {key: torch.from_numpy(block) for key, block in blocks(problem.a).items()}
    b_blocks = {key: torch.from_numpy(block) for key, block in blocks(problem.b).items()}

    def multiply() -> Grid:
        rows, result = by_row(b_blocks), Grid()
        for (i, k), a in a_blocks.items():
            for j, b in rows.get(k, ()):
                c = result.get((i, j))
                if c is None:
                    result[i, j] = a @ b
                else:
                    c.addmm_(a, b)
        return result

    def checksum(c: Grid) -> float:
        return checksum_blocks(problem, ((key, block.numpy()) for key, block in c.items()))

    return Contender({"run": multiply}, problem.flops, checksum)


def torch_batched(problem: Problem, threads: int) -> Contender:
    """Equal blocks: gather the pairs that meet, torch.bmm, index_add_."""
    torch, size, columns = _torch(threads), equal_block_size(problem), len(problem.n)
    a, b = stacked(problem.a), stacked(problem.b)
    a_data, b_data = torch.from_numpy(a.data), torch.from_numpy(b.data)

    def multiply() -> tuple[Pairs, Any]:
        pairs = meeting_pairs(a, b, columns)
        counts = np.diff(np.append(pairs.first, len(pairs.a)))
        target = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
        left, right = torch.from_numpy(pairs.a), torch.from_numpy(pairs.b)
        out = torch.zeros((len(counts), size, size), dtype=torch.float64)
        for pair, block in chunks(pairs, size):
            products = torch.bmm(a_data[left[pair]], b_data[right[pair]])
            out[block].index_add_(0, target[pair] - block.start, products)
        return pairs, out

    return Contender({"run": multiply}, problem.flops, lambda c: _stack_sum(problem, c[0], c[1].numpy()))


def _stack_sum(problem: Problem, pairs: Pairs, data: Floats) -> float:
    rows, cols = np.divmod(pairs.target, len(problem.n))
    return checksum_stack(problem, rows, cols, data)


def _torch(threads: int) -> ModuleType:
    try:
        torch = import_module("torch")
    except ImportError:
        raise NotInstalled("torch is not installed") from None
    torch.set_num_threads(threads)
    return torch
