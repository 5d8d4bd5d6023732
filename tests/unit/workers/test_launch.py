from __future__ import annotations

import os
import resource

import pytest

from agent.workers.process import WorkerSpec, launch


def descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")


@pytest.mark.parametrize("left", range(6))
def test_a_start_for_which_descriptors_are_short_keeps_none(left: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    entries = [os.dup(0) for _ in range(left)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (entries[-1] + 1 if entries else 0, hard))
        for fd in entries:
            os.close(fd)
        with pytest.raises(OSError, match="Too many open files"):
            launch(WorkerSpec(vendor="fake"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        before = len(descriptors())
        spares = [os.dup(0) for _ in range(left)]
        assert sorted(spares) == sorted(entries)
        assert len(descriptors()) == before + left
        for fd in spares:
            os.close(fd)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
