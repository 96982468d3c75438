"""Progress on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tilewise.reports.live import Progress, cycles_left


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, force_interactive=True, width=100, height=30)


def told(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def rendered(progress: Progress) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(progress.render())
    return told(console)


def facts(cycle: int) -> dict[str, float]:
    return {"cycle": cycle, "e_corr": -0.2 - 0.01 * cycle, "de": -(10.0**-cycle), "norm": 3 * 10.0**-cycle}


def test_elsewhere_every_line_is_told() -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with Progress(console=console) as progress:
        for line in ("Hartree-Fock: 3 atoms", "cycle = 1  E_corr = [-0.2]"):
            progress.tell(line)
        progress.note(facts(1))
    assert told(console) == "Hartree-Fock: 3 atoms\ncycle = 1  E_corr = [-0.2]\n"


def test_on_a_terminal_cycles_are_a_table() -> None:
    console = terminal()
    with Progress((1e-7, 1e-5), console) as progress:
        progress.tell("Hartree-Fock: 3 atoms")
        assert "Hartree-Fock, " in rendered(progress)
        for cycle in range(1, 4):
            progress.tell(f"cycle = {cycle}  E_corr = ...")
            progress.note(facts(cycle))
        text = rendered(progress)
    assert "-0.2300000000  -1.000e-03  3.000e-03" in text
    assert "cycle 4, " in text
    assert "about 4 cycles or" in text
    assert "cycle = " not in told(console)


def test_what_follows_cycles_stands_below_all_of_them() -> None:
    console = terminal()
    with Progress(console=console) as progress:
        progress.tell("Init E_corr(CCSD) = -0.2")
        for cycle in range(1, 20):
            progress.note(facts(cycle))
        assert len(rendered(progress).splitlines()) == 14  # as many as there is room for
        progress.tell("CCSD converged")
        assert progress.cycles == []
    lines = told(console).splitlines()
    last = next(n for n, line in enumerate(lines) if "-0.3900000000" in line)
    assert any("-0.2100000000" in line for line in lines)
    assert any("CCSD converged" in line for line in lines[last:])


@pytest.mark.parametrize(
    ("history", "left"),
    [
        ([], None),
        ([(1.0, 1.0)], None),
        ([(1.0, 1.0), (1.0, 2.0)], None),  # it diverges
        ([(1.0, 1.0), (0.0, 0.0)], None),
        ([(1e-2, 1e-1), (1e-3, 1.1e-2)], 5),
        ([(1e-8, 1e-4), (1e-9, 2e-5)], 1),
        ([(9.0, 9.0)] * 30 + [(1e-3 * 2.0**-n, 1e-3 * 2.0**-n) for n in range(5)], 10),  # only the last ones count
    ],
)
def test_cycles_left_are_told_from_the_rate(history: list[tuple[float, float]], left: int | None) -> None:
    assert cycles_left(history, (1e-7, 1e-5)) == left
