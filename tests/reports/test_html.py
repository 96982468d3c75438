"""Pages of HTML that stand alone."""

from __future__ import annotations

from pathlib import Path

import tilewise as tw
from tilewise.reports import write_page

SPACE = tw.Space([2, 3], name="<i>")


def test_page_holds_plans_programs_and_tensors(tmp_path: Path) -> None:
    tensor = tw.random((SPACE, SPACE))
    items = (tensor, tw.plan("ij,jk->ik", tensor, tensor), tw.plan("ij,jk,kl->il", tensor, tensor, tensor))
    text = write_page(tmp_path / "page.html", "A & B", *items).read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert text.count("<section>") == 3
    assert "<title>A &amp; B</title>" in text
    assert "&lt;i&gt;: 5 in 2" in text
    assert "<i>" not in text
    assert "<script" not in text
