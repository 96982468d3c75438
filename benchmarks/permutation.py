"""Permutations of four-index tensors (the papers' SORT4) against plain copies of the same bytes.

    python benchmarks/permutation.py [--extent 80] [--tile 20] [--density 0.5] [--threads 2] [--reps 5]

A permuted tensor is new memory, so the copy it is compared with goes to new memory too, on as many threads.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise, permutations

import numpy as np

import tilewise as tw
from problems import Floats
from tables import markdown
from timing import Spread, interleaved, spread

COPY = "copy"


def threaded_copy(source: Floats, pool: ThreadPoolExecutor, parts: int) -> Floats:
    """Copy a flat array into new memory, one piece per thread."""
    target = np.empty_like(source)
    edges = np.linspace(0, source.size, parts + 1).astype(int).tolist()
    pieces = [slice(low, high) for low, high in pairwise(edges)]
    list(pool.map(lambda piece: np.copyto(target[piece], source[piece]), pieces))
    return target


def measure(args: argparse.Namespace) -> tuple[int, dict[str, Spread]]:
    """Bytes of the tensor, and times of all permutations and of the copy."""
    spaces = [tw.Space.uniform(args.extent, tile=args.tile, name=name) for name in "pqrs"]
    with ThreadPoolExecutor(args.threads) as pool, tw.engine("threads", workers=args.threads):
        tensor = tw.random(spaces, density=args.density, seed=0)
        source = np.ones(tensor.nbytes // 8)
        actions: dict[str, Callable[[], object]] = {COPY: partial(threaded_copy, source, pool, args.threads)}
        for axes in list(permutations(range(4)))[1:]:  # the first changes nothing
            actions["".join(map(str, axes))] = partial(tensor.transpose, *axes)
        return tensor.nbytes, interleaved(actions, args.reps)


def main() -> None:
    """Print the rate of each permutation and its ratio to the copy."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--extent", type=int, default=80, help="elements per mode")
    parser.add_argument("--tile", type=int, default=20, help="elements per tile at most")
    parser.add_argument("--density", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=5)
    args = parser.parse_args()
    nbytes, times = measure(args)
    # Each byte is read and written once.
    rates = {name: values.per(2e-9 * nbytes) for name, values in times.items()}
    rows = [
        (name, f"{r.median:.2f}", f"{r.low:.2f} to {r.high:.2f}", f"{r.median / rates[COPY].median:.2f}")
        for name, r in rates.items()
    ]
    print(f"{nbytes * 1e-6:.1f} MB, {args.threads} threads\n")
    print(markdown(("axes", "GB/s", "range", "of copy"), rows))
    ratios = spread([rates[name].median / rates[COPY].median for name in rates if name != COPY])
    print(f"\nOf copy speed: median {ratios.median:.2f}, worst {ratios.low:.2f}, best {ratios.high:.2f}")


if __name__ == "__main__":
    main()
