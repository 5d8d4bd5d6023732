"""The NRI plug-in: connects to the container runtime, registers, and connects again.

One process of the node at a time.

One process has the one connection: two that change one field would keep pods from starting.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import random
from collections.abc import Awaitable, Callable

from google.protobuf.internal import api_implementation
from msgspec.structs import replace

from agent.clock import Clock
from agent.config.containers import NriSettings
from agent.errors import AgentError
from agent.nri.messages import RuntimeEvents
from agent.nri.runtime_view import RuntimeHandler, RuntimeViewStore
from agent.nri.session import OpenRuntimeRequests, RuntimeSession
from agent.nri.statistics import NriCounters
from agent.nri.versions import PLUGIN_VERSION
from agent.nri.wire.connection import RuntimeConnection
from agent.nri.wire.errors import CallError, ConnectionClosed
from agent.snapshot.container import NriStatistics, RuntimeView
from proto.gen import nri_plugin_pb2 as calls

log = logging.getLogger(__name__)

RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"

CONNECT_S = 5.0

REGISTER_S = 12.0  # a plug-in before us in the runtime's line may hang for 5 s, and take 2 s twice

READY_S = 12.0  # for Configure and Synchronize

POLL_S = 1.0  # for a socket, the lock, or another socket in the place of ours

FIRST_RETRY_S, MAX_RETRY_S = 1.0, 30.0  # between two tries

JITTER = 0.1

REGISTRATION_REFUSED = "RegistrationRefused"


class NriPlugin:
    """Registers with the runtime, again whenever it must, and answers it. Of the loop thread.

    Nothing that the runtime or a hook does ends it; every request is answered within the budget,
    late ones with no change, and these containers are in the view's `missed`.
    """

    def __init__(
        self,
        settings: NriSettings,
        *,
        handler: RuntimeHandler,
        clock: Clock,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
        lock_path: str = "",
    ) -> None:
        """Create the plug-in; `handler` decides the answers and gets each new view.

        `lock_path` is a file in an existing folder of this machine: the process that holds its
        lock has the one connection; empty: no lock.
        """
        self._nri = settings
        self._handler = handler
        self._clock = clock
        self._sleep = sleep
        self._uniform = uniform
        self._lock = ConnectionLock(lock_path)
        self._counters = NriCounters()
        self._view_store = RuntimeViewStore(handler)
        self._failures = 0  # tries in a row that did not come as far as the first list
        self._running: asyncio.Task[None] | None = None
        self._stopped = False
        self._logged_reason = ""  # the reason that was logged last, since the last list

    @property
    def statistics(self) -> NriStatistics:
        """Return the figures as they are now."""
        state = self._counters.statistics
        return replace(state, dropped=state.dropped + self._view_store.dropped)

    @property
    def view(self) -> RuntimeView:
        """Return the picture as it was last given to the handler."""
        return self._view_store.view

    async def run(self) -> None:
        """Be the plug-in until cancelled or stopped; the connection is closed before it returns."""
        if self._stopped:
            return
        if api_implementation.Type() == "python":
            log.warning("nri_slow", extra={"reason": "protobuf runs without its C library"})
        running = asyncio.create_task(self._reconnect_forever(), name="nri")
        self._running = running
        try:
            await asyncio.wait((running,))
        finally:
            running.cancel()
            await asyncio.wait((running,))
            self._lock.release()
            self._view_store.set_state("waiting", "Stopped", "the agent ends")
        if not running.cancelled() and (error := running.exception()) is not None:
            raise error

    async def stop(self) -> None:
        """Have `run` return, for good; what the runtime asked until now is answered before."""
        self._stopped = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))

    async def _reconnect_forever(self) -> None:
        while True:
            await self._wait_until_startable()
            why = await self._run_connection()
            self._counters.ends[why.reason] += 1
            if why.reason != self._logged_reason:
                self._logged_reason = why.reason
                log.info("nri_ended", extra={"reason": why.reason, "detail": str(why)})
            self._failures += 1
            wait_s = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(self._failures - 1, 16))
            await self._sleep(wait_s * self._uniform(1 - JITTER, 1 + JITTER))

    async def _wait_until_startable(self) -> None:
        """Wait until the lock is ours and there is a socket."""
        while (lacking := self._obstacle()) is not None:
            self._view_store.set_state("waiting", *lacking)
            await self._sleep(POLL_S)

    def _obstacle(self) -> tuple[str, str] | None:
        try:
            if not self._lock.acquire():
                return "AnotherAgent", "another agent of this node has the connection"
        except ConnectionLockError as error:
            return "NoLock", str(error)
        socket = self._nri.socket
        try:
            os.stat(socket)
        except (FileNotFoundError, NotADirectoryError):
            return "NoSocket", f"{socket} is not there: is NRI enabled in the runtime?"
        except OSError as error:
            return "NoAccess", f"{socket}: {error.strerror}; the agent's user must reach it"
        return None

    async def _run_connection(self) -> ConnectionClosed:
        """Be connected once, until the socket is closed; return why it ended."""
        asking = OpenRuntimeRequests(self._handler, self._view_store, self._counters)
        told = RuntimeEvents(self._view_store)
        budget_s = self._nri.budget_ms / 1e3
        session = RuntimeSession(asking, told, self._view_store, self._counters, budget_s)
        trunk = RuntimeConnection(session.handle_frame, session.handle_close, RUNTIME_SERVICE)
        session.attach(trunk)
        try:
            why = await self._conversation(session, trunk)
        except ConnectionClosed as error:
            why = error
        except (CallError, OSError) as error:
            why = self._close_reason(error)
        except asyncio.CancelledError:
            await asking.drain()
            raise
        finally:
            self._counters.since_s = None
            await trunk.wait_closed("ClosedByAgent")
        state = "refused" if why.reason == REGISTRATION_REFUSED else "waiting"
        self._view_store.set_state(state, why.reason, str(why))
        return why

    async def _conversation(
        self, session: RuntimeSession, trunk: RuntimeConnection
    ) -> ConnectionClosed:
        nri, loop = self._nri, asyncio.get_running_loop()
        identity = _file_identity(nri.socket)
        async with asyncio.timeout(CONNECT_S):
            await loop.create_unix_connection(lambda: trunk, nri.socket)
        self._counters.connections += 1
        self._counters.since_s = self._clock.monotonic()
        asked = calls.RegisterPluginRequest(
            plugin_name=nri.name, plugin_idx=f"{nri.index:02d}", NRI_version=PLUGIN_VERSION
        )
        await trunk.calls.call("RegisterPlugin", asked.SerializeToString(), REGISTER_S)
        async with asyncio.timeout(READY_S):
            await asyncio.shield(session.ready)
        self._counters.registrations += 1
        self._failures, self._logged_reason = 0, ""
        runtime = f"{session.peer.name} {session.peer.version}"
        log.info("nri_synchronized", extra={"runtime": runtime})
        await self._until_closed(trunk, identity)
        return trunk.close_reason or ConnectionClosed("SocketReplaced")

    async def _until_closed(
        self, trunk: RuntimeConnection, identity: tuple[int, int] | None
    ) -> None:
        """Return when the connection is closed, or leads to a socket that is no longer there."""
        while not trunk.closed.is_set():
            try:
                async with asyncio.timeout(POLL_S):
                    await trunk.closed.wait()
            except TimeoutError:
                if _file_identity(self._nri.socket) not in (None, identity):
                    return

    def _close_reason(self, error: CallError | OSError) -> ConnectionClosed:
        """Return why there is no registration, in the same words as an end."""
        socket = self._nri.socket
        if isinstance(error, CallError):
            return ConnectionClosed(REGISTRATION_REFUSED, error.message)
        if isinstance(error, TimeoutError):
            return ConnectionClosed("RuntimeSilent", f"{socket}: no registration in time")
        return ConnectionClosed("NoConnection", f"{socket}: {error.strerror or error}")


def _file_identity(path: str) -> tuple[int, int] | None:
    """Return what names the socket's file, whoever bears its name later; `None`: not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class ConnectionLockError(AgentError):
    """The lock's file is not to be had; names the path and the errno."""


class ConnectionLock:
    """A lock of the kernel's, which ends with its process, however that ends."""

    def __init__(self, path: str) -> None:
        """`path` is a file in a folder that is there; empty: nothing is locked."""
        self._path = path
        self._fd: int | None = None

    def acquire(self) -> bool:
        """Take the lock, and say whether it is ours; it does not wait. Raises `GuardError`."""
        if not self._path or self._fd is not None:
            return True
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(self._path, flags, 0o600)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return True  # the node's lock, in the same folder, keeps a second agent out
            raise ConnectionLockError(
                f"{self._path}: {error.strerror}; see node.run_dir"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                return False
            raise ConnectionLockError(
                f"{self._path}: {error.strerror}; see node.run_dir"
            ) from error
        self._fd = fd
        return True

    def release(self) -> None:
        """Give the lock back, if it is ours."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            with contextlib.suppress(OSError):
                os.close(fd)
