"""Four-index transforms of molecules and arrays against PySCF."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from pyscf import ao2mo, gto

import tilewise as tw
from chemistry.molecules import ETHENE, HELIUM_CHAIN, WATER, make_mol, mean_field
from tilewise.chemistry import Transform, pack_integrals, transform
from tilewise.chemistry.origins import screen_pairs, tile_orbitals
from tilewise.plans.transform import SCHEDULES

TOLERANCE = 1e-10


@pytest.fixture(scope="module")
def water() -> Any:
    return mean_field(WATER, "cc-pvdz")


@pytest.fixture(scope="module")
def ethene() -> Any:
    """D2h."""
    return mean_field(ETHENE, "6-31g", symmetry=True)


def difference(tensor: tw.BlockTensor, mol: Any, coeffs: Any) -> float:
    """From PySCF's transform, in its own form."""
    return float(np.abs(pack_integrals(tensor) - ao2mo.kernel(mol, coeffs)).max())


def subsets(mf: Any) -> dict[str, Any]:
    occ, vir = mf.mo_coeff[:, mf.mo_occ > 0], mf.mo_coeff[:, mf.mo_occ == 0]
    named = {"o": occ, "v": vir}
    found = {name: [named[letter] for letter in name] for name in ("ovov", "oovv", "ovvv", "vvvv", "vvov", "oooo")}
    return found | {"full": mf.mo_coeff, "four": [occ, vir[:, 2:7], mf.mo_coeff[:, 1:], vir[:, :3]]}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["ovov", "oovv", "ovvv", "vvvv", "vvov", "oooo", "full", "four"])
def test_water(water: Any, schedule: str, name: str) -> None:
    coeffs = subsets(water)[name]
    assert difference(transform(water.mol, coeffs, schedule=schedule, tile=8), water.mol, coeffs) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["ovov", "ovvv", "full", "four"])
def test_benzene(schedule: str, name: str) -> None:
    mf = mean_field(BENZENE, "6-31g")
    coeffs = subsets(mf)[name]
    assert difference(transform(mf.mol, coeffs, schedule=schedule, tile=16), mf.mol, coeffs) < TOLERANCE


BENZENE = "; ".join(
    f"{element} {radius * np.cos(k * np.pi / 3):.8f} {radius * np.sin(k * np.pi / 3):.8f} 0"
    for element, radius in (("C", 1.395), ("H", 2.480))
    for k in range(6)
)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_orbitals_with_irreps_leave_out_what_vanishes(ethene: Any, schedule: str) -> None:
    coeffs = ethene.mo_coeff
    found = transform(ethene.mol, coeffs, schedule=schedule, tile=4)
    assert difference(found, ethene.mol, coeffs) < TOLERANCE
    assert found.density < 0.2
    full = ao2mo.restore(1, ao2mo.kernel(ethene.mol, coeffs), coeffs.shape[1])
    order = found.spaces[0].order
    stored = found.to_dense() != 0
    assert np.abs(full[np.ix_(order, order, order, order)][~stored]).max() < TOLERANCE


def test_orbitals_that_mix_irreps_have_no_labels(ethene: Any) -> None:
    turned = ethene.mo_coeff @ np.linalg.qr(np.random.default_rng(0).standard_normal((26, 26)))[0]
    found = transform(ethene.mol, turned, tile=8)
    assert found.spaces[0].irrep is None
    assert difference(found, ethene.mol, turned) < TOLERANCE


def test_irreps_of_some_modes_only_are_not_used(ethene: Any) -> None:
    mixed = np.random.default_rng(0).standard_normal((26, 3))
    coeffs = [ethene.mo_coeff[:, :5], mixed, ethene.mo_coeff[:, 5:9], mixed]
    found = transform(ethene.mol, coeffs, tile=3)
    assert all(space.irrep is None for space in found.spaces)
    assert difference(found, ethene.mol, coeffs) < TOLERANCE


