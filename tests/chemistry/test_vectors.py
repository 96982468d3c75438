"""Three-index vectors of molecules against PySCF's integrals."""

from __future__ import annotations

import errno
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pyscf import ao2mo, df, gto, lib

import tilewise as tw
from chemistry.molecules import ETHENE, HELIUM_CHAIN, HYDROGEN, WATER, make_mol, mean_field, pyscf_mp2
from engines.processes import PATIENCE, ranks, source_environment
from tilewise.chemistry import CCSD, transform
from tilewise.chemistry.geometry import Geometry
from tilewise.chemistry.hamiltonian import DIRECT, FOCK, Hamiltonian
from tilewise.chemistry.integrals import make_molecule, orbital_irreps
from tilewise.chemistry.origins import tile_orbitals
from tilewise.chemistry.vectors import Decomposition, Vectors, cholesky_vectors, fitted_vectors, to_orbitals
from tilewise.engines.base import current_engine
from tilewise.errors import InputError, MemoryBudgetError, StorageError, TilewiseError
from tilewise.patterns import Symmetry

ROUNDING = 1e-12


@pytest.fixture(scope="module")
def water() -> Any:
    return mean_field(WATER, "cc-pvdz")


@pytest.fixture(scope="module")
def ethene() -> Any:
    """D2h."""
    return mean_field(ETHENE, "6-31g", symmetry=True)


@pytest.fixture(scope="module")
def ethene_vectors(ethene: Any) -> Vectors:
    return cholesky_vectors(ethene.mol, 1e-3)


