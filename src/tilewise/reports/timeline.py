"""What each rank did when, as a file that Perfetto and Chrome's tracing page open."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from tilewise.errors import InputError
from tilewise.plans import Plan, Program
from tilewise.tensors.drafts import draft, parse_path
from tilewise.trace import Trace


def save_timeline(plan: Plan | Program, path: str | os.PathLike[str]) -> None:
    """Write the latest run of a plan on several ranks as Chrome's trace JSON.

    Open the file at https://ui.perfetto.dev: one row for each rank, with the time in which it computed, waited for
    blocks, and waited for its neighbours.

    Parameters
    ----------
    plan : Plan or Program
        What was run.
    path : str or Path
        The file; it appears whole or not at all.
    """
    if not isinstance(plan, (Plan, Program)):
        raise InputError(
            f"save_timeline was given a {type(plan).__name__}. Expected what tw.plan returns. Pass the plan that ran."
        )
    steps = [plan] if isinstance(plan, Plan) else [step.plan for step in plan.steps]
    traces = [step.runs[-1] for step in steps if step.runs]
    if not any(trace.ranks for trace in traces):
        raise InputError(
            f"{plan.label} was not run on several ranks. Expected a plan that was, under mpiexec. Run it with "
            "tw.execute first."
        )
    text = json.dumps({"traceEvents": list(_events(traces)), "displayTimeUnit": "ms"})
    with draft(parse_path(path)) as handle, open(handle, "wb", closefd=False) as file:
        file.write(text.encode())


def _events(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    for rank in range(max(len(trace.ranks) for trace in traces)):
        yield {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}}
    for trace in traces:
        for number, rank_trace in enumerate(trace.ranks):
            figures = {
                "step": trace.label,
                "flops": rank_trace.flops,
                "bytes from other nodes": rank_trace.between_bytes,
                "bytes inside the node": rank_trace.inside_bytes,
            }
            for what, begin, end in rank_trace.spans:
                yield {
                    "name": what,
                    "cat": trace.label,
                    "ph": "X",
                    "pid": number,
                    "tid": 0,
                    "ts": begin * 1e6,
                    "dur": (end - begin) * 1e6,
                    "args": figures,
                }
