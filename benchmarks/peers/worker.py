"""Host one contender in a process of its own and time it on request.

    python benchmarks/peers/worker.py CONTENDER PROBLEM.bspmm --threads 2

Says ``{"ready": [actions], "flops": n}`` once the operands are stored, or ``{"skipped": why}``. Then it
reads lines: an action's name runs it once and answers ``{"seconds": s}``; ``checksum`` answers
``{"checksum": x}`` of the last result. The process ends with its input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers.contender import Contender, DoesNotApply, NotInstalled
from problems import Problem, load

MODULES: Mapping[str, str] = {
    "tilewise": "peers.ours",
    "dense_openblas": "peers.dense",
    "dense_mkl": "peers.dense",
    "numpy_blocks": "peers.array_libraries",
    "numpy_batched": "peers.array_libraries",
    "scipy_bsr": "peers.array_libraries",
    "torch_blocks": "peers.array_libraries",
    "torch_batched": "peers.array_libraries",
    "mkl_bsr": "peers.mkl",
}


def build(name: str, problem: Problem, threads: int) -> Contender:
    """Store the operands of a contender; only its own module is imported."""
    make: Callable[[Problem, int], Contender] = getattr(import_module(MODULES[name]), name)
    return make(problem, threads)


def serve(contender: Contender, requests: TextIO, answer: Callable[[Mapping[str, Any]], None]) -> None:
    """Answer requests until the input ends."""
    last: Any = None
    for line in requests:
        request = line.strip()
        if request == "checksum":
            answer({"checksum": contender.checksum(last)})
            continue
        last = None  # the former result is freed before the clock starts
        start = time.perf_counter()
        last = contender.actions[request]()
        answer({"seconds": time.perf_counter() - start})


def main() -> None:
    """Store the operands, then serve."""
    parser = argparse.ArgumentParser(description="Host one contender and time it on request.")
    parser.add_argument("contender", choices=sorted(MODULES))
    parser.add_argument("problem", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    # Libraries may print: the answers keep the original output, everything else goes to stderr.
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(message: Mapping[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")

    try:
        contender = build(args.contender, load(args.problem), args.threads)
    except (DoesNotApply, NotInstalled) as why:
        answer({"skipped": str(why)})
        return
    with contender.context:
        answer({"ready": list(contender.actions), "flops": contender.flops})
        serve(contender, sys.stdin, answer)


if __name__ == "__main__":
    main()
