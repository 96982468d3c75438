from __future__ import annotations

import signal
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyscf import cc, symm
from pyscf.cc import ccsd_t, ccsd_t_slow

import tilewise as tw
from chemistry.molecules import ETHENE, HYDROGEN, WATER, mean_field
from engines.processes import ranks, source_environment
from tilewise.chemistry.triples import TriplesInput, plan_triples, triples_energy
from tilewise.engines import progress
from tilewise.engines.threads import ThreadsEngine
from tilewise.engines.triples.run import TriplesRun
from tilewise.errors import InputError, NonFiniteError

NITROGEN = "N 0 0 0; N 0 0 1.1"
AMMONIA = "N 0 0 0.1; H 0 0.94 -0.27; H 0.81 -0.47 -0.27; H -0.81 -0.47 -0.27"
FLUORIDE = "H 0 0 0; F 0 0 0.92"
MODES = {"fov": "ov", "t1": "ov", "t2": "ovov", "ovov": "ovov", "ooov": "ooov", "ovvv": "vovv"}


class Amplitudes:
    """PySCF's amplitudes of a molecule after a few cycles, its integrals, and its energy of them."""

    def __init__(self, mf: Any, frozen: Any = 0) -> None:
        solver = cc.CCSD(mf, frozen=frozen)
        solver.max_cycle, solver.verbose = 6, 0
        solver.kernel()
        eris = solver.ao2mo()
        self.nocc, self.nvir = solver.t1.shape
        self.energy = float(ccsd_t.kernel(solver, eris, solver.t1, solver.t2.copy(), verbose=0))
        self.levels = eris.mo_energy
        self.irrep = np.zeros(len(self.levels), np.int64)
        if mf.mol.symmetry:
            labels = symm.label_orb_symm(mf.mol, mf.mol.irrep_id, mf.mol.symm_orb, eris.mo_coeff)
            self.irrep = np.asarray(labels, np.int64) % 10
        self.arrays = {
            "fov": eris.fock[: self.nocc, self.nocc :],
            "t1": solver.t1,
            "t2": solver.t2.transpose(0, 2, 1, 3),
            "ovov": np.asarray(eris.ovov),
            "ooov": np.asarray(eris.ovoo).transpose(2, 3, 0, 1),
            "ovvv": eris.get_ovvv().transpose(2, 0, 1, 3),
        }

    def tiled(self, occ: Any, vir: Any, *, irreps: bool = False) -> TriplesInput:
        """The tensors with tiles of so many orbitals at most, or of these sizes; of one irrep each if asked for."""
        parts = slice(0, self.nocc), slice(self.nocc, None)
        labels = [self.irrep[part] if irreps else np.zeros(len(self.irrep[part]), np.int64) for part in parts]
        orders = {mode: np.argsort(each, kind="stable") for mode, each in zip("ov", labels, strict=True)}
        spaces = {
            mode: make_space(each, tile, irreps) for mode, each, tile in zip("ov", labels, (occ, vir), strict=True)
        }
        tensors: dict[str, Any] = {}
        for name, modes in MODES.items():
            array = self.arrays[name][np.ix_(*(orders[mode] for mode in modes))]
            tensors[name] = tw.from_dense(array, [spaces[mode] for mode in modes])
        occupied, virtual = (self.levels[part][orders[mode]] for part, mode in zip(parts, "ov", strict=True))
        return TriplesInput(spaces["o"], spaces["v"], occupied, virtual, **tensors)


def make_space(irrep: Any, tile: Any, labelled: bool) -> tw.Space:
    if not isinstance(tile, int):
        return tw.Space(tile)
    counts = {int(label): int(np.count_nonzero(irrep == label)) for label in np.unique(irrep)}
    sizes = {label: tw.Space.uniform(count, tile).sizes.tolist() for label, count in counts.items()}
    labels = [label for label, parts in sizes.items() for _ in parts]
    return tw.Space([size for parts in sizes.values() for size in parts], irrep=labels if labelled else None)


def labels_of(space: tw.Space) -> Any:
    """Irreps of a space that has them."""
    return space.irrep


