"""Amplitudes and Fock matrices belong to the orbitals that a user has."""

from __future__ import annotations

import fcntl
import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyscf import cc, gto, scf, solvent

import tilewise as tw
from chemistry.cc_cases import TIGHT, converge_pyscf, least_memory, mean_field_of, without_file
from chemistry.molecules import WATER
from tilewise.chemistry import CCD, CCSD, DRCCD, MP2, four_index, integrals
from tilewise.chemistry.checkpoint import Checkpoint
from tilewise.chemistry.hamiltonian import Hamiltonian
from tilewise.chemistry.method_plan import with_reserve
from tilewise.chemistry.vectors import fitted_vectors
from tilewise.errors import InputError, StorageError
from tilewise.plans import budget


def turned(mf: Any) -> Any:
    """The same mean field with orbitals of other signs, as a second Hartree-Fock may have."""
    other = mf.copy()
    signs = np.random.default_rng(3).choice([-1.0, 1.0], len(mf.mo_occ))
    other.mo_coeff = mf.mo_coeff * signs
    return other


def only_orbitals_left(folder: Path) -> None:
    for each in folder.iterdir():
        if not each.name.endswith(".orbitals"):
            each.unlink()


@pytest.mark.parametrize("symmetry", [False, True], ids=["no irreps", "irreps"])
def test_amplitudes_of_a_run_that_goes_on_are_those_of_the_mean_field(symmetry: bool, tmp_path: Path) -> None:
    mf = mean_field_of("water", "6-31g", symmetry)
    other = turned(mf)
    CCSD(mf, 1, tile=4, checkpoint=tmp_path / "run.h5", **TIGHT).run()
    again = CCSD(other, 1, tile=4, checkpoint=tmp_path / "run.h5", **TIGHT).run()
    expected = converge_pyscf(cc.CCSD(other, frozen=1))
    singles, doubles = again.to_pyscf()
    np.testing.assert_allclose(singles, expected.t1, rtol=0, atol=1e-7)
    np.testing.assert_allclose(doubles, expected.t2, rtol=0, atol=1e-7)


@pytest.mark.parametrize("symmetry", [False, True], ids=["no irreps", "irreps"])
def test_tensors_of_a_run_that_goes_on_are_those_of_the_mean_field(symmetry: bool, tmp_path: Path) -> None:
    """And another method can start from them."""
    mf = mean_field_of("water", "6-31g", symmetry)
    other = turned(mf)
    CCSD(mf, 1, tile=4, checkpoint=tmp_path / "run.h5", **TIGHT).run()
    again = CCSD(other, 1, tile=4, checkpoint=tmp_path / "run.h5", **TIGHT).run()
    fresh = CCSD(other, 1, tile=4, **TIGHT).run()
    for found, expected in ((again.t1, fresh.t1), (again.t2, fresh.t2)):
        assert found is not None
        assert expected is not None
        assert found.pattern.nnz_blocks == expected.pattern.nnz_blocks
        np.testing.assert_allclose(found.to_dense(), expected.to_dense(), rtol=0, atol=1e-7)
    begun = CCSD(other, 1, tile=4, max_cycle=0)
    begun.kernel(again.t1, again.t2)
    assert begun.e_corr == pytest.approx(again.e_corr, rel=0, abs=1e-9)


def test_without_its_checkpoint_a_method_has_its_own_orbitals_again(tmp_path: Path) -> None:
    mf, path = mean_field_of("water", "6-31g"), tmp_path / "run.h5"
    other = turned(mf)
    other.e_tot = mf.e_tot + 1e-6
    CCSD(mf, checkpoint=path, max_cycle=1).run()
    method = CCSD(other, checkpoint=path).run()
    assert method.e_hf == mf.e_tot
    method.checkpoint = None
    method.run()
    assert method.e_hf == other.e_tot
    np.testing.assert_array_equal(method.reference.virtual, CCSD(other).reference.virtual)


def test_a_start_is_turned_into_the_orbitals_of_the_checkpoint(tmp_path: Path) -> None:
    mf = mean_field_of("water", "6-31g")
    other, path = turned(mf), tmp_path / "run.h5"
    CCSD(mf, checkpoint=path, max_cycle=1).run()
    start = converge_pyscf(cc.CCSD(other))
    only_orbitals_left(tmp_path)
    method = CCSD(other, checkpoint=path)
    method.kernel(start.t1, start.t2)
    assert method.cycles == 1


