"""The pictures of the documentation: `python docs/pictures/make_pictures.py` writes them beside this file."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, Colormap, ListedColormap

import tilewise as tw
from tilewise.chemistry.energy import Calculation, prepare
from tilewise.machine import Machine
from tilewise.patterns import expand
from tilewise.reports.plots import group_colours, plot_pattern

FOLDER = Path(__file__).resolve().parent
ETHENE = FOLDER.parents[1] / "examples" / "ethene.xyz"
EXPRESSION = "ijcd,cdab->ijab"
TOLERANCES = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
DECADES = range(-8, 1)
INK, BLUE, ORANGE = "#30363d", "#2f6f9f", "#d9822b"


def chain() -> tuple[tw.BlockTensor, tw.BlockTensor]:
    """Amplitudes and integrals of a chain of twelve groups of atoms; the tensors of the README."""
    occ = tw.Space([2, 3, 2] * 4, name="occ")
    vir = tw.Space([4, 5, 4] * 4, name="vir")
    near = tw.Pattern.decaying((occ, occ, vir, vir), length=0.5, cut=1e-6)
    paired = tw.Pattern.decaying((vir, vir, vir, vir), length=0.5, cut=1e-6, pairs=[(0, 2), (1, 3)])
    return tw.random(pattern=near, seed=0), tw.random(pattern=paired, seed=1)


def raster(pattern: tw.Pattern) -> np.ndarray:
    """The decimal logarithm of each block's norm as a matrix: first half of the modes down, the rest across."""
    full, half = expand(pattern), pattern.ndim // 2
    down = np.ravel_multi_index(full.index[:, :half].T, pattern.ntiles[:half])
    across = np.ravel_multi_index(full.index[:, half:].T, pattern.ntiles[half:])
    picture = np.full((np.prod(pattern.ntiles[:half]), np.prod(pattern.ntiles[half:])), np.nan)
    picture[down, across] = np.log10(np.maximum(full.norms, 1e-300))
    return picture


def draw_pattern(ax: Axes, pattern: tw.Pattern, names: str, colours: Colormap, steps: BoundaryNorm) -> object:
    """Draw one square per block."""
    half = pattern.ndim // 2
    image = ax.imshow(raster(pattern), cmap=colours, norm=steps, interpolation="nearest", aspect="equal")
    title = f"${names[0]}_{{{names[2:]}}}$: {pattern.nnz_blocks} blocks, density {pattern.density:.2f}"
    ax.set_title(title, fontsize=9.5)
    ax.set_ylabel("tiles of " + ", ".join(names[2 : 2 + half]))
    ax.set_xlabel("tiles of " + ", ".join(names[2 + half :]))
    tiles = pattern.ntiles[-1]
    ticks = np.arange(0, tiles * tiles + 1, 3 * tiles) - 0.5
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(ticks, [str(round(tick + 0.5)) for tick in ticks])
    ax.tick_params(length=2, labelsize=7.5)
    return image


def draw_patterns(amplitudes: tw.BlockTensor, integrals: tw.BlockTensor, path: Path) -> None:
    """Both operands, the result as it was planned, and one colour for each decade of the norm."""
    made = tw.plan(EXPRESSION, amplitudes, integrals, tol=1e-5)
    result = tw.execute(made, amplitudes, integrals)
    # The palest shades would be lost on white.
    colours = ListedColormap(mpl.colormaps["YlGnBu"](np.linspace(0.16, 1.0, 256)))
    steps = BoundaryNorm(list(DECADES), colours.N, extend="min")
    figure, axes = plt.subplots(1, 3, figsize=(10.4, 3.4), layout="constrained")
    named = (("T_ijcd", amplitudes.pattern), ("V_cdab", integrals.pattern), ("R_ijab", result.pattern))
    for ax, (names, pattern) in zip(axes, named, strict=True):
        image = draw_pattern(ax, pattern, names, colours, steps)
    bar = figure.colorbar(image, ax=axes, shrink=0.86, pad=0.012, aspect=28)
    bar.set_ticks(list(DECADES), labels=[f"$10^{{{decade}}}$" for decade in DECADES])
    bar.set_label("norm of a block")
    figure.savefig(path, dpi=125)
    plt.close(figure)


