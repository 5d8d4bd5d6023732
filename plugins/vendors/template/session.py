"""The session of the template, which runs in the worker process and may block or crash there."""

from __future__ import annotations

import threading

from agent.snapshot.device import VendorDevice
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory, Problem


class TemplateSession:
    """A session without a library: it repeats what sysfs shows and says why it knows no more."""

    def __init__(self, sighted: tuple[VendorDevice, ...], *, library_allowed: bool) -> None:
        self._sighted = sighted
        self._reason = "LibraryMissing" if library_allowed else "NotRecorded"
        self._closed = threading.Event()

    def discover(self) -> Inventory:
        """Return every device; look for a missing library again at each call."""
        message = f"{len(self._sighted)} devices are known by their PCI functions only"
        return Inventory(
            vendor="template",
            devices=self._sighted,
            problems=(Problem(reason=self._reason, message=message),),
        )

    def sample(self) -> tuple[DeviceSample, ...]:
        """Return what the devices do now; those that do not answer (here: all) are left out."""
        return ()

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Wait at most that long; called on its own thread, beside the other calls."""
        self._closed.wait(wait_s)
        return ()

    def close(self) -> None:
        """Let go of the library; may be called twice."""
        self._closed.set()
