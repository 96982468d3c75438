"""Tensors as a notebook shows them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

import tilewise as tw
from tilewise.tensors.html import MOST_RECTANGLES, pattern_svg, tensor_html

SPACE = tw.Space([2, 3], name="<b>p</b>")


def rectangles(svg: str) -> list[dict[str, str]]:
    """The blocks of the picture, without its frame."""
    return [found.attrib for found in ElementTree.fromstring(svg) if found.tag.endswith("rect")][1:]


def test_facts_are_there_and_names_are_escaped() -> None:
    html = tensor_html(tw.random((SPACE, SPACE), density=0.4))
    ElementTree.fromstring(html)  # well-formed
    for fact in ("5 x 5", "float64", "density", "&lt;b&gt;p&lt;/b&gt;: 5 in 2"):
        assert fact in html
    assert "<b>" not in html


def test_notebooks_show_it() -> None:
    tensor = tw.random((SPACE, SPACE))
    assert tensor._repr_html_() == tensor_html(tensor)


def test_blocks_are_drawn_to_scale() -> None:
    (box,) = rectangles(pattern_svg(tw.Pattern((SPACE, SPACE), [(1, 0)])))
    assert [float(box[name]) for name in ("x", "y", "width", "height")] == [0, 64, 64, 96]


@pytest.mark.parametrize("modes", [1, 2, 3, 4])
def test_one_rectangle_for_each_block(modes: int) -> None:
    pattern = tw.Pattern.random((SPACE,) * modes, density=0.5)
    assert len(rectangles(pattern_svg(pattern))) == pattern.nnz_blocks


def test_symmetric_blocks_are_all_drawn() -> None:
    pattern = tw.Pattern((SPACE, SPACE), [(0, 1), (1, 1)], symmetry=tw.Symmetry(((0, 1), 1)))
    assert len(rectangles(pattern_svg(pattern))) == 3
    assert "symmetry" in tensor_html(tw.random(pattern=pattern))


def test_fine_patterns_become_a_raster() -> None:
    fine = tw.Space([1] * 100)
    pattern = tw.Pattern.random((fine, fine), density=0.5)
    assert pattern.nnz_blocks > MOST_RECTANGLES
    found = rectangles(pattern_svg(pattern))
    assert 0 < len(found) <= 40 * 40
    assert all(0 < float(box["fill-opacity"]) <= 1 for box in found)


@pytest.mark.parametrize("spaces", [(), (tw.Space([]),), (tw.Space([]), SPACE)])
def test_scalars_and_empty_tensors_have_no_picture(spaces: tuple[tw.Space, ...]) -> None:
    assert "<svg" not in tensor_html(tw.zeros(spaces))
