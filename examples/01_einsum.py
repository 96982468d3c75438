"""Contract two block-sparse tensors, plan first, and compare with NumPy."""

from __future__ import annotations

import numpy as np

import tilewise as tw

# Spaces are index ranges cut into tiles of any size; a tensor stores only the blocks that are not zero.
occ = tw.Space([4, 6, 5], name="occ")
vir = tw.Space.uniform(40, tile=9, name="vir")
t = tw.random((occ, occ, vir, vir), density=0.3, seed=0)
v = tw.random((vir, vir, vir, vir), density=0.1, seed=1)
print(t)
print(v)

# A plan needs the patterns only: it says which blocks the result has and what they cost.
plan = tw.plan("ijcd,cdab->ijab", t.pattern, v.pattern)
dense_flops = 2 * occ.size**2 * vir.size**4
print(f"{plan.flops / 1e6:.1f} MFLOP instead of {dense_flops / 1e6:.1f}; result: {plan.result}")

# Running the plan, or asking for the contraction at once, is the same.
r = tw.execute(plan, t, v)
again = tw.einsum("ijcd,cdab->ijab", t, v)
print(r)

expected = np.einsum("ijcd,cdab->ijab", t.to_dense(), v.to_dense(), optimize=True)
assert np.allclose(r.to_dense(), expected, rtol=0.0, atol=1e-12 * np.abs(expected).max())
assert (r - again).norm() == 0.0
