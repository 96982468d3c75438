"""The report of an energy: one page of HTML that stands alone, with its pictures in it and beside it."""

from __future__ import annotations

import base64
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from tilewise.errors import StorageError
from tilewise.iteration import PlannedStep
from tilewise.patterns import Pattern
from tilewise.plans.explain import Report, Table, bytes_text, count_text, rate_text, seconds_text, to_html
from tilewise.reports.host import EXTRAS, PACKAGES, version_of
from tilewise.reports.plots import (
    new_figure,
    plot_convergence,
    plot_groups,
    plot_memory,
    plot_pattern,
    plot_terms,
    report_style,
    save_plot,
)
from tilewise.tensors.drafts import draft

if TYPE_CHECKING:
    from tilewise.reports.plots import Figure

__all__ = ["FIGURE", "PAGE", "PICTURES", "EnergyPage", "Picture", "is_energy_page", "versions", "write_energy_page"]

PAGE = "index.html"
"""The name of the page in its folder."""

PICTURES = (".png", ".svg")
"""How the names of the pictures beside it end."""

FIGURE = re.compile(rf"(convergence|groups|timeline|memory|sparsity-\d+)({'|'.join(map(re.escape, PICTURES))})")
"""The names of these pictures."""

MARK = '<meta name="generator" content="tilewise">'
"""What tells the pages that are written here from others; it stands among their first bytes."""

MARK_BYTES = 1024
"""Where the mark has to be found."""

UNFINISHED = (
    "This report is not finished: its pictures are being drawn, or that was cut off. If the command has ended, run it "
    "again: it writes the report anew."
)
"""What a page says that has the mark only."""

LONGEST = 10
"""How many terms the table of the longest ones has."""

MOST_BLOCKS = 50_000
"""Tensors with more blocks are not drawn: a block would be smaller than a pixel."""

MOST_SVG = 400_000
"""Bytes of drawings that are put into the page as they are; pixels stand for larger ones."""

STYLE = """
:root{--ink:#1b2733;--soft:#5b6875;--line:#e3e8ec;--paper:#fff;--accent:#0072b2}
*{box-sizing:border-box}
body{font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;color:var(--ink);
background:#f4f6f8;margin:0}
main{max-width:68rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 .35rem}
h2{font-size:1.25rem;margin:0 0 .75rem}
p{margin:.25rem 0}
header p,figcaption,.note{color:var(--soft)}
section{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:1.25rem 1.5rem;
margin-top:1.25rem}
.badge{display:inline-block;border-radius:999px;padding:.15rem .8rem;font-weight:600;background:#d9efe6;color:#00533c}
.badge.bad{background:#fbe0d2;color:#8a3300}
.energies{display:grid;grid-template-columns:repeat(auto-fit,minmax(18rem,1fr));gap:1rem;padding:0;border:0;
background:none}
.energies div{background:var(--paper);border:1px solid var(--line);border-radius:10px;
padding:.9rem 1.25rem}
.energies span{display:block;color:var(--soft);font-size:.95rem}
.energies b{font-size:1.45rem;font-variant-numeric:tabular-nums}
.energies small{color:var(--soft)}
figure{margin:0}
figure+figure{margin-top:1.25rem}
figure img{display:block;max-width:100%;height:auto;margin:0 auto}
figcaption{font-size:.95rem;margin-top:.4rem}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(22rem,1fr));gap:1.25rem;align-items:start}
.pair figure+figure{margin-top:0}
.scroll{overflow-x:auto}
table{border-collapse:collapse;margin:.75rem 0;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;padding-bottom:.25rem}
th,td{padding:.22rem .9rem .22rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;color:var(--soft)}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.92em}
pre{background:#f4f6f8;border-radius:6px;padding:.7rem .9rem;white-space:pre-wrap;overflow-wrap:anywhere;margin:.5rem 0}
pre span{display:inline-block;max-width:100%}
.tables>div{display:flex;flex-wrap:wrap;gap:0 3.5rem;align-items:flex-start}
.tables table{min-width:18rem}
.tables>div>strong,.tables>div>div{flex-basis:100%}
@media print{body{background:#fff}section{break-inside:avoid}}
"""
"""How the page looks; it needs nothing from elsewhere."""


