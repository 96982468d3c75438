"""Energies of many molecules under ``mpiexec``, against those that somebody else left in a file; see `test_cc_mpi`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import tilewise as tw
import tilewise.chemistry
from chemistry.cc_cases import MOLECULES, RANKED, TIGHT, energies_found, half_of_free, mean_field_of, run_within

FILE = os.environ.get("TILEWISE_TEST_ENERGIES")
EXPECTED: dict[str, dict[str, float]] = {} if FILE is None else json.loads(Path(FILE).read_text())
"""Energies of each case, by method."""


@pytest.mark.parametrize("case", [case for case in RANKED if case.key in EXPECTED], ids=lambda case: case.key)
def test_energies(case: Any) -> None:
    mf = mean_field_of(case.molecule, case.basis, case.variant.symmetry)
    frozen = MOLECULES[case.molecule].core if case.variant.frozen else 0
    found: dict[str, float] = {}
    with tw.engine("mpi", workers=1):
        for method in case.methods:
            kind, settings = getattr(tilewise.chemistry, method), {"tile": case.variant.tile}
            if method == "MP2":
                ours = kind(mf, frozen, **settings).run()
            elif case.variant.tight:
                ours = run_within(kind, mf, frozen, half_of_free(kind, mf, frozen, **settings), **settings, **TIGHT)
                assert ours.plan().peak_bytes <= ours.memory
            else:
                ours = kind(mf, frozen, **settings, **TIGHT).run()
            found |= energies_found(method, ours)
    assert found == pytest.approx(EXPECTED[case.key], rel=0, abs=1e-8)
