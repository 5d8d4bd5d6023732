"""The fake vendor in the agent: it is present if a file describes its devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from agent.errors import BadConfig
from agent.snapshot.device import DeviceKind, Health, HealthState, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.settings import SettingRule, VendorSettings
from agent.snapshot.vendor import SWITCH_CHOICES, SessionContext, VendorDescription
from plugins.shared import injection
from plugins.vendors.fake import answers

if TYPE_CHECKING:
    from plugins.vendors.fake.session import FakeSession

UNANSWERED = Health(
    state=HealthState.SUSPECT,
    reason="WorkerNotReady",
    message="stands for the devices of the file until the worker has read it",
)


class FakeSettings(VendorSettings, frozen=True, kw_only=True):
    """Devices that do not exist, for demonstrations and scale tests."""

    file: Annotated[str, SettingRule("YAML file that describes them; empty: none")] = ""

    def check(self, *, is_forced: bool = False) -> None:
        """Raise `BadConfig` if the vendor is switched on without a file."""
        if is_forced and not self.file:
            raise BadConfig("discovery.vendors.fake: on, but discovery.fake.file names no devices")

    @property
    def is_complete(self) -> bool:
        """Return whether there is a file: only few hosts have one."""
        return bool(self.file)


class FakeVendor:
    """Devices from the file in the settings; none without a file."""

    description = VendorDescription(
        name=answers.NAME,
        title="fake devices",
        switch=SettingRule(
            "devices described in discovery.fake.file", choices=SWITCH_CHOICES, maturity="stable"
        ),
        settings=FakeSettings,
        families=answers.FAMILIES,
    )
    host_query = staticmethod(injection.host_query)
    edits = staticmethod(injection.edits)

    def detect(self, host: HostFiles, settings: FakeSettings) -> tuple[VendorDevice, ...]:  # noqa: ARG002 - the file decides, not the host
        """Return one entry for all devices of the file; the file is not read here."""
        if not settings.file:
            return ()
        return (
            VendorDevice(
                kind=DeviceKind.GPU,
                vendor=answers.NAME,
                bus_id=None,
                uuid=answers.NAME,
                managed=False,
                health=UNANSWERED,
                facts=(("file", settings.file),),
            ),
        )

    def open(
        self,
        host: HostFiles,  # noqa: ARG002 - as above
        settings: FakeSettings,
        context: SessionContext,  # noqa: ARG002 - a file's devices are the same on a recording
    ) -> FakeSession:
        """Read the file of the setting `file`; raises `BadConfig` if that fails."""
        from plugins.vendors.fake.session import FakeSession  # noqa: PLC0415 - workers only

        if not settings.file:
            raise BadConfig("discovery.fake.file: no file is given")
        return FakeSession(settings.file)
