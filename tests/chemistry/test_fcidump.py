"""Hamiltonians in FCIDUMP files, those of PySCF and those of others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyscf import ao2mo
from pyscf.tools import fcidump as theirs

import tilewise as tw
from chemistry.molecules import WATER, mean_field
from tilewise.chemistry import fcidump as module
from tilewise.chemistry import pack_integrals, transform
from tilewise.chemistry.fcidump import Fcidump, read_fcidump, reference
from tilewise.errors import InputError, MemoryBudgetError, StorageError, TilewiseError

NITROGEN = "N 0 0 0; N 0 0 1.1"
TINY = """&FCI NORB=2,NELEC=2,MS2=0,
  ORBSYM=1,2,
  ISYM=1,
&END
 0.675 1 1 1 1
 0.664 2 2 1 1
 0.181 2 1 2 1
 0.698 2 2 2 2
 -1.252 1 1 0 0
 -0.475 2 2 0 0
 -0.577 1 0 0 0
 0.67 2 0 0 0
 0.713 0 0 0 0
"""


@pytest.fixture(scope="module")
def water() -> Any:
    return mean_field(WATER, "6-31g")


@pytest.fixture(scope="module")
def nitrogen() -> Any:
    return mean_field(NITROGEN, "6-31g", symmetry=True)


@pytest.fixture
def save(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def write(text: str | bytes) -> Path:
        path = tmp_path / "FCIDUMP"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def dumped(mf: Any, path: Path, **options: Any) -> Fcidump:
    theirs.from_scf(mf, str(path), **options)
    return read_fcidump(path)


def same(one: Fcidump, other: Fcidump) -> bool:
    """Whether two files say the same."""
    numbers = [
        (d.norb, d.nelec, d.ms2, d.isym, d.ecore, None if d.orbsym is None else d.orbsym.tolist()) for d in (one, other)
    ]
    return numbers[0] == numbers[1] and np.array_equal(one.h1, other.h1) and np.array_equal(one.eri, other.eri)


# Files of PySCF


@pytest.mark.parametrize("molecule", ["water", "nitrogen"])
@pytest.mark.parametrize("molpro", [False, True])
def test_files_of_pyscf(molecule: str, molpro: bool, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    mf = request.getfixturevalue(molecule)
    c = mf.mo_coeff
    dump = dumped(mf, tmp_path / "f", molpro_orbsym=molpro)
    assert (dump.norb, dump.nelec, dump.ms2, dump.isym) == (c.shape[1], mf.mol.nelectron, 0, 0)
    np.testing.assert_allclose(dump.h1, c.T @ mf.get_hcore() @ c, rtol=0, atol=1e-12)
    expected = ao2mo.restore(8, ao2mo.kernel(mf.mol, c), dump.norb)
    np.testing.assert_allclose(dump.eri, expected, rtol=0, atol=1e-12)
    found = reference(dump)
    np.testing.assert_allclose(found.fock, c.T @ mf.get_fock() @ c, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(found.mo_energy, np.diagonal(found.fock))
    np.testing.assert_allclose(found.mo_energy, mf.mo_energy, rtol=0, atol=1e-7)  # of PySCF's last cycle but one
    assert found.e_tot == pytest.approx(mf.e_tot, abs=1e-10)
    assert found.mo_occ.tolist() == mf.mo_occ.tolist()


@pytest.mark.parametrize("molpro", [False, True])
def test_irreps_multiply_as_pyscf_s_do(nitrogen: Any, molpro: bool, tmp_path: Path) -> None:
    labels = dumped(nitrogen, tmp_path / "f", molpro_orbsym=molpro).orbsym
    assert labels is not None
    expected = nitrogen.mo_coeff.orbsym % 10
    for p, q in np.ndindex(len(labels), len(labels)):
        assert (labels[p] == labels[q]) == (expected[p] == expected[q])
        products = [labels == labels[p] ^ labels[q], expected == expected[p] ^ expected[q]]
        assert np.array_equal(*products)


def test_integrals_are_transformed_from_the_file(water: Any, tmp_path: Path) -> None:
    found = reference(dumped(water, tmp_path / "f"))
    occupied = found.mo_occ > 0
    sides = [found.mo_coeff[:, kind] for kind in (occupied, ~occupied) * 2]
    expected = ao2mo.kernel(water.mol, [water.mo_coeff[:, kind] for kind in (occupied, ~occupied) * 2])
    np.testing.assert_allclose(pack_integrals(transform(found.eri, sides, tile=4)), expected, rtol=0, atol=1e-10)


def test_irreps_are_those_that_the_integrals_have(nitrogen: Any, tmp_path: Path) -> None:
    found = reference(dumped(nitrogen, tmp_path / "f"))
    assert found.orbsym is not None
    order = np.argsort(found.orbsym, kind="stable")
    irreps, sizes = np.unique(found.orbsym, return_counts=True)
    space = tw.Space.reordered(tw.Space(sizes, irrep=irreps), order)
    blocks = transform(found.eri, found.mo_coeff, spaces=space)
    assert blocks.density < 0.3
    expected = ao2mo.restore(4, ao2mo.kernel(nitrogen.mol, nitrogen.mo_coeff), len(order))
    np.testing.assert_allclose(pack_integrals(blocks), expected, rtol=0, atol=1e-10)


# Forms of the file


Form = Callable[[float, Sequence[int]], str]


def write_dump(dump: Fcidump, form: Form, head: str) -> str:
    """A file with lines of some form."""
    pairs = [(p + 1, q + 1) for p in range(dump.norb) for q in range(p + 1)]
    quads = [(*pq, *rs) for number, pq in enumerate(pairs) for rs in pairs[: number + 1]]
    lines = [form(value, index) for value, index in zip(dump.eri.tolist(), quads, strict=True)]
    lines += [form(dump.h1[p - 1, q - 1], (p, q, 0, 0)) for p, q in pairs]
    return head + "\n".join([*lines, form(dump.ecore, (0, 0, 0, 0))]) + "\n"


def random_dump(norb: int, seed: int = 0) -> Fcidump:
    draw = np.random.default_rng(seed)
    pairs = norb * (norb + 1) // 2
    h1 = draw.standard_normal((norb, norb))
    eri = draw.standard_normal(pairs * (pairs + 1) // 2)
    return Fcidump(norb, 2, 0, 0, None, h1 + h1.T, eri, float(draw.standard_normal()))


def joined(value: float, index: Sequence[int], between: str = " ") -> str:
    return between.join([repr(float(value)), *map(str, index)])


def exchanged(index: Sequence[int]) -> list[tuple[int, ...]]:
    """Where the same integral stands too."""
    i, j, *rest = index
    return [(i, j, *rest), (j, i, *rest)] + ([(*rest, i, j), (*rest[::-1], j, i)] if rest[0] else [])


FORMS: dict[str, Form] = {
    "plain": joined,
    "commas": lambda value, index: joined(value, index, ", "),
    "tabs": lambda value, index: joined(value, index, "\t"),
    "windows": lambda value, index: joined(value, index) + "\r",
    "upper exponents": lambda value, index: f"{value:.17E} " + " ".join(map(str, index)),
    "Fortran's exponents": lambda value, index: f"{value:.17E}".replace("E", "D") + "".join(f"{i:5d}" for i in index),
    "empty lines": lambda value, index: joined(value, index) + "\n  \n",
    "other order": lambda value, index: joined(value, exchanged(index)[-1]),
    "given four times": lambda value, index: "\n".join(joined(value, each) for each in exchanged(index)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunk", [60, 100, 1 << 22])
def test_lines_of_every_form(save: Any, monkeypatch: pytest.MonkeyPatch, form: str, chunk: int) -> None:
    dump = random_dump(5)
    path = save(write_dump(dump, FORMS[form], "&FCI NORB=5,NELEC=2,&END\n"))
    monkeypatch.setattr(module, "_CHUNK", chunk)
    assert same(read_fcidump(path), dump)


@pytest.mark.parametrize(
    ("head", "labels"),
    [
        ("&FCI NORB=2,NELEC=2,MS2=0,\n ORBSYM=1,2,\n ISYM=1,\n&END", [0, 1]),
        ("&fci norb=2,nelec=2,ms2=0,\n orbsym=1,2,\n isym=1,\n&end", [0, 1]),
        (" &FCI NORB= 2, NELEC= 2,\n ORBSYM=1,\n 2\n /", [0, 1]),
        ("\n&FCI\nNORB=2\nNELEC=2\nORBSYM=1 2\nIUHF=0\n/", [0, 1]),
        ("$FCI NORB=2,NELEC=2,ORBSYM=2*1,UHF=.FALSE.\n$END", None),
        ("&FCI NORB=2,NELEC=2,UHF=F,ISYM=0 /", None),
        ("&FCI NORB=2,NELEC=2,ORBSYM=0,1, III=3, OCC=1,0 /", [0, 1]),
        ("&FCI NORB=2 , NELEC=2 , ORBSYM= 5, 8 &END", [4, 7]),
        ("&FCI NORB=2,NELEC=2,MS2=0,ORBSYM=0,7,NPROP=1 1 1,PROPBITLEN=15 &END", [0, 7]),
    ],
)
def test_headers_of_every_form(save: Any, head: str, labels: list[int] | None) -> None:
    dump = read_fcidump(save(head + "\n" + TINY.partition("&END\n")[2]))
    assert (dump.norb, dump.nelec, dump.ms2, dump.isym) == (2, 2, 0, 0)
    assert (None if dump.orbsym is None else dump.orbsym.tolist()) == labels
    assert dump.eri.tolist() == [0.675, 0.0, 0.181, 0.664, 0.0, 0.698]
    assert (dump.h1.tolist(), dump.ecore) == ([[-1.252, 0.0], [0.0, -0.475]], 0.713)


def test_labels_from_zero_without_a_zero_are_recognised(save: Any) -> None:
    """1, 2, 4 and 7 multiply to 0 as they are, not if 1 is subtracted from each."""
    text = "&FCI NORB=4,NELEC=2,ORBSYM=1,2,4,7 /\n0.1 1 2 3 4\n0.5 0 0 0 0\n"
    found = read_fcidump(save(text)).orbsym
    assert found is not None
    assert found.tolist() == [1, 2, 4, 7]
    found = read_fcidump(save(text.replace("3 4", "1 2"))).orbsym
    assert found is not None
    assert found.tolist() == [0, 1, 3, 6]
    with pytest.raises(InputError, match=r"ORBSYM of .* forbids integrals of up to 0\.1"):
        read_fcidump(save(text.replace("4,7", "4,6")))


def test_exponents_whose_letter_fortran_left_out(save: Any) -> None:
    text = TINY.replace("0.181 2 1 2 1", "0.181-104 2 1 2 1").replace("0.664", ".664D+000")
    assert read_fcidump(save(text)).eri.tolist() == [0.675, 0.0, 0.181e-104, 0.664, 0.0, 0.698]


# Files that are wrong


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("&FCI NORB=2,", "NORB=2,", "starts with 'NORB=2,NELEC=2,MS2=0,'. An FCIDUMP file has a header"),
        ("NORB=2,", "", "has no NORB. Expected a whole number"),
        ("NELEC=2,", "NELEC=two,", "has NELEC='two'. Expected a whole number"),
        ("NORB=2,", "NORB=0,", "NORB=0, NELEC=2, ISYM=1. Expected at least one orbital"),
        ("NELEC=2", "NELEC=-2", "NELEC=-2"),
        ("MS2=0,", "MS2=0, IUHF=1,", "IUHF=1: orbitals that depend on the spin"),
        ("MS2=0,", "MS2=0, UHF=.TRUE.,", "UHF=.TRUE.: orbitals that depend on the spin"),
        ("ORBSYM=1,2", "ORBSYM=1,2,1", "ORBSYM of .* has 3 entries. Expected NORB=2"),
        ("ORBSYM=1,2", "ORBSYM=9999*1", "ORBSYM of .* has 3 entries"),
        ("ORBSYM=1,2", "ORBSYM=1,9", "has the entry '9'. Expected irreps from 1 to 8"),
        ("ORBSYM=1,2", "ORBSYM=1,-2", "has the entry '-2'"),
        ("&END", "&END 0.1 1 1 1 1", "Line 4 of .* goes on with '0.1 1 1 1 1' after the end"),
        ("0.664 2 2 1 1", "0.664 2 2 1", "Line 6 of .* is '0.664 2 2 1'. Expected a number and four indices"),
        ("0.664 2 2 1 1", "0.664 2 2 1 1 1", "Line 6 of"),
        ("0.664 2 2 1 1", "0.664 2 2 1 3", "Line 6 of .* Expected indices from 0 to 2"),
        ("0.664 2 2 1 1", "0.664 2 2 1 -1", "Line 6 of .* Expected indices from 0 to 2"),
        ("0.664 2 2 1 1", "0.664 2 2 1 1.5", "Line 6 of .* Expected indices from 0 to 2"),
        ("0.664 2 2 1 1", "0.664 2 2 1 1e300", "Line 6 of .* Expected indices from 0 to 2"),
        ("0.664 2 2 1 1", "0.664 2 2 0 1", "Line 6 of .* Expected indices"),
        ("0.664 2 2 1 1", "0.664 0 2 0 0", "Line 6 of .* Expected indices"),
        ("0.664 2 2 1 1", "nan 2 2 1 1", "Line 6 of .* is 'nan 2 2 1 1'"),
        ("0.664 2 2 1 1", "1e999 2 2 1 1", "Line 6 of .* is '1e999 2 2 1 1'"),
        ("0.664 2 2 1 1", "0.6x4 2 2 1 1", "Line 6 of .* is '0.6x4 2 2 1 1'. Expected a real number"),
        ("0.664 2 2 1 1", "0.664 2 2 1 1\n\n0.1 1 1 1 one", "Line 8 of .* is '0.1 1 1 1 one'"),
        ("0.664 2 2 1 1", "(0.664,0.1) 2 2 1 1", "Line 6 of .* has a complex number"),
        (
            "0.664 2 2 1 1",
            "0.664 2 2 1 1\n0.7 1 1 2 2",
            "Line 6 of .* gives 0.664 for an integral that has the value 0.7 elsewhere",
        ),
        ("0.713 0 0 0 0", "0.713 0 0 0 0\n0.7 0 0 0 0", "gives 0.713 for an integral that has the value 0.7"),
        ("-0.475 2 2 0 0", "-0.475 2 1 0 0", "forbids integrals of up to 0.475"),
    ],
)
def test_rejects_file(save: Any, old: str, new: str, message: str) -> None:
    assert old in TINY
    with pytest.raises(InputError, match=message):
        read_fcidump(save(TINY.replace(old, new)))


def test_conflicts_are_noticed_across_chunks(save: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(TINY.replace("0.713 0", "0.9 2 2 2 2\n0.713 0"))
    monkeypatch.setattr(module, "_CHUNK", 30)
    with pytest.raises(InputError, match=r"Line 13 of .* gives 0\.9"):
        read_fcidump(path)


@pytest.mark.parametrize("lines", [1, 3, 4, 7, 12])
def test_a_file_that_was_cut_off(save: Any, lines: int) -> None:
    with pytest.raises(StorageError, match=r"does not end|has no core energy.*The file was cut off"):
        read_fcidump(save("".join(TINY.splitlines(keepends=True)[:lines])))


@given(st.integers(0, len(TINY) - 2))
def test_a_file_that_was_cut_off_anywhere(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "FCIDUMP"
    path.write_text(TINY[:length])
    with pytest.raises(TilewiseError):
        read_fcidump(path)


@settings(max_examples=200)
@given(st.integers(0, len(TINY) - 1), st.binary(min_size=1, max_size=3))
def test_damage_never_ends_in_another_error(
    tmp_path_factory: pytest.TempPathFactory, place: int, damage: bytes
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "FCIDUMP"
    path.write_bytes(TINY.encode()[:place] + damage + TINY.encode()[place + len(damage) :])
    with contextlib.suppress(TilewiseError):
        found = read_fcidump(path)
        assert np.isfinite(found.eri).all()


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no file .*nowhere\. Expected the path of an FCIDUMP file"):
        read_fcidump(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="is a folder"):
        read_fcidump(tmp_path)


def test_more_orbitals_than_there_is_memory_for(save: Any) -> None:
    with pytest.raises(MemoryBudgetError, match="NORB=999999, whose integrals need"):
        read_fcidump(save(TINY.replace("NORB=2", "NORB=999999").replace("ORBSYM=1,2,", "")))


# Closed shells


def test_energy_of_other_orbitals(save: Any) -> None:
    dump = read_fcidump(save(TINY))
    ground, excited = reference(dump), reference(dump, occupied=[1])
    assert ground.e_tot == pytest.approx(0.713 - 2 * 1.252 + 0.675, abs=1e-14)
    assert excited.e_tot == pytest.approx(0.713 - 2 * 0.475 + 0.698, abs=1e-14)
    assert ground.mo_energy.tolist() == pytest.approx([-1.252 + 0.675, -0.475 + 2 * 0.664 - 0.181], abs=1e-14)
    assert (excited.mo_occ.tolist(), excited.converged) == ([0.0, 2.0], True)
    np.testing.assert_array_equal(excited.get_fock(), excited.fock)


def test_orbitals_that_are_not_canonical(water: Any, tmp_path: Path) -> None:
    """Energy and Fock matrix of orbitals that are turned among the occupied ones, and among the virtual ones."""
    draw = np.random.default_rng(0)
    turn = np.zeros((13, 13))
    for part in (slice(0, 5), slice(5, 13)):
        size = part.stop - part.start
        # Little, so that occupied orbitals stay below the others.
        turn[part, part] = np.linalg.qr(np.eye(size) + 0.05 * draw.standard_normal((size, size)))[0]
    c = water.mo_coeff @ turn
    path = tmp_path / "f"
    theirs.from_mo(water.mol, str(path), c)
    found = reference(read_fcidump(path))
    assert found.e_tot == pytest.approx(water.e_tot, abs=1e-10)
    np.testing.assert_allclose(found.fock, c.T @ water.get_fock() @ c, rtol=0, atol=1e-10)
    assert np.abs(found.fock - np.diag(found.mo_energy)).max() > 1e-3


def shuffled(dump: Fcidump, order: npt.NDArray[np.int64]) -> Fcidump:
    full = ao2mo.restore(1, np.array(dump.eri), dump.norb)[np.ix_(order, order, order, order)]
    h1 = dump.h1[np.ix_(order, order)]
    return Fcidump(dump.norb, dump.nelec, 0, 0, None, h1, ao2mo.restore(8, full, dump.norb), dump.ecore)


def test_orbitals_that_are_not_sorted_by_energy(water: Any, tmp_path: Path) -> None:
    dump = shuffled(dumped(water, tmp_path / "f"), np.arange(13)[::-1])
    with pytest.raises(InputError, match="Expected the occupied ones first: are they sorted by irrep"):
        reference(dump)
    assert reference(dump, range(8, 13)).e_tot == pytest.approx(water.e_tot, abs=1e-10)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("NELEC=2", "NELEC=3", "NELEC=3. Expected an even number of electrons"),
        ("NELEC=2", "NELEC=0", "NELEC=0. Expected an even number of electrons, at least 2"),
        ("NELEC=2", "NELEC=6", "NELEC=6 and NORB=2. Expected at most two electrons in an orbital"),
        ("MS2=0", "MS2=2", "MS2=2: an open shell. Expected MS2=0"),
        ("ISYM=1", "ISYM=2", "ISYM=2. Expected the totally symmetric irrep"),
    ],
)
def test_rejects_what_is_no_closed_shell(save: Any, old: str, new: str, message: str) -> None:
    dump = read_fcidump(save(TINY.replace(old, new)))
    with pytest.raises(InputError, match=message):
        reference(dump)


@pytest.mark.parametrize("occupied", [[], [0, 1], [2], [-1], [0.5], "a"])
def test_rejects_occupied(save: Any, occupied: Any) -> None:
    with pytest.raises(InputError, match="occupied="):
        reference(read_fcidump(save(TINY)), occupied)


def test_all_orbitals_may_be_occupied(save: Any) -> None:
    assert reference(read_fcidump(save(TINY.replace("NELEC=2", "NELEC=4")))).mo_occ.tolist() == [2.0, 2.0]
