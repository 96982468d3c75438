"""CCSD and CCD as PySCF's users know them: amplitudes, starts, refusals, and what is no number."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from pyscf import ao2mo, cc, dft, scf

import tilewise as tw
from chemistry.cc_cases import (
    TIGHT,
    PyscfCCD,
    converge_pyscf,
    mean_field_of,
    tensor_bytes,
    tight_mean_field,
    without_file,
)
from chemistry.molecules import HELIUM_CHAIN, HYDROGEN, WATER, make_mol
from tilewise.chemistry import CCD, CCSD, DRCCD
from tilewise.chemistry.hamiltonian import Hamiltonian
from tilewise.errors import ConvergenceError, InputError, NonFiniteError
from tilewise.plans.explain import bytes_text

SAME = 1e-8


@pytest.fixture(scope="module")
def water() -> Any:
    return mean_field_of("water", "6-31g")


@pytest.fixture(scope="module")
def labelled() -> Any:
    """The same with irreps."""
    return mean_field_of("water", "6-31g", True)


@pytest.fixture(scope="module")
def theirs(water: Any) -> Any:
    """PySCF's CCSD."""
    return converge_pyscf(cc.CCSD(water))


@pytest.fixture(scope="module")
def ours(water: Any) -> CCSD:
    return CCSD(water, tile=3, **TIGHT).run()


# What comes back


def test_kernel_returns_energy_and_amplitudes(water: Any) -> None:
    method = CCSD(water)
    energy, t1, t2 = method.kernel()
    assert (energy, t1) == (method.e_corr, method.t1)
    assert t1 is not None
    assert t2 is not None
    assert (t1.shape, t2.shape) == ((5, 8), (5, 5, 8, 8))
    assert method.e_tot == water.e_tot + energy
    assert method.e_hf == water.e_tot


def test_run_returns_the_object(water: Any) -> None:
    method = CCSD(water)
    assert method.run(max_cycle=1) is method
    assert (method.max_cycle, method.cycles) == (1, 1)


def test_methods_and_plans_say_in_a_line_what_they_are(water: Any) -> None:
    method = CCSD(water, frozen=1, memory="100MB")
    assert repr(method) == "CCSD(4 occupied and 8 virtual orbitals)"
    plan = method.plan()
    peak = bytes_text(plan.peak_bytes)
    assert repr(plan) == f"MethodPlan('CCSD', {plan.flops:.3g} flops an iteration, {peak} of 100 MB)"
    method.run(max_cycle=1)
    assert repr(method) == f"CCSD(4 occupied and 8 virtual orbitals, e_corr={method.e_corr:.8f})"


def test_nothing_is_known_before_the_run(water: Any) -> None:
    method = CCSD(water, frozen=1)
    assert (method.e_corr, method.e_tot, method.t1, method.t2, method.outcome) == (None,) * 5
    assert (method.converged, method.cycles, method.t1_diagnostic) == (False, 0, 0.0)
    assert (method.nocc, method.nvir, method.frozen) == (4, 8, 1)
    with pytest.raises(
        InputError, match=r"CCSD has no amplitudes yet\. Expected them after a run\. Call run\(\) first"
    ):
        method.to_pyscf()


@pytest.mark.parametrize("kind", [CCSD, CCD, DRCCD])
def test_defaults_are_those_of_pyscf(kind: Any, water: Any) -> None:
    method, usual = kind(water), cc.CCSD(water)
    for name in ("max_cycle", "conv_tol", "conv_tol_normt", "diis_space", "diis_start_cycle", "iterative_damping"):
        assert getattr(method, name) == getattr(usual, name), name
    assert (method.diis, method.callback, method.verbose) == (True, None, usual.verbose)
    assert method.max_memory > 0


def test_with_the_settings_of_pyscf_it_stops_where_pyscf_does(water: Any) -> None:
    usual = cc.CCSD(water).run()
    method = CCSD(water).run()
    assert method.converged
    assert abs(method.cycles - usual.cycles) <= 1
    assert method.e_corr == pytest.approx(usual.e_corr, rel=0, abs=1e-6)


def test_the_mean_field_is_not_changed(water: Any) -> None:
    before = water.mo_coeff.copy(), water.mo_energy.copy(), water.e_tot
    CCSD(water, 1, tile=3).run(max_cycle=2)
    assert np.array_equal(before[0], water.mo_coeff)
    assert np.array_equal(before[1], water.mo_energy)
    assert before[2] == water.e_tot


