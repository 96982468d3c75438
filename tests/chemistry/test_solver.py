"""The solver on problems of its own, and on a dense CCSD that is compared with PySCF's."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import ao2mo, cc

import tilewise as tw
from chemistry.molecules import WATER, mean_field
from chemistry.solver_cases import TIGHT, Array, Toy, bits
from tilewise.chemistry.diis import Amplitudes
from tilewise.chemistry.solver import Check, Cycle, Options, check_finite, explain_failure, solve
from tilewise.errors import ConvergenceError, InputError, NonFiniteError
from tilewise.patterns import Pattern, Symmetry

# Convergence


def test_it_solves_the_equations() -> None:
    toy = Toy()
    found = toy.solve()
    assert found.converged
    assert toy.residual(found.amplitudes) < 1e-10
    assert found.e_corr == pytest.approx(toy.energy(found.amplitudes), abs=1e-14)
    assert found.cycles == len(found.history) < 40
    assert found.reason == f"CCSD converged in {found.cycles} cycles."
    last = found.history[-1]
    assert abs(last.change) < 1e-12
    assert last.norm < 1e-11
    assert not any(abs(c.change) < 1e-12 and c.norm < 1e-11 for c in found.history[:-1])


def test_defaults_are_those_of_pyscf() -> None:
    options = Options()
    for name in ("max_cycle", "conv_tol", "conv_tol_normt", "diis_space", "diis_start_cycle", "iterative_damping"):
        assert getattr(options, name) == getattr(cc.ccsd.CCSD, name)


def test_diis_on_disk_and_another_engine_give_the_same_bits(tmp_path: Path) -> None:
    expected = bits(Toy().solve())
    on_disk = Options(conv_tol=1e-12, conv_tol_normt=1e-11, max_cycle=100, diis_on_disk=True, scratch=str(tmp_path))
    assert bits(Toy().solve(on_disk)) == expected
    with tw.engine("threads", workers=3):
        assert bits(Toy().solve()) == expected
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "more",
    [{"diis_space": 0}, {"diis_space": 1}, {"diis_start_cycle": 4}, {"iterative_damping": 0.7}, {"diis_space": 12}],
    ids=str,
)
def test_every_way_leads_to_the_same_solution(more: dict[str, Any]) -> None:
    expected = Toy(0.4).solve()
    found = Toy(0.4).solve(Options(conv_tol=1e-11, conv_tol_normt=1e-10, max_cycle=300, **more))
    assert found.converged
    assert found.e_corr == pytest.approx(expected.e_corr, abs=1e-9)


def test_damping_takes_a_part_of_each_step() -> None:
    toy, options = Toy(), Options(max_cycle=1, diis_space=0, iterative_damping=0.25)
    start = toy.start()
    found = toy.solve(options)
    whole = toy.update(start, lambda: None)
    steps = {name: whole[name] - start[name] for name in start}
    for name, tensor in found.amplitudes.items():
        expected = start[name].to_dense() + 0.25 * steps[name].to_dense()
        np.testing.assert_allclose(tensor.to_dense(), expected, atol=1e-14)
    # As in PySCF, the norm is that of the whole step.
    assert found.history[0].norm == pytest.approx(math.hypot(*(step.norm() for step in steps.values())))


def test_a_start_that_is_the_solution_takes_one_cycle() -> None:
    toy = Toy()
    solution = toy.solve().amplitudes
    found = solve(solution, toy.energy, toy.update)
    assert found.converged
    assert found.cycles == 1


def test_no_cycles_at_all() -> None:
    toy = Toy()
    found = toy.solve(Options(max_cycle=0))
    assert (found.converged, found.cycles, found.history, toy.updates) == (False, 0, (), 0)
    assert found.e_corr == toy.energy(toy.start())
    assert "There was no cycle" in found.reason


# What is told


def test_lines_are_in_the_manner_of_pyscf() -> None:
    lines: list[str] = []
    found = Toy().solve(Options(), log=lines.append, name="CCD")
    number = r"-?\d\.?\d*(e-\d\d)?"
    assert re.fullmatch(rf"Init E_corr\(CCD\) = {number}", lines[0])
    for row, line in zip(found.history, lines[1:-1], strict=True):
        pattern = rf"cycle = {row.number}  E_corr\(CCD\) = {number}  dE = {number}  norm\(t1,t2\) = {number}"
        assert re.fullmatch(pattern, line)
        assert float(line.split()[5]) == pytest.approx(row.e_corr, rel=1e-14)
    assert lines[-1] == "CCD converged"


def test_the_callback_is_told_of_each_cycle() -> None:
    told: list[dict[str, Any]] = []
    found = Toy().solve(callback=told.append)
    assert [(row["cycle"], row["e_corr"], row["de"], row["norm"]) for row in told] == [
        (c.number, c.e_corr, c.change, c.norm) for c in found.history
    ]
    assert told[-1]["amplitudes"] is found.amplitudes


# Without convergence


def test_an_iteration_that_is_cut_short_says_how_many_cycles_it_needs() -> None:
    found = Toy().solve(Options(conv_tol=1e-10, conv_tol_normt=1e-9, max_cycle=8))
    assert not found.converged
    assert found.cycles == 8
    match = re.search(
        r"CCSD has not converged\. After 8 cycles the step has the norm .* It was still converging: raise max_cycle to "
        r"(\d+) or more\.",
        found.reason,
    )
    assert match
    again = Toy().solve(Options(conv_tol=1e-10, conv_tol_normt=1e-9, max_cycle=int(match[1])))
    assert again.converged
    assert int(match[1]) < 4 * again.cycles


def test_an_iteration_that_diverges_stops_early() -> None:
    lines: list[str] = []
    toy = Toy(12.0)
    found = toy.solve(Options(diis_space=0, max_cycle=10**6), log=lines.append)
    assert not found.converged
    assert found.cycles < 100
    assert re.fullmatch(
        r"CCSD diverges: the (step|energy) of cycle \d+ .*\. Expected steps that become smaller\. Check .*",
        found.reason,
    )
    assert lines[-1] == found.reason
    assert math.isfinite(found.e_corr)
    assert found.e_corr == pytest.approx(toy.energy(found.amplitudes), rel=1e-12)


def test_a_large_energy_stops_at_once() -> None:
    found = solve(Toy().start(), lambda amplitudes: -2e3, Toy().update)
    assert found.cycles == 1
    assert "the energy of cycle 1 is -2e+03 hartree" in found.reason


def history(norms: list[float], changes: list[float]) -> tuple[Cycle, ...]:
    return tuple(Cycle(n, -0.2, change, norm) for n, (norm, change) in enumerate(zip(norms, changes, strict=True), 1))


@pytest.mark.parametrize(
    ("norms", "changes", "text"),
    [
        ([1e-1 / 2**n for n in range(9)], [-1e-2 / 4**n for n in range(9)], r"still converging: raise max_cycle to 18"),
        ([1e-2] * 9, [1e-3 * (-1) ** n for n in range(9)], r"goes up and down\. Raise diis_space=6, or .*damping=0\.5"),
        ([1e-2 * 0.97**n for n in range(9)], [-1e-3] * 9, r"0\.97 times as long .* Raise max_cycle to \d+ or more"),
        ([1e-4] * 9, [-1e-9] * 9, r"do not become shorter\. .*limits are below the rounding"),
        ([1e-16 * 1.02**n for n in range(9)], [0.0] * 9, r"as short as rounding lets them be: raise conv_tol_normt"),
        ([1e-1, 1e-2, 1e-1, 1.0], [1e-3] * 4, r"Steps grow again: the shortest was 0\.01 in cycle 2\. Check .* gap"),
        ([1e-1, 1e-2], [1e-1, 1e-2], r"After 2 cycles the step has the norm 0\.01 .* Raise max_cycle=50"),
        ([0.0] * 4, [1e-3] * 4, r"raise max_cycle to"),
    ],
)
def test_reasons_are_told_from_the_history(norms: list[float], changes: list[float], text: str) -> None:
    assert re.search(text, explain_failure(history(norms, changes), Options()))


def test_what_needs_converged_amplitudes_refuses_others() -> None:
    toy = Toy()
    toy.solve().check_converged("CCSD(T)")
    with pytest.raises(ConvergenceError, match=r"CCSD\(T\) needs converged amplitudes\. CCSD has not converged"):
        toy.solve(Options(max_cycle=2)).check_converged("CCSD(T)")


# Numbers that are not finite


@pytest.mark.parametrize("seed", range(50))
def test_a_number_that_is_not_finite_stops_the_same_iteration(seed: int) -> None:
    """Of any block of any operand or result, in any cycle: 50 of 50."""
    random, toy = np.random.default_rng(seed), Toy()
    cycle, name = int(random.integers(1, 6)), ("t1", "t2")[seed % 2]
    value = (np.nan, np.inf, -np.inf)[seed % 3]

    def poisoned(amplitudes: Amplitudes, check: Check) -> Amplitudes:
        new = toy.update(amplitudes, check)
        if toy.updates == cycle:
            own = new[name].arena.own
            own[random.integers(len(own))] = value
            new[name] = tw.einsum("...->...", new[name])
        return new

    with pytest.raises(
        NonFiniteError, match=rf"of {name} has elements that are not finite after the update of"
    ) as caught:
        solve(toy.start(), toy.energy, poisoned, TIGHT)
    assert toy.updates == cycle
    assert (caught.value.tensor, caught.value.term) == (name, f"the update of cycle {cycle}")


@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("expression", ["ij,jk->ik", "ij,jk->ki", "ij,ij->ij", "ij,jk->i"])
def test_terms_are_checked_by_the_norms_that_contractions_note(expression: str, operand: int) -> None:
    space = tw.Space([3, 40, 7])
    pair = [tw.random((space, space), seed=seed) for seed in (1, 2)]
    check_finite("R", tw.einsum(expression, *pair), "a term")
    pair[operand].arena.own[60] = np.nan
    made = tw.einsum(expression, *pair)
    wrong = {block for block, values in made.blocks() if not np.isfinite(values).all()}
    with pytest.raises(NonFiniteError, match=r"Block .* of R has elements that are not finite after a term") as caught:
        check_finite("R", made, "a term")
    assert caught.value.block in wrong


def test_norms_that_nobody_knows_are_looked_up(tmp_path: Path) -> None:
    space = tw.Space([2, 3])
    tensor = tw.random((space, space), symmetry=Symmetry(((0, 1), -1)))
    tensor.replace_norms(np.full(tensor.pattern.nnz_blocks, np.inf))
    check_finite("t", tensor, "a term")
    tensor.save(tmp_path / "t.h5")
    check_finite("t", tw.load(tmp_path / "t.h5", on_disk=True), "a term")
    tensor.arena.own[-1] = np.nan
    with pytest.raises(NonFiniteError, match=r"Block \(1, 1\) of t has"):
        check_finite("t", tensor, "a term")


def test_a_start_or_an_energy_that_is_not_finite() -> None:
    toy = Toy()
    with pytest.raises(NonFiniteError, match=r"The energy of CCSD is nan after cycle 0\. Expected"):
        solve(toy.start(), lambda amplitudes: math.nan, toy.update)
    start = toy.start()
    start["t2"].arena.own[3] = np.inf
    start["t2"].replace_norms(start["t2"].arena.norms())
    with pytest.raises(NonFiniteError, match=r"Block \(0, 0, 0, 0\) of t2 .* after taking it to start from"):
        solve(start, toy.energy, toy.update)
    assert toy.updates == 0


# Input


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_cycle": -1}, "max_cycle=-1 is negative"),
        ({"diis_space": 1.5}, r"diis_space= is 1\.5\. It must be an integer"),
        ({"conv_tol": 0}, "conv_tol=0 is no tolerance"),
        ({"conv_tol_normt": math.nan}, "conv_tol_normt=nan is no tolerance"),
        ({"iterative_damping": 0}, "iterative_damping=0 is no part of a step"),
        ({"iterative_damping": 1.5}, r"iterative_damping=1\.5 is no part"),
    ],
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        Options(**options)


def test_wrong_starts(tmp_path: Path) -> None:
    toy = Toy()
    with pytest.raises(InputError, match="There are no amplitudes to start from"):
        solve({}, toy.energy, toy.update)
    with pytest.raises(InputError, match="The amplitudes t1 are a ndarray"):
        solve({"t1": np.zeros(3)}, toy.energy, toy.update)  # type: ignore[dict-item]
    toy.ring.save(tmp_path / "t.h5")
    with pytest.raises(InputError, match=r"t2 are not in memory\. Expected .* Pass its copy"):
        solve({"t2": tw.load(tmp_path / "t.h5", on_disk=True)}, toy.energy, toy.update)


def test_updates_that_return_something_else() -> None:
    toy = Toy()
    with pytest.raises(InputError, match=r"The update returned the amplitudes t2\. Expected t1, t2"):
        solve(toy.start(), toy.energy, lambda amplitudes, check: {"t2": amplitudes["t2"]})
    few = toy.start() | {"t1": tw.zeros((toy.occ, toy.vir))}
    with pytest.raises(InputError, match=r"The update made t1 as .* no other blocks than the start has"):
        solve(few, toy.energy, toy.update)


def test_blocks_that_an_update_leaves_out_are_zero() -> None:
    """A start of zeros has all blocks; what comes from dense arrays has only those that are not zero."""
    space = tw.Space([2, 3])
    target = np.diag([1.0, 2.0, 0.0, 0.0, 0.0])

    def update(amplitudes: Amplitudes, check: Check) -> Amplitudes:
        return {"t": tw.from_dense(0.5 * (amplitudes["t"].to_dense() + target), (space, space))}

    start = {"t": tw.zeros(pattern=Pattern.dense((space, space)))}
    found = solve(start, lambda amplitudes: float(amplitudes["t"].to_dense().sum()), update, TIGHT)
    assert found.converged
    assert found.amplitudes["t"].pattern.nnz_blocks == 4
    np.testing.assert_allclose(found.amplitudes["t"].to_dense(), target, atol=1e-11)


# CCSD of molecules, by dense arrays


class DenseCCSD:
    """Closed-shell CCSD in dense arrays, t1[i, a] and t2[i, a, j, b]; the T1-dressed equations."""

    def __init__(self, mf: Any, tile: int = 3) -> None:
        nocc, orbitals = int(np.count_nonzero(mf.mo_occ)), mf.mo_coeff
        o, v, n = slice(0, nocc), slice(nocc, None), orbitals.shape[1]
        eri = ao2mo.restore(1, ao2mo.kernel(mf.mol, orbitals), n)
        self.oooo, self.ooov, self.vvvv = eri[o, o, o, o], eri[o, o, o, v], eri[v, v, v, v]
        self.direct, self.exchange = eri[o, v, o, v], eri[o, o, v, v].transpose(1, 2, 0, 3)
        self.ovvv = eri[o, v, v, v].transpose(2, 0, 1, 3)
        self.crossed = self.direct.transpose(2, 1, 0, 3)
        self.both = 2 * self.direct - self.crossed
        levels = mf.mo_energy
        self.levels = levels[o], levels[v]
        self.singles = levels[o, None] - levels[v]
        self.doubles = self.singles[:, :, None, None] + self.singles
        self.spaces = tw.Space.uniform(nocc, tile, "occ"), tw.Space.uniform(n - nocc, tile, "vir")

    def start(self) -> Amplitudes:
        blocks = tw.zeros(pattern=Pattern.dense(self.spaces))
        t2 = tw.zeros(pattern=Pattern.dense(self.spaces * 2)) + self._cut(self.direct / self.doubles)
        return {"t1": blocks, "t2": t2}

    def _cut(self, array: Array) -> tw.BlockTensor:
        return tw.from_dense(array, self.spaces * (array.ndim // 2))

    def energy(self, amplitudes: Amplitudes) -> float:
        t1, t2 = (tensor.to_dense() for tensor in amplitudes.values())
        return float(np.sum((t2 + np.multiply.outer(t1, t1)) * self.both))

    def update(self, amplitudes: Amplitudes, check: Check) -> Amplitudes:
        t1, t2 = (tensor.to_dense() for tensor in amplitudes.values())
        first, second = self.residuals(t1, t2)
        return {"t1": self._cut(t1 + first / self.singles), "t2": self._cut(t2 + second / self.doubles)}

    def residuals(self, t1: Array, t2: Array) -> tuple[Array, Array]:
        def es(expression: str, *arrays: Array) -> Array:
            return np.asarray(np.einsum(expression, *arrays, optimize=True))

        swapped = t2.transpose(0, 3, 2, 1)
        theta, tau = 2 * t2 - swapped, t2 + np.multiply.outer(t1, t1)
        dressed_j, dressed_k = es("id,akdc->iakc", t1, self.ovvv), es("id,akcd->iakc", t1, self.ovvv)
        quad = es("kilc,jc->kilj", self.ooov, t1)
        fock_ov = es("kcld,ld->kc", self.both, t1)
        fock_oo = np.diag(self.levels[0]) + 2 * es("kill->ki", quad) - es("likl->ki", quad)
        fock_vv = np.diag(self.levels[1]) + 2 * es("kakc->ac", dressed_j) - es("kakc->ac", dressed_k)
        fock_vo = 2 * es("iakc,kc->ia", self.direct, t1) - es("iakc,kc->ia", self.exchange, t1)
        edge = self.ooov + es("id,kdlc->kilc", t1, self.direct)
        out_oo = es("kdlc,jdlc->kj", self.both, t2)
        out_vv = es("kbld,kcld->bc", t2, self.both)
        bare = self.exchange + dressed_j - es("la,kilc->iakc", t1, edge)
        inner = bare - 0.5 * es("iald,ldkc->iakc", swapped, self.crossed)
        outer = 2 * (self.direct + dressed_k - es("la,likc->iakc", t1, edge)) - bare
        outer += 0.5 * es("iald,ldkc->iakc", theta, self.both)
        full_oo = fock_oo + es("ic,kc->ki", t1, fock_ov) + out_oo
        full_vv = fock_vv - es("ka,kc->ac", t1, fock_ov) - out_vv
        first = fock_vo + es("ic,ac->ia", t1, full_vv) - es("ka,ki->ia", t1, fock_oo + out_oo)
        first += es("iakc,kc->ia", theta, fock_ov) + es("kcid,akcd->ia", theta, self.ovvv)
        first -= es("kalc,kilc->ia", theta, self.ooov)
        holes = self.oooo + quad + es("ljki->kilj", quad) + es("icjd,kcld->kilj", tau, self.direct)
        half = 0.5 * es("iakc,kcjb->iajb", outer, theta)
        rings = es("iakc,kcjb->iajb", inner, swapped)
        half -= 0.5 * rings + rings.transpose(2, 1, 0, 3)
        half += es("iajc,bc->iajb", t2, full_vv) - es("iakb,kj->iajb", t2, full_oo)
        kernel = es("ljia->ijal", edge) + es("ic,jalc->ijal", t1, self.exchange) + es("icjd,aldc->ijal", tau, self.ovvv)
        half += dressed_k - es("lb,ijal->iajb", t1, kernel)
        second = self.direct + es("icjd,acbd->iajb", tau, self.vvvv) + es("kalb,kilj->iajb", tau, holes)
        return first, second + half + half.transpose(2, 3, 0, 1)


MOLECULES = {
    "water": (WATER, "6-31g"),
    "stretched water": ("O 0 0 0; H 0 1.4 1.1; H 0 -1.4 1.1", "6-31g"),
    "stretched nitrogen": ("N 0 0 0; N 0 0 1.5", "sto-3g"),
    "stretched hydrogen fluoride": ("F 0 0 0; H 0 0 2.0", "6-31g"),
}


@pytest.mark.parametrize("molecule", MOLECULES)
def test_ccsd_energies_are_those_of_pyscf(molecule: str) -> None:
    mf = mean_field(*MOLECULES[molecule])
    mf.run(mf.make_rdm1(), conv_tol=1e-13, conv_tol_grad=1e-9)  # the equations take its Fock matrix to be diagonal
    peer = cc.CCSD(mf)
    peer.conv_tol, peer.conv_tol_normt, peer.max_cycle, peer.diis_space = 1e-12, 1e-8, 300, 10
    peer.kernel()
    assert peer.converged
    dense = DenseCCSD(mf)
    found = solve(dense.start(), dense.energy, dense.update, Options(100, 1e-10, 1e-10))
    assert found.converged, found.reason
    assert found.e_corr == pytest.approx(peer.e_corr, abs=1e-9)
    t2 = found.amplitudes["t2"].to_dense().transpose(0, 2, 1, 3)
    assert np.abs(t2 - peer.t2).max() < 1e-7
    # With the same options it needs about as many cycles.
    usual = cc.CCSD(mf).run()
    assert solve(dense.start(), dense.energy, dense.update).cycles <= usual.cycles + 2
