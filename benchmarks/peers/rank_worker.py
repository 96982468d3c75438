"""Tilewise on several ranks: like `worker.py`, for one contender that is started by mpiexec.

    mpiexec -n 2 python benchmarks/peers/rank_worker.py PROBLEM.bspmm

The first rank answers the same requests, and ``trace``: ``{"trace": [...]}`` has for each rank which shares of the last
``execute`` it computed, fetched and waited. Times are from a barrier to the end of the last rank. Ranks that have
nothing to do sleep, so that other contenders have the cores to themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import tilewise as tw
from peers.ours import PRODUCT, checksum
from problems import Problem, blocks, load
from tilewise.engines.mpi import MpiEngine
from tilewise.plans import Plan
from tilewise.tensors import BlockTensor
from tilewise.trace import Trace

NAP_SECONDS = 1e-3
REQUEST_BYTES = 32
SPANS = ("compute", "fetch", "wait")


class Ranks:
    """The product on the ranks of a job.

    Parameters
    ----------
    engine : MpiEngine
        The engine in use.
    problem : Problem
        The operands, which are stored here.
    """

    def __init__(self, engine: MpiEngine, problem: Problem) -> None:
        m, k, n = (tw.Space(sizes, name=name) for sizes, name in ((problem.m, "m"), (problem.k, "k"), (problem.n, "n")))
        self.everyone, self.problem = engine.world.everyone, problem
        self.a = tw.from_blocks(blocks(problem.a), (m, k))
        self.b = tw.from_blocks(blocks(problem.b), (k, n))
        made = tw.plan(PRODUCT, self.a, self.b)
        assert isinstance(made, Plan)
        self.plan = made
        self.actions = {"execute": self.execute, "einsum": self.einsum}
        self.last: BlockTensor | None = None

    def execute(self) -> BlockTensor:
        """A plan that was made before."""
        return tw.execute(self.plan, self.a, self.b)

    def einsum(self) -> BlockTensor:
        """Planning and running."""
        return tw.einsum(PRODUCT, self.a, self.b)

    def seconds(self, action: str) -> float:
        """Of the slowest rank, all of which begin together."""
        self.last = None  # the former result is freed before the clock starts
        self.everyone.Barrier()
        start = time.perf_counter()
        self.last = self.actions[action]()
        return float(max(self.everyone.allgather(time.perf_counter() - start)))

    def answer(self, request: str) -> Mapping[str, Any]:
        """What a request asks for; all ranks are asked together."""
        if request == "checksum":
            return {"checksum": self._checksum()}
        if request == "trace":
            return {"trace": shares(self.plan.runs[-1])}
        return {"seconds": self.seconds(request)}

    def _checksum(self) -> float | None:
        """On the first rank, which sees all blocks: they lie on one node."""
        return checksum(self.problem, self.last) if self.everyone.rank == 0 else None

    def requests(self) -> Iterator[str]:
        """Lines of the first rank's input, on every rank."""
        text = np.zeros(REQUEST_BYTES, np.uint8)
        while True:
            text[...] = 0
            if self.everyone.rank == 0:
                line = sys.stdin.readline().strip().encode()
                text[: len(line)] = list(line)
            sent = self.everyone.Ibcast(text)
            while not sent.Test():
                time.sleep(NAP_SECONDS)
            request = bytes(text).rstrip(b"\0").decode()
            if not request:
                return
            yield request


def shares(trace: Trace) -> list[list[float]]:
    """For each rank, the shares of the run in which it did each of `SPANS`."""
    return [[rank.seconds(what) / trace.seconds for what in SPANS] for rank in trace.ranks]


def main() -> None:
    """Store the operands, then serve."""
    parser = argparse.ArgumentParser(description="Host tilewise on several ranks and time it on request.")
    parser.add_argument("problem", type=Path)
    args = parser.parse_args()
    # Libraries may print: the answers keep the original output, everything else goes to stderr.
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with tw.engine("mpi", workers=1) as engine:
        assert isinstance(engine, MpiEngine)
        ranks = Ranks(engine, load(args.problem))
        leads = engine.world.rank == 0
        if leads:
            channel.write(json.dumps({"ready": list(ranks.actions), "flops": ranks.problem.flops}) + "\n")
        for request in ranks.requests():
            answer = ranks.answer(request)
            if leads:
                channel.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
