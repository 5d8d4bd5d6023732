"""Starts a worker process: command line, environment, pipes. Needs no event loop."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from agent.snapshot.host_files import HostFiles
from agent.snapshot.settings import VendorSettings
from agent.snapshot.vendor import DeviceVendor, SessionContext
from agent.workers.call_journal import LibraryCall


class InProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A session to open inside the agent, with its arguments."""

    vendor: DeviceVendor
    host: HostFiles
    settings: VendorSettings
    context: SessionContext
    events: bool = True


# The worker imports from its interpreter's packages, then from the agent's: the caller's directory
# and environment do not matter. Otherwise this equals `python -m agent.workers.worker`.
# If `typing_extensions` is installed, msgspec imports from it what `typing` has as well. That takes
# a fifth of a worker's start, so the module is hidden while msgspec loads. The start creates no
# garbage: garbage collection begins when the vendor is open.
_BOOT_CODE = (
    "import gc, sys; gc.disable(); sys.path.append(sys.argv.pop(1)); "
    "sys.modules['typing_extensions'] = None; import msgspec; "
    "del sys.modules['typing_extensions']; "
    "from agent.workers.worker import main; main(sys.argv[1:])"
)

_ROOT = Path(__file__).parents[2]  # the folder of `agent` and `plugins`

_INHERITED_VARIABLES = (
    *("PATH", "LD_LIBRARY_PATH", "LANG", "TZ", "MALLOC_ARENA_MAX"),
    # read by NVIDIA's device plug-in as well
    *("DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"),
)


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a worker process."""

    vendor: str
    host_spec: str | None = None  # a recorded host; None: this machine
    tape: str | None = None  # a file to play instead of the vendor's answers
    settings: VendorSettings = VendorSettings()
    context: SessionContext = SessionContext()
    events: bool = True
    journal: str = ""  # path of the file for the call in progress; empty: none
    record: bool = True  # False: another process writes that file
    hung_call: LibraryCall | None = None  # the call that ended the previous process

    def arguments(self) -> tuple[str, ...]:
        """Return the command line."""
        pairs = (("--host", self.host_spec), ("--tape", self.tape))
        options = (part for name, value in pairs if value is not None for part in (name, value))
        return (
            *(sys.executable, "-I", "-c", _BOOT_CODE, str(_ROOT)),
            *("--vendor", self.vendor, "--parent", str(os.getpid()), *options),
        )

    def environment(self) -> dict[str, str]:
        """Return the whole environment; `library_folders` come first on the dynamic linker's path.

        The linker reads it once, at the start of the process.
        """
        environment = {
            name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ
        }
        dirs = self.settings.library_folders
        inherited = environment.get("LD_LIBRARY_PATH")
        if dirs:
            environment["LD_LIBRARY_PATH"] = ":".join([*dirs, inherited] if inherited else dirs)
        return environment


class LaunchedProcess(msgspec.Struct, frozen=True):
    """A started process and the agent's ends of its pipes; the owner must adopt or end it."""

    pid: int
    stdin: int  # the agent writes
    stdout: int  # the agent reads
    stderr: int  # the agent reads


def launch(spec: WorkerSpec) -> LaunchedProcess:
    """Start the process; raises `OSError` or `ValueError` if the system refuses.

    It is a fresh process, not a fork of this one, and inherits only its three pipes. The kernel
    ends it when the thread that called this function ends.
    """
    arguments, environment = spec.arguments(), spec.environment()
    (child_stdin, stdin), (stdout, child_stdout), (stderr, child_stderr) = _pipes()
    child_ends = (child_stdin, child_stdout, child_stderr)
    try:
        pid = os.posix_spawn(
            arguments[0],
            arguments,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(child_ends)
            ],
            setsid=True,  # a terminal's interrupt is for the agent only
        )
    except BaseException:
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        raise
    finally:
        for fd in child_ends:
            os.close(fd)
    for fd in (stdin, stdout, stderr):
        os.set_blocking(fd, False)
    return LaunchedProcess(pid, stdin, stdout, stderr)


def _pipes() -> list[tuple[int, int]]:
    """Return three pipes, each as its reading and its writing end; all of them or none."""
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(3):
            pipes.append(os.pipe())
    except OSError:  # no descriptors are left: close those that were opened
        for fd in (fd for pipe in pipes for fd in pipe):
            os.close(fd)
        raise
    return pipes


_STATM_BYTES = 128  # of seven numbers


def resident_bytes(pid: int) -> int | None:
    """Return the resident size of a process; `None` if it has ended or cannot be read."""
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
