"""The lock of a node: only its holder writes for the node, and another agent waits for it.

The lock is the kernel's (flock): it ends with the process of its holder. The content of the file is
only for people and for the next holder. The file must not be on a file system that several machines
share. This module needs no event loop: the agent takes the lock before it starts anything.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

import msgspec

from agent.clock import rfc3339
from agent.file_lock import NO_FILE, LockError, open_lock_file, try_flock
from agent.snapshot.self_check import SelfCheck
from agent.version import VERSION
from agent.wire_formats.json_values import JSON_ERRORS

LOCK_FILE = "lock"
NRI_LOCK_FILE = "nri.lock"  # in the same folder, of the connection to the container runtime
HOLDER_BYTES = 1024  # of the file: one padded line, so that one write replaces it
STANDBY_POLL_S = 0.1  # interval of the attempts of a standby agent: ten system calls a second
MAX_NODE_NAME = 253  # characters of a Node's name
MAX_LOCK_ATTEMPTS = 8  # for files that are replaced while the agent locks them
STOP_SIGNALS = (  # signals at which the agent stops in order; the last three have no other use here
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
)
ADVICE = "set node.run_dir to a folder of this machine that the agent may write, as /run/xpu-agent"


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the stop signals, without SIGHUP if the caller ignores it, as nohup does."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(one for one in STOP_SIGNALS if not (ignored and one is signal.SIGHUP))


class LockHolder(msgspec.Struct, frozen=True, kw_only=True):
    """The present or last holder of the lock, as it describes itself."""

    pid: Annotated[int, msgspec.Meta(gt=0, lt=1 << 31)]
    version: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9.+-]{1,64}\Z")]
    since: Annotated[str, msgspec.Meta(pattern=r"^[0-9T:.Z-]{1,32}\Z")]  # RFC 3339
    node: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,253}\Z")]
    state: Literal["running", "leaving"] = "running"

    def __str__(self) -> str:
        """Return a description for people."""
        return (
            f"xpu-agent {self.version} (process {self.pid}, node {self.node}, since {self.since})"
        )


def describe_process(node: str, wall_s: float) -> LockHolder:
    """Return the description of this process; `wall_s` is the time of the lock."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", node)[:MAX_NODE_NAME] or "-"
    return LockHolder(pid=os.getpid(), version=VERSION, since=rfc3339(wall_s), node=name)