def draw_screening(amplitudes: tw.BlockTensor, integrals: tw.BlockTensor, path: Path) -> None:
    """What a tolerance saves, and what it costs: the bound and the true error below it."""
    exact = tw.einsum(EXPRESSION, amplitudes, integrals)
    dropped, bounds, errors = [], [], []
    for tol in TOLERANCES:
        made = tw.plan(EXPRESSION, amplitudes, integrals, tol=tol)
        result = tw.execute(made, amplitudes, integrals)
        dropped.append(100 * made.screened_flops / (made.flops + made.screened_flops))
        bounds.append(result.error_bound)
        errors.append((result - exact).norm())
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.1), layout="constrained")
    names = [f"$10^{{{round(np.log10(tol))}}}$" for tol in TOLERANCES]
    bars = left.bar(names, dropped, color=BLUE, width=0.72)
    left.bar_label(bars, fmt="%.0f %%", fontsize=8.5, padding=2, color=INK)
    left.set(ylim=(0, 109), xlabel="tol", title="Work that is dropped", yticks=[])
    left.spines["left"].set_visible(False)
    right.loglog(TOLERANCES, TOLERANCES, color="0.65", linestyle="--", linewidth=1.2, label="tol")
    right.loglog(TOLERANCES, bounds, "o-", color=BLUE, markersize=5, label="R.error_bound")
    right.loglog(TOLERANCES, errors, "s-", color=ORANGE, markersize=5, label="true error")
    right.set(xlabel="tol", title="Frobenius error of the result", xticks=TOLERANCES)
    right.grid(color="0.92")
    right.minorticks_off()
    right.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=125)
    plt.close(figure)


def draw_flops(ax: Axes, job: Calculation) -> None:
    """Where the flops of an iteration are, a bar for each group of terms."""
    colours = group_colours(job.steps)
    flops = {group: sum(step.flops for step in job.steps if step.statement.group == group) for group in colours}
    groups = sorted((group for group in flops if flops[group]), key=lambda group: flops[group])
    bars = ax.barh(groups, [flops[group] / 1e6 for group in groups], color=[colours[group] for group in groups])
    ax.bar_label(bars, fmt="%.2f", fontsize=8.5, padding=3, color=INK)
    ax.set(title="A cycle, in million flops", xticks=[], xlim=(0, 1.2e-6 * max(flops.values())))
    ax.spines["bottom"].set_visible(False)


def draw_ccsd(path: Path) -> None:
    """CCSD of ethene in D2h: the blocks of its amplitudes, where the flops are, how it converges."""
    job = prepare(ETHENE, method="ccsd", basis="cc-pvdz", frozen="core")
    result = job.run()
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(11.6, 3.5), layout="constrained", width_ratios=(1.15, 1, 1)
    )
    ((name, pattern), *_) = job.patterns().items()
    plot_pattern(pattern, left)
    left.set_title(f"{name}: {pattern.nnz_blocks} blocks, density {pattern.density:.2f}")
    draw_flops(middle, job)
    numbers = [cycle.number for cycle in result.history]
    right.semilogy(numbers, [abs(cycle.change) for cycle in result.history], "o-", color=BLUE, label="change of E, Eh")
    right.semilogy(numbers, [cycle.norm for cycle in result.history], "s-", color=ORANGE, label="norm of the step")
    right.set(title="Convergence", xlabel="cycle", xticks=numbers)
    right.grid(color="0.92")
    right.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=125)
    plt.close(figure)


def write_explanation(amplitudes: tw.BlockTensor, integrals: tw.BlockTensor, path: Path) -> None:
    """The plan of the README for two workers, with default rates wherever this runs."""
    with tw.engine("threads", workers=2):
        made = tw.plan(EXPRESSION, amplitudes, integrals, tol=1e-5).on(Machine.default())
    path.write_text(made.explain() + "\n", encoding="utf-8")


def main() -> None:
    """Write all pictures, and the table that the first page shows."""
    mpl.use("Agg")
    plt.rcParams.update({"font.size": 9, "axes.titlesize": 10, "axes.edgecolor": "0.6", "text.color": INK})
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.labelcolor": INK})
    amplitudes, integrals = chain()
    draw_patterns(amplitudes, integrals, FOLDER / "patterns.png")
    draw_screening(amplitudes, integrals, FOLDER / "screening.png")
    draw_ccsd(FOLDER / "ccsd.png")
    write_explanation(amplitudes, integrals, FOLDER / "explain.txt")


if __name__ == "__main__":
    main()
