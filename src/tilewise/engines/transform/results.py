"""Where the result of a four-index transform goes: to memory, or part by part to a file."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from tilewise.engines.accounts import Account
from tilewise.engines.kernels.pairs import Outcomes
from tilewise.engines.threads import ThreadsEngine
from tilewise.engines.transform.passes import Passes
from tilewise.engines.transform.stores import Readers, allocate
from tilewise.engines.transform.team import Team
from tilewise.patterns import Pattern
from tilewise.plans.transform import Problem
from tilewise.tensors import BlockTensor
from tilewise.tensors.files import ScratchFile
from tilewise.tensors.storage import checked_norms, frobenius_norm, upper_norms

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

KIND = np.dtype(np.float64)
"""Elements of the result."""


def write_block(file: ScratchFile, number: int, block: Floats, norm: float) -> int:
    """Write a block to scratch; return its bytes."""
    file.write(number, block, norm)
    return block.nbytes


class Result:
    """C in memory."""

    written_bytes = 0

    def __init__(self, problem: Problem, team: Team, account: Account) -> None:
        self.problem, self.arena = problem, team.new_result(account)
        self.squares = np.zeros(problem.result.nnz_blocks)

    def outcomes(self, passes: Passes, pair: int, beta: float, *, final: bool) -> Outcomes:
        """Where the blocks of a leading pair go."""
        starts = self.arena.offsets[self.problem.blocks_of(pair)]
        return passes.result_outcomes(pair, self.arena.data, starts, beta, final=final)

    def pieces(self, pair: int) -> list[Floats]:
        """The blocks of a leading pair."""
        blocks = self.problem.blocks_of(pair)
        begins, sizes = self.arena.offsets[blocks], self.problem.result.block_sizes[blocks]
        places = zip(begins.tolist(), (begins + sizes).tolist(), strict=True)
        return [self.arena.data[begin:end] for begin, end in places]

    def everything(self) -> list[Floats]:
        """All blocks."""
        return [self.arena.data]

    def note(self, pair: int, squares: Floats, *, final: bool) -> None:
        """Take notice of the sums of squares of blocks that are done."""
        if final:
            self.squares[self.problem.blocks_of(pair)] = squares

    def tensor(self, team: Team, host: ThreadsEngine) -> BlockTensor:
        """The result with its norms."""
        pattern, own = self.problem.result, np.zeros(self.problem.result.nnz_blocks)
        own[self.arena.rows] = checked_norms(self.squares[self.arena.rows], self.arena, self.arena.rows)
        known = Pattern.trusted(pattern.spaces, pattern.index, team.total(own), pattern.symmetry)
        return team.finish(BlockTensor(known, self.arena, host))


class SpilledResult:
    """C in a file, of which the blocks of one leading pair are in memory at a time."""

    def __init__(self, problem: Problem, account: Account, readers: Readers, scratch: str | None) -> None:
        self.problem, self.readers = problem, readers
        self.file = ScratchFile(problem.result, KIND, scratch)
        most = int((problem.first.sizes * problem.partners).max(initial=0))
        self.data = allocate(account, most, "A part of the result")
        self.written_bytes = 0

    def outcomes(self, passes: Passes, pair: int, beta: float, *, final: bool) -> Outcomes:
        """Where the blocks of a leading pair go."""
        return passes.result_outcomes(pair, self.data, self._starts(pair), beta, final=final)

    def pieces(self, pair: int) -> list[Floats]:
        """The blocks of the leading pair that is in memory."""
        return [self.data[: int(self.problem.result.block_sizes[self.problem.blocks_of(pair)].sum())]]

    def everything(self) -> list[Floats]:
        """The blocks in memory: schedules that add to all of C keep it there."""
        return [self.data]

    def _starts(self, pair: int) -> Ints:
        sizes = self.problem.result.block_sizes[self.problem.blocks_of(pair)]
        starts: Ints = np.cumsum(sizes) - sizes
        return starts

    def note(self, pair: int, squares: Floats, *, final: bool) -> None:
        """Write the blocks of a pair."""
        blocks, starts = self.problem.blocks_of(pair), self._starts(pair)
        ends = starts + self.problem.result.block_sizes[blocks]
        parts = [self.data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        norms = upper_norms(np.array([frobenius_norm(part) for part in parts]))
        places = zip(blocks.tolist(), parts, norms.tolist(), strict=True)
        calls = (partial(write_block, self.file, block, part, norm) for block, part, norm in places)
        self.written_bytes += self.readers.run(calls)

    def tensor(self, team: Team, host: ThreadsEngine) -> BlockTensor:
        """The result, which stays in the file."""
        self.data = np.empty(0)
        return team.finish(self.file.tensor(host))
