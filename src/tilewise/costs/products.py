"""Seconds of block products, from flops and block edges."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tilewise.machine import Machine

Floats = npt.NDArray[np.float64]


def product_seconds(flops: npt.ArrayLike, edges: npt.ArrayLike, machine: Machine, itemsize: int = 8) -> Floats:
    """Seconds that one core takes for each of several products.

    The model of Ozog et al. (2013) in measured form: instead of fitted coefficients of m n k, m n, m k and n k, the
    rate of the engine itself at some block edges, interpolated between them in logarithms.

    Parameters
    ----------
    flops : array_like
        Floating-point operations of each product.
    edges : array_like
        Edge of each product's blocks: the cube root of m n k.
    machine : Machine
        Where it runs.
    itemsize : int
        Bytes of one real: elements half as long go twice as fast.

    Examples
    --------
    >>> from tilewise.costs import product_seconds
    >>> from tilewise.machine import Machine
    >>> box = Machine("box", cores=1, gemm_rates=((16, 8.0), (64, 32.0)), copy_rate=10.0, permute_rate=5.0)
    >>> product_seconds([8e9, 8e9, 8e9], [8, 32, 999], box).tolist()
    [1.0, 0.5, 0.25]
    """
    rates = machine.gemm_rate(edges) * (1e9 * 8 / itemsize)
    return np.asarray(np.asarray(flops, np.float64) / rates)
