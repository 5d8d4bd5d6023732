"""The part of a vendor that the agent loads: it detects the vendor's devices on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.runbook.entry import RecommendedAction, RunbookEntry, entry_table
from agent.snapshot.device import DeviceKind, Health, HealthState, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import MetricFamily
from agent.snapshot.settings import SettingRule, VendorSettings
from agent.snapshot.vendor import SWITCH_CHOICES, SessionContext, VendorDescription
from plugins.shared import injection
from plugins.shared.pci_functions import find_functions

if TYPE_CHECKING:
    from plugins.vendors.template.session import TemplateSession

NAME = "template"
PCI_VENDORS = (b"0xfffe",)  # as the file `vendor` of a PCI function spells it; nobody's number
UNANSWERED = Health(
    state=HealthState.SUSPECT,
    reason="WorkerNotReady",
    message="seen on the PCI bus; the vendor's library has not answered yet",
)

RUNBOOK = entry_table(
    RunbookEntry(
        "NotRecorded",
        "the recorded host has no answers of the library",
        "The host is a recording, and no library may be loaded.",
        "The devices are shown with what sysfs has.",
        "record the host again where the driver runs",
        RecommendedAction.NONE,
    ),
    vendor=NAME,
)


class TemplateVendor:
    """Hardware that does not exist. The agent and the worker construct it without arguments."""

    description = VendorDescription(
        name=NAME,
        title="Template",
        switch=SettingRule("devices of nobody", choices=SWITCH_CHOICES, maturity="alpha"),
        # Settings of your own: a subclass of `VendorSettings` in `settings.py`, as `settings=`.
        # What the values of `sample` are. Say the unit in the name, in base units.
        families=(
            MetricFamily(
                name="xpu_template_temperature_celsius",
                type="gauge",
                help="Temperature of the chip.",
            ),
        ),
    )
    # What a container gets of its devices: here their nodes. Name a module of your own with a
    # function `edits` for mounts, an environment or CDI names, and with `host_query` for what it
    # needs of the host beside the nodes.
    host_query = staticmethod(injection.host_query)
    edits = staticmethod(injection.edits)
    # What people do about reasons that only this vendor has.
    runbook = RUNBOOK

    def detect(self, host: HostFiles, settings: VendorSettings) -> tuple[VendorDevice, ...]:  # noqa: ARG002 - see DeviceVendor
        """Return the hardware from sysfs alone, in less than 10 ms; a broken entry is left out."""
        return tuple(_describe(function.bus_id) for function in find_functions(host, PCI_VENDORS))

    def open(
        self, host: HostFiles, settings: VendorSettings, context: SessionContext
    ) -> TemplateSession:
        """Return a session.

        With `context.is_replay` the host is a recording: no library may be loaded.
        """
        # imported here: the agent loads this module at its start, and the session only its worker
        from plugins.vendors.template.session import TemplateSession  # noqa: PLC0415 - see above

        devices = self.detect(host, settings)
        return TemplateSession(host, devices, library_allowed=not context.is_replay)


def _describe(bus_id: str) -> VendorDevice:
    # the vendor of a VendorDevice is the maker; the minor is known to the library only
    return VendorDevice(kind=DeviceKind.XPU, vendor=NAME, bus_id=bus_id, health=UNANSWERED)
