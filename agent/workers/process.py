"""Starts a worker process: command line, environment, pipes. Needs no event loop."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from agent.snapshot.host_files import HostFiles
from agent.snapshot.vendor import DeviceVendor, SessionContext, VendorSettings
from agent.workers.call_journal import LibraryCall


class InProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is to be opened inside the agent, and with what."""

    vendor: DeviceVendor
    host: HostFiles
    settings: VendorSettings
    context: SessionContext
    events: bool = True


# The worker finds its own interpreter's packages, then ours: nothing of the caller's directory
# or environment decides what it imports. Otherwise this is `python -m agent.workers.worker`.
# msgspec takes from `typing_extensions`, if it is there, what `typing` has as well: a fifth of a
# worker's start, so it is hidden while msgspec loads. Nothing
# that a start makes is garbage: the collector begins when the vendor is open.
_BOOT_CODE = (
    "import gc, sys; gc.disable(); sys.path.append(sys.argv.pop(1)); "
    "sys.modules['typing_extensions'] = None; import msgspec; "
    "del sys.modules['typing_extensions']; "
    "from agent.workers.worker import main; main(sys.argv[1:])"
)

_ROOT = Path(__file__).parents[2]  # where `agent` and `plugins` are

_INHERITED_VARIABLES = (
    *("PATH", "LD_LIBRARY_PATH", "LANG", "TZ", "MALLOC_ARENA_MAX"),
    *("DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"),  # as NVIDIA's device plug-in
)


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to start."""

    vendor: str
    host_spec: str | None = None  # a recorded host; None: this machine
    tape: str | None = None  # a file to play instead of the vendor's answers
    settings: VendorSettings = VendorSettings()
    context: SessionContext = SessionContext()
    events: bool = True
    journal: str = ""  # path of the file for the call in progress; empty: none
    record: bool = True  # False: another process keeps that file
    hung: LibraryCall | None = None  # the call that ended the process before this one

    def arguments(self) -> tuple[str, ...]:
        """Return the command line."""
        given = (("--host", self.host_spec), ("--tape", self.tape))
        options = (part for name, value in given if value is not None for part in (name, value))
        return (
            *(sys.executable, "-I", "-c", _BOOT_CODE, str(_ROOT)),
            *("--vendor", self.vendor, "--parent", str(os.getpid()), *options),
        )

    def environment(self) -> dict[str, str]:
        """Return the whole environment. `library_folders` go first on the dynamic linker's path.

        The linker reads it once, at the start of the process.
        """
        kept = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
        dirs = self.settings.library_folders
        inherited = kept.get("LD_LIBRARY_PATH")
        if dirs:
            kept["LD_LIBRARY_PATH"] = ":".join([*dirs, inherited] if inherited else dirs)
        return kept


class LaunchedProcess(msgspec.Struct, frozen=True):
    """A started process and our ends of its pipes; whoever holds it must adopt or end it."""

    pid: int
    stdin: int  # we write
    stdout: int  # we read
    stderr: int  # we read


def launch(spec: WorkerSpec) -> LaunchedProcess:
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
    return LaunchedProcess(pid, stdin, stdout, stderr)


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


_STATM_BYTES = 128  # of seven numbers


def resident_bytes(pid: int) -> int | None:
    """Return the resident size of a process; `None` if it is gone or may not be looked at."""
    try:
        fd = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        pages = os.read(fd, _STATM_BYTES).split()[1:2]
    except OSError:
        return None
    finally:
        os.close(fd)
    return int(pages[0]) * os.sysconf("SC_PAGE_SIZE") if pages else None
