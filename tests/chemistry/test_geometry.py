from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewise.chemistry.geometry import ELEMENTS, read_xyz
from tilewise.errors import InputError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def write(folder: Path, text: str) -> Path:
    file = folder / "molecule.xyz"
    file.write_text(text, encoding="utf-8")
    return file


def distances(coordinates: np.ndarray) -> np.ndarray:
    return np.sort(np.linalg.norm(coordinates[:, None] - coordinates, axis=2)[np.triu_indices(len(coordinates), 1)])


def test_elements_are_numbered_from_hydrogen() -> None:
    numbers = {
        "H": 1,
        "He": 2,
        "C": 6,
        "Ar": 18,
        "Fe": 26,
        "Xe": 54,
        "La": 57,
        "Lu": 71,
        "Au": 79,
        "U": 92,
        "Og": 118,
    }
    assert {symbol: ELEMENTS.index(symbol) + 1 for symbol in numbers} == numbers
    assert len(set(ELEMENTS)) == 118


def test_reads_symbols_in_any_case_and_coordinates(tmp_path: Path) -> None:
    file = write(tmp_path, "\ufeff 2 \r\n  a comment\r\ncl 0 -1.5e0 +2\r\n\tNA 0 0 .5 \r\n\r\n")
    geometry = read_xyz(file)
    assert geometry.symbols == ("Cl", "Na")
    assert geometry.coordinates.tolist() == [[0.0, -1.5, 2.0], [0.0, 0.0, 0.5]]
    assert not geometry.coordinates.flags.writeable
    assert (geometry.comment, geometry.natoms, geometry.nuclear_charge) == ("a comment", 2, 28)


def test_water_of_the_examples_has_the_bonds_it_says() -> None:
    water = read_xyz(EXAMPLES / "water.xyz")
    assert water.symbols == ("O", "H", "H")
    np.testing.assert_allclose(distances(water.coordinates)[:2], 0.9572, atol=1e-6)
    first, second = water.coordinates[1:] - water.coordinates[0]
    assert np.degrees(np.arccos(first @ second / 0.9572**2)) == pytest.approx(104.52, abs=1e-3)


def test_benzene_of_the_examples_has_the_bonds_it_says() -> None:
    benzene = read_xyz(EXAMPLES / "benzene.xyz")
    assert benzene.symbols == ("C",) * 6 + ("H",) * 6
    shortest = distances(benzene.coordinates)
    np.testing.assert_allclose(shortest[:6], 1.08, atol=1e-5)
    np.testing.assert_allclose(shortest[6:12], 1.3915, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has an empty first line"),
        ("H 0 0 0\n", "starts with 'H 0 0 0'"),
        ("-1\n\n", "starts with '-1'"),
        ("0\n\n", "at least 1"),
        pytest.param(f"{'9' * 5000}\n\nH 0 0 0\n", "starts with '9{40}'", id="a long number"),
        ("1.5\n\nH 0 0 0", "starts with '1.5'"),
        ("\u0662\n\nH 0 0 0\nH 0 0 1", "number of atoms, at least 1, on line 1"),
        ("1", "ends after its first line"),
        ("2\n\nH 0 0 0\n", "announces 2 atoms on line 1, but only 1 lines of atoms follow"),
        ("1\n\nH 0 0 0\nH 0 0 1\n", "announces 1 atoms on line 1, but line 4 holds more"),
        ("1\n\n\nH 0 0 0\n", "line 4 holds more"),
        ("1\n\nXx 0 0 0\n", "Line 3 of .* names the element 'Xx', which is unknown"),
        ("1\n\n8 0 0 0\n", "names the element '8'"),
        ("1\n\nH 0 0\n", "Line 3 of .* is 'H 0 0'. Expected four fields"),
        ("1\n\nH 0 0 0 0\n", "Expected four fields"),
        ("2\n\nH 0 0 0\nH 0 zero 0\n", "Line 4 of .* has the coordinate 'zero'"),
        ("1\n\nH 0 nan 0\n", "has the coordinate 'nan'"),
        ("1\n\nH 0 0 inf\n", "has the coordinate 'inf'"),
        ("1\n\nH 0 0 1_0\n", "has the coordinate '1_0'"),
        ("3\n\nH 0 0 0\nO 0 0 1\nH 0 0 0.01\n", "Atoms 1 and 3 of .* are 0.01 Angstrom apart"),
    ],
)
def test_rejects(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_xyz(write(tmp_path, text))


def test_rejects_a_missing_file_a_folder_and_bytes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no file .*absent\.xyz"):
        read_xyz(tmp_path / "absent.xyz")
    with pytest.raises(InputError, match="cannot be read as text"):
        read_xyz(tmp_path)
    file = tmp_path / "binary.xyz"
    file.write_bytes(b"1\n\n\xff\xfe 0 0 0\n")
    with pytest.raises(InputError, match="cannot be read as text"):
        read_xyz(file)
