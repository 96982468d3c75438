"""What crosses between two nodes, by formula, by plan and by the counters of the network interface.

    python benchmarks/nodes.py [--gflop 40] [--tile 128] [--only square,large_k] [--limit 600]

Two network namespaces on this computer, joined by a pair of virtual interfaces, stand for two nodes with two ranks
each: MPICH finds them by itself, and has no way between them but the interfaces. The products are dense, with the
edge ratios of Irmler et al. (2023, 3.2) and one more, on three grids: 2 x 2 with ranks numbered row by row, the same
with nodes laid over it so that least crosses, and the grid that `tw.plan` chooses. V is the formula's volume. Times say
nothing here.

Needs Linux, root, `ip`, `unshare`, `mount` and MPICH; changes nothing outside of the namespaces, which it removes at
the end, whatever that is.

Exits with 1 if a product is wrong, an interface saw more than a tenth above the plan, or a node-aware grid moved more
than the other; with 2 if the ranks fail; with 77 where namespaces are not allowed.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from namespaces import NotAllowed, two_nodes
from node_products import MAPPINGS, RANKS_PER_NODE, ROUNDING, Crossed, add_options
from tables import markdown

PRODUCTS = Path(__file__).with_name("node_products.py")
MISSED, FAILED, NOT_ALLOWED, INTERRUPTED = 1, 2, 77, 130
MOST_OVERHEAD = 0.1
HEADER = (
    "product",
    "M x N x K",
    "grid",
    "ranks",
    "on a node",
    "V MB",
    "planned MB",
    "planned / V",
    "interface MB",
    "interface / planned",
    "row by row / this",
)


def measure(arguments: Sequence[str], limit_seconds: float) -> list[Crossed]:
    """Run the products on two nodes."""
    with tempfile.TemporaryDirectory(prefix="tilewise_crossed_") as folder, two_nodes() as nodes:
        file = Path(folder) / "found.json"
        code = nodes.run([sys.executable, str(PRODUCTS), str(file), *arguments], RANKS_PER_NODE, limit_seconds)
        if code or not file.exists():
            raise SystemExit(FAILED)
        return [Crossed(**{**each, "extents": tuple(each["extents"])}) for each in json.loads(file.read_text())]


def default_of(crossed: Crossed, found: Sequence[Crossed]) -> Crossed:
    """The same product with ranks numbered row by row."""
    return next(each for each in found if each.shape == crossed.shape and each.mapping == MAPPINGS[0])


def row(crossed: Crossed, default: Crossed) -> tuple[str, ...]:
    """One line of the table."""
    return (
        crossed.shape.replace("_", " "),
        " x ".join(map(str, crossed.extents)),
        crossed.mapping,
        crossed.grid,
        crossed.inside,
        f"{crossed.formula_bytes * 1e-6:.1f}",
        f"{crossed.planned_bytes * 1e-6:.1f}",
        f"{crossed.planned_bytes / crossed.formula_bytes:.2f}",
        f"{crossed.interface_bytes * 1e-6:.1f}",
        f"{crossed.interface_bytes / crossed.planned_bytes:.4f}",
        f"{default.interface_bytes / crossed.interface_bytes:.2f}",
    )


def complaints(crossed: Crossed, default: Crossed) -> Iterator[str]:
    """What is not as it should be."""
    where = f"{crossed.shape} on {crossed.grid}, {crossed.mapping}"
    if not crossed.error < ROUNDING:
        yield f"{where}: the product is wrong, relative error {crossed.error:.1e}"
    if crossed.counted_bytes != crossed.planned_bytes:
        yield f"{where}: the engine counted {crossed.counted_bytes} bytes, planned were {crossed.planned_bytes}"
    if abs(crossed.interface_bytes / crossed.planned_bytes - 1) > MOST_OVERHEAD:
        yield f"{where}: the interfaces saw {crossed.interface_bytes} bytes, planned were {crossed.planned_bytes}"
    if crossed.planned_bytes > default.planned_bytes:
        yield f"{where}: {crossed.planned_bytes} bytes are planned, row by row {default.planned_bytes}"


def verdict(text: str, wrong: Sequence[str]) -> str:
    """Whether something is so."""
    return "\n".join([f"{text}: {'NOT MET' if wrong else 'met'}", *(f"- {each}" for each in wrong)])


def main() -> int:
    """Measure and print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    add_options(parser)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which the ranks are ended")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # leaves through what removes the nodes
    chosen = ["--gflop", str(args.gflop), "--tile", str(args.tile), "--only", ",".join(args.only)]
    try:
        found = measure(chosen, args.limit)
    except NotAllowed as why:
        print(f"Two nodes cannot be made here: {why}.", file=sys.stderr)
        return NOT_ALLOWED
    except KeyboardInterrupt:
        return INTERRUPTED
    except subprocess.TimeoutExpired:
        print(f"The ranks took more than {args.limit:g} s.", file=sys.stderr)
        return FAILED
    pairs = [(each, default_of(each, found)) for each in found]
    print(markdown(HEADER, [row(*pair) for pair in pairs]))
    wrong = [text for pair in pairs for text in complaints(*pair)]
    target = "Products right, interface within 10 % of the plan, node-aware grids not above row by row"
    print("\n" + verdict(target, wrong))
    return MISSED if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
