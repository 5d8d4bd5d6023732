"""The virtual machine: 4 NUMA nodes, each with a PCIe switch, two GPUs and a network card."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cgroup_v2.session import CACHE_BYTES
from tests.guest.initramfs import NICS, write_initramfs
from tests.guest.machine_facts import FILE, FILE_BYTES, UNREAD_FILES
from tests.guest.monitor import Monitor, answer_requests
from tests.guest.packages import QEMU, CannotRun, Parts, prepare
from tests.guest.pci_ids import H100, set_ids

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "guest"
LAST_RUN = CACHE / "last"  # remains until the next run, to look into after a failure
LIMIT = ROOT / "bench" / "usage" / "cgroup_read_limit.c"
NODES = 4
NODE_MIB = 768
DEADLINE_S = 700.0
PACE = ("-accel", "tcg,thread=multi,tb-size=256")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A machine that ran to its end: what it left in the share, and what its console said."""

    share: Path
    console: str
    wall_s: float


def boot(names: Collection[str]) -> Ended:
    """Boot, run these parts of `tests.guest.inside`, and return what the machine left.

    Raises `CannotRun` where there is no root, no emulator, or no compiler for the part "bench".
    """
    if os.geteuid() != 0:
        raise CannotRun("only root may hand out this machine's root and edit the emulator's memory")
    parts = prepare(CACHE)
    shutil.rmtree(LAST_RUN, ignore_errors=True)
    share = LAST_RUN / "share"
    share.mkdir(parents=True)
    (share / FILE).write_bytes(b"x" * FILE_BYTES)
    for name in UNREAD_FILES.values():
        (share / name).write_bytes(b"y" * CACHE_BYTES)
    if "bench" in names:
        _compile_limit(share / "limit.so")
    return run(parts, LAST_RUN, share, names)


def _compile_limit(library: Path) -> None:
    if shutil.which("cc") is None:
        raise CannotRun("no C compiler for the reader that is the bench's limit")
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(LIMIT)]
    subprocess.run(command, check=True, timeout=60)


def run(parts: Parts, folder: Path, share: Path, names: Collection[str]) -> Ended:
    """Boot, let `tests.guest.inside` run as process 1, and wait for the end of the machine.

    After the deadline the machine is ended: what it left until then counts. The process is gone in
    any case.
    """
    write_initramfs(parts, folder / "initramfs")
    command = shlex.join([sys.executable, "-m", "tests.guest.inside", str(share), *names])
    (share / "start.sh").write_text(f"cd {shlex.quote(str(ROOT))} && exec {command}\n")
    console = folder / "console"
    began_s = time.monotonic()
    ended = ""
    with (folder / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [QEMU, *arguments(parts, folder, share)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        monitor = Monitor(process)
        monitor.ask("qmp_capabilities")
        set_ids(process.pid, [H100] * (2 * NODES))
        monitor.ask("cont")
        answer_requests(monitor, share, began_s + DEADLINE_S)
    except TimeoutError:
        ended = f"\nended after {DEADLINE_S:.0f} s"
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)
    return Ended(
        share=share,
        console=console.read_text(errors="replace") + ended,
        wall_s=time.monotonic() - began_s,
    )


def arguments(parts: Parts, folder: Path, share: Path) -> Iterator[str]:
    """Yield the emulator's command line; it starts paused, and is asked over its stdio."""
    yield from (*PACE, "-cpu", "max", "-machine", "q35", "-m", str(NODES * NODE_MIB))
    yield from ("-smp", f"{NODES},sockets=2,cores=2,threads=1")
    for node in range(NODES):
        yield from ("-object", f"memory-backend-ram,id=m{node},size={NODE_MIB}M")
        yield from ("-numa", f"node,nodeid={node},cpus={node},memdev=m{node}")
    for one in range(NODES):
        for other in range(NODES):
            if one != other:
                near = one // 2 == other // 2
                yield from ("-numa", f"dist,src={one},dst={other},val={12 if near else 32}")
    yield from ("-S", "-qmp", "stdio", "-display", "none", "-no-reboot", "-nodefaults")
    yield from ("-serial", f"file:{folder / 'console'}")
    yield from ("-kernel", str(parts.kernel), "-initrd", str(folder / "initramfs"), "-append")
    yield "console=ttyS0 panic=-1 quiet cgroup_no_v1=all psi=1 net.ifnames=0"
    for tag, path, rights in (("hostroot", "/", ",readonly=on"), ("share", str(share), "")):
        yield "-virtfs"
        yield f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap{rights}"
    for node in range(NODES):
        for device in _devices(node):
            yield from ("-device", device)
    for nic in range(NICS + 1):  # the last is for the card that comes later
        yield from ("-netdev", f"user,id=net{nic},restrict=on")


def _devices(node: int) -> Iterator[str]:
    """Yield a host bridge of the node, a root port, a switch of four ports, and what is below."""
    yield f"pxb-pcie,id=pxb{node},bus_nr={32 + node * 48},numa_node={node},bus=pcie.0"
    yield f"pcie-root-port,id=rp{node},bus=pxb{node},chassis={10 + node},slot={10 + node}"
    yield f"x3130-upstream,id=up{node},bus=rp{node}"
    for port in range(4):
        number = 20 + node * 4 + port
        yield f"xio3130-downstream,id=dn{node}{port},bus=up{node},chassis={number},slot={number}"
    for port in range(2):
        yield f"pci-testdev,bus=dn{node}{port},membar=1M"
    yield f"virtio-net-pci,bus=dn{node}2,netdev=net{node}"
