"""The solver on problems of its own, on a dense CCSD that is compared with PySCF's, and on ranks."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pyscf import ao2mo, cc

import tilewise as tw
from chemistry.molecules import WATER, mean_field
from engines.processes import ranks
from references import stored_bytes
from tilewise.chemistry.checkpoint import Checkpoint
from tilewise.chemistry.diis import Amplitudes
from tilewise.chemistry.solver import Check, Cycle, Options, Outcome, check_finite, explain_failure, solve
from tilewise.errors import ConvergenceError, InputError, Interrupted, NonFiniteError
from tilewise.patterns import Pattern, Symmetry

Array = npt.NDArray[Any]

TIGHT = Options(conv_tol=1e-12, conv_tol_normt=1e-11, max_cycle=100)


class Toy:
    """Equations of the form of coupled cluster, all through einsum: t1[i, a] and t2[i, a, j, b].

    Parameters
    ----------
    scale : float
        Strength of the couplings: beyond about 1 the iteration diverges.
    """

    def __init__(self, scale: float = 0.5, occ: tuple[int, ...] = (2, 3), vir: tuple[int, ...] = (4, 3, 2)) -> None:
        self.occ, self.vir = tw.Space(occ, name="occ"), tw.Space(vir, name="vir")
        pair = (self.occ, self.vir)
        random = np.random.default_rng(5)
        size = self.occ.size * self.vir.size
        ring = random.normal(size=(size, size)) * scale / math.sqrt(size)
        shape = (self.occ.size, self.vir.size) * 2
        self.ring = tw.from_dense((ring + ring.T).reshape(shape), pair * 2)
        ladder = random.normal(size=(self.vir.size,) * 4) * 0.3 * scale / self.vir.size
        self.ladder = tw.from_dense(ladder, (self.vir,) * 4)
        self.force = tw.from_dense(random.normal(size=shape[:2]) * 0.1, pair)
        self.levels = np.linspace(-2, -0.6, self.occ.size), np.linspace(0.2, 3, self.vir.size)
        self.updates = 0

    def start(self) -> Amplitudes:
        pair = (self.occ, self.vir)
        return {"t1": tw.zeros(pattern=Pattern.dense(pair)), "t2": self._divided(self.ring)}

    def update(self, amplitudes: Amplitudes, check: Check) -> Amplitudes:
        self.updates += 1
        t1, t2 = amplitudes["t1"], amplitudes["t2"]
        new2 = self.ring.copy()
        tw.einsum("icjd,acbd->iajb", t2, self.ladder, out=new2, beta=1, reproducible=True)
        check()
        half = tw.einsum("iakc,kcld->iald", t2, self.ring, reproducible=True)
        tw.einsum("iald,ldjb->iajb", half, t2, out=new2, beta=1, alpha=0.3, reproducible=True)
        check()
        new1 = self.force.copy()
        tw.einsum("iajb,jb->ia", t2, self.force, out=new1, beta=1, reproducible=True)
        tw.einsum("iajb,jb->ia", self.ring, t1, out=new1, beta=1, reproducible=True)
        return {"t1": self._divided(new1), "t2": self._divided(new2)}

    def energy(self, amplitudes: Amplitudes) -> float:
        double = tw.einsum("iajb,iajb->", self.ring, amplitudes["t2"], reproducible=True).item()
        single = tw.einsum("ia,ia->", self.force, amplitudes["t1"], reproducible=True).item()
        return float(double + single)

    def _divided(self, tensor: tw.BlockTensor) -> tw.BlockTensor:
        low, high = self.levels
        modes = [low, -high] * (tensor.ndim // 2)

        def divide(block: Array, at: tuple[int, ...]) -> Array:
            parts = [levels[a : a + n] for levels, a, n in zip(modes, at, block.shape, strict=True)]
            found: Array = block / sum(np.ix_(*parts))
            return found

        return tensor.map(divide)

    def residual(self, amplitudes: Amplitudes) -> float:
        """By how much amplitudes miss the solution."""
        new = self.update(amplitudes, lambda: None)
        return max((new[name] - amplitudes[name]).norm() for name in new)

    def solve(self, options: Options = TIGHT, **more: Any) -> Outcome:
        return solve(self.start(), self.energy, self.update, options, **more)


def bits(outcome: Outcome) -> str:
    """All that must be the same in two runs."""
    summary = hashlib.sha256(repr((outcome.e_corr, outcome.cycles, outcome.history)).encode())
    for name, tensor in outcome.amplitudes.items():
        data, index, _, _ = stored_bytes(tensor)
        summary.update(name.encode() + data + index)
    return summary.hexdigest()


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
    assert "There were 0 cycles" in found.reason


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
        ([1e-4] * 9, [-1e-9] * 9, r"limits are below the rounding"),
        ([1e-1, 1e-2, 1e-1, 1.0], [1e-3] * 4, r"Steps grow again: the shortest was 0\.01 in cycle 2\. Check .* gap"),
        ([1e-1, 1e-2], [1e-1, 1e-2], r"There were 2 cycles\. Expected .* Raise max_cycle=50"),
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


# Signals


def test_a_signal_drops_the_iteration_it_comes_in(tmp_path: Path) -> None:
    expected = bits(Toy().solve())
    toy = Toy()

    def interrupted(amplitudes: Amplitudes, check: Check) -> Amplitudes:
        if toy.updates == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return toy.update(amplitudes, check)

    checkpoint = Checkpoint(tmp_path / "run.h5", b"toy")
    with pytest.raises(
        Interrupted, match=r"CCSD was stopped by SIGTERM after 4 cycles\. They are in .*run\.h5\. Run the same"
    ) as caught:
        solve(toy.start(), toy.energy, interrupted, TIGHT, checkpoint=checkpoint)
    assert caught.value.signal == "SIGTERM"
    again = Toy()
    found = again.solve(checkpoint=checkpoint)
    assert bits(found) == expected
    assert again.updates == found.cycles - 4


def test_before_the_first_iteration_is_done_the_start_is_written(tmp_path: Path) -> None:
    def stop(amplitudes: Amplitudes, check: Check) -> Amplitudes:
        raise Interrupted("", "SIGUSR1")

    toy, checkpoint = Toy(), Checkpoint(tmp_path / "run.h5", b"toy")
    with pytest.raises(Interrupted, match="stopped by SIGUSR1 after 0 cycles"):
        solve(toy.start(), toy.energy, stop, TIGHT, checkpoint=checkpoint)
    lines: list[str] = []
    other = toy.start() | {"t2": 0.5 * toy.start()["t2"]}
    found = solve(other, toy.energy, toy.update, TIGHT, checkpoint=checkpoint, log=lines.append)
    assert lines[0].startswith(f"CCSD goes on after cycle 0 from {tmp_path / 'run.h5'}  E_corr(CCSD) = ")
    assert bits(found) == bits(Toy().solve())


def test_an_interruption_without_a_checkpoint_is_passed_on() -> None:
    def stop(amplitudes: Amplitudes, check: Check) -> Amplitudes:
        raise Interrupted("mine")

    with pytest.raises(Interrupted, match="mine"):
        solve(Toy().start(), Toy().energy, stop)


# Ranks

ON_RANKS = """
import sys
from chemistry.test_solver import report_on_ranks

