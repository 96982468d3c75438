"""Block-sparse products C = A B that every contender of the benchmarks multiplies.

    python benchmarks/problems.py [FOLDER] [--only REGEX] [--scale 1.0]

Describes the problems, and writes their files where a folder is named.

A problem is two patterns and a seed. Element (i, j) of A and of B, and the weight of element (i, j) of C
in the checksum, are hashes of the position, so programs in any language multiply the same matrices and
their checksums agree without a file of elements.

File layout, little endian: 8 bytes ``BSPMM001``; six int64: number of row, inner and column tiles, blocks
of A, blocks of B, seed; then int32 arrays: row, inner and column tile sizes, A rows, A columns, B rows,
B columns (block indices from 0).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
Block = tuple[tuple[int, ...], Floats]

MAGIC = b"BSPMM001"
A_STREAM, B_STREAM, WEIGHT_STREAM = 1, 2, 3
UNIFORM_GFLOP = {5: 2.0, 13: 4.0, 23: 8.0, 32: 10.0, 64: 16.0}
STACK_STEP = 4096


@dataclass(frozen=True, slots=True)
class Operand:
    """One block-sparse matrix: its tiles, its blocks and the stream of its elements."""

    row_sizes: Ints
    """Elements per tile row."""
    col_sizes: Ints
    """Elements per tile column."""
    rows: Ints
    """Tile row of each block."""
    cols: Ints
    """Tile column of each block."""
    stream: np.uint64
    """What tells this matrix's elements from another's."""

    @property
    def uniform(self) -> int | None:
        """The one block size where all blocks are square and equal."""
        sizes = np.unique(np.concatenate([self.row_sizes, self.col_sizes]))
        return int(sizes[0]) if len(sizes) == 1 else None

    @property
    def density(self) -> float:
        """Share of the elements that lie in a block."""
        inside = float((self.row_sizes[self.rows] * self.col_sizes[self.cols]).sum())
        return inside / (float(self.row_sizes.sum()) * float(self.col_sizes.sum()))


@dataclass(frozen=True, slots=True)
class Problem:
    """One product C = A B of block-sparse matrices, without elements."""

    name: str
    """Kind, block sizes and density; also the file's name."""
    m: Ints
    """Row tile sizes of A and C."""
    k: Ints
    """Column tile sizes of A, row tile sizes of B."""
    n: Ints
    """Column tile sizes of B and C."""
    a_row: Ints
    """Tile row of each block of A."""
    a_col: Ints
    """Tile column of each block of A."""
    b_row: Ints
    """Tile row of each block of B."""
    b_col: Ints
    """Tile column of each block of B."""
    seed: int
    """Seed of the patterns and of the elements."""

    @property
    def a(self) -> Operand:
        """The left operand."""
        return Operand(self.m, self.k, self.a_row, self.a_col, stream_of(self.seed, A_STREAM))

    @property
    def b(self) -> Operand:
        """The right operand."""
        return Operand(self.k, self.n, self.b_row, self.b_col, stream_of(self.seed, B_STREAM))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, inner extent and columns, in elements."""
        return int(self.m.sum()), int(self.k.sum()), int(self.n.sum())

    @property
    def flops(self) -> int:
        """2 m k n summed over the pairs of blocks that meet."""
        left = np.bincount(self.a_col, self.m[self.a_row], len(self.k))
        right = np.bincount(self.b_row, self.n[self.b_col], len(self.k))
        return round(2 * float((left * right * self.k).sum()))

    @property
    def products(self) -> int:
        """How many pairs of blocks meet."""
        left = np.bincount(self.a_col, minlength=len(self.k))
        right = np.bincount(self.b_row, minlength=len(self.k))
        return int((left * right).sum())

    @property
    def uniform(self) -> int | None:
        """The one block size where all blocks are square and equal."""
        sizes = np.unique(np.concatenate([self.m, self.k, self.n]))
        return int(sizes[0]) if len(sizes) == 1 else None


# Elements ----------------------------------------------------------------------------------------------


def stream_of(seed: int, which: int) -> np.uint64:
    """What is added to the hashed position, so that A, B and the weights differ."""
    return np.uint64((seed * 0xD1342543DE82EF95 + which * 0x632BE59BD9B4E019) & (2**64 - 1))


def element(stream: np.uint64, position: Words) -> Floats:
    """Doubles in [-0.5, 0.5) from positions, by the finaliser of splitmix64."""
    with np.errstate(over="ignore"):
        z = position * np.uint64(0x9E3779B97F4A7C15)
        z += stream
        z ^= z >> np.uint64(30)
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(27)
        z *= np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        z >>= np.uint64(11)
    out = z.astype(np.float64)
    out *= 2.0**-53
    out -= 0.5
    return out


def offsets(sizes: Ints) -> Ints:
    """First element of each tile, and the extent."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def rectangle(stream: np.uint64, rows: range, cols: range, width: int) -> Floats:
    """Elements of a rectangle of a matrix that is `width` columns wide."""
    first = np.arange(rows.start, rows.stop, dtype=np.uint64) * np.uint64(width)
    return element(stream, first[:, None] + np.arange(cols.start, cols.stop, dtype=np.uint64)[None, :])


