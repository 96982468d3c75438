"""Ctrl-C in a long contraction: it stops within a second, and everything still works."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from types import FrameType

import pytest

import tilewise as tw
from engines.processes import source_environment

LONGEST_SECONDS = 60
"""After these a process that has not answered is ended."""

PRELUDE = """
import signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job is started with Ctrl-C ignored
import numpy as np
import tilewise as tw
from tilewise.plans import inspector

def small():
    space = tw.Space([30, 40, 20])
    left, right = tw.random((space, space), 0.7), tw.random((space, space), 0.7, seed=1)
    made = tw.einsum("ij,jk->ik", left, right)
    assert np.allclose(made.to_dense(), left.to_dense() @ right.to_dense())
    return made
"""

EPILOGUE = """
def interrupted(run, before_end=lambda: None):
    print("ready", flush=True)
    try:
        while True:
            run()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    before_end()
    small()
    time.sleep(0.3)
    cpu = time.process_time()
    time.sleep(0.3)
    # Threads that went on computing would use the CPU while we sleep.
    assert time.process_time() - cpu < 0.15, "threads are still busy"
    stuck = [t.name for t in threading.enumerate() if not t.daemon and not t.name.startswith(("Main", "tilewise"))]
    assert not stuck, stuck
    print("done", flush=True)