def random_input(occ: tw.Space, vir: tw.Space, *, fock: bool = False) -> TriplesInput:
    """Random tensors with the symmetry of real ones."""
    spaces = {"o": occ, "v": vir}
    found = {
        name: tw.random([spaces[mode] for mode in modes], seed=seed).to_dense()
        for seed, (name, modes) in enumerate(MODES.items())
    }
    for name in ("t2", "ovov"):
        found[name] += found[name].transpose(2, 3, 0, 1)
    found["ooov"] += found["ooov"].transpose(1, 0, 2, 3)
    found["ovvv"] += found["ovvv"].transpose(3, 1, 2, 0)
    found["fov"] *= fock
    tensors = {name: tw.from_dense(found[name], [spaces[mode] for mode in modes]) for name, modes in MODES.items()}
    return TriplesInput(occ, vir, np.linspace(-2, -1, occ.size), np.linspace(1, 3, vir.size), **tensors)


def reference(given: TriplesInput) -> float:
    """The energy by PySCF's equations of any tensors, the Fock matrix included."""
    arrays = {name: getattr(given, name).to_dense() for name in MODES}
    nocc, _ = arrays["t1"].shape
    levels = np.append(given.occupied_energies, given.virtual_energies)
    fock = np.diag(levels)
    fock[nocc:, :nocc], fock[:nocc, nocc:] = arrays["fov"].T, arrays["fov"]
    eris = SimpleNamespace(
        mo_energy=levels,
        fock=fock,
        ovov=arrays["ovov"],
        ovoo=arrays["ooov"].transpose(2, 3, 0, 1),
        get_ovvv=lambda: arrays["ovvv"].transpose(1, 2, 0, 3),
    )
    solver = SimpleNamespace(stdout=sys.stdout)
    t2 = arrays["t2"].transpose(0, 2, 1, 3)
    return float(ccsd_t_slow.kernel(solver, eris, arrays["t1"], t2, verbose=0))


@pytest.fixture(scope="module")
def water() -> Amplitudes:
    return Amplitudes(mean_field(WATER, "cc-pvdz"))


@pytest.fixture(scope="module")
def nitrogen() -> Amplitudes:
    """D2h."""
    return Amplitudes(mean_field(NITROGEN, "6-31g*", symmetry="D2h"))


@pytest.fixture(scope="module")
def small() -> TriplesInput:
    return random_input(tw.Space([3, 1, 2]), tw.Space([4, 1, 6, 3]))


# Energies


@pytest.mark.parametrize(
    ("atoms", "basis", "frozen"),
    [
        (WATER, "cc-pvdz", 0),
        (WATER, "6-31g", 1),
        (NITROGEN, "6-31g", 2),
        (AMMONIA, "6-31g*", 0),
        (FLUORIDE, "cc-pvdz", [0, 17]),
        (ETHENE, "6-31g", 2),
        ("Li 0 0 0; H 0 0 1.596", "6-31g", 0),
    ],
)
def test_equals_pyscf(atoms: str, basis: str, frozen: Any) -> None:
    amplitudes = Amplitudes(mean_field(atoms, basis), frozen)
    for occ, vir in ((100, 100), (2, 5)):
        assert triples_energy(amplitudes.tiled(occ, vir)) == pytest.approx(amplitudes.energy, abs=1e-12)


@pytest.mark.parametrize(("atoms", "basis"), [(WATER, "cc-pvdz"), (NITROGEN, "6-31g*"), (ETHENE, "6-31g")])
@pytest.mark.parametrize("vir", [100, 2])
def test_irreps_save_work_and_keep_the_energy(atoms: str, basis: str, vir: int) -> None:
    amplitudes = Amplitudes(mean_field(atoms, basis, symmetry=True))
    plain, labelled = amplitudes.tiled(3, vir), amplitudes.tiled(3, vir, irreps=True)
    energy = triples_energy(plain)
    assert energy == pytest.approx(amplitudes.energy, abs=1e-10)
    assert triples_energy(labelled) == pytest.approx(energy, abs=1e-12)
    orders = len(np.unique(amplitudes.irrep))
    assert plan_triples(labelled).flops < 2 * plan_triples(plain).flops / orders**2


@given(data=st.data())
@settings(max_examples=10)
def test_any_tiling(water: Amplitudes, data: st.DataObject) -> None:
    tiles = [data.draw(st.lists(st.integers(1, 3), max_size=most)) for most in (1, 6)]
    sizes = [[*each, n - sum(each)] for each, n in zip(tiles, (water.nocc, water.nvir), strict=True)]
    assert triples_energy(water.tiled(*sizes)) == pytest.approx(water.energy, abs=1e-12)