@pytest.mark.parametrize("model", ["ddCOSMO", "PCM"])
def test_a_solvent_is_part_of_the_fock_matrix(model: str) -> None:
    mol = gto.M(atom=WATER, basis="6-31g", verbose=0)
    mf = getattr(solvent, model)(scf.RHF(mol)).run(conv_tol=1e-12)
    without_file(mf)
    expected = converge_pyscf(cc.ccsd.CCSD(mf)).e_corr
    assert CCSD(mf, **TIGHT).run().e_corr == pytest.approx(expected, rel=0, abs=1e-8)
    gas = converge_pyscf(cc.CCSD(mean_field_of("water", "6-31g"))).e_corr
    assert abs(expected - gas) > 1e-5


def test_a_level_shift_is_no_part_of_the_fock_matrix() -> None:
    mol = gto.M(atom=WATER, basis="6-31g", verbose=0)
    mf = without_file(scf.RHF(mol).set(level_shift=0.3).run(conv_tol=1e-12))
    expected = converge_pyscf(cc.CCSD(mean_field_of("water", "6-31g"))).e_corr
    assert CCSD(mf, **TIGHT).run().e_corr == pytest.approx(expected, rel=0, abs=1e-8)


def test_tensors_of_an_earlier_run_are_gone_before_new_ones_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    method = CCSD(mean_field_of("water", "6-31g"), tile=4).run()
    tensors = (*method._tensors.values(), *method._amplitudes.values())
    before = [weakref.ref(tensor.arena.data) for tensor in tensors]
    del tensors
    build = type(method.plan().hamiltonian).build
    alive: list[int] = []

    def look(*arguments: Any, **options: Any) -> Any:
        gc.collect()
        alive.append(sum(each() is not None for each in before))
        return build(*arguments, **options)

    monkeypatch.setattr(type(method.plan().hamiltonian), "build", look)
    first = method.e_corr
    method.run(conv_tol=1e-9)
    assert alive == [0]
    assert method.e_corr == pytest.approx(first, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "settings"), [(CCSD, {}), (CCSD, {"integrals": "df"}), (DRCCD, {}), (MP2, {}), (MP2, {"integrals": "df"})]
)
def test_all_is_gone_with_the_method(kind: Any, settings: dict[str, Any]) -> None:
    """At once, not when Python collects what refers to itself; after a refusal too."""
    gc.disable()
    try:
        method = kind(mean_field_of("water", "6-31g"), tile=4, **settings)
        with pytest.raises(tw.MemoryBudgetError):
            method.set(memory=1000).plan()
        method.set(memory=None).run()
        alive = weakref.ref(method)
        del method
        assert alive() is None
    finally:
        gc.enable()


def test_nobody_holds_the_amplitudes_to_start_from(monkeypatch: pytest.MonkeyPatch) -> None:
    mf = mean_field_of("water", "6-31g")
    given = CCSD(mf, max_cycle=1).run().to_pyscf()
    method, held, alive = CCSD(mf), [], []
    place: Any = method._start

    def remember(*arguments: Any) -> Any:
        made = place(*arguments)
        held.append(weakref.ref(made["t2"].arena.data))
        return made

    monkeypatch.setattr(method, "_start", remember)
    method.diis, method.callback = False, lambda _: alive.append(held[0]() is not None)
    method.kernel(*given)
    assert method.converged
    assert not any(alive[1:])


def test_a_checkpoint_of_another_method_is_refused_before_integrals_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mf, path = mean_field_of("water", "6-31g"), tmp_path / "run.h5"
    CCD(mf, checkpoint=path, max_cycle=1).run()
    monkeypatch.setattr(Hamiltonian, "build", lambda *_, **__: pytest.fail("integrals were made"))
    with pytest.raises(InputError, match=r"has amplitudes of CCD\. Expected those of drCCD"):
        DRCCD(mf, checkpoint=path).run()
    with Checkpoint(path, CCD(mf)._digest()).path.open("r+b") as file:  # nobody has it locked
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(StorageError, match="in use by another job"):
            CCD(mf, checkpoint=path).run()


def test_integrals_are_sampled_once_for_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    read, sizes = integrals.CoulombSource.read, []

    def count(self: Any, row: int, column: int, out: Any) -> None:
        sizes.append(out.nbytes)
        read(self, row, column, out)

    monkeypatch.setattr(integrals.CoulombSource, "read", count)
    mf = mean_field_of("ethene", "cc-pvdz")
    with pytest.raises(tw.MemoryBudgetError):
        CCSD(mf, memory="1MB").plan()
    assert len(sizes) == 1
    CCSD(mf, tile=100).plan()
    assert len(sizes) == 2
    assert max(sizes) <= four_index.SAMPLE_BYTES


