"""The counter that ranks draw tickets from, and the files that MPICH leaves, under ``mpiexec``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.processes import ranks
from tilewise.engines.mpi import segments

BEGIN = """
import json
import tilewise as tw
from tilewise.engines.mpi.counter import Counter
from tilewise.engines.mpi.segments import find_segments, unlink_segments
from tilewise.engines.mpi.world import load_mpi

mpi = load_mpi()
everyone = mpi.COMM_WORLD

def show(value):
    found = everyone.gather(value)
    if everyone.rank == 0:
        print(json.dumps(found))
"""


def run(count: int, script: str) -> Any:
    """What all ranks show, and nothing else."""
    done = ranks(count, "-c", BEGIN + script)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout)


DRAW = """
with Counter(everyone, place=everyone.size - 1) as counter:
    singles = [counter.draw() for _ in range(200)]
    counter.reset()
    firsts = [counter.draw(3) for _ in range(50)]
show((singles, firsts))
"""


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_ticket_is_drawn_once(count: int) -> None:
    found = run(count, DRAW)
    assert len(found) == count
    assert sorted(ticket for singles, _ in found for ticket in singles) == list(range(200 * count))
    assert sorted(first for _, firsts in found for first in firsts) == list(range(0, 150 * count, 3))
    assert all(series == sorted(series) for rank in found for series in rank)


PLACES = """
place = everyone.rank // 2 * 2
with Counter(everyone, place) as counter:
    own = [counter.draw() for _ in range(100)]
    everyone.Barrier()
    other = counter.draw(1, 0)
    with Counter(everyone) as second:
        fresh = second.draw()
show((own, other, fresh))
"""


@pytest.mark.parametrize("count", [2, 3, 4])
def test_counters_do_not_touch_each_other(count: int) -> None:
    found = run(count, PLACES)
    for first in range(0, count, 2):
        node = found[first : first + 2]
        assert sorted(ticket for own, _, _ in node for ticket in own) == list(range(100 * len(node)))
    assert sorted(other for _, other, _ in found) == list(range(200, 200 + count))
    assert sorted(fresh for _, _, fresh in found) == list(range(count))


MISUSE = """
def text(call):
    try:
        call()
    except tw.TilewiseError as error:
        return str(error)

counter = Counter(everyone)
wrong = [lambda: counter.draw(0), lambda: counter.draw(1, everyone.size), lambda: Counter(everyone, -1)]
texts = [text(call) for call in wrong]
untouched = everyone.allreduce(counter.draw(), mpi.MAX)
counter.close()
counter.close()
show((texts + [text(counter.draw), text(counter.reset)], untouched))
"""


@pytest.mark.parametrize("count", [1, 2])
def test_misuse_is_refused_before_it_reaches_the_window(count: int) -> None:
    for texts, last in run(count, MISUSE):
        assert last == count - 1
        for found, expected in zip(
            texts,
            (
                "count=0 is no number of tickets. Expected an integer >= 1.",
                f"place={count} is no rank. Expected an integer from 0 to {count - 1}.",
                f"place=-1 is no rank. Expected an integer from 0 to {count - 1}.",
                "The counter is closed. Expected draws and resets before that.",
                "The counter is closed. Expected draws and resets before that.",
            ),
            strict=True,
        ):
            assert found.startswith(expected)


SEGMENTS = """
import numpy as np

neighbours = everyone.Split_type(mpi.COMM_TYPE_SHARED)
before = find_segments(open("/proc/self/maps"))
gone = unlink_segments(neighbours), unlink_segments(neighbours)
data = np.full(300_000, float(everyone.rank))
other = np.empty_like(data)
after, before_it = (everyone.rank + 1) % everyone.size, (everyone.rank - 1) % everyone.size
everyone.Sendrecv(data, after, recvbuf=other, source=before_it)
windows = [mpi.Win.Allocate(8, comm=everyone), mpi.Win.Allocate_shared(80, comm=neighbours)]
windows.append(mpi.Win.Create(data, comm=everyone))
twin, part = everyone.Dup(), everyone.Split(everyone.rank % 2)
with Counter(twin) as counter:
    counter.draw()
    left = find_segments(open("/proc/self/maps"))
windows[2].Lock_all()
got = np.empty_like(data)
windows[2].Get(got, after)
windows[2].Unlock_all()
for each in (*windows, twin, part):
    each.Free()
show((before, gone, left, bool(other[-1] == before_it and got[-1] == after)))
"""


@pytest.mark.parametrize("count", [1, 2, 3])
def test_mpich_works_on_without_the_names_of_its_files(count: int) -> None:
    found = run(count, SEGMENTS)
    before, (first, second), _, _ = found[0]
    assert first == before == found[-1][0]
    assert not second
    assert not any(Path(name).exists() for name in before)
    for rank, (_, gone, left, arrived) in enumerate(found):
        assert not left
        assert arrived
        assert rank == 0 or gone == [[], []]


def test_only_files_of_mpich_that_are_mapped_are_found() -> None:
    head = "7f0000000000-7f0000100000 rw-s 00000000 00:17 5     "
    lines = [
        head + "/dev/shm/mpich_shm_2_0\n",
        head + "/dev/shm/mpich_vci_1_0\n",
        head + "/dev/shm/mpich_vci_1_0\n",
        head + "/dev/shm/mpich_shm_3_0 (deleted)\n",
        head + "/dev/shm/mpich_shar_tmp5a7bDJ\n",
        head + "/dev/shm/other\n",
        head + "/home/user/dev/shm/mpich_shm_4_0\n",
        "7f0000000000-7f0000100000 rw-p 00000000 00:00 0\n",
    ]
    assert segments.find_segments(lines) == ("/dev/shm/mpich_shm_2_0", "/dev/shm/mpich_vci_1_0")


class Node:
    """Ranks of a node as one of them sees them."""

    def __init__(self, rank: int, *others: tuple[str, ...]) -> None:
        self.rank, self.others = rank, others

    def allgather(self, value: tuple[str, ...]) -> list[tuple[str, ...]]:
        return [value, *self.others]


@pytest.fixture
def mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Two files that this process says it has mapped."""
    names = tuple(str(tmp_path / name) for name in ("mpich_shm_1_0", "mpich_vci_1_0"))
    for name in names:
        Path(name).touch()
    maps = tmp_path / "maps"
    maps.write_text("".join(f"0-1 rw-s 0 0:0 1 {name}\n" for name in names))
    monkeypatch.setattr(segments, "MAPS", maps)
    monkeypatch.setattr(segments, "FOLDER", f"{tmp_path}/")
    return names


def test_a_file_that_a_neighbour_has_not_mapped_stays(mapped: tuple[str, ...]) -> None:
    assert segments.unlink_segments(Node(0, mapped[:1])) == mapped[:1]
    assert [Path(name).exists() for name in mapped] == [False, True]


def test_the_first_rank_of_a_node_takes_files_away(mapped: tuple[str, ...]) -> None:
    assert segments.unlink_segments(Node(1, mapped)) == ()
    assert all(Path(name).exists() for name in mapped)
    Path(mapped[0]).unlink()
    assert segments.unlink_segments(Node(0, mapped)) == mapped[1:]


def test_a_system_that_lists_no_mappings_has_nothing_to_take_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MAPS", tmp_path / "missing")
    assert segments.unlink_segments(Node(0)) == ()
