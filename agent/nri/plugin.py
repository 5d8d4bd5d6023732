"""The NRI plug-in: connects to the container runtime, registers, and connects again.

One process per node holds the connection: two plug-ins that set the same field would keep pods
from starting.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import Awaitable, Callable, Collection

from google.protobuf.internal import api_implementation
from msgspec.structs import replace

from agent.clock import Clock
from agent.config.containers import NriSettings
from agent.file_lock import NO_FILE, LockError, lock_file
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
REGISTER_S = 12.0  # an earlier plug-in may hang for 5 s, and the runtime waits 2 s for it, twice
READY_S = 12.0  # for Configure and Synchronize
POLL_S = 1.0  # how often to look for a socket, the lock, or a replaced socket
FIRST_RETRY_S, MAX_RETRY_S = 1.0, 30.0  # pause before the next attempt
JITTER = 0.1
REGISTRATION_REFUSED = "RegistrationRefused"

SocketIdentity = tuple[int, int, int]  # device, inode, and the time of its last change in ns


class NriPlugin:
    """Registers with the runtime, reconnects, and answers its calls. Belongs to the loop thread.

    Neither the runtime nor a hook can end it. Every request is answered within the budget: a late
    one with no change, and its container is listed in the view's `missed`; a container with an
    allocation is refused.
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

        `lock_path` is a file in an existing folder of this machine; the process that holds its lock
        owns the connection. Empty: no lock.
        """
        self._nri = settings
        self._handler = handler
        self._clock = clock
        self._sleep = sleep
        self._uniform = uniform
        self._lock = ConnectionLock(lock_path)
        self._counters = NriCounters()
        self._view_store = RuntimeViewStore(handler)
        self._failures = 0  # attempts in a row that did not receive the first list
        self._last_socket: SocketIdentity | None = None  # that of the last attempt
        self._running: asyncio.Task[None] | None = None
        self._stopped = False
        self._logged_reason = ""  # last logged reason since the last list

    @property
    def statistics(self) -> NriStatistics:
        """Return the current values of all counters."""
        state = self._counters.statistics
        return replace(state, dropped=state.dropped + self._view_store.dropped)

    @property
    def view(self) -> RuntimeView:
        """Return the last view given to the handler."""
        return self._view_store.view

    def mark_pods_stopped(self, uids: Collection[str]) -> None:
        """Mark the sandboxes of pods as stopped whose end the runtime may not report."""
        self._view_store.mark_pods_stopped(uids)

    async def run(self) -> None:
        """Run the plug-in until it is cancelled or stopped, and close the connection."""
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
        """End `run` for good; requests that have arrived are answered first."""
        self._stopped = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))

    async def _reconnect_forever(self) -> None:
        while True:
            await self._wait_until_startable()
            reason = await self._run_connection()
            self._counters.ends[reason.reason] += 1
            if reason.reason != self._logged_reason:
                self._logged_reason = reason.reason
                log.info("nri_ended", extra={"reason": reason.reason, "detail": str(reason)})
            self._failures += 1
            wait_s = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(self._failures - 1, 16))
            await self._pause(wait_s * self._uniform(1 - JITTER, 1 + JITTER))

    async def _pause(self, wait_s: float) -> None:
        """Wait before the next attempt; end when a new socket replaces that of the last attempt.

        A runtime that starts again soon creates the containers of waiting pods.
        """
        pause = asyncio.ensure_future(self._sleep(wait_s))
        try:
            while not (await asyncio.wait((pause,), timeout=POLL_S))[0]:
                if _file_identity(self._nri.socket) not in (None, self._last_socket):
                    self._failures = 0
                    return
        finally:
            pause.cancel()

    async def _wait_until_startable(self) -> None:
        """Wait until this process holds the lock and the socket exists."""
        while (lacking := self._obstacle()) is not None:
            self._view_store.set_state("waiting", *lacking)
            await self._sleep(POLL_S)

    def _obstacle(self) -> tuple[str, str] | None:
        try:
            if not self._lock.acquire():
                return "AnotherAgent", "another agent of this node has the connection"
        except LockError as error:
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
        """Connect once and serve until the connection ends; return why it ended."""
        requests = OpenRuntimeRequests(self._handler, self._view_store, self._counters)
        events = RuntimeEvents(self._view_store)
        budget_s = self._nri.budget_ms / 1e3
        session = RuntimeSession(requests, events, self._view_store, self._counters, budget_s)
        connection = RuntimeConnection(session.handle_frame, session.handle_close, RUNTIME_SERVICE)
        session.attach(connection)
        try:
            reason = await self._conversation(session, connection)
        except ConnectionClosed as error:
            reason = error
        except (CallError, OSError) as error:
            reason = self._close_reason(error)
        except asyncio.CancelledError:
            await requests.drain()
            raise
        finally:
            self._counters.since_s = None
            await connection.wait_closed("ClosedByAgent")
        state = "refused" if reason.reason == REGISTRATION_REFUSED else "waiting"
        self._view_store.set_state(state, reason.reason, str(reason))
        return reason

    async def _conversation(
        self, session: RuntimeSession, connection: RuntimeConnection
    ) -> ConnectionClosed:
        nri, loop = self._nri, asyncio.get_running_loop()
        identity = self._last_socket = _file_identity(nri.socket)
        async with asyncio.timeout(CONNECT_S):
            await loop.create_unix_connection(lambda: connection, nri.socket)
        self._counters.connections += 1
        self._counters.since_s = self._clock.monotonic()
        registration = calls.RegisterPluginRequest(
            plugin_name=nri.name, plugin_idx=f"{nri.index:02d}", NRI_version=PLUGIN_VERSION
        )
        await connection.calls.call("RegisterPlugin", registration.SerializeToString(), REGISTER_S)
        async with asyncio.timeout(READY_S):
            await asyncio.shield(session.ready)
        self._counters.registrations += 1
        self._failures, self._logged_reason = 0, ""
        runtime = f"{session.peer.name} {session.peer.version}"
        log.info("nri_synchronized", extra={"runtime": runtime})
        await self._until_closed(connection, identity)
        return connection.close_reason or ConnectionClosed("SocketReplaced")

    async def _until_closed(
        self, connection: RuntimeConnection, identity: SocketIdentity | None
    ) -> None:
        """Return when the connection is closed, or when another socket replaced its socket file."""
        while not connection.closed.is_set():
            try:
                async with asyncio.timeout(POLL_S):
                    await connection.closed.wait()
            except TimeoutError:
                if _file_identity(self._nri.socket) not in (None, identity):
                    return

    def _close_reason(self, error: CallError | OSError) -> ConnectionClosed:
        """Return an error before the registration as the reason of an end."""
        socket = self._nri.socket
        if isinstance(error, CallError):
            return ConnectionClosed(REGISTRATION_REFUSED, error.message)
        if isinstance(error, TimeoutError):
            return ConnectionClosed("RuntimeSilent", f"{socket}: no registration in time")
        return ConnectionClosed("NoConnection", f"{socket}: {error.strerror or error}")


def _file_identity(path: str) -> SocketIdentity | None:
    """Return what identifies the socket file; `None` if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


class ConnectionLock:
    """Keeps a second process of the node from connecting as well."""

    def __init__(self, path: str) -> None:
        """`path` is a file in a folder that exists; empty: nothing is locked."""
        self._path = path
        self._fd = NO_FILE

    def acquire(self) -> bool:
        """Take the lock and return whether this process has it; never waits. Raises `LockError`."""
        if not self._path or self._fd != NO_FILE:
            return True
        try:
            # on a full disk the node's lock, in the same folder, keeps a second agent out
            fd = lock_file(self._path, 0o600)
        except OSError as error:
            message = f"{self._path}: {error.strerror}; see node.run_dir"
            raise LockError(message) from error
        if fd is None:
            return False
        self._fd = fd
        return True

    def release(self) -> None:
        """Give the lock back, if this process has it."""
        if self._fd != NO_FILE:
            fd, self._fd = self._fd, NO_FILE
            with contextlib.suppress(OSError):
                os.close(fd)
