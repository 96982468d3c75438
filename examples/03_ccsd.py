"""CCSD(T) of ethene through block tensors, compared with PySCF's (needs `pip install "tilewise[chem]"`)."""

from __future__ import annotations

from pathlib import Path

from pyscf import cc, gto, scf

from tilewise.chemistry import CCSD_T

geometry = Path(__file__).with_name("ethene.xyz")
mol = gto.M(atom=str(geometry), basis="6-31g", symmetry=True, verbose=0)
mf = scf.RHF(mol).run(conv_tol=1e-11)

# The irreps of D2h come with the mean field: blocks that vanish are neither stored nor multiplied. Everything that an
# iteration holds is within `memory`; what does not fit would be kept on disk.
ours = CCSD_T(mf, frozen=2, memory="200MB", progress=print)
print(ours.plan().explain())  # known before a single integral is computed
ours.run(conv_tol=1e-9, conv_tol_normt=1e-7)
print(f"converged: {ours.converged} in {ours.cycles} cycles, T1 diagnostic {ours.t1_diagnostic:.4f}")
print(f"E(HF) = {ours.e_hf:.10f}  E_corr(CCSD) = {ours.e_ccsd:.10f}  E(T) = {ours.e_t:.10f}")

# PySCF, started from our amplitudes, finds nothing left to do.
theirs = cc.CCSD(mf, frozen=2).set(conv_tol=1e-9, conv_tol_normt=1e-7)
theirs.kernel(*ours.to_pyscf())
print(f"PySCF needs {theirs.cycles} more cycles, and differs by {abs(theirs.e_corr - ours.e_ccsd):.1e} hartree")
assert ours.e_ccsd is not None
assert ours.e_t is not None
assert abs(theirs.e_corr + theirs.ccsd_t() - ours.e_ccsd - ours.e_t) < 1e-8