"""

PRODUCT = """
space = tw.Space.uniform({size}, {tile})
left = tw.random((space, space), {density})
warm = tw.Space.uniform({size} // 8, {tile})
w = tw.random((warm, warm), {density})
assert tw.plan("ij,jk->ik", left, left).kernel == "{kernel}"
inspector.GEMM_CELLS = 0  # so that the small product compiles what the large one runs
tw.einsum("ij,jk->ik", w, w)
small()
interrupted(lambda: tw.einsum("ij,jk->ik", left, left))
"""

LOOPS = """
rows, inner, cols = tw.Space([2] * 3000), tw.Space([50] * 30), tw.Space([400] * 30)
left, right = tw.random((rows, inner)), tw.random((inner, cols))
assert tw.plan("ij,jk->ik", left, right).kernel == "loops"
small()
tw.einsum("ij,jk->ik", tw.random((tw.Space([2]), inner)), right)
interrupted(lambda: tw.einsum("ij,jk->ik", left, right))
"""

PERMUTATION = """
space = tw.Space([20] * 4)
tensor = tw.random((space,) * 4, dtype=np.float32)
small()
tw.einsum("ijkl->ljki", tw.random((tw.Space([20]),) * 4, dtype=np.float32))
interrupted(lambda: tw.einsum("ijkl->ljki", tensor))
"""

REPEATS = """
space = tw.Space([5, 9, 3])
left = tw.random((space, space), 0.8)
small()
def many():
    for _ in range(100000):
        tw.einsum("ij,jk,kl->il", left, left, left)
interrupted(many)
"""

PLANNING = """
space = tw.Space([1] * 1500)
pattern = tw.Pattern.random((space, space), density=0.1)
few = tw.Pattern.random((space, space), density=0.001)
tw.plan("ij,jk->ik", few, few)
small()
interrupted(lambda: tw.plan("ij,jk->ik", pattern, pattern))
"""

SCREENING = """
space = tw.Space([1] * 900)
pattern = tw.random((space, space), density=0.2).pattern
few = tw.random((space, space), density=0.001).pattern
tw.plan("ij,jk->ik", few, few, tol=1e-3)
small()
interrupted(lambda: tw.plan("ij,jk->ik", pattern, pattern, tol=1e-3))
"""

INTO_OUT = """
space = tw.Space.uniform(5000, 50)
left = tw.random((space, space), 0.9)
out = tw.random((space, space), seed=2)
warm = tw.random((tw.Space([60] * 9),) * 2)
tw.einsum("ij,jk->ik", warm, warm, out=warm.copy(), beta=2.0)
small()
interrupted(lambda: tw.einsum("ij,jk->ik", left, left, out=out, beta=2.0), before_end=lambda: out.check())
"""

SCRIPTS = {
    "packed": PRODUCT.format(size=5000, tile=50, density=0.9, kernel="packed"),
    "gemm": PRODUCT.format(size=5000, tile=1000, density=1.0, kernel="gemm"),
    "loops": LOOPS,
    "permutation": PERMUTATION,
    "many small ones": REPEATS,
    "into out": INTO_OUT,
    "planning": PLANNING,
    "planning with a tolerance": SCREENING,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_ctrl_c_stops_within_a_second(name: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + EPILOGUE + SCRIPTS[name]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=source_environment(),
    )
    watchdog = threading.Timer(LONGEST_SECONDS, process.kill)  # reading has no limit of its own
    watchdog.start()
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready == "ready\n", process.communicate(timeout=60)[1]
        time.sleep(1.0)
        assert process.poll() is None
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        answer = process.stdout.readline()
        seconds = time.monotonic() - begin
        rest, errors = process.communicate(timeout=60)
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
    assert answer == "interrupted\n", errors
    assert seconds < 1.0
    assert rest == "done\n", errors
    assert process.returncode == 0


FINALIZERS = ("_weakrefset.py", "weakref.py")
"""Where Python runs what others asked to be called when an object dies; what is raised there is lost, Ctrl-C too."""


def test_a_small_contraction_runs_no_python_code_where_ctrl_c_would_be_lost() -> None:
    space = tw.Space([5, 9, 3])
    left = tw.random((space, space), 0.8)
    tw.einsum("ij,jk,kl->il", left, left, left)
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and (code.co_filename.endswith(FINALIZERS) or code.co_name == "__del__"):
            entered.append(f"{code.co_filename}: {code.co_name}")

    sys.setprofile(note)
    try:
        for _ in range(5):
            tw.einsum("ij,jk,kl->il", left, left, left)
    finally:
        sys.setprofile(None)
    assert not entered


MANY_INTERRUPTS = """
import os
long = tw.Pattern.dense((tw.Space([10**5] * 4),))
left = tw.random((tw.Space([5, 9, 3] * 4),) * 2, 0.8)
tw.plan("i,j->ij", long, long)
for number in range(30):
    threading.Timer(0.02 + 0.003 * number, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        while True:
            if number % 2:
                tw.plan("i,j->ij", long, long)
            else:
                tw.einsum("ij,jk->ik", left, left)
    except KeyboardInterrupt:
        pass
small()
print("done")
"""


def test_ctrl_c_at_any_moment_of_planning_leaves_the_interpreter_alive() -> None:
    made = subprocess.run(
        [sys.executable, "-c", PRELUDE + MANY_INTERRUPTS],
        capture_output=True,
        text=True,
        env=source_environment(),
        timeout=120,
        check=False,
    )
    assert (made.returncode, made.stdout) == (0, "done\n"), made.stderr


LOADED = """
from numba.core import dispatcher

compile_loop, exposed = dispatcher.Dispatcher.compile, []

def watched(self, signature):
    if threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            exposed.append(self.py_func.__name__)
    return compile_loop(self, signature)

dispatcher.Dispatcher.compile = watched
tensor = tw.random((tw.Space([5, 9, 3] * 4),) * 2, 0.8)
tw.einsum("ij,jk->ik", tensor, tensor)
tw.einsum("ij->ji", tensor)
tw.einsum("ij,ij->", tensor, tensor)
tw.einsum("ij,jk,kl->il", tensor, tensor, tensor, tol=1e-3, memory="1MB")
print(exposed)
"""


def test_ctrl_c_never_hits_a_loop_that_is_being_loaded() -> None:
    made = subprocess.run(
        [sys.executable, "-c", PRELUDE + LOADED],
        capture_output=True,
        text=True,
        env=source_environment(),
        timeout=120,
        check=True,
    )
    assert made.stdout == "[]\n"
