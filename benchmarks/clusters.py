"""The molecules and clusters of Rajbhandari et al. (2017, 8), planned: what fits where, beside what was run there.

    python benchmarks/clusters.py [--tiles 30] [--integrals 5e6] [--full]

Nothing is transformed and there are no molecules: all orbitals of a basis of the same size, and where it is said, eight
irreps of equal size, as the paper's n^4/32 for the result has it. GB and TB are powers of ten, of nodes too. A rank has
one core, and of its node's memory an equal share. What the paper's implementation took, and where NWChem failed, is
what its section 8 says in words.

Where fused12-34 fits it is taken without planning the rest: no schedule does fewer flops, makes fewer integrals or
moves less between nodes. `--full` has the planner weigh all schedules in every case, which takes a minute or two.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import cache

import tilewise as tw
from tables import markdown, number
from tilewise.errors import MemoryBudgetError
from tilewise.plans.transform import Problem, Rates, Variant, plan_transform
from tilewise.plans.transform.deal import Deal
from tilewise.plans.transform.schedules import Cost, Sizes, cost_of, list_variants

IRREPS = 8
"""The paper's s, by which spatial symmetry reduces the result."""

WORKERS = 1

PUBLISHED = {368: 110e9, 580: 678e9, 698: 1.4e12, 1023: 6.5e12, 1194: 12.1e12}
"""Bytes that the paper has for O1 and O2, for each number of orbitals."""

SIZE_HEADER = (
    "orbitals",
    "tile",
    "O1 + O2",
    "paper",
    "ours / paper",
    "unfused",
    "fused12-34",
    "fused1234-inner",
    "C",
    "8 irreps: fused12-34",
    "fused1234-inner",
    "C",
)
CASE_HEADER = (
    "system",
    "orbitals",
    "ranks",
    "nodes",
    "memory TB",
    "fits in all of it",
    "GB of a rank",
    "unfused",
    "fused12-34",
    "fused1234-inner",
    "we take",
    "the paper took",
    "unfused: O1 + O2 of all memory",
)
NAMES = ("unfused", "fused12-34", "fused1234-inner")
"""The schedules of the tables."""
FINER_HEADER = ("system", "orbitals", "ranks", "GB of a rank", *NAMES)


@dataclass(frozen=True, slots=True)
class System:
    """A cluster of the paper."""

    name: str
    """Its letter."""
    node_bytes: float
    """Memory of a node."""
    core_flops: float
    """Peak of a core: clock times the operations of a cycle of its processor."""
    network: float
    """Bytes per second of a node's link."""

    def rates(self, ranks_per_node: int, integrals: float) -> Rates:
        """What a rank of one core does."""
        return Rates(self.core_flops, integrals, network=self.network / ranks_per_node)


WESTMERE = System("A", 24e9, 2.53e9 * 4, 4e9)
BROADWELL = System("B", 512e9, 2.4e9 * 16, 4e9)  # no figure for the links of B: those of A are taken
SANDY_BRIDGE = System("C", 128e9, 2.6e9 * 8, 6.8e9)