@pytest.mark.parametrize("nocc", [2, 3, 8, 9, 17])
@pytest.mark.parametrize("fock", [False, True])
def test_random_tensors_with_a_fock_matrix(nocc: int, fock: bool) -> None:
    """Occupied orbitals that do and do not fill vectors."""
    given = random_input(tw.Space([nocc - 1, 1]), tw.Space([2, 3]), fock=fock)
    assert triples_energy(given) == pytest.approx(reference(given), rel=1e-12)


def test_tensors_over_irreps_with_a_fock_matrix() -> None:
    """Irreps in no order, of which some orbitals have none."""
    occ, vir = tw.Space([2, 1, 3], irrep=[3, 0, 2]), tw.Space([2, 3, 1, 2], irrep=[1, 3, 0, 3])
    spaces = {"o": occ, "v": vir}
    made = random_input(tw.Space(occ.sizes), tw.Space(vir.sizes), fock=True)
    tensors: dict[str, Any] = {}
    for name, modes in MODES.items():
        blocks = {
            index: getattr(made, name).block(index)
            for index in np.ndindex(*(spaces[mode].ntiles for mode in modes))
            if not np.bitwise_xor.reduce([labels_of(spaces[m])[t] for m, t in zip(modes, index, strict=True)])
        }
        tensors[name] = tw.from_blocks(blocks, [spaces[mode] for mode in modes])
    given = replace(made, occ=occ, vir=vir, **tensors)
    assert triples_energy(given) == pytest.approx(reference(given), rel=1e-12)


@pytest.mark.parametrize(("nocc", "vir"), [(1, [3]), (1, [1, 4]), (4, [1]), (2, [])])
def test_without_triples_the_energy_is_zero(nocc: int, vir: list[int]) -> None:
    given = random_input(tw.Space([nocc]), tw.Space(vir))
    assert triples_energy(given) == 0.0
    assert plan_triples(given).flops == 0
    assert "E(T)" in plan_triples(given).explain()


def test_hydrogen() -> None:
    assert triples_energy(Amplitudes(mean_field(HYDROGEN, "cc-pvdz")).tiled(1, 4)) == 0.0


def test_integrals_that_store_one_of_two_equal_blocks(small: TriplesInput) -> None:
    dense, spaces = small.ovvv.to_dense(), small.ovvv.spaces
    symmetric = tw.from_dense(dense, spaces, symmetry=tw.Symmetry(((0, 3), 1)))
    assert symmetric.pattern.nnz_blocks < small.ovvv.pattern.nnz_blocks
    assert triples_energy(replace(small, ovvv=symmetric)) == triples_energy(small)


def test_single_precision_tensors(small: TriplesInput) -> None:
    single = replace(small, ovvv=small.ovvv.astype(np.float32), t2=small.t2.astype(np.float32))
    assert triples_energy(single) == pytest.approx(triples_energy(small), rel=1e-5)


# Bits, counts and memory


def least_memory(given: TriplesInput, workers: int) -> int:
    with pytest.raises(tw.MemoryBudgetError) as refused:
        plan_triples(given, memory=1000, workers=workers)
    return refused.value.least_bytes


def test_bits_depend_neither_on_workers_nor_on_memory(small: TriplesInput) -> None:
    energies = set()
    for workers in (1, 2, 3):
        for memory in (least_memory(small, workers), least_memory(small, workers) + 40_000, 10**9):
            with tw.engine("threads", workers=workers):
                energies.add(triples_energy(small, memory=memory))
    assert len(energies) == 1


@pytest.mark.parametrize("memory", [None, "least"])
@pytest.mark.parametrize("irreps", [False, True])
def test_flops_are_those_of_the_plan(nitrogen: Amplitudes, irreps: bool, memory: Any) -> None:
    given = nitrogen.tiled(2, 4, irreps=irreps)
    plan = plan_triples(given, memory=memory and least_memory(given, 2), workers=2)
    run = TriplesRun(ThreadsEngine(2), given, plan.holding, plan.peak_bytes)
    energies = run.compute(plan.flops, 1, 0)
    assert len(energies) == plan.tasks
    assert 2 * energies.sum() == pytest.approx(nitrogen.energy, abs=1e-10)
    assert run.flops == plan.flops
    if not irreps:
        o, v = nitrogen.nocc, nitrogen.nvir
        assert plan.flops == 2 * o**3 * (v**3 - v) * (o + v)


