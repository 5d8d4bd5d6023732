"""Starts a worker's process. Needs no event loop, so that it can come before one is loaded."""

from __future__ import annotations

import os

import msgspec

from agent.probe.process.spec import WorkerSpec


class Launched(msgspec.Struct, frozen=True):
    """A started process and our ends of its pipes; whoever holds it must adopt or end it."""

    pid: int
    stdin: int  # we write
    stdout: int  # we read
    stderr: int  # we read


def launch(spec: WorkerSpec) -> Launched:
    """Start the process; raise `OSError` or `ValueError` if the system refuses.

    It is a fresh process, not a copy of this one, and inherits nothing but its three pipes. The
    kernel ends it when the thread that called this ends.
    """
    arguments, environment = spec.arguments(), spec.environment()
    (theirs_in, stdin), (stdout, theirs_out), (stderr, theirs_err) = _pipes()
    theirs = (theirs_in, theirs_out, theirs_err)
    try:
        pid = os.posix_spawn(
            arguments[0],
            arguments,
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(theirs)],
            setsid=True,  # a terminal's interrupt is for the agent alone
        )
    except BaseException:
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        raise
    finally:
        for fd in theirs:
            os.close(fd)
    for fd in (stdin, stdout, stderr):
        os.set_blocking(fd, False)
    return Launched(pid, stdin, stdout, stderr)


def _pipes() -> list[tuple[int, int]]:
    """Return three pipes, each as its reading and its writing end; all of them or none."""
    made: list[tuple[int, int]] = []
    try:
        for _ in range(3):
            made.append(os.pipe())
    except OSError:  # no descriptors are left: keep none of the last ones
        for fd in (fd for pipe in made for fd in pipe):
            os.close(fd)
        raise
    return made
