"""What a plan does and costs, as tables: built once, written as plain text or as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from tilewise.machine import Machine
from tilewise.patterns import Pattern
from tilewise.plans import projection
from tilewise.plans.balance import over_mean
from tilewise.plans.levels import Crossing, plan_crossings
from tilewise.plans.work import Product
from tilewise.trace import Level, Trace

if TYPE_CHECKING:
    from tilewise.plans.plan import Plan
    from tilewise.plans.program import Program

KERNELS = (
    ("packed", "register tile on packed panels"),
    ("inplace", "register tile on the large operand where it lies, and the small one packed"),
    ("gemm", "BLAS on blocks where they lie"),
    ("loops", "plain loops on blocks where they lie"),
    ("device", "matrix products on devices, block by block"),
    ("reduction", "permutation and sums, block by block"),
)
"""What the kernels do, in words."""


@dataclass(frozen=True, slots=True)
class Table:
    """A caption, a header and rows; the first column is text."""

    caption: str
    """What the table is about."""
    header: tuple[str, ...]
    """Title of each column."""
    rows: tuple[tuple[str, ...], ...]
    """Cells as text; a row whose first cell is indented belongs to the one above."""
    figures: bool = True
    """Whether the other columns are figures, which stand to the right."""


@dataclass(frozen=True, slots=True)
class Report:
    """The tables that explain one plan or program."""

    title: str
    """One line."""
    tables: tuple[Table, ...]
    """In the order they are read."""
    notes: tuple[str, ...]
    """Remarks under the tables."""


def plan_report(plan: Plan, machine: Machine) -> Report:
    """The tables of one plan."""
    labels, result = _names(plan.label)
    patterns = [operand.pattern for operand in plan.operands]
    tensors = _tensor_table(labels, patterns, result, plan.result, plan.dtype.itemsize)
    trace = plan.runs[-1] if plan.runs else None
    header = ("", "projected") if trace is None else ("", "projected", "measured")
    rows = [*_work_rows(plan, trace), *_memory_rows(plan, trace), *_time_rows(plan, machine, trace)]
    rows += _traffic_rows(plan.on(machine))
    cost = Table("Cost", header, tuple(row[: len(header)] for row in rows))
    levels = (*_sharing_tables(plan), *_level_tables(plan))
    title = f"{plan.label}  ({plan.dtype.name}, {plural_text(plan.workers, 'worker')})"
    notes = (_kernel_note(plan.kernel), *_notes(machine, plan.runs, plan.placement is not None))
    return Report(title, (tensors, cost, *levels), notes)


def program_report(program: Program) -> Report:
    """The tables of a program whose machine is known: its tensors, its steps, and the sums."""
    labels, result = _names(program.label)
    tensors = _tensor_table(labels, program.operands, result, program.result, program.dtype.itemsize)
    runs = [step.plan.runs[-1] for step in program.steps if step.plan.runs]
    done = len(runs) == len(program.steps)
    header = ("step", "blocks", "flops", "GEMM calls", "kernel", "peak memory", "time")
    rows: list[tuple[str, ...]] = []
    for step in program.steps:
        made = step.plan
        cells = (made.label, str(made.result.nnz_blocks), count_text(made.flops), str(made.calls), made.kernel)
        rows.append((*cells, bytes_text(made.peak_bytes), seconds_text(made.seconds)))
        if done:
            rows[-1] += (seconds_text(made.runs[-1].seconds),)
    steps = Table("Steps", (*header, "measured") if done else header, tuple(rows))
    total = Table(
        "All steps", ("", "projected", "measured") if done else ("", "projected"), _totals(program, runs, done)
    )
    title = f"{program.label}  ({program.dtype.name}, {plural_text(program.workers, 'worker')})"
    machine = program.steps[0].plan.machine
    assert machine is not None
    kernels = tuple(_kernel_note(kernel) for kernel in dict.fromkeys(step.plan.kernel for step in program.steps))
    levels = [
        table
        for step in program.steps
        for table in (
            *_sharing_tables(step.plan, f"{step.plan.label}: "),
            *_level_tables(step.plan, f"{step.plan.label}: "),
        )
    ]
    return Report(title, (tensors, steps, total, *levels), (*kernels, *_notes(machine, runs if done else [])))


def _totals(program: Program, runs: list[Trace], done: bool) -> tuple[tuple[str, ...], ...]:
    seconds, measured = program.seconds, sum(trace.seconds for trace in runs)
    rows: list[tuple[str, ...]] = [
        ("flops", count_text(program.flops), count_text(sum(trace.flops for trace in runs))),
        *_screening_rows(program.screened_flops, program.flops, program.tolerance, program.dropped_bound),
        ("block products", str(program.products), ""),
        ("dense products (GEMM calls)", str(program.calls), str(sum(trace.calls for trace in runs))),
        ("tasks", str(program.tasks), str(sum(trace.tasks for trace in runs))),
        ("peak memory", bytes_text(program.peak_bytes), bytes_text(program.measured_bytes if done else 0)),
        ("time", seconds_text(seconds), seconds_text(measured)),
        ("rate", rate_text(program.flops, seconds), rate_text(sum(trace.flops for trace in runs), measured)),
        *_traffic_rows(program),
    ]
    return tuple(row if done else row[:2] for row in rows)


def _names(label: str) -> tuple[list[str], str]:
    operands, _, result = label.partition("->")
    return operands.split(","), result


def _tensor_table(
    labels: Sequence[str], patterns: Sequence[Pattern], result: str, made: Pattern, itemsize: int
) -> Table:
    rows = [_tensor_row(label or "scalar", p, itemsize) for label, p in zip(labels, patterns, strict=True)]
    rows.append(_tensor_row(f"-> {result or 'scalar'}", made, itemsize))
    return Table("Tensors", ("", "shape", "tiles", "blocks", "density", "size"), tuple(rows))


def _tensor_row(label: str, pattern: Pattern, itemsize: int) -> tuple[str, ...]:
    shape = " x ".join(map(str, pattern.shape)) or "1"
    tiles = " x ".join(map(str, pattern.ntiles)) or "1"
    size = bytes_text(pattern.nnz_elements * itemsize)
    return (label, shape, tiles, str(pattern.nnz_blocks), percent_text(pattern.density), size)


def _work_rows(plan: Plan, trace: Trace | None) -> list[tuple[str, str, str]]:
    rows = [("flops", count_text(plan.flops), "" if trace is None else count_text(trace.flops))]
    rows += _screening_rows(plan.screened_flops, plan.flops, plan.tolerance, plan.dropped_bound)
    is_product = isinstance(plan.work, Product)
    rows.append(("block products" if is_product else "blocks read", str(plan.products), ""))
    # Phases are worked out one by one when they run, and merge their blocks anew.
    calls, tasks = ("", "") if plan.phases is not None and len(plan.phases.sequence) > 1 else (plan.calls, plan.tasks)
    if is_product:
        rows.append(("dense products (GEMM calls)", str(calls), "" if trace is None else str(trace.calls)))
    rows.append(("tasks", str(tasks), "" if trace is None else str(trace.tasks)))
    rows.append(("kernel", plan.kernel, "" if trace is None else trace.library))
    return rows


def _screening_rows(saved: int, flops: int, tolerance: float | None, dropped: float) -> list[tuple[str, str, str]]:
    if tolerance is None:
        return []
    share = saved / (saved + flops) if saved else 0.0
    return [
        ("  saved by screening", f"{count_text(saved)} ({percent_text(share)})", ""),
        ("  error bound of what is dropped", f"{dropped:.2e} of {tolerance:.2e} allowed", ""),
    ]


def _memory_rows(plan: Plan, trace: Trace | None) -> list[tuple[str, str, str]]:
    text = "peak memory" if plan.sharing is None else "peak memory of a rank"
    rows = [(text, bytes_text(plan.peak_bytes), "" if trace is None else bytes_text(trace.buffer_bytes))]
    if plan.sharing is not None:
        return rows
    rows.append(("  result", bytes_text(plan.result_bytes), ""))
    if plan.packed_bytes or plan.worker_bytes:
        partial = isinstance(plan.work, Product) and plan.work.cells.pieces > 1
        held = "packed operand, partial results" if partial else "packed operand"
        rows.append((f"  {held}", bytes_text(plan.packed_bytes), ""))
    if plan.worker_bytes:
        rows.append(("  buffers of workers", f"{plan.workers} x {bytes_text(plan.worker_bytes)}", ""))
    return rows


def _time_rows(plan: Plan, machine: Machine, trace: Trace | None) -> list[tuple[str, str, str]]:
    seconds = plan.on(machine).seconds
    measured = "" if trace is None else seconds_text(trace.seconds)
    rows = [("time", seconds_text(seconds), measured)]
    if plan.flops:
        rate = "" if trace is None else rate_text(trace.flops, trace.seconds)
        rows.append(("rate", rate_text(plan.flops, seconds), rate))
    rows.append(("largest share of a worker / mean", f"{plan.imbalance:.2f}", ""))
    return rows


def _traffic_rows(plan: Plan | Program) -> list[tuple[str, str, str]]:
    moved, bound = plan.moved_bytes, plan.lower_bound_bytes
    rows = [("moved bytes", bytes_text(moved), ""), ("lower bound", bytes_text(bound), "")]
    if bound:
        rows.append(("  moved / bound", f"{moved / bound:.2f}", ""))
    return rows


def _level_tables(plan: Plan, step: str = "") -> tuple[Table, ...]:
    """What crosses into each memory that a plan fills: what was planned, and what was measured."""
    labels, _ = _names(plan.label)
    return tuple(_level_table(labels, *found, step) for found in plan_crossings(plan))


def _level_table(labels: Sequence[str], crossing: Crossing, levels: Sequence[Level], step: str) -> Table:
    header = ("", "projected", "measured") if levels else ("", "projected")
    each = f"{crossing.count} x " if crossing.count > 1 else ""
    rows = [
        ("peak", _known_text(crossing.peak_bytes), bytes_text(max((x.peak_bytes for x in levels), default=0))),
    ]
    if crossing.stages:
        rows.append(("stages", str(crossing.stages), ""))
    for number, label in enumerate(labels):
        came = sum(level.in_bytes[number] for level in levels)
        planned = "" if crossing.in_bytes is None else _times_text(crossing.in_bytes[number], crossing, number)
        rows.append((f"in: {label or 'scalar'}", planned, _times_text(came, crossing, number)))
    out = sum(level.out_bytes for level in levels)
    rows.append(("out: result", _known_text(crossing.out_bytes), bytes_text(out)))
    if near := sum(level.neighbour_bytes for level in levels):
        rows.append(("  in from another device", "", bytes_text(near)))
    moved = sum(sum(level.in_bytes) for level in levels) + out
    if crossing.bound_bytes:
        rows.append(("lower bound", bytes_text(crossing.bound_bytes), ""))
        planned = "" if crossing.moved_bytes is None else f"{crossing.moved_bytes / crossing.bound_bytes:.2f}"
        rows.append(("  moved / bound", planned, f"{moved / crossing.bound_bytes:.2f}"))
    transfer, compute = (sum(getattr(x, f"{name}_seconds") for x in levels) for name in ("transfer", "compute"))
    shorter, both = min(transfer, compute), sum(level.overlap_seconds for level in levels)
    rows.append(("transfer", "", seconds_text(transfer)))
    rows.append(("  hidden behind compute", "", percent_text(both / shorter) if shorter > 0 else ""))
    caption = f"{step}Into {crossing.name} ({each}{bytes_text(crossing.capacity_bytes)})"
    return Table(caption, header, tuple(row[: len(header)] for row in rows))


def _sharing_tables(plan: Plan, step: str = "") -> tuple[Table, ...]:
    """How ranks share a plan: what was planned, and what was measured."""
    sharing = plan.sharing
    if sharing is None:
        return ()
    traffic, shares = sharing.traffic, sharing.shares
    ranks = plan.runs[-1].ranks if plan.runs else ()
    settled = sharing.pool is None
    flops = np.array([rank.flops for rank in ranks], np.float64)
    rows = [
        ("algorithm", sharing.algorithm_text, ""),
        (
            "most flops of a rank / mean",
            f"{traffic.imbalance:.3f}" if settled else "drawn",
            f"{over_mean(flops):.3f}",
        ),
        (
            "between nodes",
            bytes_text(int(traffic.between_bytes.sum())),
            bytes_text(sum(r.between_bytes for r in ranks)),
        ),
        ("  messages", str(traffic.messages.sum()), str(sum(rank.messages for rank in ranks))),
        (
            "inside nodes",
            bytes_text(int(traffic.inside_bytes.sum())) if settled else "",
            bytes_text(sum(rank.inside_bytes for rank in ranks)),
        ),
        ("stages", str(traffic.stage_count), ""),
    ]
    if not settled:
        rows.append(("tickets", str(sharing.tickets), str(sum(rank.tickets for rank in ranks))))
    for what, text in (("compute", "computing"), ("fetch", "waiting for blocks"), ("wait", "waiting for neighbours")):
        seconds = [rank.seconds(what) for rank in ranks]
        rows.append((f"{text}, mean of ranks", "", seconds_text(sum(seconds) / len(seconds)) if seconds else ""))
    header = ("", "projected", "measured") if ranks else ("", "projected")
    kept = tuple(row[: len(header)] for row in rows if ranks or row[1])
    nodes = plural_text(shares.node(shares.ranks - 1) + 1, "node")
    return (Table(f"{step}{plural_text(shares.ranks, 'rank')} on {nodes}", header, kept),)


def _known_text(size: int | None) -> str:
    return "" if size is None else bytes_text(size)


def _times_text(size: int, crossing: Crossing, number: int) -> str:
    """Bytes, and how often that is everything that is needed."""
    needed = crossing.needed_bytes[number]
    return f"{bytes_text(size)} ({size / needed:.3g} x)" if needed else bytes_text(size)


def _kernel_note(kernel: str) -> str:
    return f"Kernel {kernel}: {dict(KERNELS)[kernel]}."


def _notes(machine: Machine, runs: Sequence[Trace], on_devices: bool = False) -> tuple[str, ...]:
    near = bytes_text(projection.level_bytes(machine))
    lines = [f"Bytes are counted between memory and the {near} of cache near each worker."]
    if on_devices:
        lines = ["Bytes are counted between this computer and its devices; time is that of its own workers."]
    if machine.is_measured:
        blas = f", BLAS: {machine.blas}" if machine.blas else ""
        lines.append(f"Time from the rates of {machine.name}{blas}.")
    else:
        lines.append("Time from default rates, a cautious guess: run `tilewise doctor` to measure this computer.")
    if runs:
        lines.append(f"Measured: the latest run, on {plural_text(runs[-1].workers, 'worker')}.")
    return tuple(lines)


# Figures as text


def count_text(value: float) -> str:
    """A count with a prefix: ``12.3 G``."""
    for limit, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {prefix}" if value < 999.5 * limit else f"{value / limit:.0f} {prefix}"
    return f"{value:.0f}"


def bytes_text(value: float) -> str:
    """Bytes in decimal units: ``1.25 GB``."""
    text = count_text(value)
    return f"{text}B" if " " in text else f"{text} B"


def seconds_text(value: float) -> str:
    """Seconds in a unit that suits them."""
    if value >= 7200:
        return f"{value / 3600:.1f} h"
    for limit, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}" if value < 1000 * limit else f"{value:.0f} s"
    return f"{value * 1e6:.3g} us"


def rate_text(flops: float, seconds: float) -> str:
    """Flops per second."""
    return f"{flops / seconds * 1e-9:.3g} GF/s" if seconds > 0 else ""


def percent_text(share: float) -> str:
    """A share between 0 and 1 in per cent."""
    return f"{100 * share:.3g} %"


def plural_text(count: int, noun: str) -> str:
    """A number of things."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# Rendering


