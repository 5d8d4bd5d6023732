"""The plug-in of the container runtime for as long as the agent lives: one connection at a time."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable

from google.protobuf.internal import api_implementation
from msgspec.structs import replace

from agent.clock import Clock
from agent.config.containers import NriSettings
from agent.model.runtime.seen import RuntimeView, SandboxSeen
from agent.nri.asking import Ask, Asking
from agent.nri.events import Events
from agent.nri.figures import Figures, NriState
from agent.nri.guard import Guard, GuardError
from agent.nri.picture import Picture, Seen
from agent.nri.session import Session
from agent.nri.versions import OURS
from agent.nri.wire.errors import CallFailed, TrunkClosed
from agent.nri.wire.trunk import Trunk
from proto.gen import nri_plugin_pb2 as calls

log = logging.getLogger(__name__)

RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
CONNECT_S = 5.0
REGISTER_S = 12.0  # a plug-in before us in the runtime's line may hang for 5 s, and take 2 s twice
READY_S = 12.0  # for Configure and Synchronize
LOOK_S = 1.0  # for a socket, the lock, or another socket in the place of ours
FIRST_S, LONGEST_S = 1.0, 30.0  # between two tries
JITTER = 0.1
REFUSED = "RegistrationRefused"


class NriPlugin:
    """Registers with the runtime, again whenever it must, and answers it. Of the loop thread.

    Nothing that the runtime or a hook does ends it; every request is answered within the budget,
    late ones with no change, and these containers are in the view's `missed`.
    """

    def __init__(
        self,
        settings: NriSettings,
        *,
        ask: Ask,
        seen: Seen,
        clock: Clock,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
        protects: Callable[[SandboxSeen], bool] = lambda _: False,
        lock_path: str = "",
    ) -> None:
        """`ask` says what is changed; `seen`, which is quick, gets each new picture.

        `protects` says of a pod whether its containers are to be left alone. `lock_path` is a file
        of this machine, in a folder that is there: who holds its lock has the one connection;
        empty: no lock.
        """
        self._nri = settings
        self._ask = ask
        self._clock = clock
        self._sleep = sleep
        self._uniform = uniform
        self._protects = protects
        self._guard = Guard(lock_path)
        self._figures = Figures()
        self._picture = Picture(seen)
        self._failures = 0  # tries in a row that did not come as far as the first list
        self._running: asyncio.Task[None] | None = None
        self._stopped = False
        self._said = ""  # the reason that was logged last, since the last list

    @property
    def state(self) -> NriState:
        """Return the figures as they are now."""
        state = self._figures.state
        return replace(state, left_out=state.left_out + self._picture.left_out)

    @property
    def view(self) -> RuntimeView:
        """Return the picture as it was last given to `seen`."""
        return self._picture.view

    async def run(self) -> None:
        """Be the plug-in until cancelled or stopped; the connection is closed before it returns."""
        if self._stopped:
            return
        if api_implementation.Type() == "python":
            log.warning("nri_slow", extra={"reason": "protobuf runs without its C library"})
        running = asyncio.create_task(self._live(), name="nri")
        self._running = running
        try:
            await asyncio.wait((running,))
        finally:
            running.cancel()
            await asyncio.wait((running,))
            self._guard.release()
            self._picture.stands("waiting", "Stopped", "the agent ends")
        if not running.cancelled() and (error := running.exception()) is not None:
            raise error

    async def stop(self) -> None:
        """Have `run` return, for good; what the runtime asked until now is answered before."""
        self._stopped = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))

    async def _live(self) -> None:
        while True:
            await self._may_begin()
            why = await self._connected()
            self._figures.ends[why.reason] += 1
            if why.reason != self._said:
                self._said = why.reason
                log.info("nri_ended", extra={"reason": why.reason, "detail": str(why)})
            self._failures += 1
            wait_s = min(LONGEST_S, FIRST_S * 2.0 ** min(self._failures - 1, 16))
            await self._sleep(wait_s * self._uniform(1 - JITTER, 1 + JITTER))

    async def _may_begin(self) -> None:
        """Wait until the lock is ours and there is a socket."""
        while (lacking := self._lacking()) is not None:
            self._picture.stands("waiting", *lacking)
            await self._sleep(LOOK_S)

    def _lacking(self) -> tuple[str, str] | None:
        try:
            if not self._guard.taken():
                return "AnotherAgent", "another agent of this node has the connection"
        except GuardError as error:
            return "NoLock", str(error)
        socket = self._nri.socket
        try:
            os.stat(socket)
        except (FileNotFoundError, NotADirectoryError):
            return "NoSocket", f"{socket} is not there: is NRI enabled in the runtime?"
        except OSError as error:
            return "NoAccess", f"{socket}: {error.strerror}; the agent's user must reach it"
        return None

    async def _connected(self) -> TrunkClosed:
        """Be connected once, until the socket is closed; return why it ended."""
        asking = Asking(self._ask, self._picture, self._figures)
        told = Events(self._picture, self._protects)
        budget_s = self._nri.budget_ms / 1e3
        session = Session(asking, told, self._picture, self._figures, budget_s)
        trunk = Trunk(session.take, session.lost, RUNTIME_SERVICE)
        session.over(trunk)
        try:
            why = await self._conversation(session, trunk)
        except TrunkClosed as error:
            why = error
        except (CallFailed, OSError) as error:
            why = self._refused(error)
        except asyncio.CancelledError:
            await asking.last_answers()
            raise
        finally:
            self._figures.since_s = None
            await trunk.finish("ClosedByAgent")
        state = "refused" if why.reason == REFUSED else "waiting"
        self._picture.stands(state, why.reason, str(why))
        return why

    async def _conversation(self, session: Session, trunk: Trunk) -> TrunkClosed:
        nri, loop = self._nri, asyncio.get_running_loop()
        identity = _identity(nri.socket)
        async with asyncio.timeout(CONNECT_S):
            await loop.create_unix_connection(lambda: trunk, nri.socket)
        self._figures.connections += 1
        self._figures.since_s = self._clock.monotonic()
        asked = calls.RegisterPluginRequest(
            plugin_name=nri.name, plugin_idx=f"{nri.index:02d}", NRI_version=OURS
        )
        await trunk.calls.call("RegisterPlugin", asked.SerializeToString(), REGISTER_S)
        async with asyncio.timeout(READY_S):
            await asyncio.shield(session.ready)
        self._figures.registrations += 1
        self._failures, self._said = 0, ""
        runtime = f"{session.peer.name} {session.peer.version}"
        log.info("nri_synchronized", extra={"runtime": runtime})
        await self._until_closed(trunk, identity)
        return trunk.ended or TrunkClosed("SocketReplaced")

    async def _until_closed(self, trunk: Trunk, identity: tuple[int, int] | None) -> None:
        """Return when the connection is closed, or leads to a socket that is no longer there."""
        while not trunk.closed.is_set():
            try:
                async with asyncio.timeout(LOOK_S):
                    await trunk.closed.wait()
            except TimeoutError:
                if _identity(self._nri.socket) not in (None, identity):
                    return

    def _refused(self, error: CallFailed | OSError) -> TrunkClosed:
        """Return why there is no registration, in the same words as an end."""
        socket = self._nri.socket
        if isinstance(error, CallFailed):
            return TrunkClosed(REFUSED, error.message)
        if isinstance(error, TimeoutError):
            return TrunkClosed("RuntimeSilent", f"{socket}: no registration in time")
        return TrunkClosed("NoConnection", f"{socket}: {error.strerror or error}")


def _identity(path: str) -> tuple[int, int] | None:
    """Return what names the socket's file, whoever bears its name later; `None`: not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
