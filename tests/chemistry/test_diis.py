"""DIIS on problems with known solutions: as far as rounding goes, in memory and on disk, and what it holds."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewise as tw
from references import assert_close, stored_bytes
from tilewise.chemistry import diis as module
from tilewise.chemistry.diis import Amplitudes, Diis, Footprint, combine, difference, extrapolation_weights, mix
from tilewise.errors import InputError, NonFiniteError, StorageError
from tilewise.patterns import Pattern, Symmetry
from tilewise.tensors import memory
from tilewise.tensors.files import FileStorage

Array = npt.NDArray[Any]
Update = Callable[[Array], Array]

ROWS, COLS = tw.Space([3, 5, 2], name="rows"), tw.Space([4, 1, 6], name="cols")
SIZE = 10 * 11


def contraction(slowest: float, seed: int = 0, dtype: str = "float64") -> tuple[Array, Array]:
    """A matrix with eigenvalues from -0.4 to `slowest`, and a vector."""
    random = np.random.default_rng(seed)
    turn = np.linalg.qr(random.normal(size=(SIZE, SIZE)))[0]
    matrix = turn * np.linspace(-0.4, slowest, SIZE) @ turn.T
    constant = random.normal(size=SIZE)
    if np.dtype(dtype).kind == "c":
        constant = constant + 1j * random.normal(size=SIZE)
    return matrix, constant.astype(dtype)


def linear(slowest: float, dtype: str = "float64") -> Update:
    matrix, constant = contraction(slowest, dtype=dtype)
    return lambda x: (matrix @ x + constant).astype(dtype)


def bent(slowest: float) -> Update:
    """Mildly non-linear."""
    matrix, constant = contraction(slowest)
    return lambda x: matrix @ x + 0.1 * constant + 0.05 * np.sin(x) ** 2


def to_amplitudes(x: Array) -> Amplitudes:
    """A vector as two tensors."""
    both = x.reshape(10, 11)
    return {"t1": tw.from_dense(both[0], (COLS,)), "t2": tw.from_dense(both, (ROWS, COLS))}


def iterate(
    update: Update, diis: Diis, tol: float, most: int = 400, dtype: str = "float64"
) -> tuple[Array, list[float]]:
    """The solution, and the norms of all steps."""
    old, norms = to_amplitudes(np.full(SIZE, 0.1, dtype)), []
    for _ in range(most):
        new = to_amplitudes(update(old["t2"].to_dense().ravel()))
        steps = difference(new, old)
        norms.append(steps["t2"].norm())
        old = diis.update(new, steps)
        if norms[-1] < tol:
            break
    return old["t2"].to_dense().ravel(), norms


# Convergence


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize(("slowest", "most"), [(0.6, 36), (0.93, 110)])
@pytest.mark.parametrize("kind", [linear, bent])
def test_it_converges_as_far_as_rounding_goes(
    kind: Callable[[float], Update], slowest: float, most: int, on_disk: bool, tmp_path: Path
) -> None:
    update = kind(slowest)
    found, norms = iterate(update, Diis(on_disk=on_disk, scratch=tmp_path), 1e-12, most)
    assert norms[-1] < 1e-12
    assert np.abs(update(found) - found).max() < 1e-12
    assert list(tmp_path.iterdir()) == []


def test_it_helps_as_much_at_the_end_as_at_the_beginning() -> None:
    _, norms = iterate(linear(0.8), Diis(), 1e-13)
    at = [next(i for i, norm in enumerate(norms) if norm < 10.0**-k) for k in (0, 6, 12)]
    assert at[2] - at[1] < 1.5 * (at[1] - at[0])
    _, plain = iterate(linear(0.8), Diis(space=0), 1e-13)
    assert len(norms) < 0.6 * len(plain)


def test_an_iteration_that_diverges_by_itself_converges() -> None:
    matrix, constant = contraction(-1.3)
    _, norms = iterate(lambda x: matrix @ x + constant, Diis(space=8), 1e-12)
    assert norms[-1] < 1e-12


def test_space_for_every_direction_solves_a_linear_problem_at_once() -> None:
    matrix, constant = contraction(0.9)
    values, vectors = np.linalg.eigh(matrix)
    few = vectors[:, ::22] * values[::22] @ vectors[:, ::22].T  # five directions: six steps are dependent
    _, norms = iterate(lambda x: few @ x + constant, Diis(space=20), 1e-11, 12)
    assert len(norms) <= 9


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_other_element_types(dtype: str) -> None:
    tol = 1e-12 if dtype == "complex128" else 2e-5
    found, norms = iterate(linear(0.6, dtype), Diis(), tol, 60, dtype)
    assert norms[-1] < tol
    assert found.dtype == dtype


# Weights


@given(st.integers(1, 7), st.integers(0, 10**6), st.floats(0.5, 6))
def test_weights_give_the_least_norm(count: int, seed: int, fall: float) -> None:
    random = np.random.default_rng(seed)
    steps = random.normal(size=(count, 40)) * 10.0 ** (-fall * np.arange(count))[:, None]
    weights = extrapolation_weights(steps @ steps.T)
    assert weights.sum() == pytest.approx(1, abs=1e-9)
    least = np.linalg.norm(weights @ steps)
    assert least <= min(np.linalg.norm(steps, axis=1)) * (1 + 1e-9)
    # No other combination is shorter: moving weight between two steps makes it longer.
    for a in range(count):
        for b in range(a):
            scale = least / max(np.linalg.norm(steps[a]), np.linalg.norm(steps[b]))
            for sign in (-0.1, 0.1):
                moved = weights.copy()
                moved[a], moved[b] = moved[a] + sign * scale, moved[b] - sign * scale
                assert np.linalg.norm(moved @ steps) >= least * (1 - 1e-6)


def test_steps_of_zero_and_equal_steps() -> None:
    assert extrapolation_weights(np.array([[4.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])).tolist() == [0, 1, 0]
    assert extrapolation_weights(np.zeros((2, 2))).tolist() == [0, 1]
    assert extrapolation_weights(np.ones((3, 3))) == pytest.approx([1 / 3] * 3)
    assert extrapolation_weights(np.array([[1.0, 0.5], [0.5, 0.25]])) == pytest.approx([-1, 2])  # parallel


# What is remembered


def test_only_the_last_ones_are_remembered_and_start_passes_through() -> None:
    diis, update, old = Diis(space=3, start=2), linear(0.5), to_amplitudes(np.ones(SIZE))
    for number in range(1, 8):
        new = to_amplitudes(update(old["t2"].to_dense().ravel()))
        old = diis.update(new, difference(new, old))
        assert diis.numbers == list(range(max(3, number - 1), number + 1))
        assert (old is new) == (number <= 3)
        assert set(diis.weights) == set(range(min(max(3, number - 2), number), number + 1))
        assert sum(diis.weights.values()) == pytest.approx(1)
        assert diis.overlaps.shape == (len(diis.numbers),) * 2


def test_overlaps_are_scalar_products_of_the_steps() -> None:
    random, diis, given_steps = np.random.default_rng(1), Diis(space=4), []
    for number in range(1, 7):
        steps = to_amplitudes(random.normal(size=SIZE))
        given_steps.append(steps)
        diis.update(to_amplitudes(random.normal(size=SIZE)), steps, number)
    for i, left in enumerate(given_steps[3:]):
        for j, right in enumerate(given_steps[3:]):
            expected = sum(np.vdot(left[name].to_dense(), right[name].to_dense()) for name in left)
            assert diis.overlaps[i, j] == pytest.approx(expected, rel=1e-13, abs=1e-13)


def test_symmetric_blocks_count_as_often_as_they_stand_for_others() -> None:
    space = tw.Space([2, 3])
    tensor = tw.random((space, space), symmetry=Symmetry(((0, 1), 1)))
    diis = Diis()
    diis.update({"t": tensor}, {"t": tensor})
    assert diis.overlaps[0, 0] == pytest.approx(np.sum(tensor.to_dense() ** 2), rel=1e-13)


@pytest.mark.parametrize("piece", [1, 7, 1 << 15])
def test_bits_do_not_depend_on_pieces_of_whole_blocks_or_on_the_disk(
    piece: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Blocks have up to 30 elements: pieces of 40 and more hold whole ones."""
    expected = iterate(bent(0.6), Diis(), 1e-9)
    monkeypatch.setattr(module, "PIECE_ELEMENTS", 40 + piece)
    found = iterate(bent(0.6), Diis(on_disk=True, scratch=tmp_path), 1e-9)
    assert expected[1] == found[1]
    assert expected[0].tobytes() == found[0].tobytes()


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_bits_do_not_depend_on_threads(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = iterate(bent(0.6), Diis(), 1e-9)
    monkeypatch.setattr(module, "PIECE_ELEMENTS", 30)
    monkeypatch.setattr(module, "THREAD_ELEMENTS", 20)
    with tw.engine("threads", workers=workers):
        found = iterate(bent(0.6), Diis(), 1e-9)
    assert expected[1] == found[1]
    assert expected[0].tobytes() == found[0].tobytes()


def test_large_blocks_are_summed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_ELEMENTS", 7)
    found, norms = iterate(bent(0.6), Diis(), 1e-12, 40)
    assert norms[-1] < 1e-12
    assert np.abs(bent(0.6)(found) - found).max() < 1e-12


def test_vectors_are_in_scratch_files(tmp_path: Path) -> None:
    diis = Diis(on_disk=True, scratch=tmp_path)
    iterate(linear(0.6), diis, 1e-3)
    kept = [*diis._amplitudes.values(), *diis._steps.values()]
    assert len(kept) == 2 * 5
    assert all(isinstance(tensor.storage, FileStorage) for each in kept for tensor in each.values())
    assert diis.vector_bytes == 0


def test_a_scratch_folder_that_is_not_there() -> None:
    with pytest.raises(StorageError, match=r"scratch='/no/such' does not exist\. Expected"):
        Diis(on_disk=True, scratch="/no/such")


@pytest.mark.parametrize("name", ["space", "start"])
def test_wrong_numbers(name: str) -> None:
    with pytest.raises(InputError, match=rf"{name}=-1 of DIIS is negative\. Expected"):
        Diis(**{name: -1})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=rf"{name}= of DIIS is 1\.5\. It must be an integer"):
        Diis(**{name: 1.5})  # type: ignore[arg-type]


