"""Energies of many molecules under ``mpiexec``, against those that somebody else left in a file; see `test_cc_mpi`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import tilewise as tw
import tilewise.chemistry
from chemistry.cc_cases import MOLECULES, RANKED, TIGHT, energies_found, mean_field_of, run_variant
from engines.ranks import NODES
from tilewise.plans import sharing

FILE = os.environ.get("TILEWISE_TEST_ENERGIES")
EXPECTED: dict[str, dict[str, float]] = {} if FILE is None else json.loads(Path(FILE).read_text())
"""Energies of each case, by method."""


sharing.LEAST_BYTES = sharing.LEAST_FLOPS = 0  # ranks share tensors and products of any size


@pytest.mark.parametrize("case", [case for case in RANKED if case.key in EXPECTED], ids=lambda case: case.key)
@pytest.mark.parametrize("per_node", NODES)
def test_energies(case: Any, per_node: int | None) -> None:
    mf = mean_field_of(case.molecule, case.basis, case.variant.symmetry)
    frozen = MOLECULES[case.molecule].core if case.variant.frozen else 0
    found: dict[str, float] = {}
    with tw.engine("mpi", workers=1, ranks_per_node=per_node) as engine:
        for method in case.methods:
            kind, settings = getattr(tilewise.chemistry, method), {} if method == "MP2" else TIGHT
            ours = run_variant(kind, mf, case.variant, frozen, **settings)
            found |= energies_found(method, ours)
            if engine.ranks > 1 and method != "MP2":
                assert ours._amplitudes["t2"].arena.owner is not None  # they are not on every rank
    assert found == pytest.approx(EXPECTED[case.key], rel=0, abs=1e-8)