@pytest.mark.parametrize("form", ["s1", "s4", "s8"])
def test_arrays_of_every_form(water: Any, form: str) -> None:
    given = water.mol.intor("int2e", aosym=form)
    coeffs = subsets(water)["four"]
    assert np.abs(pack_integrals(transform(given, coeffs, tile=8)) - ao2mo.kernel(water.mol, coeffs)).max() < TOLERANCE


@pytest.mark.parametrize("form", ["s1", "s4", "s8"])
def test_arrays_in_files(water: Any, form: str, tmp_path: Any) -> None:
    given = water.mol.intor("int2e", aosym=form)
    np.save(tmp_path / "a.npy", given)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    coeffs = water.mo_coeff
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = given
        for stored in (mapped, file["a"]):
            found = transform(stored, coeffs, tile=8)
            assert np.abs(pack_integrals(found) - ao2mo.kernel(water.mol, coeffs)).max() < TOLERANCE


def antisymmetric(size: int) -> npt.NDArray[np.float64]:
    a = np.random.default_rng(1).standard_normal((size,) * 4)
    a = a - a.transpose(1, 0, 2, 3)
    a = a - a.transpose(0, 1, 3, 2)
    return a + a.transpose(2, 3, 0, 1)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_antisymmetric_integrals(schedule: str) -> None:
    a, coeffs = antisymmetric(9), np.random.default_rng(2).standard_normal((9, 6))
    found = transform(a, coeffs, antisymmetric=True, tile=4, schedule=schedule)
    assert found.symmetry == tw.Symmetry(((0, 1), -1), ((2, 3), -1))
    exact = np.einsum("pqrs,pi,qj,rk,sl->ijkl", a, *[coeffs] * 4, optimize=True)
    np.testing.assert_allclose(found.to_dense(), exact, rtol=0, atol=1e-10)


def test_spaces_that_are_given(water: Any) -> None:
    space = tw.Space([5, 9, 10], name="mine")
    found = transform(water, water.mo_coeff, spaces=space)
    assert found.spaces == (space,) * 4
    assert difference(found, water.mol, water.mo_coeff) < TOLERANCE


def test_pack_integrals_without_compacting(water: Any) -> None:
    found = pack_integrals(transform(water, water.mo_coeff, tile=8), compact=False)
    np.testing.assert_allclose(found, ao2mo.kernel(water.mol, water.mo_coeff, compact=False), rtol=0, atol=TOLERANCE)


def test_cartesian_functions_and_general_contractions() -> None:
    mol = make_mol("N 0 0 0; N 0 0 1.1", "ano@3s2p1d", cart=True)
    coeffs = np.linalg.qr(np.random.default_rng(0).standard_normal((mol.nao, mol.nao)))[0][:, :7]
    assert difference(transform(mol, coeffs, tile=6), mol, coeffs) < TOLERANCE


