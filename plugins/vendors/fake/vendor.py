"""The fake vendor as the agent sees it: there if a file describes its devices."""

from __future__ import annotations

from collections.abc import Mapping

from agent.errors import BadConfig
from agent.host.files import HostFiles
from agent.model.device import DeviceKind, Health, HealthState, VendorDevice
from agent.model.inventory import MetricFamily
from plugins.injection.lazily import lazily
from plugins.vendors.fake import answers
from plugins.vendors.fake.session import FakeSession

UNANSWERED = Health(
    state=HealthState.SUSPECT,
    reason="WorkerNotReady",
    message="stands for the devices of the file until the worker has read it",
)


class FakeVendor:
    """Devices from a file. Without one there are none; a worker is told the file by settings."""

    name = answers.NAME
    families: tuple[MetricFamily, ...] = answers.FAMILIES
    edits = staticmethod(lazily("plugins.injection.plain"))

    def __init__(self, file: str | None = None) -> None:
        self._file = file

    def sighted(self, host: HostFiles) -> tuple[VendorDevice, ...]:  # noqa: ARG002 - the file decides, not the host
        """Return one entry for all devices of the file; the file is not read here."""
        if not self._file:
            return ()
        return (
            VendorDevice(
                kind=DeviceKind.GPU,
                vendor=self.name,
                bus_id=None,
                uuid=self.name,
                managed=False,
                health=UNANSWERED,
                facts=(("file", self._file),),
            ),
        )

    def check(self, settings: Mapping[str, object]) -> None:
        """Find nothing wrong: the file is judged when it is read, at each discovery."""

    def open(self, host: HostFiles, settings: Mapping[str, object]) -> FakeSession:  # noqa: ARG002 - as above
        """Read the file that the setting `file` names; `BadConfig` if that cannot be done."""
        file = settings.get("file")
        if not isinstance(file, str) or not file:
            raise BadConfig("discovery.fake.file: no file is given")
        return FakeSession(file)