def test_plan_looks_at_no_element(small: TriplesInput) -> None:
    def refuse(block: tuple[int, ...]) -> Any:
        raise AssertionError(f"a plan needs no block, not even {block}")

    lazy: dict[str, Any] = {name: tw.from_function(refuse, pattern=getattr(small, name).pattern) for name in MODES}
    unseen = replace(small, **lazy)
    plan = plan_triples(unseen, workers=2)
    assert plan.flops == plan_triples(small).flops
    text = plan.explain()
    assert "E(T) of 6 occupied and 14 virtual orbitals  (2 workers)" in text
    assert "slices of virtual orbitals" in text
    with pytest.raises(tw.MemoryBudgetError):
        triples_energy(unseen, memory=1000)


class Recorded:
    """A storage that notes which blocks are read."""

    parallel = False

    def __init__(self, tensor: tw.BlockTensor) -> None:
        self.storage, self.dtype = tensor.storage, tensor.dtype
        self.rows: list[int] = []

    def read(self, row: int, out: Any) -> None:
        self.rows.append(row)
        self.storage.read(row, out)


def test_blocks_that_vanish_are_not_read(nitrogen: Amplitudes) -> None:
    given = nitrogen.tiled(2, 3, irreps=True)
    stored = given.ovvv.pattern
    total = np.bitwise_xor.reduce([labels_of(s)[t] for s, t in zip(stored.spaces, stored.index.T, strict=True)])
    assert (total != 0).any(), "rounding leaves blocks that vanish by symmetry"
    seen = Recorded(given.ovvv)
    lazy = tw.BlockTensor(stored, seen, given.ovvv.engine)
    assert triples_energy(replace(given, ovvv=lazy)) == triples_energy(given)
    assert set(seen.rows) == set(np.flatnonzero(total == 0).tolist())


@pytest.mark.parametrize("slack", [0, 200_000])
def test_integrals_on_disk_within_a_budget(small: TriplesInput, tmp_path: Path, slack: int) -> None:
    small.ovvv.save(tmp_path / "ovvv.h5")
    given = replace(small, ovvv=tw.load(tmp_path / "ovvv.h5", on_disk=True))
    memory = least_memory(given, 1) + slack
    with tw.engine("threads", workers=1):
        expected = triples_energy(small)  # whatever is kept from run to run is there
        plan = plan_triples(given, memory=memory)
        assert len(plan.holding.slices) > 2
        assert plan.peak_bytes <= memory
        tracemalloc.start()
        try:
            assert triples_energy(given, memory=memory) == expected
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    # Besides arrays there are the interpreter's own objects, and those of the file.
    assert peak < plan.peak_bytes + 300_000


def test_too_small_a_budget_names_both_sizes(small: TriplesInput) -> None:
    least = least_memory(small, 2)
    assert plan_triples(small, memory=least, workers=2).peak_bytes == least
    with pytest.raises(tw.MemoryBudgetError, match=rf"needs {least} bytes .* The budget is {least - 1} bytes"):
        plan_triples(small, memory=least - 1, workers=2)


def test_more_workers_and_ranks_are_planned_for(small: TriplesInput) -> None:
    one, many = plan_triples(small, workers=1, ranks=1), plan_triples(small, workers=4, ranks=6)
    assert (one.flops, one.tasks) == (many.flops, many.tasks)
    assert len(one.holding.slices) < len(many.holding.slices)
    assert "6 ranks with 4 workers each" in many.explain()


# Ranks

ON_RANKS = """
import sys
import tilewise as tw
from chemistry.test_triples import random_input, least_memory
from tilewise.chemistry.triples import triples_energy
from tilewise.plans import sharing

sharing.LEAST_BYTES = 0
per_node = int(sys.argv[1]) or None
with tw.engine("mpi", workers=1, ranks_per_node=per_node) as engine:
    given = random_input(tw.Space([3, 1, 2]), tw.Space([4, 1, 6, 3]))
    assert engine.ranks == 1 or not isinstance(given.ovvv.arena.owner, type(None))
    memory = least_memory(given, 1)
    for budget in (None, memory):
        energy = triples_energy(given, memory=budget)
        assert len(set(engine.world.gather(energy))) == 1
        if engine.rank == 0:
            print(energy.hex())
"""


