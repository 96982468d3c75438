"""The equations of closed-shell coupled cluster as text, in the form that the iteration runs.

Letters: i j k l occupied orbitals, a b c d virtual ones, x y (X Y) symmetric (antisymmetric) pairs of occupied ones,
p q (P Q) such pairs of virtual ones.  Amplitudes and integrals are stored with the orbitals of one electron side by
side, t2[iajb], so that ring terms are plain matrix products; matrices over pairs have those of virtual orbitals first,
so that the ladder writes its results where they belong.

The equations are those of T1-dressed integrals (Koch, Christiansen, Kobayashi, Jorgensen, Helgaker, Chem. Phys. Lett.
228, 233 (1994)), with what is quadratic in t1 taken together with t2 as tau: V[iajb] = (ia|jb), Vp its exchange, L =
2 V - Vp, J[iakc] = (ki|ac), ooov[kilc] = (ki|lc), ovvv[akcd] = (kc|ad); oooo, ov and vv are matrices over pairs.
Residuals r1 and r2 vanish at the solution.  Where a symmetry lets letters change places, those of a sum come in the
same order in both factors, and what is left comes first or last: products then read elements in the order in which
they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tilewise.errors import InputError
from tilewise.expressions.equations import Statement, needed_statements, parse_equations, without_tensors

__all__ = [
    "CCSD_EQUATIONS",
    "DIRECT_LADDER",
    "DRCCD_EQUATIONS",
    "LADDERS",
    "ccd_statements",
    "ccsd_statements",
    "drccd_statements",
]

LADDERS: Final = ("orbitals", "direct", "none")
"""The particle-particle ladder over orbitals, over atomic functions whose integrals are made anew, or left out."""

CCSD_EQUATIONS: Final = """
# integrals dressed with t1
X[iakc] = t1[id] ovvv[akdc]                                                   @dressing
Y[iakc] = t1[id] ovvv[akcd]                                                   @dressing
Q[kilj] = ooov[kilc] t1[jc]                                                   @dressing
E[kilc] = ooov[kilc] + t1[id] V[kdlc]                                         @dressing
g_ov[kc] = f_ov[kc] + L[kcld] t1[ld]                                          @dressing
g_oo[ki] = f_oo[ki] + 2 Q[kill] - Q[likl]                                     @dressing
g_vv[ac] = f_vv[ac] + 2 X[kakc] - Y[kakc]                                     @dressing
r1[ia] = f_ov[ia] + 2 V[iakc] t1[kc] - J[iakc] t1[kc]                         @singles

# pairs: the particle-particle and the hole-hole ladder
tau[iajb] = t2[iajb] + t1[ia] t1[jb]                                          @pairs
K[alij] = tau[jdic] ovvv[aldc]                                                @pairs
tau_s[px] = fold tau[iajb]                                                    @folding
tau_a[PX] = fold tau[iajb]                                                    @folding
Qs[kilj] = Q[kilj] + Q[ljki]                                                  @dressing
W_s[yx] = fold Qs[kilj]                                                       @folding
W_s[yx] += oooo_s[yx] + ov_s[yp] tau_s[px]                                    @pairs
W_a[YX] = fold Qs[kilj]                                                       @folding
W_a[YX] += oooo_a[YX] + ov_a[YP] tau_a[PX]                                    @pairs
R_s[px] = W_s[yx] tau_s[py]                                                   @pairs
R_s[px] += vv_s[pq] tau_s[qx]                                                 @ladder
R_a[PX] = W_a[YX] tau_a[PY]                                                   @pairs
R_a[PX] += vv_a[PQ] tau_a[QX]                                                 @ladder

# A is added to its transpose in the end
N[iakc] = X[iakc] + J[iakc] - t1[la] E[kilc]                                  @dressing
M[iakc] = 2 V[iakc] + 2 Y[iakc] - 2 t1[la] E[likc] - N[iakc]                  @dressing
K[alij] += E[ljia] + t1[ic] J[jalc]                                           @dressing
A[iajb] = Y[iajb] - t1[lb] K[alij]                                            @dressing

