"""The session of the template, which runs in the worker process and may block or crash there."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from agent.errors import HostFileError
from agent.snapshot.device import VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory, MetricValue, Problem

TEMPERATURE = "xpu_template_temperature_celsius"
COLDEST_C, HOTTEST_C = -40.0, 150.0  # a chip outside cannot work: the sensor is wrong


class TemplateSession:
    """A session without a library: it reports what sysfs shows, and why there are no other facts.

    A vendor with a library opens it here, and asks the library where this session reads files.
    """

    def __init__(
        self, host: HostFiles, devices: tuple[VendorDevice, ...], *, library_allowed: bool
    ) -> None:
        self._host = host
        self._devices = devices
        self._reason = "LibraryMissing" if library_allowed else "NotRecorded"
        self._closed = threading.Event()

    def discover(self) -> Inventory:
        """Return every device.

        A vendor with a library searches for a missing one again at each call.
        """
        message = f"{len(self._devices)} devices are known by their PCI functions only"
        return Inventory(
            vendor="template",
            devices=self._devices,
            problems=(Problem(reason=self._reason, message=message),),
        )

    def sample(self) -> tuple[DeviceSample, ...]:
        """Return measurements of the devices; a device without a value is left out."""
        return tuple(
            DeviceSample(key=device.key, readings=(MetricValue(family=TEMPERATURE, value=value),))
            for device in self._devices
            if device.bus_id is not None
            and (value := read_temperature(self._host, device.bus_id)) is not None
        )

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Wait at most `wait_s` seconds; called on its own thread, in parallel with other calls."""
        self._closed.wait(wait_s)
        return ()

    def close(self) -> None:
        """Release the library; may be called twice."""
        self._closed.set()


def read_temperature(host: HostFiles, bus_id: str) -> float | None:
    """Return the temperature of a PCI function in degrees Celsius; `None` if it is unknown.

    Unknown is not 0: a file that is absent, malformed or out of range gives no reading.
    """
    for path in _sensor_paths(host, bus_id):
        try:
            degrees = int(host.read(path)) / 1000  # the kernel counts thousandths
        except (HostFileError, ValueError):
            continue
        if COLDEST_C <= degrees <= HOTTEST_C:
            return degrees
    return None


def _sensor_paths(host: HostFiles, bus_id: str) -> Iterator[str]:
    folder = f"/sys/bus/pci/devices/{bus_id}/hwmon"
    try:
        names = host.names(folder)
    except HostFileError:
        return
    for name in names:
        yield f"{folder}/{name}/temp1_input"
