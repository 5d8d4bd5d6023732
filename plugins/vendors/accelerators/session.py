"""One host's accelerators without a plug-in: read from sysfs, inside the agent."""

from __future__ import annotations

from collections.abc import Mapping

from agent.errors import NotSupported
from agent.host.files import HostFiles
from agent.model.inventory import DeviceEvent, DeviceSample, Inventory
from plugins.vendors.accelerators.described import decode
from plugins.vendors.accelerators.managed import devices
from plugins.vendors.accelerators.sight import look


class AcceleratorsSession:
    """Reads sysfs at each discovery, and has neither samples nor events."""

    def __init__(self, host: HostFiles, settings: Mapping[str, object]) -> None:
        self._host = host
        self._cards = decode(settings)
        self._replay = settings.get("replay") is True

    def discover(self) -> Inventory:
        """Return what is on the bus now."""
        found, problems = devices(self._host, look(self._host), self._cards, replay=self._replay)
        return Inventory(vendor="accelerators", devices=found, problems=problems)

    def sample(self) -> tuple[DeviceSample, ...]:
        """Say that nobody can tell what these devices do."""
        raise NotSupported("no library tells what these devices do")

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Say that there are none: changes of the bus are heard by the agent."""
        raise NotSupported(f"no events, not even within {wait_s:g} s")

    def close(self) -> None:
        """Have nothing to let go of."""