@dataclass(frozen=True, slots=True, eq=False)
class EnergyPage:
    """What a report shows; parts that a method does not have are empty."""

    title: str
    """What was computed."""
    command: str
    """How it was asked for."""
    verdict: str
    """How it ended, in a few words."""
    good: bool
    """Whether that is as it should be."""
    energies: Sequence[tuple[str, float]]
    """What they are called, and their values in hartree."""
    facts: Sequence[tuple[str, str]]
    """About the molecule and the run."""
    advice: str = ""
    """What to do about an iteration that has not converged."""
    cycles: Sequence[tuple[int, float, float]] = ()
    """Number, change of the energy in hartree and norm of the step of each iteration."""
    limits: tuple[float, float] = (1e-7, 1e-5)
    """Below these the iteration ends."""
    stages: Sequence[tuple[str, int, float]] = ()
    """What the whole run did one after the other: the stage, its flops where they are counted, and seconds."""
    steps: Sequence[PlannedStep] = ()
    """The terms of an iteration."""
    budget: int = 0
    """Bytes that were allowed."""
    held: Mapping[str, int] = field(default_factory=dict)
    """Bytes that are held besides all the time, by what for."""
    reserved: int = 0
    """Bytes of the budget that are set aside for libraries and small objects."""
    patterns: Mapping[str, Pattern] = field(default_factory=dict)
    """Tensors whose blocks are drawn."""
    explanation: str = ""
    """The plan as tables of HTML."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the programs that took part."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of the page."""

    name: str
    """Of its files, without an ending."""
    caption: str
    """What it shows."""
    draw: Callable[[], Figure]
    """Draws it."""


def versions() -> dict[str, str]:
    """Of this package, Python, and what they use."""
    found = {name: version_of(name) for name in ("tilewise", *PACKAGES, *(name for name, *_ in EXTRAS))}
    return {"Python": platform.python_version()} | {name: text for name, text in found.items() if text}


