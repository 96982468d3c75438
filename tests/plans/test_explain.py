"""explain: every figure of a plan in a table a person can read, measured beside projected after a run."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import tilewise as tw
from tilewise.machine import Machine
from tilewise.plans.explain import Report, Table, bytes_text, count_text, percent_text, seconds_text, to_html, to_text
from tilewise.trace import DEVICES, MEMORY

BOX = Machine(
    "my box",
    cores=2,
    gemm_rates=((4, 1.0), (64, 16.0), (512, 20.0)),
    copy_rate=12.0,
    permute_rate=6.0,
    blas="some BLAS",
    is_measured=True,
)
OCC, VIR = tw.Space([4, 6, 5], name="occ"), tw.Space.uniform(40, tile=8, name="vir")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def ladder() -> tuple[tw.BlockTensor, tw.BlockTensor]:
    return tw.random((OCC, OCC, VIR, VIR), density=0.5), tw.random((VIR,) * 4, density=0.2, seed=1)


def figures(text: str) -> dict[str, list[str]]:
    """The cells of each row, by its first cell."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return {row[0]: row[1:] for row in rows if len(row) > 1}


def test_plan_is_explained_before_a_run() -> None:
    tensors = ladder()
    plan = tw.plan("ijcd,cdab->ijab", *tensors).on(BOX)
    assert isinstance(plan, tw.Plan)
    found = figures(plan.explain())
    shape = "15 x 15 x 40 x 40"
    assert found["ijcd"][:2] == [shape, "3 x 3 x 5 x 5"]
    assert found["ijcd"][2:4] == [str(tensors[0].pattern.nnz_blocks), percent_text(tensors[0].density)]
    assert found["-> ijab"][-1] == bytes_text(plan.result_bytes)
    assert found["flops"] == [count_text(plan.flops)]
    assert found["block products"] == [str(plan.products)]
    assert found["dense products (GEMM calls)"] == [str(plan.calls)]
    assert found["tasks"] == [str(plan.tasks)]
    assert found["kernel"] == [plan.kernel]
    assert found["peak memory"] == [bytes_text(plan.peak_bytes)]
    assert found["time"] == [seconds_text(plan.seconds)]
    assert found["moved bytes"] == [bytes_text(plan.moved_bytes)]
    assert found["lower bound"] == [bytes_text(plan.lower_bound_bytes)]
    assert found["moved / bound"] == [f"{plan.moved_bytes / plan.lower_bound_bytes:.2f}"]
    assert "saved by screening" not in found
    assert "my box, BLAS: some BLAS" in plan.explain()


def test_measured_figures_stand_beside_projected_ones_after_a_run() -> None:
    tensors = ladder()
    plan = tw.plan("ijcd,cdab->ijab", *tensors).on(BOX)
    assert isinstance(plan, tw.Plan)
    tw.execute(plan, *tensors)
    (trace,) = plan.runs
    found = figures(plan.explain())
    assert found["time"] == [seconds_text(plan.seconds), seconds_text(trace.seconds)]
    assert found["flops"][0] == found["flops"][1]
    assert found["tasks"][0] == found["tasks"][1]
    assert found["dense products (GEMM calls)"][0] == found["dense products (GEMM calls)"][1]
    assert found["kernel"] == [plan.kernel, trace.library]
    assert found["peak memory"][1] == bytes_text(trace.buffer_bytes)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("ij,jk->ik", [200, 131]),
        ("ij,jk->ik", [500, 400]),
        ("bij,bjk->bik", [5, 4]),
        ("bij,bjk->bik", [30, 7]),
        ("ij,j->i", [7, 9]),
        ("i,j->ij", [7, 9]),
        ("ij,ij->", [50, 60]),
        ("ii->i", [3, 4]),
        ("ij->j", [3, 4]),
    ],
)
def test_planned_counts_are_the_counts_of_the_run(text: str, sizes: list[int], dtype: str) -> None:
    space = tw.Space(sizes)
    operands = text.split("->")[0].split(",")
    tensors = [tw.random((space,) * len(modes), density=0.7, seed=n, dtype=dtype) for n, modes in enumerate(operands)]
    plan = tw.plan(text, *tensors)
    tw.execute(plan, *tensors)
    steps = [plan] if isinstance(plan, tw.Plan) else [step.plan for step in plan.steps]
    for step in steps:
        (trace,) = step.runs
        assert (trace.tasks, trace.calls) == (step.tasks, step.calls)
        assert trace.flops == step.flops


