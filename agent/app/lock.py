"""One agent writes for a node: whoever holds the lock file; the next one waits its turn.

The lock is the kernel's (flock): it ends with its holder, however that ends. What stands in the
file is for people and for the next holder only. A file system that is shared by several machines
is no place for it. Needs no event loop: the lock is taken before any other work is started.
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
HOLDER_BYTES = 1024  # of the file: one line, padded, so that it is written over in one piece
STANDBY_POLL_S = 0.1  # a standby agent tries that often: ten system calls a second
MAX_NODE_NAME = 253  # characters of a Node's name
MAX_LOCK_ATTEMPTS = 8  # files that were replaced while we locked them
STOP_SIGNALS = (  # signals at which the agent stops in order; the last three have no other use here
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
)
ADVICE = "set node.run_dir to a folder of this machine that the agent may write, as /run/xpu-agent"


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals of `STOP`, without SIGHUP if the caller ignores it, as nohup does."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(one for one in STOP_SIGNALS if not (ignored and one is signal.SIGHUP))


class LockHolder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds, or last held, the lock: as it says of itself."""

    pid: Annotated[int, msgspec.Meta(gt=0, lt=1 << 31)]
    version: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9.+-]{1,64}\Z")]
    since: Annotated[str, msgspec.Meta(pattern=r"^[0-9T:.Z-]{1,32}\Z")]  # RFC 3339
    node: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,253}\Z")]
    state: Literal["running", "leaving"] = "running"

    def __str__(self) -> str:
        """Name it, for people."""
        return (
            f"xpu-agent {self.version} (process {self.pid}, node {self.node}, since {self.since})"
        )


def describe_process(node: str, wall_s: float) -> LockHolder:
    """Return what this process says of itself; `wall_s` is when it got the lock."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", node)[:MAX_NODE_NAME] or "-"
    return LockHolder(pid=os.getpid(), version=VERSION, since=rfc3339(wall_s), node=name)


class NodeLock:
    """The held lock. It is given back when the process ends, or by `release`."""

    def __init__(
        self, path: str, fd: int, folder_fd: int, own: LockHolder, previous: LockHolder | None
    ) -> None:
        """`fd` is that of the locked file, or `NO_FILE`; the folder is locked as well."""
        self.path = path
        self.previous_holder = previous  # who held it before, as it left the file
        self._fd = fd
        self._folder_fd = folder_fd
        self._own = own
        self._problem = self._write_holder(own)  # why the file does not name the holder

    def mark_leaving(self) -> None:
        """Mark the stop as wanted, before anything is stopped; raise `LockError`.

        The lock stays held: there may still be writes on their way.
        """
        self._problem = self._write_holder(msgspec.structs.replace(self._own, state="leaving"))
        if self._problem:
            raise LockError(self._problem)

    def release(self) -> None:
        """Let the next one have it."""
        for fd in (self._fd, self._folder_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._folder_fd = NO_FILE

    def crash_message(self) -> str | None:
        """Say that the agent before this one ended without leaving; `None` if it did leave."""
        if self.previous_holder is None or self.previous_holder.state == "leaving":
            return None
        return (
            f"{self.previous_holder} ended without leaving: killed, out of memory or crashed; "
            "see its log and the kernel's"
        )

    def check(self) -> SelfCheck:
        """Say whether the file is still the one that is locked; removed, it keeps nobody out."""
        if self._problem:
            return SelfCheck(name="lock", ok=False, message=self._problem, gates_ready=False)
        if _is_file_at(self._fd, self.path):
            return SelfCheck(name="lock", ok=True, message=self.path)
        gone = f"{self.path} was removed or replaced: a second agent could write; restart this one"
        return SelfCheck(name="lock", ok=False, message=gone)

    def _write_holder(self, holder: LockHolder) -> str:
        """Write who holds the lock into the file; return why that is not possible."""
        try:
            if self._fd < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            _write_record(self._fd, holder)
        except OSError as error:
            return f"{self.path}: is held, but cannot name its holder: {error.strerror}"
        return ""


def try_lock(folder: str, own: LockHolder) -> NodeLock | None:
    """Return the lock, or `None` if another one holds it; never waits. Raises `LockError`.

    The folder is made if it is absent. The file is never removed: of two processes that lock a
    file by its name, one could else hold what the other one cannot see. On a full file system the
    file may be impossible to make: the folder is locked as well, and alone it is enough.
    """
    path = os.path.join(folder, LOCK_FILE)
    try:
        _make_folder(folder)
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        lock = None
        try:
            lock = _try_lock_file(folder_fd, path, own)
        finally:
            if lock is None:
                os.close(folder_fd)
    except OSError as error:
        raise _lock_error(path, error) from error
    return lock


def _try_lock_file(folder_fd: int, path: str, own: LockHolder) -> NodeLock | None:
    for _ in range(MAX_LOCK_ATTEMPTS):
        fd = open_lock_file(path, 0o644)
        lock = None
        try:
            locked = try_flock(fd)
            # checked after the lock: the file may have been replaced before
            current = fd == NO_FILE or _is_file_at(fd, path)
            if locked and current:
                lock = _lock_folder(path, fd, folder_fd, own)
        finally:
            if lock is None and fd >= 0:
                os.close(fd)
        if current:
            return lock
    raise LockError(f"{path}: is replaced again and again; {ADVICE}")


def read_holder(folder: str) -> LockHolder | None:
    """Return who holds or last held the lock; `None` if nobody says so. Anything may stand there.

    Looks only; raises nothing.
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
    """Wait; say whether a signal of `STOP` came. All must be blocked, as `stand_by` has them."""
    return signal.sigtimedwait(STOP_SIGNALS, wait_s) is not None


def wait_for_lock(
    folder: str,
    own: Callable[[], LockHolder],
    say: Callable[[str], None],
    pause: Callable[[float], bool] = wait_for_stop_signal,
    taken: Callable[[NodeLock], object] | None = None,
) -> NodeLock | None:
    """Return the lock as soon as nobody else holds it; `None` if asked to stop before.

    For the main thread, before there are others. Who is waited for is said once, and again when
    another one gets it first. `own` is asked at each try, so that the time in it is that of the
    taking. A signal cannot be missed: it waits blocked until `pause` takes it, also in process 1
    of a container, where it would else be ignored; `taken` hears of the lock before one can come
    again. Raises `LockError`.
    """
    with _block_signals():
        said = ""
        while (lock := try_lock(folder, own())) is None:
            who = str(read_holder(folder) or "another process, which left no name,")
            if who != said:
                said = who
                say(f"{who} holds {os.path.join(folder, LOCK_FILE)}; standing by until it ends")
            if pause(STANDBY_POLL_S):
                return None
        if taken is not None:
            taken(lock)
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


def _lock_folder(path: str, fd: int, folder_fd: int, own: LockHolder) -> NodeLock | None:
    """Lock the folder of a locked file as well; `None` if another process has that lock."""
    if not try_flock(folder_fd):
        return None
    previous = _read_record(fd) if fd >= 0 else None
    return NodeLock(path, fd, folder_fd, own, previous)


def _is_file_at(fd: int, path: str) -> bool:
    """Say whether the open file is the one that the path names."""
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
    """Write over the record in one call, and only then cut what was behind it."""
    record = msgspec.json.encode(holder).ljust(HOLDER_BYTES - 1) + b"\n"
    if os.pwrite(fd, record, 0) != HOLDER_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(fd, HOLDER_BYTES)


def _lock_error(path: str, error: OSError) -> LockError:
    return LockError(f"{path}: cannot be locked: {error.strerror}; {ADVICE}")