def test_fitted_vectors_that_do_not_fit_are_in_a_file() -> None:
    mol = gto.M(atom=WATER, basis="cc-pvdz", verbose=0)
    whole, small = fitted_vectors(mol), fitted_vectors(mol, memory="100kB")
    assert whole.held_bytes > 100_000
    assert small.held_bytes == 0
    mf = without_file(scf.RHF(mol).run(conv_tol=1e-12))
    free = CCSD(mf, integrals="df", **TIGHT).run()
    for memory in ("40MB", least_memory(CCSD, mf, integrals="df")):
        tight = CCSD(mf, integrals="df", memory=memory, **TIGHT).run()
        assert tight.e_corr == pytest.approx(free.e_corr, rel=0, abs=1e-9)


def test_fitted_vectors_go_to_a_file_for_a_later_plan_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a run they are gone, and what is known of them is that they were in memory; they are made once more."""
    mf = without_file(scf.RHF(gto.M(atom=WATER, basis="cc-pvdz", verbose=0)).run(conv_tol=1e-12))
    method = CCSD(mf, [0, 1, 2, *range(7, 24)], integrals="df", max_cycle=2).run()  # vectors are most of it
    expected, make, made = method.e_corr, method._new_vectors, []
    enough = with_reserve(method.plan().build_bytes - fitted_vectors(mf).held_bytes // 2)

    def count(memory: int, engine: Any) -> Any:
        made.append(memory)
        return make(memory, engine)

    monkeypatch.setattr(method, "_new_vectors", count)
    monkeypatch.setattr(budget, "free_memory", lambda: int(enough / budget.SHARE) + 1)
    method.tile = None
    assert method.run().e_corr == pytest.approx(expected, rel=0, abs=1e-10)
    monkeypatch.setattr(budget, "free_memory", lambda: 1000)
    method.tile = None
    for _ in range(2):
        with pytest.raises(tw.MemoryBudgetError):
            method.plan()
    assert made == [0]


def test_drccd_has_no_ladder() -> None:
    mf = mean_field_of("water", "6-31g")
    assert "f_ov" not in CCD(mf).plan().names
    with pytest.raises(InputError, match="DRCCD has no setting 'ladder'"):
        DRCCD(mf, ladder="none")
    method = DRCCD(mf)
    method.ladder = "direct"
    with pytest.raises(InputError, match="was set for drCCD"):
        method.run()


def test_complex_tensors_are_no_start() -> None:
    mf = mean_field_of("water", "6-31g")
    method = CCSD(mf, max_cycle=1).run()
    assert method.t2 is not None
    with pytest.raises(InputError, match=r"t2= has elements of complex128\. Expected real numbers"):
        CCSD(mf).kernel(method.t1, method.t2.astype(np.complex128))


def with_a_pair_exchanged(mf: Any) -> Any:
    """The same mean field with two virtual orbitals of one energy in the other order, as a second one may have them."""
    energies, nocc = np.asarray(mf.mo_energy), int(np.count_nonzero(mf.mo_occ))
    first = next(k for k in range(nocc, len(energies) - 1) if abs(energies[k] - energies[k + 1]) < 1e-8)
    order = np.arange(len(energies))
    order[[first, first + 1]] = first + 1, first
    other = mf.copy()
    other.mo_coeff = np.asarray(mf.mo_coeff)[:, order]
    return other


def test_orbitals_of_one_energy_and_other_irreps_may_come_in_another_order(tmp_path: Path) -> None:
    mf, path = mean_field_of("nitrogen", "6-31g", True), tmp_path / "run.h5"
    other = with_a_pair_exchanged(mf)
    CCSD(mf, checkpoint=path, **TIGHT).run()
    again = CCSD(other, checkpoint=path, **TIGHT).run()
    fresh = CCSD(other, **TIGHT).run()
    for found, expected in zip(again.to_pyscf(), fresh.to_pyscf(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)
    for given in (fresh.to_pyscf(), (fresh.t1, fresh.t2), (again.t1, again.t2)):
        only_orbitals_left(tmp_path)
        begun = CCSD(other, checkpoint=path)
        begun.kernel(*given)
        assert begun.cycles == 1


def test_a_refused_run_leaves_nothing_beside_the_checkpoint(tmp_path: Path) -> None:
    mf, path = mean_field_of("water", "6-31g"), tmp_path / "run.h5"
    with pytest.raises(tw.MemoryBudgetError):
        CCSD(mf, checkpoint=path, memory=1000).run()
    assert list(tmp_path.iterdir()) == []
    assert CCSD(mf, frozen=1, checkpoint=path).run().converged


def test_other_tiles_than_those_of_a_checkpoint_are_refused_before_integrals_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mf, path = mean_field_of("water", "6-31g"), tmp_path / "run.h5"
    CCSD(mf, checkpoint=path, tile=4, max_cycle=1).run()
    monkeypatch.setattr(Hamiltonian, "build", lambda *_, **__: pytest.fail("integrals were made"))
    with pytest.raises(InputError, match=r"Give tile= as the run did that was interrupted"):
        CCSD(mf, checkpoint=path, tile=3).run()


@pytest.mark.parametrize("integrals", ["exact", "df", "cholesky"])
def test_a_molecule_that_has_moved_is_refused(integrals: str) -> None:
    mol = gto.M(atom=WATER, basis="sto-3g", verbose=0)
    mf = scf.RHF(mol).run(conv_tol=1e-12)
    methods: list[Any] = [kind(mf, integrals=integrals) for kind in (MP2, CCSD)]
    for method in methods:
        method.plan()  # vectors of this geometry are made for it
    mol.set_geom_(1.1 * mol.atom_coords(), unit="Bohr")
    mf.reset().run()
    for method in methods:
        with pytest.raises(InputError, match=rf"The molecule has changed since this {method.name} was made"):
            method.run()
        assert method.e_corr is None
        anew = type(method)(mf, 1, integrals=integrals).run()
        assert method.run(frozen=1).e_corr == pytest.approx(anew.e_corr, rel=0, abs=1e-12)


@pytest.mark.parametrize("integrals", ["exact", "df", "cholesky"])
def test_another_molecule_in_the_mean_field_is_refused(integrals: str) -> None:
    mf = scf.RHF(gto.M(atom=WATER, basis="sto-3g", verbose=0)).run(conv_tol=1e-12)
    method = CCSD(mf, integrals=integrals)
    other = gto.M(atom="O 0 0 0; H 0 0.9 0.6; H 0 -0.9 0.6", basis="sto-3g", verbose=0)
    mf.reset(other).run()
    with pytest.raises(InputError, match="The molecule has changed since"):
        method.run()
    assert method.run(frozen=1).mol is other
    assert method.e_corr == pytest.approx(CCSD(mf, 1, integrals=integrals).run().e_corr, rel=0, abs=1e-12)


@pytest.mark.parametrize("symmetry", ["s8", "s4", "s1"])
def test_integrals_of_a_mean_field_are_those_of_its_molecule_or_refused(symmetry: str) -> None:
    mol = gto.M(atom=WATER, basis="6-31g", verbose=0)
    own = mol.intor("int2e", aosym=symmetry)
    mf = scf.RHF(mol)
    mf._eri = own
    expected = CCSD(mean_field_of("water", "6-31g"), **TIGHT).run().e_corr
    assert CCSD(mf.run(conv_tol=1e-12), **TIGHT).run().e_corr == pytest.approx(expected, rel=0, abs=1e-8)
    mf._eri = 0.9 * own
    with pytest.raises(InputError, match=r"integrals of its own in mf\._eri, not those of its molecule"):
        CCSD(mf.run())


def test_occupied_orbitals_need_not_be_the_lowest() -> None:
    """PySCF's coupled cluster takes the first ones for occupied, so these are put in front for it."""
    mf = mean_field_of("water", "6-31g").copy()
    mf.mo_occ = np.array(mf.mo_occ)
    mf.mo_occ[[4, 5]] = 0, 2
    order = np.argsort(-mf.mo_occ, kind="stable")
    sorted_first = mf.copy()
    sorted_first.mo_coeff, sorted_first.mo_occ = mf.mo_coeff[:, order], mf.mo_occ[order]
    theirs, ours = cc.CCSD(sorted_first), CCSD(mf, max_cycle=3, diis=False)
    theirs.set(max_cycle=3, diis=False, verbose=0).kernel()
    assert ours.run().e_corr == pytest.approx(theirs.e_corr, rel=0, abs=1e-8)
