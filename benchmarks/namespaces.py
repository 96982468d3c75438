"""Two "nodes" on one computer: network namespaces joined by a pair of virtual interfaces.

What ranks of different namespaces tell each other goes over the pair, whose counters the kernel keeps. Linux only, as
root, with `ip` (iproute2), `unshare` and `mount` (util-linux) and MPICH's `mpiexec`. Nothing outside the namespaces is
changed, and they are gone, with all that runs in them, when the context is left.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launchers import find_program

INTERFACE = "tw0"
"""What the interface is called on both nodes: UCX is told one name for all ranks."""

ADDRESSES = ("192.0.2.1", "192.0.2.2")
"""Of the nodes; a range that is kept for examples, and seen by nobody else."""

ENVIRONMENT: Mapping[str, str] = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": INTERFACE}
"""Has MPICH talk over the interface. Ranks of one node have memory of their own to talk over."""

ENTER = """#!/bin/sh
# Called like ssh: options, a host, a command. The command runs in the namespace of the host, with a host name and
# shared memory of its own: what ranks that are ended leave there is gone with them.
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "{prefix}-$host" unshare --uts sh -c '
    echo "node-$0" > /proc/sys/kernel/hostname && mount -t tmpfs tmpfs /dev/shm && exec sh -c "$1"
' "$host" "$*"
"""

PATIENCE_SECONDS = 10.0
COMMANDS = ("ip", "unshare", "mount")


class NotAllowed(Exception):
    """This computer or user cannot make namespaces; the text says why."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Two namespaces that see each other."""

    names: tuple[str, ...]
    """Of the namespaces."""
    enter: Path
    """The script that starts something in one of them."""

    def run(self, command: Sequence[str], ranks_per_node: int, limit_seconds: float) -> int:
        """Start a command on so many ranks of each node, numbered node by node; its exit code."""
        ranks = ["-ppn", str(ranks_per_node), "-n", str(len(self.names) * ranks_per_node)]
        hosts = ["-hosts", ",".join(ADDRESSES), "-launcher", "ssh", "-launcher-exec", str(self.enter)]
        # hydra starts what is for its own host without the script, so that it has to be on the first node itself.
        launch = shlex.join([find_mpiexec(), *hosts, *ranks, *command])
        environment = {**os.environ, **ENVIRONMENT}
        process = subprocess.Popen(
            [str(self.enter), ADDRESSES[0], f"exec {launch}"], env=environment, stdin=subprocess.DEVNULL
        )
        try:
            return process.wait(timeout=limit_seconds)
        except BaseException:
            process.kill()  # its ranks end with the namespaces
            process.wait()
            raise


@contextlib.contextmanager
def two_nodes() -> Iterator[Nodes]:
    """Make the namespaces; remove them, and end what still runs in them, in any case."""
    check_commands()
    prefix = f"tilewise-{os.getpid()}"
    names = tuple(f"{prefix}-{address}" for address in ADDRESSES)
    with tempfile.TemporaryDirectory(prefix="tilewise_nodes_") as folder:
        enter = Path(folder) / "enter"
        enter.write_text(ENTER.format(prefix=prefix))
        enter.chmod(0o700)
        try:
            for name in names:
                ip("netns", "add", name)
            join(names)
            yield Nodes(names, enter)
        finally:
            with undisturbed():
                for name in names:
                    remove(name)


def check_commands() -> None:
    """Raise where it is clear from the beginning that namespaces cannot be made."""
    if sys.platform != "linux":
        raise NotAllowed(f"namespaces are a thing of Linux, and this is {sys.platform}")
    if missing := [command for command in COMMANDS if shutil.which(command) is None]:
        raise NotAllowed(f"{' and '.join(missing)} not found; Debian has them in iproute2 and util-linux")
    if os.geteuid() != 0:
        raise NotAllowed("only root makes network namespaces")
    find_mpiexec()


def find_mpiexec() -> str:
    """MPICH's mpiexec."""
    found = find_program("mpiexec.hydra")
    if found is None:
        raise NotAllowed("there is no mpiexec.hydra; pip install mpich has it")
    return found


def ip(*words: str) -> str:
    """What a call of `ip` prints."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotAllowed(f"`ip {' '.join(words)}` failed: {done.stderr.strip()}")
    return done.stdout


def join(names: Sequence[str]) -> None:
    """Connect two namespaces, and wait until packets can go."""
    first, second = names
    ip("link", "add", INTERFACE, "netns", first, "type", "veth", "peer", "name", INTERFACE, "netns", second)
    for name, address in zip(names, ADDRESSES, strict=True):
        ip("-n", name, "link", "set", INTERFACE, "addrgenmode", "none")  # nothing of its own goes over it
        ip("-n", name, "addr", "add", f"{address}/24", "dev", INTERFACE)
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", INTERFACE, "up")
    end = time.monotonic() + PATIENCE_SECONDS
    while not all(" state UP " in ip("-n", name, "link", "show", INTERFACE) for name in names):
        if time.monotonic() > end:
            raise NotAllowed(f"the interfaces are not up after {PATIENCE_SECONDS:g} s")
        time.sleep(0.05)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C comes while the first is still being seen to: it must not leave half of it undone."""
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


def remove(name: str) -> None:
    """End what runs in a namespace, and delete it and its interfaces; nothing if it was never made."""
    end = time.monotonic() + PATIENCE_SECONDS
    while (left := processes_in(name)) and time.monotonic() < end:
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def processes_in(name: str) -> list[int]:
    """What runs in a namespace."""
    done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    return [int(process) for process in done.stdout.split()]


def sent_bytes() -> int:
    """Bytes that this node has sent over the interface, with all headers; for processes that run on a node."""
    return int(Path(f"/sys/class/net/{INTERFACE}/statistics/tx_bytes").read_text())
