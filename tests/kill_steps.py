"""Ending a process before its n-th change of anything, as a kill at any moment would."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

CALLS = (
    "write",
    "pwrite",
    "fsync",
    "replace",
    "ftruncate",
    "unlink",
    "mkdir",
    "rmdir",
)  # all that change anything


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Do the work in a child that is killed before its n-th change; return whether it was."""
    pid = os.fork()
    if pid == 0:
        remaining = [step]

        def counted(real: Callable[..., object]) -> Callable[..., object]:
            def call(*args: object, **named: object) -> object:
                remaining[0] -= 1
                if remaining[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **named)

            return call

        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])