def test_steps_that_are_not_finite_are_refused() -> None:
    amplitudes = to_amplitudes(np.ones(SIZE))
    for value in (1e200, np.inf, np.nan):
        steps = to_amplitudes(np.ones(SIZE))
        steps["t2"].arena.own[5] = value
        with pytest.raises(NonFiniteError, match="The steps given to DIIS have the scalar products"):
            Diis().update(amplitudes, steps)


# Memory


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("tile", [50, 200])
def test_memory_is_what_was_predicted(
    on_disk: bool, tile: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks smaller than a piece, and larger; amplitudes of 5 MB."""
    monkeypatch.setattr(memory, "LEAST_BYTES", 1 << 40)  # all of it comes from NumPy, which is traced
    space, count = tw.Space.uniform(800, tile), 3
    pattern = Pattern.dense((space, space))
    small = Pattern.dense((space,))
    workers = tw.zeros((space,)).engine.workers
    expected = Footprint.of([small, pattern], space=count, on_disk=on_disk, workers=workers)
    diis = Diis(count, on_disk=on_disk, scratch=tmp_path)

    def make(seed: int) -> Amplitudes:
        return {"t1": tw.random(pattern=small, seed=seed), "t2": tw.random(pattern=pattern, seed=seed)}

    Diis().update(make(0), make(1))  # everything is imported
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count + 1):
            diis.update(make(number), make(number + 100))
        new, steps = make(200), make(300)
        tracemalloc.reset_peak()
        made = diis.update(new, steps)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    size = sum(tensor.nbytes for tensor in made.values())
    assert diis.vector_bytes == expected.held_bytes == (0 if on_disk else 2 * (count - 1) * size)
    assert diis.peak_bytes == expected.peak_bytes
    assert expected.disk_bytes == (2 * count * size if on_disk else 0)
    assert 0.95 * expected.peak_bytes < peak < 1.03 * expected.peak_bytes


# Sums


def test_sums_of_tensors_in_memory_and_in_files(tmp_path: Path) -> None:
    first, second = tw.random((ROWS, COLS), seed=1), tw.random((ROWS, COLS), seed=2)
    second.save(tmp_path / "t.h5")
    made = combine([(2.0, first), (-0.5, second)], first)
    assert_close(made, 2.0 * first.to_dense() - 0.5 * second.to_dense(), 1.0)
    read = combine([(2.0, first), (-0.5, tw.load(tmp_path / "t.h5", on_disk=True))], first)
    assert stored_bytes(made) == stored_bytes(read)
    assert stored_bytes(combine([(1.0, second)], first)) == stored_bytes(second)


def test_errors_add_up_in_sums() -> None:
    first, second = tw.random((ROWS, COLS), seed=1), tw.random((ROWS, COLS), seed=2)
    first.error_bound, second.error_bound = 1e-3, 1e-5
    assert combine([(2.0, first), (-3.0, second)], first).error_bound == pytest.approx(2.03e-3)
    second.error_bound = math.inf
    assert combine([(2.0, first), (0.0, second)], first).error_bound == pytest.approx(2e-3)


def test_mixes_are_in_the_order_of_numbers() -> None:
    vectors = {number: to_amplitudes(np.random.default_rng(number).normal(size=SIZE)) for number in (3, 4, 5)}
    forward = mix({3: 0.3, 4: 0.2, 5: 0.5}, vectors, vectors[3])
    backward = mix({5: 0.5, 4: 0.2, 3: 0.3}, vectors, vectors[5])
    for name in ("t1", "t2"):
        assert stored_bytes(forward[name]) == stored_bytes(backward[name])
