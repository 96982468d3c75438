"""The near end of a worker's pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, cast

WORKER = Path(__file__).with_name("worker.py")


class WorkerFailed(Exception):
    """A worker ended before it answered; the text is the end of its error output."""


class Worker:
    """One contender in a process of its own; its error output goes to a log beside the problem's file."""

    def __init__(self, name: str, problem: Path, threads: int, environment: Mapping[str, str]) -> None:
        self.name = name
        self._log = problem.with_suffix(f".{name}.log")
        with self._log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(WORKER), name, str(problem), "--threads", str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **environment},
            )
        try:
            first = self._answer()
        except WorkerFailed:
            self.close()
            raise
        self.skipped = cast(str, first.get("skipped", ""))
        self.actions = cast("list[str]", first.get("ready", []))
        self.flops = cast(int, first.get("flops", 0))

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def seconds(self, action: str) -> float:
        """Run an action once and return its wall time."""
        return float(self._ask(action)["seconds"])

    def checksum(self) -> float | None:
        """Checksum of the last action's result; None where it was no matrix."""
        return cast("float | None", self._ask("checksum")["checksum"])

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # the process may have ended before it read its last request
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, request: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        return cast("dict[str, Any]", json.loads(line))

    def _failure(self) -> WorkerFailed:
        code = self._process.wait()
        lines = self._log.read_text().strip().splitlines() or [f"ended with code {code} without a message"]
        return WorkerFailed(f"{self.name}: {lines[-1]}")