@pytest.mark.parametrize(
    ("count", "per_node"), [(1, 0), (2, 0), (4, 0), *(pytest.param(n, n // 2, marks=pytest.mark.slow) for n in (2, 4))]
)
def test_ranks_give_the_same_bits(small: TriplesInput, count: int, per_node: int) -> None:
    pytest.importorskip("mpi4py")
    done = ranks(count, "-c", ON_RANKS, str(per_node))
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {triples_energy(small).hex()}


FAILING = """
import numpy as np
import tilewise as tw
from dataclasses import replace
from chemistry.test_triples import random_input
from tilewise.chemistry.triples import triples_energy

with tw.engine("mpi", workers=1) as engine:
    given = random_input(tw.Space([3]), tw.Space([4, 6]))
    def make(block):
        if engine.world.rank == 1:
            raise ValueError("no such integral")
        return given.ovvv.block(block)
    lazy = tw.from_function(make, pattern=given.ovvv.pattern)
    try:
        triples_energy(replace(given, ovvv=lazy))
    except tw.TilewiseError as error:
        print(type(error).__name__)
"""


def test_ranks_fail_together() -> None:
    pytest.importorskip("mpi4py")
    done = ranks(2, "-c", FAILING)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("GeneratorError") == 2


# Progress and interrupts


def test_progress_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.001)
    lines: list[str] = []
    given = random_input(tw.Space([12]), tw.Space([40]))
    triples_energy(given, progress=lines.append)
    assert lines[-1].startswith("E(T): 100 %")
    assert any("s left" in line for line in lines[:-1])


INTERRUPTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import tilewise as tw
from chemistry.test_triples import random_input, reference
from tilewise.chemistry.triples import triples_energy

small = random_input(tw.Space([3]), tw.Space([4, 1]))
expected = triples_energy(small)
large = random_input(tw.Space([20]), tw.Space([50]))
print("ready", flush=True)
try:
    while True:
        triples_energy(large)
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert triples_energy(small) == expected
"""


def test_interrupt_stops_it_and_everything_still_works() -> None:
    environment = source_environment()
    environment["PYTHONPATH"] += f":{Path(__file__).parents[1]}"
    command = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait(60) == 0


# Errors


@pytest.mark.parametrize("name", ["t1", "t2", "ovvv"])
def test_elements_that_are_not_finite_are_named(small: TriplesInput, name: str) -> None:
    wrong = getattr(small, name).copy()
    wrong.arena.own[-1] = np.nan
    block = tuple(wrong.pattern.index[-1].tolist())
    with pytest.raises(NonFiniteError, match=rf"Block \(.*\) of {name} is not finite") as error:
        triples_energy(replace(small, **{name: wrong}))
    assert (error.value.tensor, error.value.block, error.value.term) == (name, block, "E(T)")


def test_a_vanishing_denominator_is_named(small: TriplesInput) -> None:
    levels = np.zeros(small.occ.size), np.zeros(small.vir.size)
    with pytest.raises(NonFiniteError, match="An energy denominator vanishes"):
        triples_energy(replace(small, occupied_energies=levels[0], virtual_energies=levels[1]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: {"t2": g.ovvv}, "t2 has the spaces"),
        (lambda g: {"t1": g.t1.astype(np.complex128)}, "t1 is complex128. Expected real numbers"),
        (lambda g: {"occupied_energies": np.zeros(3)}, r"occupied_energies has the shape \(3,\)"),
    ],
)
def test_rejects(small: TriplesInput, change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        triples_energy(replace(small, **change(small)))


def test_wrong_irreps_are_refused(water: Amplitudes) -> None:
    water_of_ones = replace_irreps(water, np.arange(water.nocc + water.nvir) % 2)
    with pytest.raises(InputError, match=r"Block .* of t1 vanishes by the irreps of its tiles, and has the norm"):
        triples_energy(water_of_ones.tiled(2, 4, irreps=True))


def replace_irreps(amplitudes: Amplitudes, irrep: Any) -> Amplitudes:
    made = object.__new__(Amplitudes)
    made.__dict__.update(amplitudes.__dict__, irrep=irrep)
    return made
