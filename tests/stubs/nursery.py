"""Processes that need not start Python anew: each is forked from one that imported what they need.

A fresh interpreter costs more than most sessions do. The nursery itself opens no library and
starts no thread, so that what it forks is as good as new.

    python -m tests.stubs.nursery SOCKET-FD
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
PRELOADED = (
    "tests.stubs.worker",
    "tests.fault.nvml_worker",
    "plugins.vendors.ascend.session",
    "plugins.vendors.cambricon.session",
    "plugins.vendors.nvidia.session",
)
MAX_MESSAGE = 1 << 16


def is_readable(fd: int, timeout_s: float) -> bool:
    """Wait until a descriptor can be read; unlike `select`, also for numbers above 1,023."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000 * timeout_s))


class Forked:
    """A process of the nursery's, with pipes to its standard input and output."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        self.stdin: IO[bytes] = os.fdopen(ours_in, "wb")
        self.stdout: IO[bytes] = os.fdopen(ours_out, "rb", buffering=0)
        try:
            self.pid = _send_request(
                {"arguments": arguments, "env": environment}, theirs_in, theirs_out
            )
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self._pidfd = os.pidfd_open(self.pid)
        self._status: int | None = None

    def kill(self) -> None:
        """Kill the process; one that has ended is left alone."""
        if self._status is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; `None` while it runs."""
        return self._ended(0.0)

    def wait(self, timeout: float) -> int:
        """Return the exit status; raises `subprocess.TimeoutExpired`."""
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("a forked worker", timeout)
        return status

    def _ended(self, timeout_s: float) -> int | None:
        if self._status is None and is_readable(self._pidfd, timeout_s):
            self._status = _send_request({"reap": self.pid})
            os.close(self._pidfd)
        return self._status


@functools.cache
def _nursery() -> socket.socket:
    """Start the nursery, once a run; it ends with the run."""
    own_values, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.stubs.nursery", str(theirs.fileno())],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
    atexit.register(process.wait, 10)
    atexit.register(own_values.close)
    return own_values


def _send_request(question: Mapping[str, object], *fds: int) -> int:
    nursery = _nursery()
    socket.send_fds(nursery, [json.dumps(question).encode()], fds)
    return int(nursery.recv(MAX_MESSAGE))


def main() -> None:
    """Fork what is asked for, until the asker has gone."""
    asker = socket.socket(fileno=int(sys.argv[1]))
    for name in PRELOADED:
        import_module(name)
    gc.collect()
    gc.freeze()
    while True:
        data, fds, _, _ = socket.recv_fds(asker, MAX_MESSAGE, 2)
        if not data:
            return
        question = json.loads(data)
        if "reap" in question:
            _, status = os.waitpid(question["reap"], 0)
            asker.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            asker.close()
            _become(question["arguments"], question["env"], *fds)
        for fd in fds:
            os.close(fd)
        asker.send(str(pid).encode())


def _become(
    arguments: Sequence[str], environment: Mapping[str, str], stdin: int, stdout: int
) -> None:
    """Run the module that `-m MODULE ARGUMENT...` names as this process, and end with it."""
    code = 1
    try:
        for fd, place in ((stdin, 0), (stdout, 1)):
            os.dup2(fd, place)
            os.close(fd)
        os.environ.clear()
        os.environ.update(environment)
        _, module, *rest = arguments
        sys.argv = [module, *rest]
        import_module(module).main()
        code = 0
    except BaseException:  # noqa: BLE001 - the end of a process, not of an error
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
