"""Puts together what reacts to the kernel's events and to people at the admin socket.

What a person may do to the running agent; each of it is written down.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Executor

from aiohttp import web

from agent.app.context import AppContext
from agent.app.hotplug import HardwareScanner, HotplugListener
from agent.app.pipeline import DevicePipeline
from agent.app.threads import ScheduledLoop
from agent.errors import UnknownTarget, WorkerError
from agent.host.hotplug import ALL_SCOPES
from agent.host.uevents import RescanScope
from agent.loop import Loop
from agent.messages import EventReported, MessageQueue
from agent.snapshot.self_check import SelfCheck
from agent.state_writer import NO_ANSWER
from agent.web.admin import create_admin_app
from agent.web.admin_socket import (
    AdminSocketError,
    bind_socket,
    remove_socket,
    socket_identity,
    socket_path,
)
from agent.web.connections import MIN_CONNECTIONS, HttpListener
from agent.workers.client import VendorClient
from agent.workers.lifecycle import ClearFaultRequest
from agent.workers.manager import VendorManager
from agent.workers.protocol import NOT_SUPPORTED

log = logging.getLogger(__name__)

LISTENING_INTERVAL_FACTOR = (
    5.0  # the full look is that much rarer while the kernel tells of changes
)

BIND_DEADLINE_S = 1.0  # for the file of the admin socket

HOST_LOOPS = ("host", "vendors")


def _bind_socket(path: str) -> tuple[socket.socket, tuple[int, int] | None]:
    """Return the listening socket, and which file it is."""
    return bind_socket(path), socket_identity(path)


class AdminService:
    """Belongs to the loop thread."""

    def __init__(
        self,
        parts: AppContext,
        fleet: VendorManager,
        executor: Executor,
        read_host: Callable[[], None],
        messages: MessageQueue,
        pipeline: DevicePipeline,
    ) -> None:
        """`read_host` runs on `executor`, the thread that reads the host."""
        self._context = parts
        self._vendor_manager = fleet
        self._executor = executor
        self._messages = messages
        self._pipeline = pipeline
        self._scanner = HardwareScanner(parts, fleet, executor, read_host)
        self._host_loops: list[Loop] = []
        self._runner: web.AppRunner | None = None
        self._listener: HttpListener | None = None
        self._path = ""
        self._socket_file: tuple[int, int] | None = None  # of the socket that we made
        self._problem = "switched off"

    def vendor_search(self) -> ScheduledLoop:
        """Return the loop that looks for vendors that had nothing here at the start."""
        look_s = self._context.settings.discovery.host_interval_s
        return ScheduledLoop(self._scanner.vendor_search_loop(look_s), look_s)

    def hotplug_listener(self, loops: Iterable[Loop]) -> Coroutine[None, None, None] | None:
        """Return what listens to the kernel for ever; `None` on a recorded host or if it is off.

        Of `loops`, those that look at the host have longer periods while it hears something.
        """
        if (
            self._context.host_source.spec is not None
            or not self._context.settings.discovery.hotplug
        ):
            return None

        self._host_loops = [loop for loop in loops if loop.name in HOST_LOOPS]
        return HotplugListener(
            self._context.store,
            self._context.clock,
            self._scanner,
            self._executor,
            messages=self._messages,
            on_pace=self._adjust_intervals,
        ).run()

    def _adjust_intervals(self, heard: bool) -> None:
        every_s = self._context.settings.discovery.host_interval_s
        for loop in self._host_loops:
            loop.interval_s = every_s * LISTENING_INTERVAL_FACTOR if heard else every_s

    async def serve_admin(self, out: str) -> None:
        """Listen at the admin socket; that it is not possible is a failed check and no more."""
        path = socket_path(self._context.settings.admin.socket, out)
        if path is None:
            return
        control = AdminActions(
            self._context,
            self._vendor_manager,
            self._scanner.rescan,
            self._messages,
            self._pipeline,
        )
        runner = web.AppRunner(create_admin_app(control), access_log=None, shutdown_timeout=1.0)
        try:
            # not on the loop's thread: the folder may be on a file system that hangs
            async with asyncio.timeout(BIND_DEADLINE_S):
                listening, self._socket_file = await asyncio.to_thread(_bind_socket, path)
        except TimeoutError:
            self._problem = f"{path}: {NO_ANSWER}"
            log.warning("admin_socket_missing", extra={"error": self._problem})
            return
        except AdminSocketError as error:
            self._problem = str(error)
            log.warning("admin_socket_missing", extra={"error": self._problem})
            return
        self._runner, self._path = runner, path
        await runner.setup()
        assert runner.server is not None  # noqa: S101 - made by `setup`
        self._listener = HttpListener(runner.server, listening, MIN_CONNECTIONS)
        self._listener.open()
        self._problem = ""

    def check(self) -> SelfCheck:
        """Return whether people can act on the agent; for them, it gates nothing."""
        ok = not self._problem
        return SelfCheck(name="admin-socket", ok=ok, message=self._problem, gates_ready=False)

    async def stop(self) -> None:
        """Serve nobody any more."""
        if self._runner is not None:
            # first: who comes after us may listen at once
            removing = asyncio.ensure_future(
                asyncio.to_thread(remove_socket, self._path, self._socket_file)
            )
            await asyncio.wait({removing}, timeout=BIND_DEADLINE_S)
            if self._listener is not None:
                self._listener.close()
            await self._runner.cleanup()


action_log = logging.getLogger(__name__)

RELEASED = "released"


class AdminActions:
    """Implements `agent.web.admin.AgentControl`. Belongs to the loop thread."""

    def __init__(
        self,
        parts: AppContext,
        fleet: VendorManager,
        look: Callable[[frozenset[RescanScope]], Awaitable[None]],
        messages: MessageQueue,
        pipeline: DevicePipeline,
    ) -> None:
        self._context = parts
        self._pipeline = pipeline
        self._vendor_manager = fleet
        self._rescan = look
        self._messages = messages

    async def rescan(self) -> str:
        """Look at the host and ask every vendor; releases and pauses are over."""
        for client in self._vendor_manager.clients:
            client.retry()
        await self._rescan(ALL_SCOPES)
        names = ", ".join(client.state.vendor for client in self._vendor_manager.clients)
        return f"the host was read; asked: {names or 'nobody, no vendor has anything here'}"

    async def release(self, vendor: str, for_s: float) -> str:
        """End the vendor's worker and start none for so long."""
        client = self._client(vendor)
        await client.release(for_s)
        if client.state.state != RELEASED:
            return f"{vendor}: it is being ended; see its state on the status page"
        return f"{vendor}: {client.state.message}"

    async def clear(self, device: str) -> str:
        """Have the vendor of a device forget its lasting fault, and hold it no longer ourselves."""
        vendor, key = self._find_device(device)
        client = self._client(vendor)
        held = self._pipeline.clear_flapping(vendor, key)
        try:
            cleared = await client.request(ClearFaultRequest(key)) or held
        except WorkerError as error:
            if held and error.reason == NOT_SUPPORTED:  # all that there was to clear
                return f"{key}: no longer held for its flapping"
            raise
        return f"{key}: {'cleared; it is asked again' if cleared else 'there was nothing to clear'}"

    def set_level(self, level: str) -> str:
        """Log from that level on, until the agent ends."""
        logging.getLogger().setLevel(level.upper())
        return f"logging from level {level} on"

    def audit(self, action: str, uid: int, outcome: str, *, done: bool) -> None:
        """Write down who did what: in the log and among the events."""
        fields = {"action": action, "uid": uid, "outcome": outcome, "done": done}
        action_log.warning("admin_action", extra=fields)
        reason = f"Admin{action.capitalize()}" if done else "AdminRefused"
        message = f"user {uid}: {action}: {outcome}"
        self._messages.put(EventReported(reason, message))

    def _client(self, vendor: str) -> VendorClient:
        clients = {client.state.vendor: client for client in self._vendor_manager.clients}
        if vendor not in clients:
            known = ", ".join(sorted(clients)) or "none"
            raise UnknownTarget(
                f"no vendor called {vendor[:80]!r} is at work here; there are: {known}"
            )
        return clients[vendor]

    def _find_device(self, device: str) -> tuple[str, str]:
        """Return vendor and key of a device that is named by its key or uuid."""
        for state in self._context.store.current.vendors:
            inventory = state.inventory.value
            for found in () if inventory is None else inventory.devices:
                if device in (found.key, found.uuid):
                    return state.vendor, found.key
        raise UnknownTarget(f"no device is called {device[:80]!r}; see xpu-agent devices")
