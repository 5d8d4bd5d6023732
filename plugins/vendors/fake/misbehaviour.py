"""What a vendor's library may do to its process, on purpose.

hang      never returns
slow      returns late, after `seconds`
exit      ends the process
crash     ends it with a memory fault
raise     raises an unexpected error
print     writes to standard output, as libraries do; the agent must not mind
garbage   writes a line into a descriptor that is not its own: the pipe to the agent
endless   the same, without ever ending the line
half      the same, ending the process within the line
deaf      ignores SIGTERM, then hangs
leak      keeps `leak_bytes` more in each call
upgrade   says that another library stands in its place
forbid    is refused by the kernel, as after a change of the device cgroup
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import threading
from collections import Counter

from agent.errors import HostFileError, LibraryReplaced
from plugins.vendors.fake.scene import FakeFault, SessionMethod

FIRST_FOREIGN_FD = 3


class Misbehaviour:
    """Counts calls and does what the scene specifies."""

    def __init__(self, faults: tuple[FakeFault, ...]) -> None:
        self.faults = faults
        self._calls: Counter[SessionMethod] = Counter()
        self._leaked: list[bytes] = []

    def enter(self, method: SessionMethod) -> None:
        """Do what the scene specifies for this call of the method."""
        for fault in self.faults:
            if fault.where == method and self._calls[method] >= fault.after:
                if fault.do == "leak":
                    self._leaked.append(os.urandom(1) * fault.leak_bytes)
                else:
                    _ACTS[fault.do](fault)
        self._calls[method] += 1


def _hang(fault: FakeFault) -> None:  # noqa: ARG001 - one signature for all
    threading.Event().wait()


def _slow(fault: FakeFault) -> None:
    threading.Event().wait(fault.seconds)


def _exit(fault: FakeFault) -> None:  # noqa: ARG001 - as above
    os._exit(3)


def _crash(fault: FakeFault) -> None:  # noqa: ARG001 - as above
    os.kill(os.getpid(), signal.SIGSEGV)


def _raise(fault: FakeFault) -> None:
    raise RuntimeError(f"a fault in {fault.where}")


def _print(fault: FakeFault) -> None:
    os.write(1, f"a library prints in {fault.where}\n".encode())


def _garbage(fault: FakeFault) -> None:
    _write_to_pipes(f"a library corrupts the pipe in {fault.where}\n".encode())


def _endless(fault: FakeFault) -> None:  # noqa: ARG001 - as above
    while True:
        _write_to_pipes(b"x" * 65536)


def _half(fault: FakeFault) -> None:
    _write_to_pipes(b'{"type":"sampl')
    _exit(fault)


def _deaf(fault: FakeFault) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _hang(fault)


def _upgrade(fault: FakeFault) -> None:
    raise LibraryReplaced(f"another library stands there in {fault.where}")


def _forbid(fault: FakeFault) -> None:
    raise HostFileError(f"/dev/fake of {fault.where}", errno.EPERM)


def _write_to_pipes(data: bytes) -> None:
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd < FIRST_FOREIGN_FD:
            continue
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.write(fd, data)
        except OSError:
            continue  # closed meanwhile, or the reading end


_ACTS = {
    "hang": _hang,
    "slow": _slow,
    "exit": _exit,
    "crash": _crash,
    "raise": _raise,
    "print": _print,
    "garbage": _garbage,
    "endless": _endless,
    "half": _half,
    "deaf": _deaf,
    "upgrade": _upgrade,
    "forbid": _forbid,
}
