"""Correlation energies of molecules through block tensors, fed by PySCF."""

from __future__ import annotations

from tilewise.chemistry.arrays import pack_integrals
from tilewise.chemistry.ccsd import CCD, CCSD
from tilewise.chemistry.ccsd_t import CCSD_T
from tilewise.chemistry.drccd import DRCCD
from tilewise.chemistry.four_index import Transform, transform
from tilewise.chemistry.mp2 import MP2

__all__ = ["CCD", "CCSD", "CCSD_T", "DRCCD", "MP2", "Transform", "pack_integrals", "transform"]
