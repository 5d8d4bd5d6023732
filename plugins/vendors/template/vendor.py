"""The part of a vendor that the agent loads: it says what of the vendor is on this host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent.host.files import HostFiles
from agent.model.device import DeviceKind, Health, HealthState, VendorDevice
from agent.model.inventory import MetricFamily
from plugins.functions import made_by
from plugins.injection.lazily import lazily

if TYPE_CHECKING:
    from plugins.vendors.template.session import TemplateSession

PCI_VENDORS = (b"0xfffe",)  # as the file `vendor` of a PCI function spells it; nobody's number
UNANSWERED = Health(
    state=HealthState.SUSPECT,
    reason="WorkerNotReady",
    message="seen on the PCI bus; the vendor's library has not answered yet",
)


class TemplateVendor:
    """Hardware that nobody makes. Constructed without arguments, in the agent and in the worker."""

    name = "template"
    # What the readings of `sample` are. Say the unit in the name, in base units.
    families: tuple[MetricFamily, ...] = (
        MetricFamily(
            name="xpu_template_temperature_celsius", type="gauge", help="Temperature of the chip."
        ),
    )
    # What a container gets of a granted device: here its nodes. Name a module of your own with a
    # function `edits` for mounts, an environment or CDI names; it is imported when it is asked.
    # What of the host it needs for that beside the nodes it names by `needs`, see `HostNeeds`.
    edits = staticmethod(lazily("plugins.injection.plain"))

    def sighted(self, host: HostFiles) -> tuple[VendorDevice, ...]:
        """List the hardware from sysfs alone, in less than 10 ms; a broken entry is left out."""
        return tuple(_describe(function.bus_id) for function in made_by(host, PCI_VENDORS))

    def check(self, settings: Mapping[str, object]) -> None:
        """Find nothing wrong: what may be set is text that no rule forbids."""

    def open(self, host: HostFiles, settings: Mapping[str, object]) -> TemplateSession:
        """Start working. With `settings["replay"]` the host is a recording: no library then."""
        # imported here: the agent loads this module at its start, and the session only its worker
        from plugins.vendors.template.session import TemplateSession  # noqa: PLC0415 - see above

        return TemplateSession(self.sighted(host), library_allowed=not settings.get("replay"))


def _describe(bus_id: str) -> VendorDevice:
    # the vendor of a VendorDevice is the maker; the minor is known to the library only
    return VendorDevice(
        kind=DeviceKind.XPU, vendor=TemplateVendor.name, bus_id=bus_id, health=UNANSWERED
    )