def test_a_second_run_begins_anew(water: Any) -> None:
    method = CCSD(water, reproducible=True).run()
    first, cycles = method.e_corr, method.cycles
    assert method.run().e_corr == first
    assert method.cycles == cycles


# Amplitudes


@pytest.mark.parametrize("tile", [None, 3])
@pytest.mark.parametrize("symmetry", [False, True], ids=["no irreps", "irreps"])
@pytest.mark.parametrize("frozen", [None, [0, 7]], ids=["all", "frozen"])
def test_amplitudes_go_to_pyscf(symmetry: bool, tile: int | None, frozen: Any) -> None:
    mf = mean_field_of("water", "6-31g", symmetry)
    expected = converge_pyscf(cc.CCSD(mf, frozen=frozen))
    method = CCSD(mf, frozen, tile=tile, **TIGHT).run()
    t1, t2 = method.to_pyscf()
    np.testing.assert_allclose(t1, expected.t1, rtol=0, atol=1e-7)
    np.testing.assert_allclose(t2, expected.t2, rtol=0, atol=1e-7)
    assert expected.energy(t1, t2) == pytest.approx(method.e_corr, rel=0, abs=1e-11)
    assert method.t1_diagnostic == pytest.approx(expected.get_t1_diagnostic(), abs=1e-7)


def test_doubles_have_no_singles(water: Any) -> None:
    method = CCD(water, tile=3, **TIGHT).run()
    expected = converge_pyscf(PyscfCCD(water))
    t1, t2 = method.to_pyscf()
    assert method.t1 is None
    assert not t1.any()
    np.testing.assert_allclose(t2, expected.t2, rtol=0, atol=1e-7)
    assert method.e_corr == pytest.approx(expected.e_corr, rel=0, abs=SAME)


def test_amplitudes_are_in_the_order_of_tiles(labelled: Any) -> None:
    method = CCSD(labelled, tile=3, **TIGHT).run()
    t1, t2 = method.to_pyscf()
    assert method.t1 is not None
    assert method.t2 is not None
    occ, vir = method.spaces.occ.order, method.spaces.vir.order
    assert occ.tolist() != list(range(5))
    np.testing.assert_array_equal(method.t1.to_dense(), t1[np.ix_(occ, vir)])
    np.testing.assert_array_equal(method.t2.to_dense(), t2[np.ix_(occ, occ, vir, vir)])
    np.testing.assert_allclose(t2, t2.transpose(1, 0, 3, 2), rtol=0, atol=1e-12)


# Starts


def test_starts_from_amplitudes_of_pyscf(water: Any, labelled: Any, theirs: Any) -> None:
    method = CCSD(water, tile=3, **TIGHT)
    energy, *_ = method.kernel(theirs.t1, theirs.t2)
    assert method.cycles <= 3
    assert energy == pytest.approx(theirs.e_corr, rel=0, abs=SAME)
    irreps = CCSD(labelled, **TIGHT)
    expected = converge_pyscf(cc.CCSD(labelled))
    irreps.kernel(t1=expected.t1, t2=expected.t2)
    assert irreps.converged
    assert irreps.cycles <= 3


def test_starts_from_our_own_amplitudes(water: Any, ours: CCSD) -> None:
    same, other = CCSD(water, tile=3, **TIGHT), CCSD(water, tile=4, **TIGHT)
    same.kernel(ours.t1, ours.t2)
    other.kernel(*ours.to_pyscf())
    for method in (same, other):
        assert method.cycles <= 2
        assert method.e_corr == pytest.approx(ours.e_corr, rel=0, abs=1e-10)


def test_starting_does_not_change_what_is_given(water: Any, ours: CCSD) -> None:
    t1, t2 = ours.to_pyscf()
    copies = t1.copy(), t2.copy()
    CCSD(water, tile=3).kernel(t1, t2)
    CCSD(water, tile=3).kernel(ours.t1, ours.t2)
    assert np.array_equal(t1, copies[0])
    assert np.array_equal(t2, copies[1])
    assert np.array_equal(ours.to_pyscf()[1], copies[1])


def test_a_start_without_the_symmetry_of_pairs_is_given_it(water: Any, theirs: Any) -> None:
    """The equations take t(i, a, j, b) = t(j, b, i, a) for granted: what differs would stay."""
    start = np.random.default_rng(0).normal(size=theirs.t2.shape, scale=0.01)
    method = CCSD(water, **TIGHT)
    method.kernel(t2=start)
    assert method.e_corr == pytest.approx(theirs.e_corr, rel=0, abs=SAME)
    doubles = method.to_pyscf()[1]
    np.testing.assert_allclose(doubles, doubles.transpose(1, 0, 3, 2), rtol=0, atol=1e-10)


