"""Plans, programs and tensors for people: tables in a terminal, pages of HTML, pictures."""

from __future__ import annotations

from tilewise.reports.energy_page import EnergyPage, write_energy_page
from tilewise.reports.html import write_page
from tilewise.reports.plots import plot_pattern, plot_ranks
from tilewise.reports.tables import show

__all__ = ["EnergyPage", "plot_pattern", "plot_ranks", "show", "write_energy_page", "write_page"]