def each_block(operand: Operand) -> Iterator[Block]:
    """The blocks of a matrix, one after the other, with their (tile row, tile column)."""
    if operand.uniform is not None:
        for tile_rows, tile_cols, data in each_stack(operand, operand.uniform):
            yield from zip(zip(tile_rows.tolist(), tile_cols.tolist(), strict=True), data, strict=True)
        return
    row_at, col_at = offsets(operand.row_sizes).tolist(), offsets(operand.col_sizes).tolist()
    for i, j in zip(operand.rows.tolist(), operand.cols.tolist(), strict=True):
        rows, cols = range(row_at[i], row_at[i + 1]), range(col_at[j], col_at[j + 1])
        yield (i, j), rectangle(operand.stream, rows, cols, col_at[-1])


def blocks(operand: Operand) -> dict[tuple[int, ...], Floats]:
    """All blocks of a matrix by their (tile row, tile column)."""
    return dict(each_block(operand))


def stack_positions(rows: Ints, cols: Ints, size: int, width: int) -> Words:
    """Positions of the elements of square blocks, shape (blocks, size, size)."""
    inside = np.arange(size, dtype=np.uint64)
    row = rows[:, None].astype(np.uint64) * np.uint64(size) + inside
    col = cols[:, None].astype(np.uint64) * np.uint64(size) + inside
    return np.asarray((row * np.uint64(width))[:, :, None] + col[:, None, :], dtype=np.uint64)


def each_stack(operand: Operand, size: int) -> Iterator[tuple[Ints, Ints, Floats]]:
    """Tile rows, tile columns and elements of some thousand equal square blocks at a time."""
    width = int(operand.col_sizes.sum())
    for start in range(0, len(operand.rows), STACK_STEP):
        rows, cols = (values[start : start + STACK_STEP] for values in (operand.rows, operand.cols))
        yield rows, cols, element(operand.stream, stack_positions(rows, cols, size, width))


def as_stack(result: Iterable[Block]) -> tuple[Ints, Ints, Floats]:
    """Tile rows, tile columns and elements of equal blocks as arrays."""
    index, data = zip(*result, strict=True)
    rows, cols = np.array(index).T
    return rows, cols, np.stack(data)


# Checksums ---------------------------------------------------------------------------------------------


def checksum_blocks(problem: Problem, result: Iterable[Block]) -> float:
    """Sum of C times the weights over (index, block) pairs."""
    if problem.uniform is not None:
        return checksum_stack(problem, *as_stack(result))
    row_at, col_at = offsets(problem.m).tolist(), offsets(problem.n).tolist()
    stream, total = stream_of(problem.seed, WEIGHT_STREAM), 0.0
    for (i, j), block in result:
        rows, cols = range(row_at[i], row_at[i + 1]), range(col_at[j], col_at[j + 1])
        total += float(np.vdot(block, rectangle(stream, rows, cols, col_at[-1])))
    return total


