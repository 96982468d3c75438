"""Explanations as a page of HTML that stands alone, to keep beside results or to send to somebody."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path

from tilewise.plans import Plan, Program
from tilewise.tensors import BlockTensor
from tilewise.tensors.html import tensor_html

STYLE = (
    "body{font-family:sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse;margin:1em 0}"
    "caption{text-align:left;font-style:italic}th,td{padding:0.15em 0.8em;border-bottom:1px solid #ddd}"
)
"""How a page looks; notebooks bring their own style."""


def page(title: str, *items: Plan | Program | BlockTensor) -> str:
    """A page that shows plans, programs and tensors one below the other."""
    parts = [tensor_html(item) if isinstance(item, BlockTensor) else item._repr_html_() for item in items]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    body = f"<h1>{escape(title)}</h1>" + "".join(f"<section>{part}</section>" for part in parts)
    return f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def write_page(path: str | os.PathLike[str], title: str, *items: Plan | Program | BlockTensor) -> Path:
    """Write `page` to a file and return its path.

    Examples
    --------
    >>> import tempfile, tilewise as tw
    >>> from pathlib import Path
    >>> from tilewise.reports import write_page
    >>> i = tw.Space([2, 3])
    >>> t = tw.random((i, i))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_page(Path(folder) / "square.html", "A square", t, tw.plan("ij,jk->ik", t, t)).name
    'square.html'
    """
    target = Path(path)
    target.write_text(page(title, *items), encoding="utf-8")
    return target