def test_a_budget_is_kept_and_a_smaller_one_refused(water: Any) -> None:
    free = Transform(water, water.mo_coeff, tile=8)
    least: tw.MemoryBudgetError | None = None
    try:
        transform(water, water.mo_coeff, tile=8, memory=1000)
    except tw.MemoryBudgetError as error:
        least = error
    assert least is not None
    assert least.budget == 1000
    assert str(least.least_bytes) in str(least)
    for memory in (least.least_bytes, (least.least_bytes + free.plan().peak_bytes) // 2):
        job = Transform(water, water.mo_coeff, tile=8, memory=memory)
        assert difference(job.kernel(), water.mol, water.mo_coeff) < TOLERANCE
        (run,) = job.plan().runs
        assert run.peak_bytes == job.plan().peak_bytes <= memory


def test_the_environment_gives_a_budget(water: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_MEMORY", "1kB")
    with pytest.raises(tw.MemoryBudgetError, match="Give memory="):
        transform(water, water.mo_coeff, tile=8)


def test_screening_keeps_its_promise() -> None:
    mf = mean_field(HELIUM_CHAIN, "6-31g")
    mol, coeffs = mf.mol, mf.mo_coeff
    exact = ao2mo.restore(1, ao2mo.kernel(mol, coeffs), coeffs.shape[1])
    everything = Transform(mol, coeffs, tile=2)
    everything.kernel()
    for tol in (1e-8, 1e-3):
        job = Transform(mol, coeffs, tile=2, tol=tol)
        found = job.kernel()
        error = np.linalg.norm(found.to_dense() - exact)
        assert error <= found.error_bound + 1e-9
        assert found.error_bound <= tol
        assert job.plan().runs[-1].integrals < everything.plan().runs[-1].integrals
    assert found.error_bound > 0


def test_screening_drops_as_much_as_it_may() -> None:
    pairs = Transform(np.zeros((4,) * 4), np.eye(4), tile=2).problem.functions
    bounds = np.array([1.0, 1e-3, 1.0])
    needed, dropped = screen_pairs(pairs, bounds, 1.0, [np.eye(4)] * 4)
    assert needed.tolist() == [[True, False, True], [False, False, False], [True, False, True]]
    # Four blocks of 1e-3 that stand for two each, and one of 1e-6 that stands for four.
    assert dropped == pytest.approx(np.sqrt(4 * 2 * 1e-6 + 4 * 1e-12))
    assert screen_pairs(pairs, bounds, 0.0, [np.eye(4)] * 4)[0].all()


def test_tiles_of_orbitals_have_one_irrep() -> None:
    space = tile_orbitals(5, 2, np.array([3, 0, 3, 0, 3]))
    assert space.irrep is not None
    assert (space.sizes.tolist(), space.irrep.tolist()) == ([2, 2, 1], [0, 3, 3])
    assert space.order.tolist() == [1, 3, 0, 2, 4]


def test_progress_is_told(water: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewise.chemistry.four_index.INTERVAL", 0.0)
    lines: list[str] = []
    transform(water, water.mo_coeff, tile=8, progress=lines.append)
    assert lines[0].startswith("Transform: ")
    assert any("s left" in line for line in lines)


def test_the_plan_lists_all_schedules_with_measured_figures(water: Any) -> None:
    job = Transform(water, water.mo_coeff, tile=8)
    text = job.plan().explain()
    assert all(name in text for name in (*SCHEDULES, "chosen", "integrals made"))
    assert "measured" not in text
    assert repr(job.plan()).startswith(f"TransformPlan({job.plan().schedule!r}, ")
    job.run()
    assert "measured" in job.plan().explain()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((42, np.eye(3)), "The first argument is a int"),
        ((np.zeros((4, 4)), np.eye(2)), "have shape"),
        ((np.zeros((2, 2, 2, 3)), np.eye(2)), r"The integrals have shape \(2, 2, 2, 3\)"),
        ((np.zeros((2,) * 4, np.int64), np.eye(2)), "The integrals have type int64"),
        ((np.zeros((2,) * 4), np.eye(3)), "Expected real numbers for 2 functions"),
        ((np.zeros((2,) * 4), 1j * np.eye(2)), "type complex128"),
        ((np.zeros((2,) * 4), np.full((2, 2), np.nan)), "not all finite"),
        ((np.zeros((2,) * 4), [[1.0], [1.0, 2.0]]), "are no matrix"),
        ((np.arange(16.0).reshape((2,) * 4), np.eye(2)), r"\(qp\|rs\) gives|\(pq\|sr\) gives|\(rs\|pq\) gives"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(tw.InputError, match=message):
        transform(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "fastest"}, "schedule='fastest' is unknown"),
        ({"tile": 0}, "The tile size is 0"),
        ({"tol": -1.0}, "tol=-1.0 is no tolerance"),
        ({"memory": "much"}, "is no amount of memory"),
        ({"spaces": tw.Space([3])}, "do not fit orbitals"),
        ({"spaces": (tw.Space([24]),) * 3}, "do not fit orbitals"),
        ({"spaces": 3}, "do not fit orbitals"),
        ({"progress": 3}, "cannot be called"),
        ({"antisymmetric": True}, "Expected it with an array"),
        ({"engine": "gpu"}, "There is no engine 'gpu'"),
    ],
)
def test_wrong_options(water: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(tw.TilewiseError, match=message):
        transform(water, water.mo_coeff, **options)


def test_a_tolerance_with_an_array_is_refused() -> None:
    with pytest.raises(tw.InputError, match="with integrals in an array or fitted"):
        transform(np.zeros((2,) * 4), np.eye(2), tol=1e-3)


def test_periodic_cells_are_refused() -> None:
    from pyscf.pbc import gto as cells

    cell = cells.M(atom="He 0 0 0", a=np.eye(3) * 4, basis="6-31g", verbose=0)
    with pytest.raises(tw.InputError, match="is periodic"):
        transform(cell, np.eye(2))


def test_a_molecule_of_ghosts_and_one_function() -> None:
    mol = gto.M(atom="H 0 0 0", basis="sto-3g", spin=1, verbose=0)
    assert difference(transform(mol, np.ones((1, 1))), mol, np.ones((1, 1))) < TOLERANCE


@pytest.mark.parametrize("name", ["ovov", "oovv", "vvov", "full", "four"])
def test_fitted_integrals(name: str) -> None:
    mf = fitted_field()
    coeffs = subsets(mf)[name]
    job = Transform(mf, coeffs, tile=4)
    found = job.kernel()
    exact = mf.with_df.ao2mo(coeffs, compact=True)
    assert np.abs(pack_integrals(found) - exact).max() < TOLERANCE
    (run,) = job.plan().runs
    assert (run.flops, run.peak_bytes) == (job.plan().flops, job.plan().peak_bytes)
    assert "vectors" in job.plan().explain()


def test_fitted_integrals_within_a_budget() -> None:
    mf = fitted_field()
    with pytest.raises(tw.MemoryBudgetError, match="fitted vectors needs more than the budget") as refused:
        transform(mf, mf.mo_coeff, memory=1000)
    job = Transform(mf, mf.mo_coeff, memory=refused.value.least_bytes)
    assert np.abs(pack_integrals(job.kernel()) - mf.with_df.ao2mo(mf.mo_coeff)).max() < TOLERANCE
    assert job.plan().runs[-1].peak_bytes <= refused.value.least_bytes
    with pytest.raises(tw.InputError, match="was given with fitted integrals"):
        transform(mf, mf.mo_coeff, schedule="unfused")


def fitted_field() -> Any:
    mf = mean_field(WATER, "6-31g").density_fit()
    return mf.run()


@pytest.mark.parametrize("empty", [(1,), (0, 1), (3,), (0, 1, 2, 3)])
@pytest.mark.parametrize("schedule", ["auto", *SCHEDULES])
def test_sets_without_orbitals(water: Any, schedule: str, empty: tuple[int, ...]) -> None:
    coeffs = [water.mo_coeff[:, :0] if mode in empty else water.mo_coeff[:, :3] for mode in range(4)]
    found = transform(water.mol, coeffs, schedule=schedule, tile=8)
    assert found.shape == tuple(0 if mode in empty else 3 for mode in range(4))
    assert pack_integrals(found, compact=False).size == 0


@pytest.mark.parametrize("tol", [np.float32(1e-3), np.int64(1), 1e300])
def test_tolerances_of_every_kind(water: Any, tol: Any) -> None:
    assert transform(water, water.mo_coeff[:, :3], tol=tol).error_bound <= float(tol)


def test_results_of_every_kind_belong_to_the_engine_in_use() -> None:
    mf = fitted_field()
    with tw.engine("device", capacity="1GB", library="numpy") as engine:
        assert transform(mf, mf.mo_coeff).engine is engine
        assert transform(mf.mol, mf.mo_coeff).engine is engine


def test_complex_tensors_are_packed_as_they_are() -> None:
    space = tw.Space([2])
    tensor = tw.random((space,) * 4, dtype="complex128")
    np.testing.assert_array_equal(pack_integrals(tensor), tensor.to_dense().reshape(4, 4))


def test_what_has_no_functions_or_other_vectors_is_refused(water: Any) -> None:
    from pyscf import sgx

    with pytest.raises(tw.InputError, match="has no functions"):
        transform(gto.Mole(), np.eye(2))
    with pytest.raises(tw.InputError, match="Expected density fitting, or none"):
        transform(sgx.sgx_fit(water), water.mo_coeff)
