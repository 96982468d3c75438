"""MP2 energy of water through block tensors, compared with PySCF's (needs `pip install "tilewise[chem]"`)."""

from __future__ import annotations

from pathlib import Path

from pyscf import gto, mp, scf

from tilewise.chemistry import MP2

geometry = Path(__file__).with_name("water.xyz")
mol = gto.M(atom=str(geometry), basis="cc-pvdz", verbose=0)
mf = scf.RHF(mol).run(conv_tol=1e-11)

# PySCF's habits: an object of the mean field, then run(). One orbital, the 1s of oxygen, is frozen.
ours = MP2(mf, frozen=1, progress=print)
print(ours.plan().explain())  # known before a single block of integrals is computed
ours.run()

theirs = mp.MP2(mf, frozen=1).run()
print(f"E(HF) = {ours.e_hf:.10f}  E_corr = {ours.e_corr:.10f}  E(MP2) = {ours.e_tot:.10f}")
assert ours.e_corr is not None
assert abs(ours.e_corr - theirs.e_corr) < 1e-9
