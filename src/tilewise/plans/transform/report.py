"""What a transform does and costs, as tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewise.costs.fusion import least_reuse_words
from tilewise.plans.explain import Report, Table, bytes_text, count_text, plural_text, seconds_text
from tilewise.plans.transform.schedules import SCHEDULES, WORD, Candidate

if TYPE_CHECKING:
    from tilewise.plans.transform.choice import TransformPlan


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run of a transform came to."""

    flops: int
    """Floating-point operations done."""
    integrals: int
    """Elements of A that were made."""
    peak_bytes: int
    """The most that was held."""
    moved_bytes: int
    """Bytes between memory and scratch."""
    stages: tuple[tuple[str, float], ...]
    """Seconds of each stage, on the first rank."""
    between_bytes: int = 0
    """Bytes that went from node to node."""

    @property
    def seconds(self) -> float:
        """Time of all stages."""
        return sum(seconds for _, seconds in self.stages)


def transform_report(plan: TransformPlan) -> Report:
    """The tables of one plan."""
    problem = plan.problem
    sizes = " x ".join(str(size) for size in problem.result.shape)
    who = plural_text(plan.workers, "worker")
    if plan.deal.ranks > 1:
        who = f"{plural_text(plan.deal.ranks, 'rank')} with {who} each on {plural_text(plan.deal.nodes, 'node')}"
    title = f"Transform of {problem.size} functions to {sizes} orbitals  ({who})"
    choices = (_tensor_table(plan), _schedule_table(plan)) if plan.others else ()
    return Report(title, (*choices, _cost_table(plan)), tuple(_notes(plan)))


def _tensor_table(plan: TransformPlan) -> Table:
    names = ("A", "O1", "O2", "O3", "C")
    elements = plan.problem.tensor_elements
    return Table(
        "Tensors, each element once that stands for others by an exchange within a pair",
        ("", "elements", "size"),
        tuple((name, count_text(count), bytes_text(WORD * count)) for name, count in zip(names, elements, strict=True)),
    )


def _schedule_table(plan: TransformPlan) -> Table:
    by_name = {candidate.variant.schedule: candidate for candidate in (plan.chosen, *plan.others)}
    rows = [_schedule_row(by_name[name], plan) for name in SCHEDULES if name in by_name]
    caption = f"Schedules, each in its fastest way within {bytes_text(plan.budget)}"
    return Table(caption, ("", "flops", "integrals", "memory", "disk", "bound", "time", "verdict", "how"), tuple(rows))


def _schedule_row(candidate: Candidate, plan: TransformPlan) -> tuple[str, ...]:
    cost = candidate.cost
    if candidate is plan.chosen:
        verdict = "chosen"
    elif candidate.fits:
        verdict = f"{candidate.seconds / plan.seconds:.2f} x the time"
    else:
        verdict = "too large"
    return (
        candidate.variant.schedule,
        count_text(cost.flops),
        count_text(cost.integrals),
        bytes_text(cost.peak_bytes),
        bytes_text(cost.moved_bytes),
        bytes_text(cost.bound_bytes),
        seconds_text(candidate.seconds),
        verdict,
        str(candidate.variant) or "all at once",
    )


def _cost_table(plan: TransformPlan) -> Table:
    cost, run = plan.chosen.cost, plan.runs[-1] if plan.runs else None
    several = plan.deal.ranks > 1
    rows = [
        ("flops", count_text(cost.flops), run and count_text(run.flops)),
        ("integrals made", count_text(cost.integrals), run and count_text(run.integrals)),
        ("peak memory of a rank" if several else "peak memory", bytes_text(cost.peak_bytes), _bytes(run, "peak_bytes")),
        *((f"  {stage}", bytes_text(size), "") for stage, size in cost.live),
        ("between memory and disk", bytes_text(cost.moved_bytes), _bytes(run, "moved_bytes")),
        *_bound_rows(cost.moved_bytes, cost.bound_bytes),
    ]
    if several:
        rows.append(("between nodes", bytes_text(cost.between_bytes), _bytes(run, "between_bytes")))
        rows += _bound_rows(cost.between_bytes, cost.between_bound_bytes)
        rows.append(("most flops of a rank / mean", f"{cost.imbalance:.3f}", ""))
    rows.append(("time", seconds_text(plan.seconds), run and seconds_text(run.seconds)))
    rows += [(f"  {stage}", "", seconds_text(seconds)) for stage, seconds in (run.stages if run else ())]
    header = ("", "projected") if run is None else ("", "projected", "measured")
    cells = tuple(tuple(cell or "" for cell in row[: len(header)]) for row in rows)
    return Table(f"Cost of {plan.schedule}", header, cells)


def _bound_rows(moved: int, bound: int) -> list[tuple[str, str, str]]:
    """A lower bound, and how close to it a transform comes."""
    if not bound:
        return []
    return [("  lower bound", bytes_text(bound), ""), ("    moved / bound", f"{moved / bound:.2f}", "")]


def _bytes(run: Measured | None, field: str) -> str:
    """A figure of a run as text, if there was one."""
    return "" if run is None else bytes_text(getattr(run, field))


def _notes(plan: TransformPlan) -> list[str]:
    if not plan.others:
        return [
            f"Time from {count_text(plan.rates.flops)}flop/s of dense products. Vectors are transformed, not integrals."
        ]
    rates, sizes = plan.rates, plan.problem.tensor_elements
    products, integrals, disk = count_text(rates.flops), count_text(rates.integrals), bytes_text(rates.disk)
    least = WORD * least_reuse_words(sizes) // plan.deal.ranks
    spared = WORD * 2 * (sizes[1] + sizes[3])
    return [
        f"Time from {products}flop/s of dense products, {integrals}integrals/s, {disk}/s of disk.",
        (
            f"With less than {bytes_text(least)}, intermediates have to leave memory (Theorem 6.2); the budget is "
            f"{'above' if plan.budget >= least else 'below'} that."
        ),
        (
            f"Fusing steps 1, 2 and steps 3, 4 spares {bytes_text(spared)} of traffic where intermediates do not fit "
            "(Theorem 5.2)."
        ),
    ]