def checksum_stack(problem: Problem, rows: Ints, cols: Ints, data: Floats) -> float:
    """Sum of C times the weights where C is a stack of equal square blocks."""
    stream, width, size = stream_of(problem.seed, WEIGHT_STREAM), int(problem.n.sum()), data.shape[1]
    total = 0.0
    for start in range(0, len(rows), STACK_STEP):
        part = slice(start, start + STACK_STEP)
        weights = element(stream, stack_positions(rows[part], cols[part], size, width))
        total += float(np.einsum("xij,xij->", data[part], weights))
    return total


def projection_error(problem: Problem, result: Iterable[Block]) -> float:
    """Relative difference of x'C y and (x'A)(B y) for fixed random x and y.

    Checks a product against its operands at the cost of reading them, without a second program.
    """
    rng = np.random.default_rng(problem.seed)
    m, k, n = problem.shape
    x, y = rng.standard_normal(m), rng.standard_normal(n)
    left, right = np.zeros(k), np.zeros(k)
    row_at, mid_at, col_at = (offsets(sizes).tolist() for sizes in (problem.m, problem.k, problem.n))
    for (i, j), block in each_block(problem.a):
        left[mid_at[j] : mid_at[j + 1]] += x[row_at[i] : row_at[i + 1]] @ block
    for (i, j), block in each_block(problem.b):
        right[mid_at[i] : mid_at[i + 1]] += block @ y[col_at[j] : col_at[j + 1]]
    got = 0.0
    for (i, j), block in result:
        got += float(x[row_at[i] : row_at[i + 1]] @ block @ y[col_at[j] : col_at[j + 1]])
    return abs(got - float(left @ right)) / float(np.linalg.norm(left) * np.linalg.norm(right))


# Files -------------------------------------------------------------------------------------------------


def save(problem: Problem, folder: Path) -> Path:
    """Write the problem's file into `folder` and return its path."""
    p = problem
    head = np.array([len(p.m), len(p.k), len(p.n), len(p.a_row), len(p.b_row), p.seed], "<i8")
    path = folder / f"{p.name}.bspmm"
    with path.open("wb") as file:
        file.write(MAGIC + head.tobytes())
        for values in (p.m, p.k, p.n, p.a_row, p.a_col, p.b_row, p.b_col):
            file.write(values.astype("<i4").tobytes())
    return path


def load(path: Path) -> Problem:
    """Read a problem's file."""
    raw = path.read_bytes()
    if raw[:8] != MAGIC:
        raise SystemExit(f"{path} does not begin with {MAGIC!r}: write problem files with problems.py")
    rows, inner, cols, a_count, b_count, seed = np.frombuffer(raw, "<i8", 6, 8).tolist()
    counts = [rows, inner, cols, a_count, a_count, b_count, b_count]
    flat = np.frombuffer(raw, "<i4", sum(counts), 56).astype(np.int64)
    m, k, n, a_row, a_col, b_row, b_col = np.split(flat, np.cumsum(counts)[:-1])
    return Problem(path.stem, m, k, n, a_row, a_col, b_row, b_col, seed)


# Generators --------------------------------------------------------------------------------------------


def uniform_problem(size: int, density: float, gflop: float, seed: int, largest: int = 12800) -> Problem:
    """Equal square blocks chosen at random; the extent follows from the work asked for."""
    extent = (gflop * 1e9 / (2 * density**2)) ** (1 / 3)
    tiles = max(4, round(min(extent, largest) / size))
    rng = np.random.default_rng(seed)
    keep = max(1, round(density * tiles * tiles))

    def pattern() -> tuple[Ints, Ints]:
        flat = np.sort(rng.choice(tiles * tiles, keep, replace=False))
        return flat // tiles, flat % tiles

    sizes = np.full(tiles, size)
    return Problem(f"uniform_b{size:02d}_d{density:g}", sizes, sizes, sizes, *pattern(), *pattern(), seed=seed)


def tiling(total: int, low: int, high: int, rng: np.random.Generator) -> Ints:
    """Sizes uniform in [low, high] that cover `total`; the last ones take the rest."""
    sizes, left = [], total
    while left > 0:
        size = int(rng.integers(low, high + 1))
        if size > left or left - size < low:
            size = left if left <= high else left // 2
        sizes.append(size)
        left -= size
    return np.array(sizes)