report_on_ranks(*sys.argv[1:])
"""


def report_on_ranks(path: str, most: str, vectors: str, per_node: str, seconds: str = "") -> None:
    """Solve the toy on the ranks of this job, at most so many cycles, and print what came out.

    Blocks of the start have other owners than those of what an iteration makes. The last rank dies after some seconds
    if there are any.
    """
    from tilewise.plans import sharing

    nodes = None if per_node == "all" else int(per_node)
    with pytest.MonkeyPatch.context() as patch, tw.engine("mpi", workers=1, ranks_per_node=nodes) as engine:
        patch.setattr(sharing, "LEAST_BYTES", 0)
        patch.setattr(sharing, "LEAST_FLOPS", 0)
        if seconds and engine.rank == engine.ranks - 1:
            threading.Timer(float(seconds), os.kill, (os.getpid(), signal.SIGKILL)).start()
        toy = Toy()
        options = Options(int(most), 1e-12, 1e-11, diis_on_disk=vectors == "disk")
        checkpoint = None if path == "none" else Checkpoint(path, b"toy")
        start = {name: tw.redistribute(tensor, "column") for name, tensor in toy.start().items()}
        found = solve(start, toy.energy, toy.update, options, checkpoint=checkpoint)
        assert engine.of_first(bits(found)) == bits(found)
        spread = found.amplitudes["t2"].arena.owner is not None
        if engine.rank == 0:
            print(json.dumps([bits(found), found.cycles, toy.updates, spread]))


def on_ranks(count: int, path: Path | str, most: int, vectors: str = "memory", per_node: str = "all") -> Any:
    pytest.importorskip("mpi4py")
    done = ranks(count, "-c", ON_RANKS, str(path), str(most), vectors, per_node)
    assert done.returncode == 0, done.stderr
    made, cycles, updates, spread = json.loads(done.stdout)
    assert spread == (count > 1)
    return made, cycles, updates


@pytest.mark.parametrize(
    ("count", "vectors", "per_node"),
    [
        (2, "disk", "all"),
        pytest.param(2, "disk", "1", marks=pytest.mark.slow),
        pytest.param(1, "disk", "all", marks=pytest.mark.slow),
        pytest.param(3, "memory", "all", marks=pytest.mark.slow),
        pytest.param(4, "memory", "2", marks=pytest.mark.slow),
        pytest.param(4, "disk", "all", marks=pytest.mark.slow),
    ],
)
def test_ranks_give_the_same_bits(count: int, vectors: str, per_node: str) -> None:
    expected = Toy().solve()
    assert on_ranks(count, "none", 100, vectors, per_node)[:2] == (bits(expected), expected.cycles)


@pytest.mark.parametrize(
    "sequence",
    [pytest.param((2, 1), id="two-one"), pytest.param((1, 4, 2, 3), id="several", marks=pytest.mark.slow)],
)
def test_a_run_goes_on_with_another_number_of_ranks(sequence: tuple[int, ...], tmp_path: Path) -> None:
    expected, path, before = Toy().solve(), tmp_path / "run.h5", 0
    for number, count in enumerate(sequence):
        most = 100 if number == len(sequence) - 1 else 7 * (number + 1)
        made, cycles, updates = on_ranks(count, path, most, ("memory", "disk")[number % 2], ("all", "1")[number // 2])
        assert updates == cycles - before
        before = cycles
    assert (made, cycles) == (bits(expected), expected.cycles)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_ranks_go_on_with_another_number_of_ranks(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    chance, expected, kills = np.random.default_rng(seed), Toy().solve(), 0
    for round_number in range(3):
        path = tmp_path / f"run{round_number}.h5"
        for _ in range(2):
            count, life = int(chance.integers(1, 5)), str(chance.uniform(0.1, 1.5))
            done = ranks(count, "-c", ON_RANKS, str(path), "100", "memory", "all", life)
            kills += done.returncode != 0
        assert on_ranks(int(chance.integers(1, 5)), path, 100)[:2] == (bits(expected), expected.cycles)
    assert kills >= 3


POISONED_RANKS = """
import numpy as np
import tilewise as tw
from chemistry.test_solver import Toy
from tilewise.chemistry.solver import check_finite, solve
from tilewise.errors import NonFiniteError
from tilewise.plans import sharing

sharing.LEAST_BYTES = sharing.LEAST_FLOPS = 0
with tw.engine("mpi", workers=1) as engine:
    toy = Toy()
    def poisoned(amplitudes, check):
        new = toy.update(amplitudes, check)
        if toy.updates == 3 and engine.rank == 1:
            new["t2"].arena.own[0] = np.nan
        return new | {"t2": tw.einsum("iajb->iajb", new["t2"])}
    try:
        solve(toy.start(), toy.energy, poisoned)
    except NonFiniteError as error:
        print(f"{toy.updates} {error.tensor} {error.block}\\n", end="", flush=True)
"""


def test_ranks_find_numbers_that_are_not_finite_together() -> None:
    pytest.importorskip("mpi4py")
    done = ranks(2, "-c", POISONED_RANKS)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == second
    assert first.startswith("3 t2 (")
