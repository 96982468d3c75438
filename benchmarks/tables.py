"""A run as text: the table of problems, the summary, the targets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from figures import Figures, Rate, quotient, ratio
from measurement import Record
from targets import Verdict, geometric_mean, verdicts
from timing import Spread

HEADER = (
    "problem",
    "GFLOP",
    "ours, no planning GF/s",
    "ours, with planning GF/s",
    "planning ms",
    "planning %",
    "ns per product",
    "dense peak GF/s",
    "of peak",
    "DBCSR (Debian), best setting GF/s",
    "ours / DBCSR",
    "best other block-sparse peer GF/s",
    "ours / other",
)


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}"


def with_range(values: Spread) -> str:
    """Median and range."""
    return f"{number(values.median)} ({number(values.low)} to {number(values.high)})"


def optional(value: float | None) -> str:
    """A ratio, or a dash."""
    return "-" if value is None else f"{value:.2f}"


def rate(value: Rate | None) -> str:
    """A contender's median rate and its name, or a dash."""
    return "-" if value is None else f"{number(value.gflops.median)} {value.label}"


def row(figures: Figures) -> tuple[str, ...]:
    """One problem's line of the table."""
    return (
        figures.problem,
        number(figures.flops * 1e-9),
        with_range(figures.execute),
        with_range(figures.einsum),
        number(1e3 * figures.plan_seconds.median),
        f"{100 * figures.plan_share:.2f}",
        number(figures.plan_ns_per_product),
        rate(figures.peak),
        optional(figures.peak_ratio),
        rate(figures.packaged_dbcsr),
        optional(figures.dbcsr_ratio),
        rate(figures.other),
        optional(ratio(figures.execute, figures.other)),
    )


def one_line(figures: Figures) -> str:
    """One problem while the run goes on."""
    return (
        f"{figures.problem}: {with_range(figures.execute)} GF/s, {optional(figures.peak_ratio)} of peak, "
        f"{optional(figures.dbcsr_ratio)} x DBCSR, "
        f"{optional(figures.worst_peer_ratio)} x the fastest block-sparse peer"
    )


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown whose columns are aligned, readable as plain text."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(header), line(rule), *map(line, rows)])


def summary(all_figures: Sequence[Figures]) -> str:
    """Geometric mean against DBCSR and the worst ratio to any block-sparse peer, without and with planning.

    The peers' clocks cover finding the blocks that meet, so the second line is the like-for-like one.
    """
    return "\n".join(
        [
            "Planning excluded: " + _against_peers([(f, f.execute) for f in all_figures]),
            "Planning included: " + _against_peers([(f, f.einsum) for f in all_figures]),
        ]
    )


def _against_peers(ours: Sequence[tuple[Figures, Spread]]) -> str:
    packaged = [value for f, mine in ours if (value := ratio(mine, f.packaged_dbcsr)) is not None]
    rated = [(quotient(mine, peer), f.problem, peer.label) for f, mine in ours for peer in f.peers]
    mean = optional(geometric_mean(packaged))
    text = f"ratio to Debian's DBCSR {mean} (geometric mean of {len(packaged)} problems)"
    if not rated:
        return f"{text}; no block-sparse peer was measured."
    value, problem, label = min(rated)
    return f"{text}; worst ratio to any block-sparse peer {value:.2f} ({label} on {problem})."


def target_row(verdict: Verdict) -> tuple[str, ...]:
    """One target's line."""
    target, met = verdict.target, verdict.met
    word = "not measured" if met is None else "met" if met else "NOT MET"
    value = "-" if verdict.value is None else f"{verdict.value:.3g}"
    return target.text, value, verdict.where, word


def notes(records: Sequence[Record]) -> list[str]:
    """Who did not take part and why, each said once, and how busy the machine was."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for record in records:
        for label, why in record.skipped.items():
            reasons.setdefault((label, why), []).append(record.problem)
    lines = []
    for (label, why), names in reasons.items():
        where = "all problems" if len(names) == len(records) else f"{len(names)} of {len(records)} problems"
        lines.append(f"{label} skipped on {where}: {why}")
    busiest = max(chain.from_iterable(record.foreign_cores for record in records), default=0.0)
    lines.append(f"Other processes used at most {busiest:.2f} of a processor when rounds began.")
    return lines


def mismatch_lines(records: Sequence[Record]) -> list[str]:
    """Checksums that differ."""
    return list(chain.from_iterable(record.mismatches() for record in records))


def report(records: Sequence[Record], all_figures: Sequence[Figures], heading: Sequence[str]) -> str:
    """The whole report, Markdown that reads as plain text."""
    compared = sum(len(values) for record in records for values in record.checksums.values())
    wrong = mismatch_lines(records)
    parts = [
        "\n".join(heading),
        markdown(HEADER, [row(f) for f in all_figures]),
        summary(all_figures),
        markdown(("target", "value", "measured on", "verdict"), [target_row(v) for v in verdicts(all_figures)]),
        "\n".join(f"- {note}" for note in notes(records)),
        "\n".join([f"Checksums: {compared} compared, {len(wrong)} differ.", *wrong]),
    ]
    return "\n\n".join(parts) + "\n"