def thinned(rows: Ints, cols: Ints, density: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Remove random tiles until one more would take the element density under the target.

    The synthetic set of Herault et al. 2020, section 5.1.
    """
    area = (rows[:, None] * cols[None, :]).ravel()
    total = left = int(area.sum())
    alive = np.ones(area.size, bool)
    for tile in rng.permutation(area.size) if density < 1.0 else ():
        if left - area[tile] < density * total:
            break
        left -= int(area[tile])
        alive[tile] = False
    flat = np.flatnonzero(alive)
    return flat // len(cols), flat % len(cols)


def irregular_problem(bounds: tuple[int, int], rows: int, inner: int, density: float, seed: int) -> Problem:
    """Tile sizes uniform in `bounds`, a short A and a square B (Herault et al. 2020)."""
    low, high = bounds
    sizes = np.random.default_rng(seed)  # one tiling for all densities
    m, k, n = (tiling(extent, low, high, sizes) for extent in (rows, inner, inner))
    rng = np.random.default_rng([seed, int(density * 1000)])
    a, b = thinned(m, k, density, rng), thinned(k, n, density, rng)
    return Problem(f"irregular_{low}-{high}_d{density:g}", m, k, n, *a, *b, seed=seed)


def banded_problem(name: str, tiles: int, length: float, cut: float, seed: int) -> Problem:
    """A linear molecule in an atomic-orbital basis, 20 to 60 functions per tile.

    Block (i, j) stays where exp(-|i-j| / length) times a lognormal scatter exceeds `cut`.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(20, 61, tiles)
    distance = np.abs(np.subtract.outer(np.arange(tiles), np.arange(tiles)))

    def pattern() -> tuple[Ints, Ints]:
        scatter = np.triu(rng.lognormal(0.0, 1.0, (tiles, tiles)))
        scatter = scatter + np.triu(scatter, 1).T
        row, col = np.nonzero((np.exp(-distance / length) * scatter > cut) | (distance == 0))
        return row, col

    return Problem(name, sizes, sizes, sizes, *pattern(), *pattern(), seed=seed)


def all_problems(scale: float = 1.0) -> Iterator[Problem]:
    """The whole set, small blocks first; `scale` multiplies the work."""
    for size, gflop in UNIFORM_GFLOP.items():
        for density in (0.05, 0.2, 1.0):
            yield uniform_problem(size, density, gflop * scale, 1000 + size)
    for low, high, rows, inner in ((64, 256, 2048, 8192), (512, 2048, 4096, 12288)):
        m, k = (max(high, int(extent * scale ** (1 / 3))) for extent in (rows, inner))
        for density in (0.1, 0.25, 0.5, 1.0):
            yield irregular_problem((low, high), m, k, density, 2000 + low)
    yield banded_problem("banded_tight_20-60", max(8, int(400 * scale)), 2.0, 1e-2, 3001)
    yield banded_problem("banded_wide_20-60", max(8, int(240 * scale)), 4.0, 1e-2, 3002)


def describe(problem: Problem) -> str:
    """One line with extents, tiles, densities and work."""
    m, k, n = problem.shape
    return (
        f"{problem.name:26s} {m:6d} x {k:6d} x {n:6d}  tiles {len(problem.m):4d} x {len(problem.k):4d} x "
        f"{len(problem.n):4d}  density {problem.a.density:.3f} {problem.b.density:.3f}  "
        f"products {problem.products:9d}  {problem.flops * 1e-9:8.2f} GFLOP"
    )


def main() -> None:
    """Describe the problems and write their files where asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("folder", nargs="?", type=Path, help="where to write the files")
    parser.add_argument("--only", default="", help="regular expression on problem names")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the work of each problem")
    args = parser.parse_args()
    if args.folder:
        args.folder.mkdir(parents=True, exist_ok=True)
    for problem in all_problems(args.scale):
        if re.search(args.only, problem.name):
            print(describe(problem))
            if args.folder:
                save(problem, args.folder)


if __name__ == "__main__":
    main()