def integrals(vectors: Vectors) -> npt.NDArray[np.float64]:
    """What the vectors say about the integrals, over pairs of functions."""
    rows = np.concatenate(list(vectors.bring(50)))
    assert rows.shape == (vectors.count, vectors.size * (vectors.size + 1) // 2)
    found: npt.NDArray[np.float64] = rows.T @ rows
    return found


def fitted_integrals(fitting: Any) -> npt.NDArray[np.float64]:
    """PySCF's, over pairs of functions."""
    found: npt.NDArray[np.float64] = ao2mo.restore(4, fitting.get_eri(), fitting.mol.nao)
    return found


# Density fitting


def test_a_molecule_made_of_a_name_is_fitted_with_the_set_that_belongs_to_it(water: Any) -> None:
    geometry = Geometry(("O", "H", "H"), water.mol.atom_coords(unit="Angstrom"), "")
    assert fitted_vectors(make_molecule(geometry, "cc-pvdz", 0)).count == fitted_vectors(water.mol).count


@pytest.mark.parametrize("fitted", [False, True])
def test_vectors_that_do_not_fit_are_in_the_scratch_folder(water: Any, tmp_path: Path, fitted: bool) -> None:
    before = lib.param.TMPDIR
    found = fitted_vectors(water.density_fit("weigend") if fitted else water, memory="10kB", scratch=tmp_path)
    assert found.held_bytes == 0
    assert len(list(tmp_path.iterdir())) == 1
    assert before == lib.param.TMPDIR
    assert sum(map(len, found.bring(100))) == found.count
    del found
    assert not list(tmp_path.iterdir())


def test_vectors_of_a_fitted_mean_field_are_its_own(water: Any) -> None:
    fitted = water.density_fit().run()
    found = fitted_vectors(fitted)
    assert (found.count, found.error) == (fitted.with_df.get_naoaux(), None)
    np.testing.assert_allclose(integrals(found), fitted_integrals(fitted.with_df), rtol=0, atol=1e-10)


@pytest.mark.parametrize("reproducible", [False, True])
def test_a_fitting_without_vectors_stays_without(water: Any, tmp_path: Path, reproducible: bool) -> None:
    """They are made of a copy, count, and go with the last who needs them."""
    fitting = water.density_fit("weigend").with_df
    fitting._cderi_to_save = str(tmp_path / "kept")
    fitted = water.density_fit("weigend")
    fitted.with_df = fitting
    found = fitted_vectors(fitted, reproducible=reproducible)
    assert fitting._cderi is None
    assert not (tmp_path / "kept").exists()
    assert found.held_bytes == (0 if reproducible else 8 * found.count * 300)
    assert fitted_vectors(fitted, memory="10kB").held_bytes == 0
    expected = fitted_integrals(df.DF(water.mol, "weigend"))
    np.testing.assert_allclose(integrals(found), expected, rtol=0, atol=1e-10)


def test_vectors_that_a_mean_field_keeps_do_not_count(water: Any) -> None:
    fitted = water.density_fit("weigend")
    fitted.with_df.build()
    kept = fitted.with_df._cderi
    found = fitted_vectors(fitted, reproducible=True)
    assert (found.held_bytes, fitted.with_df._cderi is kept) == (0, True)
    np.testing.assert_array_equal(np.concatenate(list(found.bring(100))), kept)


@pytest.mark.parametrize("basis", ["cc-pvdz", "6-31g", "def2-svp"])
def test_a_molecule_is_fitted_as_correlation_methods_of_pyscf_do(basis: str) -> None:
    mol = make_mol(WATER, basis)
    expected = fitted_integrals(df.DF(mol, df.make_auxbasis(mol, mp2fit=True)))
    np.testing.assert_allclose(integrals(fitted_vectors(mol)), expected, rtol=0, atol=1e-10)


def test_a_mean_field_without_fitting_is_fitted(water: Any) -> None:
    assert fitted_vectors(water).count == fitted_vectors(water.mol).count


def test_the_auxiliary_basis_can_be_named(water: Any) -> None:
    expected = fitted_integrals(df.DF(water.mol, "cc-pvdz-jkfit"))
    np.testing.assert_allclose(integrals(fitted_vectors(water.mol, "cc-pvdz-jkfit")), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["no-such-basis", "../basis.dat", "H S\n1.0 print(1)"])
def test_rejects_auxiliary_basis(water: Any, name: str) -> None:
    with pytest.raises(InputError, match=r"no basis set 'no-such-basis'|is a file or no name"):
        fitted_vectors(water.mol, name)


def test_rejects_an_auxiliary_basis_for_a_fitted_mean_field(water: Any) -> None:
    with pytest.raises(InputError, match="Expected it with a molecule: a mean field has its own"):
        fitted_vectors(water.density_fit(), "cc-pvdz-ri")


def test_other_fittings_are_rejected() -> None:
    class Other:
        mol, with_df = make_mol(HYDROGEN, "sto-3g"), object()

    with pytest.raises(InputError, match="Expected density fitting"):
        fitted_vectors(Other())


def full_disk(*arguments: object, **options: object) -> Any:
    raise OSError(errno.ENOSPC, "Can't write data (a long story of the library)")


FULL = r"cannot be written to a file in {} or read from it: No space left on device\. .* Name one with scratch="


@pytest.mark.parametrize("fitted", [False, True])
def test_a_full_disk_is_named(water: Any, tmp_path: Path, fitted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = water.density_fit("weigend") if fitted else water
    monkeypatch.setattr(df.DF, "build", full_disk)
    with pytest.raises(StorageError, match=FULL.format(tmp_path)):
        fitted_vectors(origin, memory="10kB", scratch=tmp_path)
    monkeypatch.setattr(lib.param, "TMPDIR", str(tmp_path))
    with pytest.raises(StorageError, match=FULL.format(tmp_path)):
        transform(water.density_fit(), water.mo_coeff)


def test_a_folder_that_is_gone_is_named(water: Any, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    found: Any = fitted_vectors(water, memory="10kB", scratch=tmp_path / "scratch")
    (tmp_path / "scratch").rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=rf"a file in {tmp_path}/scratch or .*: No such file or directory\."):
        list(found.bring(100))
    (tmp_path / "elsewhere").rename(tmp_path / "scratch")


def test_vectors_that_cannot_be_read_are_named(water: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = fitted_vectors(water, memory="10kB", scratch=tmp_path)
    monkeypatch.setattr(df.DF, "loop", full_disk)
    with pytest.raises(StorageError, match=FULL.format(tmp_path)):
        list(found.bring(100))


# Cholesky


@pytest.mark.parametrize("tol", [1e-2, 1e-6, 1e-10])
@pytest.mark.parametrize(
    ("atoms", "basis", "options"),
    [
        (WATER, "cc-pvdz", {}),
        (WATER, "6-31g*", {"cart": True}),
        (HYDROGEN, "ano@3s2p", {}),
        (HELIUM_CHAIN, "6-31g", {}),
        ("O 0 0 0; ghost-H 0 0 1; H 0 1 0; H 0 0 -1", {"O": "6-31g", "H": "sto-3g"}, {}),
    ],
    ids=["spherical", "cartesian", "general", "chain", "centre without functions"],
)
def test_no_integral_is_wrong_by_more_than_the_tolerance(
    atoms: str, basis: object, options: dict[str, bool], tol: float
) -> None:
    mol = make_mol(atoms, basis, **options)
    found = cholesky_vectors(mol, tol)
    exact = mol.intor("int2e", aosym="s4")
    off = np.abs(integrals(found) - exact)
    assert off.max() <= tol + ROUNDING
    assert found.error is not None
    assert found.error <= tol
    assert np.diagonal(off).max() == pytest.approx(found.error, rel=1e-3, abs=ROUNDING)
    assert found.count <= len(exact)


def test_fewer_vectors_are_found_for_larger_tolerances(water: Any) -> None:
    counts = [cholesky_vectors(water.mol, tol).count for tol in (1e-2, 1e-4, 1e-8)]
    assert 0 < counts[0] < counts[1] < counts[2] < 300
    # A decomposition that takes the largest element each time needs hardly fewer.
    assert counts[1] <= 1.05 * best_count(water.mol, 1e-4)


def best_count(mol: Any, tol: float) -> int:
    """Vectors of a decomposition column by column, by the textbook."""
    rest = mol.intor("int2e", aosym="s4")
    count = 0
    while rest.diagonal().max() > tol:
        pivot = int(rest.diagonal().argmax())
        rest = rest - np.outer(rest[:, pivot], rest[pivot]) / rest[pivot, pivot]
        count += 1
    return count


def test_mp2_from_cholesky_vectors_is_that_of_the_integrals(water: Any) -> None:
    coefficients, occupied = water.mo_coeff, water.mo_occ > 0
    occ, vir = tw.Space.uniform(5, 2, "occ"), tw.Space.uniform(19, 8, "vir")
    vectors = cholesky_vectors(water.mol, 1e-8)
    b = to_orbitals(vectors, coefficients[:, occupied], coefficients[:, ~occupied], (occ, vir), tile=64)
    g = tw.einsum("Qia,Qjb->iajb", b, b).to_dense()
    e, f = water.mo_energy[occupied], water.mo_energy[~occupied]
    gaps = e[:, None, None, None] - f[None, :, None, None] + e[None, None, :, None] - f
    energy = float((g * (2 * g - g.transpose(0, 3, 2, 1)) / gaps).sum())
    assert energy == pytest.approx(pyscf_mp2(water), abs=1e-6)


def test_memory_is_kept_to(water: Any) -> None:
    one = 8 * 300
    plain = cholesky_vectors(water.mol, 1e-6)
    budget = one * (plain.count + 120)
    tracemalloc.start()
    found = cholesky_vectors(water.mol, 1e-6, memory=budget)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= budget + 100_000  # Python's own objects
    assert np.abs(integrals(found) - water.mol.intor("int2e", aosym="s4")).max() <= 1e-6 + ROUNDING
    with pytest.raises(MemoryBudgetError, match=f"budget of {one * plain.count} bytes .* Give more memory="):
        cholesky_vectors(water.mol, 1e-6, memory=one * plain.count)


def test_a_column_that_is_no_longer_above_the_floor_gives_no_vector(water: Any) -> None:
    work = Decomposition(water.mol, 1e-6, 10**9, 1)
    work.run()
    count = work.count
    work.rest[7] = 1.0  # an estimate that the column itself refutes
    work.run()
    assert (work.count, work.rest[7] <= 1e-6) == (count, True)


@pytest.mark.parametrize("tol", [0, -1e-8, 1e-14, np.nan, np.inf, True, "1e-8", None])
def test_rejects_tolerance(water: Any, tol: Any) -> None:
    with pytest.raises(InputError, match="is no tolerance of Cholesky vectors"):
        cholesky_vectors(water.mol, tol)


def test_rejects_a_tolerance_that_leaves_nothing(water: Any) -> None:
    with pytest.raises(InputError, match=r"of 10\.0 leaves no Cholesky vectors: no integral is larger than \d\.\d"):
        cholesky_vectors(water.mol, 10.0)


@pytest.mark.parametrize("make", [cholesky_vectors, fitted_vectors])
@pytest.mark.parametrize("what", [3, None, gto.Mole()], ids=["number", "nothing", "no functions"])
def test_rejects_what_is_no_molecule(make: Any, what: Any) -> None:
    with pytest.raises(InputError, match="Expected a molecule"):
        make(what)


def test_a_budget_below_the_columns_that_are_always_decomposed_is_refused(water: Any) -> None:
    one = 8 * 300
    count = cholesky_vectors(water.mol, 1e-2).count
    cholesky_vectors(water.mol, 1e-2, memory=one * (count + 80))
    with pytest.raises(
        MemoryBudgetError, match=r"Give more memory=, or a larger tolerance \(cholesky_tol of a method\)"
    ):
        cholesky_vectors(water.mol, 1e-2, memory=one * (count + 80), reproducible=True)


def test_rounding_above_the_tolerance_is_noticed(water: Any) -> None:
    work = Decomposition(water.mol, 1e-6, 10**9, 1)
    work.rest[7] = 1e-9  # an estimate below the truth
    with pytest.raises(TilewiseError, match=r"Give a larger tolerance \(cholesky_tol of a method\)"):
        work._keep(np.full((1, 300), 1e-2), np.zeros(1, np.int64))


# Integrals made of vectors


@pytest.fixture(scope="module", params=["df", "direct"])
def made(request: Any) -> tuple[Hamiltonian, dict[str, tw.BlockTensor]]:
    """Tensors of the equations whose blocks are made on demand."""
    settings: dict[str, Any] = {"integrals": "df"} if request.param == "df" else {"ladder": "direct"}
    method, engine = CCSD(mean_field(ETHENE, "6-31g"), tile=12, **settings), current_engine()
    plan = method.plan()
    names = [name for name in plan.names if name not in (*FOCK, "c_v")]
    source = method._source(engine)
    tensors = plan.hamiltonian.build([*names, "c_v"] if source is None else names, names, 10**9, source=source)
    return plan.hamiltonian, {name: tensor for name, tensor in tensors.items() if name in (names if source else DIRECT)}


def test_making_a_block_takes_no_more_than_is_said(made: tuple[Hamiltonian, dict[str, tw.BlockTensor]]) -> None:
    """Nor is more said than half again as much."""
    for name, tensor in made[1].items():
        storage: Any = tensor.storage
        sizes, peak = tensor.pattern.block_sizes, 0
        out = np.empty(int(sizes.max()))
        for row in np.flatnonzero(sizes == sizes.max()).tolist()[:10]:
            storage.read(row, out)  # loads what is compiled
            tracemalloc.start()
            storage.read(row, out)
            peak = max(peak, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert peak - 20_000 <= storage.largest_bytes <= 1.5 * peak, name  # objects of Python


def test_a_plan_counts_what_making_blocks_takes_in_a_run(made: tuple[Hamiltonian, dict[str, tw.BlockTensor]]) -> None:
    hamiltonian, tensors = made
    for name, tensor in tensors.items():
        stand_in, storage = hamiltonian.placeholder(name, True, tensor.engine), tensor.storage
        assert isinstance(stand_in, tw.BlockTensor)
        assert getattr(stand_in.storage, "largest_bytes", 0) == getattr(storage, "largest_bytes", 1), name
        assert getattr(storage, "working_bytes", 0) >= tensor.pattern.block_sizes.max(), name


@pytest.mark.parametrize("integrals", ["df", "exact"])
def test_tensors_that_stay_are_made_within_what_the_plan_says(integrals: str) -> None:
    """Each worker makes blocks."""
    with tw.engine("threads", workers=2) as engine:
        method = CCSD(mean_field(ETHENE, "6-31g"), tile=12, integrals=integrals)
        hamiltonian, names = method.plan().hamiltonian, method.plan().names
        source = method._source(engine)
        said = hamiltonian.check_build(names, (), 10**9, engine=engine)
        hamiltonian.build(names, (), 10**9, source=source)  # loads what is compiled
        tracemalloc.start()
        hamiltonian.build(names, (), 10**9, source=source)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= said
    with pytest.raises(MemoryBudgetError, match=rf"Making the integrals takes {said} bytes .* Give more memory="):
        hamiltonian.check_build(names, (), said - 1, engine=engine)


# The same bits

DIGESTS = """
import hashlib
import numpy as np
import tilewise as tw
from chemistry.molecules import ETHENE, make_mol
from tilewise.chemistry.vectors import cholesky_vectors, fitted_vectors, to_orbitals

mol = make_mol(ETHENE, "6-31g")
orbitals = np.random.default_rng(0).standard_normal((mol.nao, 150))  # so many that BLAS takes threads for them
space = tw.Space.uniform(150, 50)
bare = make_mol(ETHENE, "6-31g").RHF().density_fit("weigend")
cases = (cholesky_vectors, mol, "1200kB"), (fitted_vectors, mol, "100kB"), (fitted_vectors, bare, "100kB")
for make, origin, little in cases:
    found = set()
    for memory in ("1GB", little):
        vectors = make(origin, memory=memory, reproducible=True)
        rows = np.concatenate(list(vectors.bring(50)))
        turned = to_orbitals(vectors, orbitals, orbitals, (space, space), at_once=32).to_dense()
        found.add(hashlib.sha256(rows.tobytes() + turned.tobytes()).hexdigest())
    print(*found)
"""


def digests(threads: int, kernels: str) -> list[str]:
    """What tells vectors from others, with so many threads in each library, by kernels of some kind of CPU."""
    environment = source_environment()
    environment["PYTHONPATH"] += f":{Path(__file__).parents[1]}"
    environment |= dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"], str(threads))
    environment |= {"OPENBLAS_CORETYPE": kernels} if kernels else {}
    command = [sys.executable, "-c", DIGESTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("kernels", ["", pytest.param("Haswell", marks=pytest.mark.slow)])
def test_bits_depend_neither_on_threads_nor_on_memory(kernels: str) -> None:
    """By kernels for Haswell they depend on the blocks in which PySCF makes fitted vectors."""
    if kernels and " avx2 " not in cpu_flags():
        pytest.skip("this CPU has not got what they need")
    found = digests(1, kernels)
    assert [len(line.split()) for line in found] == [1, 1, 1]
    assert digests(2, kernels) == found


def cpu_flags() -> str:
    """What this CPU can do, as Linux says it."""
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


# Slices and orbitals


@pytest.mark.parametrize("make", [cholesky_vectors, fitted_vectors])
@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_slices_are_all_vectors_once(water: Any, make: Any, at_once: int) -> None:
    vectors = make(water.mol)
    parts = list(vectors.bring(at_once))
    assert sum(map(len, parts)) == vectors.count
    assert max(map(len, parts)) == min(at_once, max(map(len, vectors.bring(10**6))))
    np.testing.assert_array_equal(np.concatenate(parts), np.concatenate(list(vectors.bring(10**6))))


def test_cholesky_vectors_cannot_be_written_to(water: Any) -> None:
    part = next(cholesky_vectors(water.mol, 1e-2).bring(5))
    with pytest.raises(ValueError, match="read-only"):
        part[...] = 0


@pytest.mark.parametrize(("sizes", "came"), [([], "0"), ([2, 2], "4"), ([3, 3], "at least 6")])
def test_a_wrong_number_of_vectors_is_noticed(sizes: list[int], came: str) -> None:
    class Source:
        def bring(self, at_once: int) -> Iterator[npt.NDArray[np.float64]]:
            yield from (np.zeros((size, 3)) for size in sizes)

    with tw.engine("threads") as engine:
        vectors = Vectors(5, 2, None, Source(), engine)
    with pytest.raises(InputError, match=f"{came} vectors came. Expected 5"):
        list(vectors.bring(3))


def expected_orbitals(vectors: Vectors, left: Any, right: Any, spaces: tuple[tw.Space, ...]) -> Any:
    rows = np.concatenate(list(vectors.bring(100)))
    made = np.einsum("qmn,mi,nj->qij", lib.unpack_tril(rows), left, right, optimize=True)
    return made[:, spaces[0].order][:, :, spaces[1].order]


@pytest.mark.parametrize("at_once", [None, 1, 10, 37])
@pytest.mark.parametrize("sides", ["ov", "vo", "oo", "vv", "pv"])
def test_orbitals_in_tile_order(ethene: Any, ethene_vectors: Vectors, sides: str, at_once: int | None) -> None:
    occupied = ethene.mo_occ > 0
    named = {"o": occupied, "v": ~occupied, "p": np.ones_like(occupied)}
    left, right = (ethene.mo_coeff[:, named[side]] for side in sides)
    spaces = tuple(tile_orbitals(side.shape[1], 3, orbital_irreps(ethene.mol, side)) for side in (left, right))
    vectors = ethene_vectors
    found = to_orbitals(vectors, left, right, (spaces[0], spaces[1]), tile=25, at_once=at_once)
    found.check()
    assert found.spaces[0] == tw.Space.uniform(vectors.count, 25)
    assert (found.spaces[0].name, found.spaces[1:], found.density) == ("aux", spaces, 1.0)
    assert spaces[0].is_reordered
    np.testing.assert_allclose(found.to_dense(), expected_orbitals(vectors, left, right, spaces), rtol=0, atol=1e-12)


def test_half_of_the_blocks_are_stored_where_both_sides_are_the_same(water: Any) -> None:
    virtual = water.mo_coeff[:, 5:]
    vir = tw.Space.uniform(19, 5)
    vectors = fitted_vectors(water.mol)
    full = to_orbitals(vectors, virtual, virtual, (vir, vir), tile=30)
    found = to_orbitals(vectors, virtual, virtual, (vir, vir), tile=30, symmetric=True)
    found.check()
    assert found.symmetry == Symmetry(((1, 2), 1))
    assert found.pattern.nnz_blocks == full.spaces[0].ntiles * 10
    dense = found.to_dense()
    np.testing.assert_array_equal(dense, dense.transpose(0, 2, 1))
    np.testing.assert_allclose(dense, full.to_dense(), rtol=0, atol=1e-13)
    np.testing.assert_allclose(
        tw.einsum("Qab,Qcd->abcd", found, found).to_dense(),
        tw.einsum("Qab,Qcd->abcd", full, full).to_dense(),
        rtol=0,
        atol=1e-12,
    )


def test_few_vectors_are_held_at_once(ethene: Any) -> None:
    vectors, mo = fitted_vectors(ethene.mol), tw.Space.uniform(26, 8)

    def peak(work: Callable[[], Any]) -> int:
        tracemalloc.start()
        work()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    def make(at_once: int) -> tw.BlockTensor:
        return to_orbitals(vectors, ethene.mo_coeff, ethene.mo_coeff, (mo, mo), tile=64, at_once=at_once)

    found = make(1)
    norms = peak(found.arena.norms)
    few, all_of_them = (peak(partial(make, at_once)) - found.nbytes for at_once in (1, vectors.count))
    assert few < norms + 200_000  # Python's own objects
    assert all_of_them > norms + found.nbytes


def test_no_orbitals_make_an_empty_tensor(water: Any) -> None:
    none, vir = tw.Space([]), tw.Space.uniform(19, 5)
    found = to_orbitals(fitted_vectors(water.mol), water.mo_coeff[:, :0], water.mo_coeff[:, 5:], (none, vir))
    assert (found.shape[1:], found.pattern.nnz_blocks) == ((0, 19), 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"left": np.zeros((3, 4))}, r"left= have shape \(3, 4\)"),
        ({"right": np.zeros(24)}, r"right= have shape \(24,\)"),
        ({"right": np.zeros((24, 4), complex)}, "type complex128. Expected real"),
        ({"left": np.full((24, 4), np.nan)}, "left= are not all finite"),
        ({"spaces": (tw.Space([4]), tw.Space([3]))}, "do not fit 4 and 4 orbitals"),
        ({"spaces": 4}, "do not fit 4 and 4 orbitals"),
        ({"symmetric": True}, "symmetric=True was given with different orbitals"),
        ({"at_once": 0}, "at_once=0 vectors cannot be a slice"),
    ],
)
def test_rejects_orbitals(water: Any, change: dict[str, Any], message: str) -> None:
    four = tw.Space([4])
    given = {"left": water.mo_coeff[:, :4], "right": water.mo_coeff[:, 4:8], "spaces": (four, four)} | change
    with pytest.raises(InputError, match=message):
        to_orbitals(cholesky_vectors(water.mol, 1e-2), **given)


RANKS = """
import numpy as np
from pyscf import gto, scf
import tilewise as tw
from tilewise.chemistry.vectors import cholesky_vectors, fitted_vectors, to_orbitals
from tilewise.errors import MemoryBudgetError
from tilewise.plans import sharing

sharing.LEAST_BYTES = 0
mol = gto.M(atom="O 0 0 0; H 0 0.757 0.587; H 0 -0.757 0.587", basis="6-31g", verbose=0)
mf = scf.RHF(mol).run(conv_tol=1e-11)
spaces = tw.Space.uniform(5, 2), tw.Space.uniform(8, 3)
sides = mf.mo_coeff[:, :5], mf.mo_coeff[:, 5:]
exact = mol.intor("int2e", aosym="s4")
with tw.engine("mpi", workers=1) as engine:
    sides = engine.of_first(sides)  # each rank has solved its mean field by itself
    for make in (cholesky_vectors, fitted_vectors):
        vectors = make(mol)
        assert (vectors.source is None) == (engine.rank > 0)
        rows = np.concatenate(list(vectors.bring(11)))
        assert abs(rows.T @ rows - exact).max() < (1e-8 if make is cholesky_vectors else 1e-2)
        with tw.engine("threads"):
            own = make(mol)  # each rank has all of them
            alone = to_orbitals(own, *sides, spaces, tile=20)
        for given in (vectors, own):
            found = to_orbitals(given, *sides, spaces, tile=20)
            assert len(found.arena.rows) < found.pattern.nnz_blocks
            assert abs(found.to_dense() - engine.of_first(alone.to_dense())).max() < 1e-12
    try:
        cholesky_vectors(mol, memory=1000)
    except MemoryBudgetError as error:
        assert error.budget == 1000
        print("together")
"""


def test_ranks_share_the_vectors_of_the_first() -> None:
    pytest.importorskip("mpi4py")
    done = ranks(2, "-c", RANKS)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert done.stdout.count("together") == 2