def test_screening_is_explained() -> None:
    chain = tw.Space([6] * 20)
    pattern = tw.Pattern.decaying((chain, chain), length=2.0)
    plan = tw.plan("ij,jk->ik", pattern, pattern, tol=1e-3)
    found = figures(plan.explain())
    assert plan.screened_flops > 0
    share = percent_text(plan.screened_flops / (plan.screened_flops + plan.flops))
    assert found["saved by screening"] == [f"{count_text(plan.screened_flops)} ({share})"]
    assert found["error bound of what is dropped"] == [f"{plan.dropped_bound:.2e} of 1.00e-03 allowed"]


def test_default_rates_are_called_a_guess() -> None:
    plan = tw.plan("ij->ji", tw.Pattern.dense((OCC, VIR)))
    assert "run `tilewise doctor`" in plan.explain()
    BOX.save()
    assert "rates of my box" in plan.explain()


def test_program_lists_its_steps() -> None:
    tensors = [tw.random((OCC, VIR), seed=0), tw.random((VIR, VIR), seed=1), tw.random((VIR, OCC), seed=2)]
    program = tw.plan("ia,ab,bj->ij", *tensors)
    assert isinstance(program, tw.Program)
    found = figures(program.explain())
    for step in program.steps:
        assert found[step.plan.label][0] == str(step.plan.result.nnz_blocks)
        assert found[step.plan.label][3] == step.plan.kernel
    assert found["peak memory"] == [bytes_text(program.peak_bytes)]
    tw.execute(program, *tensors)
    found = figures(program.explain())
    measured = sum(step.plan.runs[-1].seconds for step in program.steps)
    assert found["time"] == [seconds_text(program.seconds), seconds_text(measured)]
    assert found["flops"] == [count_text(program.flops)] * 2
    assert found["peak memory"] == [bytes_text(program.peak_bytes), bytes_text(program.measured_bytes)]


def test_program_shows_what_crosses_in_each_step() -> None:
    tensors = [tw.random((OCC, VIR), seed=0), tw.random((VIR, VIR), seed=1), tw.random((VIR, OCC), seed=2)]
    lazy = [tw.from_function(t.block, pattern=t.pattern) for t in tensors]
    program = tw.plan("ia,ab,bj->ij", *lazy, memory="60kB")
    assert isinstance(program, tw.Program)
    captions = [line for line in program.explain().splitlines() if ": Into memory of this computer (" in line]
    assert [line.partition(":")[0] for line in captions] == [step.plan.label for step in program.steps]
    tw.execute(program, *lazy)
    assert 0 < program.measured_bytes <= program.peak_bytes <= 60_000
    last = program.steps[-1].plan
    (level,) = last.runs[-1].of(MEMORY)
    found = figures(program.explain().partition(f"{last.label}: Into")[2])
    assert found["peak"] == [bytes_text(level.projected_bytes), bytes_text(level.peak_bytes)]


def test_devices_within_a_budget_are_projected_part_by_part() -> None:
    m, k = tw.Space([30] * 3), tw.Space([300] * 8)
    left, right = tw.random((m, k)), tw.random((k, k), seed=1)
    lazy = tw.from_function(right.block, pattern=right.pattern)
    with tw.engine("device", capacity="5MB", schedule="blocked"):
        plan = tw.plan("ik,kj->ij", left, lazy, memory="12MB")
        tw.execute(plan, left, lazy)
    assert isinstance(plan, tw.Plan)
    assert plan.phases is not None
    assert len(plan.phases.sequence) > 1
    (level,) = plan.runs[-1].of(DEVICES)
    found = figures(plan.explain().partition("Into devices")[2])
    for name in ("in: ik", "in: kj", "out: result", "  moved / bound"):
        planned, measured = found[name.strip()]
        assert planned == measured
    assert found["peak"] == [bytes_text(level.projected_bytes), bytes_text(level.peak_bytes)]