@dataclass(frozen=True, slots=True)
class Case:
    """A run of the paper."""

    system: System
    """Where."""
    orbitals: int
    """How large."""
    ranks: int
    """Cores that were used."""
    ranks_per_node: int
    """How many of them shared a node."""
    took: str
    """The paper's implementation: fused or unfused."""
    nwchem_failed: bool = False
    """Whether no way of NWChem had enough memory."""

    @property
    def nodes(self) -> int:
        """Nodes that were used."""
        return -(-self.ranks // self.ranks_per_node)

    @property
    def all_bytes(self) -> float:
        """Memory of all nodes."""
        return self.nodes * self.system.node_bytes

    @property
    def share_bytes(self) -> float:
        """Memory of a rank."""
        return self.system.node_bytes / self.ranks_per_node

    def deal(self, problem: Problem) -> Deal:
        """The ranks of this run."""
        return Deal(problem, self.ranks, self.ranks_per_node)


CASES = (
    Case(WESTMERE, 368, 32, 8, "fused"),
    Case(WESTMERE, 368, 64, 8, "fused"),
    Case(WESTMERE, 368, 128, 8, "unfused"),
    Case(WESTMERE, 698, 512, 8, "fused", nwchem_failed=True),
    Case(BROADWELL, 368, 56, 28, "fused"),
    Case(BROADWELL, 368, 140, 28, "unfused"),
    Case(BROADWELL, 580, 140, 28, "fused"),
    Case(BROADWELL, 580, 252, 28, "unfused"),
    Case(BROADWELL, 698, 140, 28, "fused"),
    Case(BROADWELL, 698, 252, 28, "fused"),
    Case(BROADWELL, 698, 504, 28, "unfused"),
    Case(BROADWELL, 1023, 504, 28, "fused", nwchem_failed=True),
    Case(BROADWELL, 1194, 504, 28, "fused", nwchem_failed=True),
    Case(SANDY_BRIDGE, 698, 512, 4, "fused"),
    Case(SANDY_BRIDGE, 698, 1024, 4, "fused"),
)


def tile_of(orbitals: int, tiles: int) -> int:
    """Functions or orbitals of a tile, if there are to be about so many tiles."""
    return -(-orbitals // tiles)


@cache
def problem_of(orbitals: int, tiles: int, irreps: int) -> Problem:
    """All orbitals of a basis of the same size; irreps of sizes as equal as can be."""
    tile = tile_of(orbitals, tiles)
    functions = tw.Space.uniform(orbitals, tile, "ao")
    if irreps == 1:
        return Problem.of(functions, [functions] * 4, (True, True))
    sizes, labels = [], []
    for irrep in range(irreps):
        own = tw.Space.uniform(orbitals // irreps + (irrep < orbitals % irreps), tile).sizes.tolist()
        sizes += own
        labels += [irrep] * len(own)
    return Problem.of(functions, [tw.Space(sizes, "mo", irrep=labels)] * 4, (True, True))


def narrowest(problem: Problem) -> Variant:
    """`fused1234-inner` with the thinnest slabs: one tile of functions each."""
    found = [variant for variant in list_variants(problem) if variant.schedule == NAMES[2]]
    return max(found, key=lambda variant: len(variant.parts))


# Sizes


def size_row(orbitals: int, tiles: int) -> tuple[str, ...]:
    """What one rank would hold; integrals are made when they are needed, as in the paper."""
    plain, symmetric = (problem_of(orbitals, tiles, irreps) for irreps in (1, IRREPS))
    unfused = cost_of(plain, Variant("unfused"), WORKERS)
    middle, published = dict(unfused.live)["O1, O2"], PUBLISHED[orbitals]
    cells = [gigabytes(middle), gigabytes(published), f"{middle / published:.3f}", gigabytes(unfused.peak_bytes)]
    for problem in (plain, symmetric):
        fused = [cost_of(problem, variant, WORKERS) for variant in (Variant("fused12-34"), narrowest(problem))]
        cells += [*(gigabytes(cost.peak_bytes) for cost in fused), gigabytes(8 * problem.result.nnz_elements)]
    return str(orbitals), str(tile_of(orbitals, tiles)), *cells


def gigabytes(size: float) -> str:
    """A size in GB."""
    return number(size * 1e-9)


# Cases


@dataclass(frozen=True, slots=True)
class Verdict:
    """What our plans say about a case."""

    case: Case
    """The case."""
    alone: tuple[Cost, ...]
    """What each of `NAMES` costs on one rank."""
    shared: tuple[Cost, ...]
    """The same on the ranks of the case."""
    taken: str
    """What the planner takes."""

    @property
    def middle_bytes(self) -> int:
        """O1 and O2."""
        return dict(self.alone[0].live)["O1, O2"]

    @property
    def memory_share(self) -> float:
        """What of all memory O1 and O2 are."""
        return self.middle_bytes / self.case.all_bytes

    @property
    def unfused_fits(self) -> bool:
        """Whether every rank has room for the unfused schedule."""
        return self.shared[0].peak_bytes <= self.case.share_bytes

    @property
    def agrees(self) -> bool:
        """Whether the unfused schedule fits here just where the paper took it."""
        return self.unfused_fits == (self.case.took == "unfused")

    @property
    def text(self) -> str:
        """Whether the paper and we agree, how much O1 and O2 are of all memory, and what is known of the reason."""
        word = "agree" if self.agrees else "disagree"
        reason = ""
        if not self.unfused_fits and self.memory_share < 1:
            reason = ", but ranks have uneven shares"
        elif not self.agrees:
            reason = ", what was lacking is not said"
        return f"{word}: {100 * self.memory_share:.0f} %{reason}"


def judge(case: Case, tiles: int, integrals: float, full: bool) -> Verdict:
    """Plan a case."""
    problem = problem_of(case.orbitals, tiles, IRREPS)
    alone, shared = costs_of(Deal(problem)), costs_of(case.deal(problem))
    taken = NAMES[1]
    if full or shared[1].peak_bytes > case.share_bytes:
        taken = take(case.deal(problem), int(case.share_bytes), case.system.rates(case.ranks_per_node, integrals))
    return Verdict(case, alone, shared, taken)


def costs_of(deal: Deal) -> tuple[Cost, ...]:
    """What each of `NAMES` costs; `fused1234-inner` with the thinnest slabs."""
    variants = Variant(NAMES[0]), Variant(NAMES[1]), narrowest(deal.problem)
    return tuple(cost_of(deal.problem, variant, WORKERS, deal) for variant in variants)


def take(deal: Deal, budget: int, rates: Rates) -> str:
    """What the planner takes."""
    try:
        variant = plan_transform(deal.problem, budget, WORKERS, rates, deal=deal).variant
    except MemoryBudgetError:
        return "nothing fits"
    return f"{variant.schedule}, {variant}" if str(variant) else variant.schedule


def case_row(verdict: Verdict) -> tuple[str, ...]:
    """One line of the table of cases."""
    case = verdict.case
    fits = [name for name, cost in zip(NAMES, verdict.alone, strict=True) if cost.peak_bytes <= case.all_bytes]
    return (
        case.system.name,
        str(case.orbitals),
        str(case.ranks),
        str(case.nodes),
        number(case.all_bytes * 1e-12),
        "all three" if len(fits) == len(NAMES) else " and ".join(fits) or "none",
        gigabytes(case.share_bytes),
        *(peak_text(cost, case.share_bytes) for cost in verdict.shared),
        verdict.taken,
        f"{case.took}, NWChem failed" if case.nwchem_failed else case.took,
        verdict.text,
    )


def finer_row(case: Case, tiles: int) -> tuple[str, ...]:
    """What a case holds with other tiles."""
    costs = costs_of(case.deal(problem_of(case.orbitals, tiles, IRREPS)))
    first = case.system.name, str(case.orbitals), str(case.ranks), gigabytes(case.share_bytes)
    return *first, *(peak_text(cost, case.share_bytes) for cost in costs)


def peak_text(cost: Cost, limit: float) -> str:
    """The most that a rank holds in GB, and whether it is too much."""
    return gigabytes(cost.peak_bytes) if cost.peak_bytes <= limit else f"{gigabytes(cost.peak_bytes)}, too large"


def notes(verdicts: list[Verdict], tiles: int) -> list[str]:
    """What the table does not say by itself."""
    own = [verdict for verdict in verdicts if verdict.case.system is BROADWELL]
    unfused = max((each for each in own if each.case.took == "unfused"), key=lambda each: each.memory_share)
    fused = min((each for each in own if each.case.took == "fused"), key=lambda each: each.memory_share)
    largest = max(PUBLISHED)
    panel = gigabytes(Sizes(Deal(problem_of(largest, tiles, IRREPS)), WORKERS).panel)
    agreed = f"{sum(verdict.agrees for verdict in verdicts)} of {len(verdicts)} cases agree"
    return [
        f"{agreed} on whether unfused fits; we never take it: fused12-34 does the same products in less memory.",
        f"On system B the paper took unfused for {share_text(unfused)}, but fused for {share_text(fused)}.",
        f"The integrals of a pair of tiles, which every rank holds: {panel} GB for {largest} orbitals.",
    ]


def share_text(verdict: Verdict) -> str:
    """How much O1 and O2 are."""
    each = verdict.middle_bytes / verdict.case.ranks
    return f"O1 + O2 of {100 * verdict.memory_share:.0f} % of all memory ({gigabytes(each)} GB for each rank)"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--tiles", type=int, default=30, help="about how many tiles functions and orbitals are cut into"
    )
    parser.add_argument("--integrals", type=float, default=5e6, help="that a core makes in a second: an assumption")
    parser.add_argument("--full", action="store_true", help="plan all schedules in every case")
    args = parser.parse_args()
    begin = time.perf_counter()
    print(f"Peaks of one rank in GB, with tiles of n/{args.tiles}; slabs of fused1234-inner are one tile wide.\n")
    print(markdown(SIZE_HEADER, [size_row(orbitals, args.tiles) for orbitals in PUBLISHED]))
    print(
        f"\nRuns of the paper, with {IRREPS} irreps and the same tiles; peaks in GB, of the rank that holds the most.\n"
    )
    verdicts = [judge(case, args.tiles, args.integrals, args.full) for case in CASES]
    print(markdown(CASE_HEADER, [case_row(verdict) for verdict in verdicts]))
    short = [each.case for each in verdicts if max(cost.peak_bytes for cost in each.shared) > each.case.share_bytes]
    print(f"\nThose in which something is too large, with tiles of n/{2 * args.tiles}.\n")
    print(markdown(FINER_HEADER, [finer_row(case, 2 * args.tiles) for case in short]))
    print("\n" + "\n".join(f"- {note}" for note in notes(verdicts, args.tiles)))
    print(f"- planned in {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
