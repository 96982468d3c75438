"""Loops compiled before a molecule needs them."""

from __future__ import annotations

import pytest

from tilewise.chemistry.ccsd_t import CCSD_T
from tilewise.chemistry.first_use import compile_loops


@pytest.mark.slow
def test_every_way_to_keep_integrals_is_tried_whatever_the_environment_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_MEMORY", "1MB")
    ways, kernel = set(), CCSD_T.kernel

    def note(method: CCSD_T) -> object:
        found = kernel(method)
        ways.add((method.integrals, method.spaces.occ.irrep is not None, bool(method.plan().elsewhere)))
        return found

    monkeypatch.setattr(CCSD_T, "kernel", note)
    compile_loops()
    exact = {("exact", irreps, away) for irreps in (False, True) for away in (False, True)}
    assert ways == exact | {("df", False, False), ("df", False, True)}
