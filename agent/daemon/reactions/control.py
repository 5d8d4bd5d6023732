"""What a person may do to the running agent; each of it is written down."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from agent.errors import WorkerError
from agent.hotplug.uevent import Part
from agent.hotplug.window import EVERYTHING
from agent.node.fleet import Fleet
from agent.node.parts import Parts
from agent.probe.client import VendorClient
from agent.probe.life import Clear
from agent.probe.wire import NOT_SUPPORTED
from agent.web.admin import UnknownName

log = logging.getLogger(__name__)

RELEASED = "released"
Tell = Callable[[str, str], None]  # reason and message of an event for people; quick


class Control:
    """Implements `agent.web.admin.AgentControl`. Belongs to the loop thread."""

    def __init__(
        self,
        parts: Parts,
        fleet: Fleet,
        look: Callable[[frozenset[Part]], Awaitable[None]],
        tell: Tell,
    ) -> None:
        self._parts = parts
        self._fleet = fleet
        self._look = look
        self._tell = tell

    async def rescan(self) -> str:
        """Look at the host and ask every vendor; releases and pauses are over."""
        for client in self._fleet.clients:
            client.retry()
        await self._look(EVERYTHING)
        names = ", ".join(client.state.vendor for client in self._fleet.clients)
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
        vendor, key = self._find(device)
        client = self._client(vendor)
        held = self._fleet.pardon(vendor, key)
        try:
            cleared = await client.have(Clear(key)) or held
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
        log.warning("admin_action", extra=fields)
        reason = f"Admin{action.capitalize()}" if done else "AdminRefused"
        message = f"user {uid}: {action}: {outcome}"
        self._tell(reason, message)

    def _client(self, vendor: str) -> VendorClient:
        clients = {client.state.vendor: client for client in self._fleet.clients}
        if vendor not in clients:
            known = ", ".join(sorted(clients)) or "none"
            raise UnknownName(
                f"no vendor called {vendor[:80]!r} is at work here; there are: {known}"
            )
        return clients[vendor]

    def _find(self, device: str) -> tuple[str, str]:
        """Return vendor and key of a device that is named by its key or uuid."""
        for state in self._parts.store.current.vendors:
            inventory = state.inventory.value
            for found in () if inventory is None else inventory.devices:
                if device in (found.key, found.uuid):
                    return state.vendor, found.key
        raise UnknownName(f"no device is called {device[:80]!r}; see xpu-agent devices")