def write_energy_page(folder: str | os.PathLike[str], page: EnergyPage) -> Path:
    """Write ``index.html`` and its pictures, as PNG and SVG, into a folder that is made if it is missing.

    Until all is there, the page is an earlier one, or says that it is not finished.

    Parameters
    ----------
    folder : str or Path
        Where to.
    page : EnergyPage
        What is shown.

    Returns
    -------
    Path
        The page; it holds the pictures itself and can be sent alone.

    Examples
    --------
    >>> import tempfile
    >>> from tilewise.reports.energy_page import EnergyPage, write_energy_page
    >>> page = EnergyPage("MP2 of H2", "tilewise energy h2.xyz", "done", True, [("E(HF)", -1.1)], [])
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_energy_page(place, page).name
    'index.html'
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        if not (place / PAGE).exists():  # pictures without a page would be taken for those of somebody else
            _write(place / PAGE, _unfinished(page))
        _write(place / PAGE, _finished(page, place))
    except OSError as error:
        raise StorageError(
            f"The report cannot be written to {place}: {error.strerror or error}. Expected a folder with room. Name "
            "another."
        ) from error
    return place / PAGE


def is_energy_page(file: Path) -> bool:
    """Whether `write_energy_page` has written a file."""
    with open(file, "rb") as stream:
        return MARK.encode() in stream.read(MARK_BYTES)


def _write(file: Path, text: str) -> None:
    with draft(file) as handle, os.fdopen(os.dup(handle), "wb") as stream:
        stream.write(text.encode())


def _unfinished(page: EnergyPage) -> str:
    """What stands for a page until its pictures are drawn, and stays if that is cut off."""
    shown = replace(page, verdict="not finished", good=False, advice=UNFINISHED)
    return _html(page.title, _header(shown) + _section("Calculation", _command(page.command)))


def _finished(page: EnergyPage, folder: Path) -> str:
    return _html(page.title, "".join(part for part in _sections(page, folder) if part))


def _html(title: str, body: str) -> str:
    head = (
        f'<meta charset="utf-8">{MARK}<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body><main>{body}</main></body></html>\n'


def _sections(page: EnergyPage, folder: Path) -> Iterator[str]:
    yield _header(page)
    yield _energies(page)
    yield _section("Calculation", f'<div class="pair">{_table(page.facts)}<div>{_command(page.command)}</div></div>')
    if page.cycles:
        yield _section("Convergence", _figures(folder, [_convergence(page)]))
    if page.steps:
        figures = _figures(folder, [_groups(page), _timeline(page)])
        yield _section("Where the work went", _stages(page.stages) + figures + _longest(page.steps))
        yield _section("Memory", _figures(folder, [_memory(page)]))
    if drawn := {name: pattern for name, pattern in page.patterns.items() if pattern.nnz_blocks <= MOST_BLOCKS}:
        pictures = [_sparsity(number, *found) for number, found in enumerate(drawn.items())]
        yield _section("Sparsity", f'<div class="pair">{_figures(folder, pictures)}</div>')
    if page.explanation:
        yield _section("Plan", f'<div class="tables scroll">{page.explanation}</div>')
    if page.versions:
        text = ", ".join(f"{name} {version}" for name, version in page.versions.items())
        yield _section("Versions", f"<p>{escape(text)}</p>")


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _header(page: EnergyPage) -> str:
    badge = f'<span class="badge{"" if page.good else " bad"}">{escape(page.verdict)}</span>'
    advice = f'<p class="note">{escape(page.advice)}</p>' if page.advice else ""
    return f"<header><h1>{escape(page.title)}</h1><p>{badge}</p>{advice}</header>"


def _energies(page: EnergyPage) -> str:
    cards = [
        f"<div><span>{escape(name)}</span><b>{value:.10f}</b> <small>hartree</small></div>"
        for name, value in page.energies
    ]
    return f'<section class="energies">{"".join(cards)}</section>'


def _table(rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in rows
    )
    return f"<table><tbody>{cells}</tbody></table>"


def _command(command: str) -> str:
    """Words are kept whole: a browser breaks lines after hyphens."""
    words = " ".join(f"<span>{escape(word)}</span>" for word in command.split(" "))
    return f'<p class="note">Computed with</p><pre>{words}</pre>' if command else ""


def _stages(stages: Sequence[tuple[str, int, float]]) -> str:
    """The stages of the whole run."""
    whole = sum(seconds for _, _, seconds in stages) or 1.0
    rows = [
        (name, count_text(flops) if flops else "", seconds_text(seconds), f"{100 * seconds / whole:.0f} %")
        for name, flops, seconds in stages
    ]
    table = Table("The run", ("", "flops", "time", "of all"), tuple(rows))
    return f'<div class="scroll">{to_html(Report("", (table,), ()))}</div>' if stages else ""


def _longest(steps: Sequence[PlannedStep]) -> str:
    """The terms that take longest."""
    whole = sum(step.expected_seconds for step in steps) or 1.0
    rows = []
    for step in sorted(steps, key=lambda each: -each.expected_seconds)[:LONGEST]:
        seconds = step.expected_seconds
        rate = rate_text(step.flops, seconds) if step.flops else ""
        share = f"{100 * seconds / whole:.0f} %"
        rows.append(
            (str(step.statement), step.statement.group, count_text(step.flops), seconds_text(seconds), share, rate)
        )
    table = Table("Longest terms", ("term", "group", "flops", "time", "of all", "rate"), tuple(rows))
    return f'<div class="scroll">{to_html(Report("", (table,), ()))}</div>'


def _figures(folder: Path, pictures: Sequence[Picture]) -> str:
    return "".join(_figure(folder, picture) for picture in pictures)


def _figure(folder: Path, picture: Picture) -> str:
    """Draw a picture, write its files, and put it into the page."""
    for ending in PICTURES:  # a link must not lead to what somebody keeps elsewhere
        (folder / f"{picture.name}{ending}").unlink(missing_ok=True)
    with report_style():
        drawn = picture.draw()
        pixels, drawing = save_plot(drawn.axes[0], folder / picture.name)
    as_drawing = drawing.stat().st_size <= MOST_SVG
    kind, file = ("svg+xml", drawing) if as_drawing else ("png", pixels)
    content = base64.b64encode(file.read_bytes()).decode()
    width = int(96 * drawn.get_figwidth())
    image = f'<img width="{width}" alt="{escape(picture.caption)}" src="data:image/{kind};base64,{content}">'
    return f"<figure>{image}<figcaption>{escape(picture.caption)}</figcaption></figure>"


def _convergence(page: EnergyPage) -> Picture:
    def draw() -> Figure:
        figure = new_figure(9.6, 3.8)
        plot_convergence(page.cycles, page.limits, figure.add_subplot())
        return figure

    text = (
        "How far energy and amplitudes still moved in each cycle; the iteration ends once both are below their limits."
    )
    return Picture("convergence", text, draw)


def _groups(page: EnergyPage) -> Picture:
    def draw() -> Figure:
        figure = new_figure(9.6, 3.4)
        plot_groups(page.steps, figure.subplots(1, 2, sharey=True))
        return figure

    text = "Floating-point operations and time of one iteration by groups of terms, with the rates they ran at."
    return Picture("groups", text, draw)


def _timeline(page: EnergyPage) -> Picture:
    def draw() -> Figure:
        figure = new_figure(9.6, 3.2)
        plot_terms(page.steps, figure.add_subplot())
        return figure

    measured = any(step.seconds for step in page.steps)
    text = "median of the cycles of this run" if measured else "projected: this run did no cycle"
    return Picture(
        "timeline", f"The terms of one iteration one after the other, each a bar as long as it took ({text}).", draw
    )


def _memory(page: EnergyPage) -> Picture:
    def draw() -> Figure:
        figure = new_figure(9.6, 3.4)
        plot_memory(page.steps, budget=page.budget - page.reserved, others=page.held, ax=figure.add_subplot())
        return figure

    aside = f", of which {bytes_text(page.reserved)} are set aside for libraries" if page.reserved else ""
    text = f"What is held while the terms run. The budget was {bytes_text(page.budget)}{aside}."
    return Picture("memory", text, draw)


def _sparsity(number: int, name: str, pattern: Pattern) -> Picture:
    def draw() -> Figure:
        figure = new_figure(5.2, 4.4)
        axes = plot_pattern(pattern, figure.add_subplot())
        axes.set_title(f"{name}: {axes.get_title()}")
        return figure

    text = f"Blocks of {name} that are stored, to scale, coloured by their norms: {bytes_text(pattern.nbytes())}."
    return Picture(f"sparsity-{number + 1}", text, draw)