def test_a_plan_for_threads_that_ran_on_devices_shows_them() -> None:
    left, right = tw.random((VIR, VIR)), tw.random((VIR, VIR), seed=1)
    plan = tw.plan("ik,kj->ij", left, right)
    assert "Into devices" not in plan.explain()
    with tw.engine("device", capacity="1MB"):
        tw.execute(plan, left, right)
    assert isinstance(plan, tw.Plan)
    (level,) = plan.runs[-1].of(DEVICES)
    found = figures(plan.explain().partition("Into devices")[2])
    assert found["peak"] == [bytes_text(level.peak_bytes)]
    assert found["out: result"] == [bytes_text(level.out_bytes)]


@pytest.mark.parametrize("spaces", [((), ()), ((OCC,), (OCC,)), ((tw.Space([]),), (tw.Space([]),))])
def test_scalars_and_empty_spaces_are_explained(spaces: tuple[tuple[tw.Space, ...], tuple[tw.Space, ...]]) -> None:
    letters = "i" * len(spaces[0])
    plan = tw.plan(f"{letters},{letters}->", *map(tw.Pattern.dense, spaces))
    assert "scalar" in plan.explain()
    assert plan._repr_html_()


class Reader(HTMLParser):
    """Collects the text, and checks that tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(html: str) -> list[str]:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert not reader.open
    return reader.text


def test_html_says_what_the_text_says() -> None:
    tensors = ladder()
    plan = tw.plan("ijcd,cdab->ijab", *tensors).on(BOX)
    words = read(plan._repr_html_())
    for name, cells in figures("\n".join(plan.explain().splitlines()[1:])).items():
        assert name in words
        assert set(cells) <= set(words)
    program = tw.plan("ijcd,cdab,abkl->ijkl", *tensors, tw.Pattern.dense((VIR, VIR, OCC, OCC)))
    assert "ijcd,cdab,abkl->ijkl  (float64, " in " ".join(read(program._repr_html_()))


def test_html_is_escaped() -> None:
    report = Report("<b>", (Table("&", ("<i>", "x"), (("<script>", "1"),)),), ("<u>",))
    assert read(to_html(report)) == ["<b>", "&", "<i>", "x", "<script>", "1", "<u>"]


def test_columns_are_aligned() -> None:
    table = Table("caption", ("", "figure"), (("a", "1"), ("  long name", "23")))
    assert to_text(Report("title", (table,), ())).splitlines()[2:] == [
        "caption",
        "             figure",
        "-------------------",
        "a                 1",
        "  long name      23",
    ]


def test_repr_is_one_short_line() -> None:
    pattern = tw.Pattern.dense((OCC, OCC))
    plan = tw.plan("ij,jk->ik", pattern, pattern)
    program = tw.plan("ij,jk,kl->il", pattern, pattern, pattern)
    assert isinstance(plan, tw.Plan)
    assert repr(plan) == f"Plan('ij,jk->ik', float64, 6.75e+03 flops, 27 block products, {plan.kernel})"
    assert repr(program) == "Program('ij,jk,kl->il', float64, 2 steps, 1.35e+04 flops)"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1_250_000_000, "1.25 GB"), (999_900, "1000 kB"), (2.5e18, "2500 PB")],
)
def test_bytes_have_decimal_units(value: float, text: str) -> None:
    assert bytes_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(2e-6, "2 us"), (0.0123, "12.3 ms"), (5.0, "5 s"), (4000.0, "4000 s"), (36000.0, "10.0 h")]
)
def test_seconds_have_a_suitable_unit(value: float, text: str) -> None:
    assert seconds_text(value) == text


def test_other_machine_changes_the_projection_only() -> None:
    pattern = tw.Pattern.dense((VIR, VIR))
    plan = tw.plan("ij,jk->ik", pattern, pattern)
    assert isinstance(plan, tw.Plan)
    slow = replace(BOX, gemm_rates=((4, 0.001),))
    assert plan.on(slow).seconds > plan.on(BOX).seconds
    assert plan.on(slow).result is plan.result


def test_equal_plans_are_those_for_equal_patterns() -> None:
    pattern, other = tw.Pattern.dense((VIR, VIR)), tw.Pattern.random((VIR, VIR), 0.5)
    plan, again = (tw.plan("ij,jk->ik", pattern, tw.Pattern.dense((VIR, VIR))) for _ in range(2))
    assert plan == again
    assert hash(plan) == hash(again)
    assert plan != tw.plan("ij,jk->ik", pattern, other)
    assert plan != tw.plan("ij,kj->ik", pattern, pattern)
    assert plan != "plan"
