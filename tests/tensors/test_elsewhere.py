"""Tensors that only stand for others: plans can be made for them, and nothing can be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewise as tw
from tilewise.engines.base import current_engine
from tilewise.errors import TilewiseError
from tilewise.tensors.elsewhere import make_elsewhere

ROWS, COLS = tw.Space([5, 9, 4]), tw.Space([6, 7])
PATTERN = tw.Pattern.random((ROWS, COLS), 0.6, seed=1)


@pytest.mark.parametrize("memory", ["1GB", 7500])
def test_plans_are_those_of_a_tensor_in_a_file(memory: str | int, tmp_path: Path) -> None:
    values, other = tw.random(pattern=PATTERN, seed=2), tw.random((COLS, ROWS), seed=3)
    values.save(tmp_path / "values.h5")
    kept = tw.load(tmp_path / "values.h5", on_disk=True)
    stand_in = make_elsewhere(kept.pattern, current_engine())
    plan, same = (tw.plan("ij,jk->ik", each, other, memory=memory) for each in (stand_in, kept))
    assert plan == same
    assert (plan.peak_bytes, plan.flops) == (same.peak_bytes, same.flops)
    assert (memory == "1GB") == (plan.peak_bytes > 7500)
    result = tw.execute(plan, kept, other)
    np.testing.assert_allclose(result.to_dense(), values.to_dense() @ other.to_dense(), rtol=0, atol=1e-12)


def test_it_looks_like_a_tensor() -> None:
    made = make_elsewhere(PATTERN, current_engine(), np.float32)
    assert not made.in_memory
    assert (made.shape, made.dtype, made.nbytes) == ((18, 13), np.dtype(np.float32), PATTERN.nbytes(np.float32))
    assert (made.pattern, made.error_bound, made.storage.parallel) == (PATTERN, 0.0, True)
    made.check()


def test_reading_it_is_an_error() -> None:
    made = make_elsewhere(PATTERN, current_engine())
    index = PATTERN.index[0].tolist()
    with pytest.raises(TilewiseError, match=r"Block 0 of a tensor that only stands for one was read\. Expected plans"):
        made.block(index)
    with pytest.raises(TilewiseError, match="Expected plans alone"):
        made.copy()
    with pytest.raises(TilewiseError, match="Expected plans alone"):
        tw.einsum("ij,ij->", made, tw.random((ROWS, COLS)))