class NodeLock:
    """A lock that this process holds until it ends or calls `release`."""

    def __init__(
        self, path: str, fd: int, folder_fd: int, holder: LockHolder, previous: LockHolder | None
    ) -> None:
        """`fd` is that of the locked file, or `NO_FILE`; the folder is locked as well."""
        self.path = path
        self.previous_holder = previous  # as the file described it
        self._fd = fd
        self._folder_fd = folder_fd
        self._own = holder
        self._problem = self._write_holder(holder)  # why the file does not name the holder

    def mark_leaving(self) -> None:
        """Record in the file that the agent stops on request; raise `LockError`.

        The agent keeps the lock: it may still write.
        """
        self._problem = self._write_holder(msgspec.structs.replace(self._own, state="leaving"))
        if self._problem:
            raise LockError(self._problem)

    def release(self) -> None:
        """Release the lock."""
        for fd in (self._fd, self._folder_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._folder_fd = NO_FILE

    def crash_message(self) -> str | None:
        """Return a message if the previous agent crashed; `None` if it stopped on request."""
        if self.previous_holder is None or self.previous_holder.state == "leaving":
            return None
        return (
            f"{self.previous_holder} ended without leaving: killed, out of memory or crashed; "
            "see its log and the kernel's"
        )

    def check(self) -> SelfCheck:
        """Return whether the path still names the locked file; else a second agent could start."""
        if self._problem:
            return SelfCheck(
                name="lock",
                ok=False,
                message=self._problem,
                gates_ready=False,
                reason="LockLost",
            )
        if _is_file_at(self._fd, self.path):
            return SelfCheck(name="lock", ok=True, message=self.path)
        message = (
            f"{self.path} was removed or replaced: a second agent could write; restart this one"
        )
        return SelfCheck(name="lock", ok=False, message=message, reason="LockLost")

    def _write_holder(self, holder: LockHolder) -> str:
        """Write the holder into the file; return the error, or an empty text."""
        try:
            if self._fd < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            _write_record(self._fd, holder)
        except OSError as error:
            return f"{self.path}: is held, but cannot name its holder: {error.strerror}"
        return ""


def try_lock(folder: str, holder: LockHolder) -> NodeLock | None:
    """Return the lock, or `None` if another process holds it; never waits. Raises `LockError`.

    It creates a missing folder. It never removes the file: else two processes could each lock
    another file of that name. On a full file system the file may be impossible to create:
    therefore the folder is locked as well, and that alone is enough.
    """
    path = os.path.join(folder, LOCK_FILE)
    try:
        _make_folder(folder)
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        lock = None
        try:
            lock = _try_lock_file(folder_fd, path, holder)
        finally:
            if lock is None:
                os.close(folder_fd)
    except OSError as error:
        raise _lock_error(path, error) from error
    return lock


def _try_lock_file(folder_fd: int, path: str, holder: LockHolder) -> NodeLock | None:
    for _ in range(MAX_LOCK_ATTEMPTS):
        fd = open_lock_file(path, 0o644)
        lock = None
        try:
            locked = try_flock(fd)
            # checked after the lock: the file may have been replaced before
            current = fd == NO_FILE or _is_file_at(fd, path)
            if locked and current:
                lock = _lock_folder(path, fd, folder_fd, holder)
        finally:
            if lock is None and fd >= 0:
                os.close(fd)
        if current:
            return lock
    raise LockError(f"{path}: is replaced again and again; {ADVICE}")


def read_holder(folder: str) -> LockHolder | None:
    """Return the present or last holder of the lock; `None` if the file is absent or invalid.

    It only reads, and raises nothing.
    """
    try:
        fd = os.open(os.path.join(folder, LOCK_FILE), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return _read_record(fd)
    except OSError:
        return None
    finally:
        os.close(fd)


def wait_for_stop_signal(wait_s: float) -> bool:
    """Wait for a stop signal; return whether one came. `wait_for_lock` blocks all of them."""
    return signal.sigtimedwait(STOP_SIGNALS, wait_s) is not None


def wait_for_lock(
    folder: str,
    describe: Callable[[], LockHolder],
    report: Callable[[str], None],
    pause: Callable[[float], bool] = wait_for_stop_signal,
    on_lock: Callable[[NodeLock], object] | None = None,
) -> NodeLock | None:
    """Return the lock as soon as no other process holds it; `None` after a stop signal.

    Call it on the main thread before there are others. It reports each holder once. It calls
    `describe` at each attempt, for the time of the lock. Stop signals stay blocked until `pause`
    takes them, so that none is lost, also in process 1 of a container, which ignores unhandled
    signals; `on_lock` is called before they are unblocked. Raises `LockError`.
    """
    with _block_signals():
        reported = ""
        while (lock := try_lock(folder, describe())) is None:
            description = str(read_holder(folder) or "another process, which left no name,")
            if description != reported:
                reported = description
                report(
                    f"{description} holds {os.path.join(folder, LOCK_FILE)}; "
                    "standing by until it ends"
                )
            if pause(STANDBY_POLL_S):
                return None
        if on_lock is not None:
            on_lock(lock)
        return lock


@contextmanager
def _block_signals() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _make_folder(folder: str) -> None:
    if os.path.isdir(folder):
        return
    os.makedirs(os.path.dirname(folder) or ".", exist_ok=True)
    try:
        os.mkdir(folder, 0o755)
    except FileExistsError:  # another agent that starts at the same moment, or not a folder
        return
    os.chmod(folder, 0o755)  # noqa: S103 - whatever the umask: a standby of another user looks in


def _lock_folder(path: str, fd: int, folder_fd: int, holder: LockHolder) -> NodeLock | None:
    """Lock the folder of a locked file as well; return `None` if another process locked it."""
    if not try_flock(folder_fd):
        return None
    previous = _read_record(fd) if fd >= 0 else None
    return NodeLock(path, fd, folder_fd, holder, previous)


def _is_file_at(fd: int, path: str) -> bool:
    """Return whether the path names the open file."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except OSError:
        return False


def _read_record(fd: int) -> LockHolder | None:
    line = os.pread(fd, HOLDER_BYTES, 0).split(b"\n", 1)[0]
    try:
        return msgspec.json.decode(line, type=LockHolder)
    except JSON_ERRORS:
        return None


def _write_record(fd: int, holder: LockHolder) -> None:
    """Replace the record in one write, then truncate the file behind it."""
    record = msgspec.json.encode(holder).ljust(HOLDER_BYTES - 1) + b"\n"
    if os.pwrite(fd, record, 0) != HOLDER_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(fd, HOLDER_BYTES)


def _lock_error(path: str, error: OSError) -> LockError:
    return LockError(f"{path}: cannot be locked: {error.strerror}; {ADVICE}")