# rings
Tp[iajb] = t2[ibja]                                                           @rings
N[iakc] += -1/2 Tp[iald] Vp[ldkc]                                             @rings
C[iajb] = N[iakc] Tp[kcjb]                                                    @rings
A[iajb] += -1/2 C[iajb] - C[jaib]                                             @rings
u[iajb] = 2 t2[iajb] - Tp[iajb]                                               @rings
M[iakc] += 1/2 u[iald] L[ldkc]                                                @rings
A[iajb] += 1/2 M[iakc] u[kcjb]                                                @rings

# singles
h_oo[kj] = L[kdlc] t2[jdlc]                                                   @singles
h_vv[bc] = t2[ldkb] L[ldkc]                                                   @singles
F_vv[ac] = g_vv[ac] - t1[ka] g_ov[kc] - h_vv[ac]                              @singles
F_oo[ki] = g_oo[ki] + h_oo[ki]                                                @singles
r1[ia] += t1[ic] F_vv[ac] - t1[ka] F_oo[ki] + u[iakc] g_ov[kc]                @singles
r1[ia] += u[idkc] ovvv[dkca] - u[kalc] ooov[iklc]                             @singles
F_oo[ki] += t1[ic] g_ov[kc]                                                   @singles

# doubles
A[iajb] += t2[iajc] F_vv[bc] - t2[iakb] F_oo[kj]                              @fock
r2[iajb] = A[jbia] + A[iajb] + V[iajb]                                        @fock
r2[iajb] += unfold R_s[px] R_a[PX]                                            @folding
"""

DIRECT_LADDER: Final = """
# the particle-particle ladder over atomic functions (s t; m n and M N are pairs of them)
tau2[iajb] = t2[iajb] + t1[ia] t1[jb]                                         @functions
half[isjb] = c_v[sa] tau2[iajb]                                               @functions
tau_f[isjt] = c_v[tb] half[isjb]                                              @functions
tau_fs[mx] = fold tau_f[isjt]                                                 @folding
tau_fa[MX] = fold tau_f[isjt]                                                 @folding
R_fs[mx] = ff_s[mn] tau_fs[nx]                                                @ladder
R_fa[MX] = ff_a[MN] tau_fa[NX]                                                @ladder
r_f[isjt] = unfold R_fs[mx] R_fa[MX]                                          @folding
back[isjb] = c_v[tb] r_f[isjt]                                                @functions
r2[iajb] += c_v[sa] back[isjb]                                                @functions
"""

DRCCD_EQUATIONS: Final = """
r2[iajb] = V[iajb] + t2[iajc] f_vv[bc] + f_vv[ac] t2[icjb] - t2[iakb] f_oo[kj] - f_oo[ki] t2[kajb]  @fock
VT[iajb] = V[iakc] t2[kcjb]                                                   @rings
r2[iajb] += 2 VT[iajb] + 2 VT[jbia]                                           @rings
r2[iajb] += 4 t2[iakc] VT[kcjb]                                               @rings
"""


def ccsd_statements(ladder: str = "orbitals") -> tuple[Statement, ...]:
    """The terms of CCSD, with the particle-particle ladder in one of the ways of `LADDERS`."""
    return _of(_with_ladder(ladder), ("r1", "r2"), ())


def ccd_statements(ladder: str = "orbitals") -> tuple[Statement, ...]:
    """The terms of CCD: those of CCSD that are left without singles."""
    return _of(_with_ladder(ladder), ("r2",), ("t1", "f_ov"))


def drccd_statements() -> tuple[Statement, ...]:
    """The terms of direct ring CCD, which is the direct random-phase approximation."""
    return _of(parse_equations(DRCCD_EQUATIONS), ("r2",), ())


def _with_ladder(ladder: str) -> list[Statement]:
    if ladder not in LADDERS:
        raise InputError(f"ladder={ladder!r} is unknown. Expected one of {', '.join(LADDERS)}. Correct it.")
    text = CCSD_EQUATIONS + DIRECT_LADDER if ladder == "direct" else CCSD_EQUATIONS
    gone = {"orbitals": (), "direct": ("vv_s", "vv_a"), "none": ("vv_s", "vv_a")}[ladder]
    return list(without_tensors(parse_equations(text), gone))


def _of(every: Sequence[Statement], results: tuple[str, ...], zero: tuple[str, ...]) -> tuple[Statement, ...]:
    return needed_statements(without_tensors(every, zero), results)
