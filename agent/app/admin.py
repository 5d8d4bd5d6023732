"""The admin socket, and the actions of people on the running agent; each action is recorded."""

from __future__ import annotations

import asyncio
import logging
import socket

from aiohttp import web

from agent.access.connections import MIN_CONNECTIONS, HttpListener
from agent.app.hotplug import HardwareScanner
from agent.app.pipeline import DevicePipeline
from agent.errors import UnknownTarget, WorkerError
from agent.host.hotplug import ALL_SCOPES
from agent.messages import EventReported, MessageQueue
from agent.snapshot.node import SnapshotStore
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
from agent.web.view import AgentView
from agent.workers.client import VendorClient
from agent.workers.lifecycle import ClearFaultRequest
from agent.workers.manager import VendorManager
from agent.workers.protocol import NOT_SUPPORTED

log = logging.getLogger(__name__)

BIND_DEADLINE_S = 1.0  # for the file of the admin socket

RELEASED = "released"


BoundSocket = tuple[socket.socket, tuple[int, int] | None]


def _bind_socket(path: str) -> BoundSocket:
    """Return the listening socket and the identity of its file."""
    return bind_socket(path), socket_identity(path)


def _close_late_socket(binding: asyncio.Future[BoundSocket]) -> None:
    """Close a socket that nobody serves; `AdminService.stop` removes its file."""
    if not binding.cancelled() and binding.exception() is None:
        binding.result()[0].close()


class AdminService:
    """Serves `AdminActions` at the admin socket. Belongs to the loop thread."""

    def __init__(self, path: str, actions: AdminActions) -> None:
        """`path` is the setting `admin.socket`."""
        self._setting = path
        self._actions = actions
        self._runner: web.AppRunner | None = None
        self._listener: HttpListener | None = None
        self._path = ""
        # the listening socket and the identity of its file; it goes on when the start is cancelled
        self._binding: asyncio.Future[BoundSocket] | None = None
        self._problem = "the agent is starting"

    async def start(self, out: str, view: AgentView) -> None:
        """Listen at the admin socket; a failure is only a failed check."""
        path = socket_path(self._setting, out)
        if path is None:
            self._problem = "switched off"
            return
        # not on the loop's thread: the folder may be on a file system that hangs
        self._path = path
        binding = self._binding = asyncio.ensure_future(asyncio.to_thread(_bind_socket, path))
        await asyncio.wait({binding}, timeout=BIND_DEADLINE_S)
        if not binding.done():
            binding.add_done_callback(_close_late_socket)
            self._problem = f"{path}: {NO_ANSWER}"
            log.warning("admin_socket_missing", extra={"error": self._problem})
            return
        try:
            bound, _ = binding.result()
        except AdminSocketError as error:
            self._problem = str(error)
            log.warning("admin_socket_missing", extra={"error": self._problem})
            return
        runner = self._runner = web.AppRunner(
            create_admin_app(self._actions, view), access_log=None, shutdown_timeout=1.0
        )
        await runner.setup()
        assert runner.server is not None  # noqa: S101 - made by `setup`
        self._listener = HttpListener(runner.server, bound, MIN_CONNECTIONS)
        self._listener.open()
        self._problem = ""

    def check(self) -> SelfCheck:
        """Return whether the admin socket is served; it does not affect readiness."""
        ok = not self._problem
        return SelfCheck(
            name="admin-socket",
            ok=ok,
            message=self._problem,
            gates_ready=False,
            reason="AdminSocketMissing",
        )

    async def stop(self) -> None:
        """Remove the socket and end all requests."""
        binding = self._binding
        if binding is None:
            return
        await asyncio.wait({binding}, timeout=BIND_DEADLINE_S)
        if not binding.done() or binding.exception() is not None:
            return
        bound, identity = binding.result()
        # first: the next agent may bind the socket at once
        removal = asyncio.ensure_future(asyncio.to_thread(remove_socket, self._path, identity))
        await asyncio.wait({removal}, timeout=BIND_DEADLINE_S)
        if self._listener is not None:
            self._listener.close()
        bound.close()
        if self._runner is not None:
            await self._runner.cleanup()


class AdminActions:
    """Implements `agent.web.admin.AgentControl`. Belongs to the loop thread."""

    def __init__(
        self,
        store: SnapshotStore,
        vendor_manager: VendorManager,
        scanner: HardwareScanner,
        pipeline: DevicePipeline,
        messages: MessageQueue,
    ) -> None:
        self._store = store
        self._vendor_manager = vendor_manager
        self._scanner = scanner
        self._pipeline = pipeline
        self._messages = messages

    async def rescan(self) -> str:
        """Read the host and ask every vendor; this ends releases and pauses."""
        for client in self._vendor_manager.clients:
            client.retry()
        await self._scanner.rescan(ALL_SCOPES)
        clients = self._vendor_manager.clients
        names = ", ".join(client.state.vendor for client in clients if not client.release_request)
        text = f"the host was read; asked: {names or 'nobody, no vendor has anything here'}"
        labelled = [one for one in clients if one.release_request]
        if not labelled:
            return text
        if not names:
            text = "the host was read; asked: nobody"
        requests = "; ".join(f"{one.state.vendor} ({one.release_request})" for one in labelled)
        return f"{text}; still released by a label of the Node: {requests}"

    async def release(self, vendor: str, for_s: float) -> str:
        """End the vendor's worker, and start none for `for_s` seconds."""
        client = self._client(vendor)
        await client.release(for_s)
        if client.state.state != RELEASED:
            return f"{vendor}: it is being ended; see its state on the status page"
        return f"{vendor}: {client.state.message}"

    async def clear(self, device: str) -> str:
        """Clear the lasting fault of a device in its vendor, and its flapping in the agent."""
        vendor, key = self._find_device(device)
        client = self._client(vendor)
        is_held = self._pipeline.clear_flapping(vendor, key)
        try:
            cleared = await client.request(ClearFaultRequest(key)) or is_held
        except WorkerError as error:
            if is_held and error.reason == NOT_SUPPORTED:  # the flapping is cleared
                return f"{key}: no longer held for its flapping"
            raise
        return f"{key}: {'cleared; it is asked again' if cleared else 'there was nothing to clear'}"

    def set_level(self, level: str) -> str:
        """Set the level of the log until the agent ends."""
        logging.getLogger().setLevel(level.upper())
        return f"logging from level {level} on"

    def audit(self, action: str, uid: int, outcome: str, *, done: bool) -> None:
        """Record an action in the log and as an event."""
        fields = {"action": action, "uid": uid, "outcome": outcome, "done": done}
        log.warning("admin_action", extra=fields)
        reason = f"Admin{action.capitalize()}" if done else "AdminRefused"
        message = f"user {uid}: {action}: {outcome}"
        self._messages.put(EventReported(reason, message))

    def _client(self, vendor: str) -> VendorClient:
        clients = {client.state.vendor: client for client in self._vendor_manager.clients}
        if vendor not in clients:
            names = ", ".join(sorted(clients)) or "none"
            raise UnknownTarget(
                f"no vendor called {vendor[:80]!r} is at work here; there are: {names}"
            )
        return clients[vendor]

    def _find_device(self, device: str) -> tuple[str, str]:
        """Return vendor and key of the device with this key or uuid; raise `UnknownTarget`."""
        for state in self._store.current.vendors:
            inventory = state.inventory.value
            for one in () if inventory is None else inventory.devices:
                if device in (one.key, one.uuid):
                    return state.vendor, one.key
        raise UnknownTarget(f"no device is called {device[:80]!r}; see xpu-agent devices")
