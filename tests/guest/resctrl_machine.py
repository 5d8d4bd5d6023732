"""A second, small virtual machine, whose kernel offers resctrl; see `helped_cpuid`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from tests.guest.helped_cpuid import Debugger, help_kernel, parse_symbols
from tests.guest.initramfs import write_initramfs
from tests.guest.machine import CACHE, ROOT, Ended
from tests.guest.packages import QEMU, CannotRun, Parts, prepare

LAST_RUN = CACHE / "last-resctrl"  # remains until the next run, to look into after a failure
CPUS = 4
DEADLINE_S = 300.0
SOCKET_S = 30.0  # until the emulator listens


def boot(names: Collection[str]) -> Ended:
    """Boot, run these parts of `tests.guest.inside`, and return what the machine left.

    Raises `CannotRun` where there is no root or no emulator.
    """
    if os.geteuid() != 0:
        raise CannotRun("only root may hand out this machine's root")
    parts = prepare(CACHE)
    shutil.rmtree(LAST_RUN, ignore_errors=True)
    symbols = parse_symbols(_kernel_symbols(parts))
    share = LAST_RUN / "share"
    command = shlex.join([sys.executable, "-m", "tests.guest.inside", str(share), *names])
    return _run(
        parts,
        LAST_RUN,
        f"cd {shlex.quote(str(ROOT))} && exec {command}\n",
        lambda debugger: help_kernel(debugger, symbols),
    )


def _kernel_symbols(parts: Parts) -> str:
    """Return the kernel's table of symbols, which is that of each boot: addresses are fixed."""
    cached = CACHE / f"kallsyms-{parts.modules.name}"
    if not cached.exists():
        script = (
            "cat /proc/kallsyms > /share/kallsyms; sync; echo o > /proc/sysrq-trigger; read x\n"
        )
        ended = _run(parts, CACHE / "last-symbols", script, Debugger.detach)
        table = ended.share / "kallsyms"
        if not table.exists():
            raise RuntimeError(f"no table of symbols: {ended.console[-2000:]}")
        table.rename(cached)
    return cached.read_text()


def _run(
    parts: Parts, folder: Path, script: str, prepare_boot: Callable[[Debugger], None]
) -> Ended:
    """Boot with a script as process 1; `prepare_boot` lets the paused machine run."""
    share = folder / "share"
    shutil.rmtree(folder, ignore_errors=True)
    share.mkdir(parents=True)
    write_initramfs(parts, folder / "initramfs")
    (share / "start.sh").write_text(script)
    console = folder / "console"
    began_s = time.monotonic()
    with (folder / "stderr").open("w") as errors:
        process = subprocess.Popen([QEMU, *_arguments(parts, folder, share)], stderr=errors)
    ended = ""
    try:
        socket_path = folder / "debugger.sock"
        while not socket_path.exists() and time.monotonic() < began_s + SOCKET_S:
            time.sleep(0.05)
        prepare_boot(Debugger(socket_path))
        process.wait(max(1.0, began_s + DEADLINE_S - time.monotonic()))
    except subprocess.TimeoutExpired:
        ended = f"\nended after {DEADLINE_S:.0f} s"
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
    return Ended(
        share=share,
        console=console.read_text(errors="replace") + ended,
        wall_s=time.monotonic() - began_s,
    )


def _arguments(parts: Parts, folder: Path, share: Path) -> Iterator[str]:
    yield from ("-accel", "tcg,thread=single,tb-size=256", "-machine", "q35", "-m", "1024")
    yield from ("-cpu", "Haswell-noTSX,model=63,stepping=2")
    yield from ("-smp", f"{CPUS},sockets=2,cores=2,threads=1")
    yield from ("-S", "-display", "none", "-no-reboot", "-nodefaults")
    yield "-chardev"
    yield f"socket,path={folder / 'debugger.sock'},server=on,wait=off,id=debugger"
    yield from ("-gdb", "chardev:debugger", "-serial", f"file:{folder / 'console'}")
    yield from ("-kernel", str(parts.kernel), "-initrd", str(folder / "initramfs"), "-append")
    yield "console=ttyS0 panic=-1 quiet nokaslr cgroup_no_v1=all net.ifnames=0"
    for tag, path, rights in (("hostroot", "/", ",readonly=on"), ("share", str(share), "")):
        yield "-virtfs"
        yield f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap{rights}"