def test_starts_without_singles(water: Any, theirs: Any) -> None:
    method = CCSD(water, **TIGHT)
    method.kernel(t2=theirs.t2)
    assert method.e_corr == pytest.approx(theirs.e_corr, rel=0, abs=SAME)
    doubles = CCD(water, **TIGHT)
    doubles.kernel(None, CCD(water, **TIGHT).run().t2)
    assert doubles.cycles <= 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t1, t2: (t1[1:], t2), r"t1= has shape \(4, 8\)\. Expected \(5, 8\), PySCF's order.*Check frozen="),
        (lambda t1, t2: (t1, t2[1:, 1:]), r"t2= has shape \(4, 4, 8, 8\)\. Expected \(5, 5, 8, 8\)"),
        (lambda t1, t2: (t1, t2.transpose(0, 2, 1, 3)), r"t2= has shape \(5, 8, 5, 8\)"),
        (lambda t1, t2: (t1 * np.nan, t2), r"t1= has elements that are not finite\. Expected numbers"),
        (lambda t1, t2: (t1, t2 + 0.1j), r"t2= is no array of real numbers: it has elements of complex128"),
        (lambda t1, t2: ("a", t2), r"t1= is no array of real numbers"),
        (lambda t1, t2: (t1.ravel(), t2), r"t1= has shape \(40,\)"),
    ],
    ids=["few singles", "few doubles", "other order", "no numbers", "complex", "text", "flat"],
)
def test_other_amplitudes_are_refused(water: Any, theirs: Any, change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        CCSD(water).kernel(*change(theirs.t1, theirs.t2))


def test_amplitudes_over_other_tiles_are_refused(water: Any, ours: CCSD) -> None:
    with pytest.raises(InputError, match=r"t1= has the spaces .* Pass what to_pyscf\(\) of the other method gives"):
        CCSD(water, tile=4).kernel(ours.t1, ours.t2)


# Convergence


@pytest.mark.parametrize("kind", [CCSD, CCD, DRCCD])
def test_without_convergence_there_is_a_reason(kind: Any, water: Any) -> None:
    method = kind(water, max_cycle=2).run()
    assert not method.converged
    assert method.cycles == 2
    assert method.e_corr is not None
    assert f"{method.name} has not converged. After 2 cycles the step has the norm" in method.outcome.reason
    assert "Raise max_cycle=2." in method.outcome.reason
    with pytest.raises(ConvergenceError, match=r"Triples needs converged amplitudes\..*Raise max_cycle=2"):
        method.outcome.check_converged("Triples")


def test_slow_convergence_says_how_many_cycles_it_takes(water: Any) -> None:
    method = CCSD(water, max_cycle=6, conv_tol=1e-10, conv_tol_normt=1e-8).run()
    assert method.outcome is not None
    assert not method.converged
    found = re.search(r"It was still converging: raise max_cycle to (\d+) or more", method.outcome.reason)
    assert found is not None
    assert CCSD(water, max_cycle=int(found[1]), conv_tol=1e-10, conv_tol_normt=1e-8).run().converged


def test_converged_outcome_says_so(ours: CCSD) -> None:
    assert ours.outcome is not None
    assert ours.outcome.reason == f"CCSD converged in {ours.cycles} cycles."
    ours.outcome.check_converged("Triples")


# Molecules at the edge


@pytest.mark.parametrize("kind", [CCSD, CCD, DRCCD])
@pytest.mark.parametrize(
    ("atoms", "basis", "frozen"),
    [("He 0 0 0", "sto-3g", None), (WATER, "sto-3g", [5, 6])],
    ids=["minimal basis", "all virtuals frozen"],
)
def test_without_virtual_orbitals_the_energy_is_zero(kind: Any, atoms: str, basis: str, frozen: Any) -> None:
    method = kind(tight_mean_field(atoms, basis), frozen).run()
    assert (method.nvir, method.e_corr, method.converged) == (0, 0.0, True)


@pytest.mark.parametrize(
    ("atoms", "basis", "options"),
    [
        (HYDROGEN, "sto-3g", {}),
        (HYDROGEN, "cc-pvdz", {"symmetry": True}),
        ("He 0 0 0", "cc-pvdz", {}),
        ("N 0 0 0; O 0 0 1.063", "sto-3g", {"charge": 1}),
        (HELIUM_CHAIN, "sto-3g", {}),
        ("Cl 0 0 0; H 0 0 1.275", "sto-3g", {"symmetry": "C2v"}),
        ("I 0 0 0; H 0 0 1.609", "lanl2dz", {"ecp": "lanl2dz"}),
    ],
    ids=["one of each", "one pair", "atom", "ion", "no virtuals", "given group", "core potential"],
)
def test_other_molecules(atoms: str, basis: str, options: dict[str, Any]) -> None:
    mf = tight_mean_field(atoms, basis, **options)
    method = CCSD(mf, tile=4, **TIGHT).run()
    expected = 0.0 if method.nvir == 0 else converge_pyscf(cc.CCSD(mf)).e_corr
    assert method.converged
    assert method.e_corr == pytest.approx(expected, rel=0, abs=SAME)


def test_irreps_save_work(water: Any, labelled: Any) -> None:
    plain, irreps = CCSD(water).plan(), CCSD(labelled).plan()
    assert irreps.flops < 0.5 * plain.flops
    assert tensor_bytes(CCSD(labelled)) < 0.5 * tensor_bytes(CCSD(water))


def test_orbitals_need_not_be_canonical(water: Any, theirs: Any) -> None:
    """Occupied and virtual orbitals mixed among themselves give the same energy: the Fock matrix is not diagonal."""
    turned = water.copy()
    random = np.random.default_rng(0)
    blocks = [np.linalg.qr(random.normal(size=(n, n)) * 0.1 + np.eye(n))[0] for n in (5, 8)]
    turned.mo_coeff = np.hstack([water.mo_coeff[:, :5] @ blocks[0], water.mo_coeff[:, 5:] @ blocks[1]])
    for kind, expected in ((CCSD, theirs.e_corr), (DRCCD, DRCCD(water, **TIGHT).run().e_corr)):
        method = kind(turned, **TIGHT).run()
        assert method.converged
        assert method.e_corr == pytest.approx(expected, rel=0, abs=SAME)


def test_the_ladder_can_be_left_out(water: Any) -> None:
    whole, without = CCSD(water), CCSD(water, ladder="none")
    assert "ladder" in whole.plan().iteration.by_group()
    assert "ladder" not in without.plan().iteration.by_group()
    assert without.plan().flops < whole.plan().flops
    energies = [method.kernel()[0] for method in (whole, without)]
    assert abs(energies[0] - energies[1]) > 1e-3
    with pytest.raises(InputError, match="ladder='some' is unknown"):
        CCSD(water, ladder="some").plan()


# Mean fields that are refused


OH: dict[str, Any] = {"atom": "O 0 0 0; H 0 0 0.97", "basis": "sto-3g", "spin": 1}


def not_run() -> Any:
    return scf.RHF(make_mol(WATER, "sto-3g"))


REFUSED = [
    (
        lambda: dft.RKS(make_mol(WATER, "sto-3g"), xc="pbe").run(),
        r"RKS is a Kohn-Sham mean field\. Expected Hartree-Fock orbitals\. Make one with pyscf\.scf\.RHF",
    ),
    (
        lambda: scf.UHF(make_mol(**OH)).run(),
        r"UHF has orbitals that are not doubly occupied or empty\. Expected a closed shell.*Make the mean field with",
    ),
    (lambda: scf.ROHF(make_mol(**OH)).run(), r"ROHF has orbitals that are not doubly occupied or empty\. Expected"),
    (lambda: scf.ROHF(make_mol(WATER, "sto-3g")).run(), r"ROHF is a mean field of open shells, although it has none\."),
    (lambda: scf.UHF(make_mol(WATER, "sto-3g")).run(), "UHF has orbitals that are not doubly occupied or empty"),
    (lambda: not_run().run(max_cycle=1), r"RHF is not converged.*Raise mf\.max_cycle"),
    (not_run, r"RHF has no orbitals yet\..*Call mf\.run\(\) first"),
]


@pytest.mark.parametrize("kind", [CCSD, CCD, DRCCD])
@pytest.mark.parametrize(
    ("make", "message"), REFUSED, ids=["RKS", "UHF", "ROHF", "ROHF-closed", "UHF-closed", "loose", "new"]
)
def test_other_mean_fields_are_refused(kind: Any, make: Any, message: str) -> None:
    mf = without_file(make())
    with pytest.raises(InputError, match=message):
        kind(mf)
    with pytest.raises(InputError, match=r"mf is a Mole\. Expected a mean field of PySCF\. Make one with"):
        kind(mf.mol)


# What is no number


def damage(tensor: tw.BlockTensor, random: np.random.Generator) -> tuple[int, ...]:
    """Put a number that is none into one element of a block, and return the block."""
    parts = [(row, part) for row, part in tensor.arena.parts(tensor.pattern) if part.size]
    row, part = parts[random.integers(len(parts))]
    part.flat[random.integers(part.size)] = random.choice([np.nan, np.inf, -np.inf])
    return tuple(tensor.pattern.index[row].tolist())


NAMES = (
    "V",
    "L",
    "J",
    "Vp",
    "ooov",
    "ovvv",
    "vv_s",
    "vv_a",
    "oooo_s",
    "oooo_a",
    "ov_s",
    "ov_a",
    "f_oo",
    "f_ov",
    "f_vv",
)


@pytest.mark.parametrize("seed", range(50))
def test_what_is_no_number_is_caught_in_the_same_iteration(
    seed: int, water: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One element of one block of integrals or amplitudes, before a random iteration."""
    random = np.random.default_rng(seed)
    name = str(random.choice([*NAMES, "t1", "t2"]))
    after = int(random.integers(1, 5))
    method = CCSD(water, tile=3, reproducible=True)
    done: list[int] = []

    def strike(facts: dict[str, Any]) -> None:
        done.append(facts["cycle"])
        if facts["cycle"] == after:
            damage({**method._tensors, **facts["amplitudes"]}[name], random)

    method.callback = strike
    with pytest.raises(NonFiniteError, match=r"Block \(.*\).* of \w+ has elements that are not finite after") as found:
        method.run()
    assert done == list(range(1, after + 1))
    error = found.value
    assert error.tensor
    assert error.term.startswith(f"{error.tensor}[") or "update" in error.term
    assert len(error.block) in (2, 4)
    assert str(error.block) in str(error)
    assert error.term in str(error)


@pytest.mark.parametrize("name", ["V", "f_ov", "ovvv", "vv_a"])
def test_integrals_that_are_no_numbers_from_the_beginning(
    name: str, water: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Hamiltonian.build

    def broken(self: Hamiltonian, *arguments: Any, **options: Any) -> dict[str, tw.BlockTensor]:
        made = build(self, *arguments, **options)
        damage(made[name], np.random.default_rng(1))
        return made

    monkeypatch.setattr(Hamiltonian, "build", broken)
    method = CCSD(water, tile=3)
    with pytest.raises(NonFiniteError, match="has elements that are not finite after") as found:
        method.run()
    assert found.value.tensor
    assert found.value.block
    assert not method.timings


def test_a_start_that_is_no_number_is_named(water: Any, ours: CCSD) -> None:
    assert ours.t2 is not None
    start = ours.t2.copy()
    damage(start, np.random.default_rng(2))
    with pytest.raises(NonFiniteError, match=r"of t2 has elements that are not finite after taking it to start from"):
        CCSD(water, tile=3).kernel(ours.t1, start)


def test_degenerate_orbitals_are_named() -> None:
    """A Fock matrix that is zero leaves no gap."""
    mf = tight_mean_field(HYDROGEN, "sto-3g").copy()
    mf.get_hcore = mf.get_veff = lambda *arguments, **options: np.zeros((2, 2))
    with pytest.raises(InputError, match=r"An energy denominator is below 1e-10 hartree.*Expected a gap between them"):
        CCSD(mf).run()


def test_integrals_of_the_transform_are_pyscf_integrals(labelled: Any) -> None:
    """The tensors of the equations are what their modes say."""
    method = CCSD(labelled, tile=3, max_cycle=1).run()
    occ, vir = method.reference.occupied, method.reference.virtual
    integrals = ao2mo.kernel(labelled.mol, np.hstack([occ, vir]), compact=False).reshape((13,) * 4)
    o, v = slice(0, 5), slice(5, None)
    expected = {
        "V": integrals[o, v, o, v],
        "Vp": integrals[o, v, o, v].transpose(0, 3, 2, 1),
        "J": integrals[o, o, v, v].transpose(1, 2, 0, 3),
        "ooov": integrals[o, o, o, v],
        "ovvv": integrals[o, v, v, v].transpose(2, 0, 1, 3),
    }
    expected["L"] = 2 * expected["V"] - expected["Vp"]
    for name, values in expected.items():
        np.testing.assert_allclose(method._tensors[name].to_dense(), values, rtol=0, atol=1e-9, err_msg=name)