def to_text(report: Report) -> str:
    """Aligned columns of plain text."""
    parts = [report.title]
    parts += ["\n".join(_text_lines(table)) for table in report.tables]
    if report.notes:
        parts.append("\n".join(report.notes))
    return "\n\n".join(parts)


def _text_lines(table: Table) -> list[str]:
    rows = [table.header, *table.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.header))]
    lines = []
    for row in rows:
        place = str.rjust if table.figures else str.ljust
        cells = [place(cell, width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return [table.caption, lines[0], rule, *lines[1:]] if any(table.header) else [table.caption, rule, *lines[1:]]


def to_html(report: Report) -> str:
    """Plain HTML tables, every text escaped."""
    parts = [f"<div><strong>{escape(report.title)}</strong>"]
    parts += [_html_table(table) for table in report.tables]
    parts += [f"<div><small>{escape(note)}</small></div>" for note in report.notes]
    return "".join(parts) + "</div>"


def _html_table(table: Table) -> str:
    def line(cells: tuple[str, ...], tag: str) -> str:
        name = cells[0].lstrip()
        depth = len(cells[0]) - len(name)
        indent = f"padding-left:{depth}em;" if depth else ""
        html = f'<{tag} style="text-align:left;{indent}">{escape(name)}</{tag}>'
        side = "right" if table.figures else "left"
        return html + "".join(f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>' for cell in cells[1:])

    head = f"<caption>{escape(table.caption)}</caption><thead><tr>{line(table.header, 'th')}</tr></thead>"
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in table.rows)
    return f"<table>{head}<tbody>{body}</tbody></table>"
