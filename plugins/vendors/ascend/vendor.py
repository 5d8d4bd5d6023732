"""Ascend as a vendor: sighted from sysfs by the agent, opened in its worker only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent.host.files import HostFiles
from agent.model.device import VendorDevice
from agent.model.inventory import MetricFamily
from plugins import families
from plugins.injection.lazily import lazily, needs_lazily
from plugins.vendors.ascend.sight import device, look

if TYPE_CHECKING:
    from plugins.vendors.ascend.session import AscendSession

FAMILIES = (
    families.POWER,
    families.TEMPERATURE,
    families.CLOCK,
    families.ECC_ERRORS,
    MetricFamily(
        name="xpu_npu_utilization_ratio",
        type="gauge",
        help="Busy share of a unit of the chip, or used share of its memory.",
        labels=("unit",),
    ),
    MetricFamily(name="xpu_npu_voltage_volts", type="gauge", help="Voltage of the chip."),
    MetricFamily(
        name="xpu_npu_ddr_used_bytes",
        type="gauge",
        help="Memory in use beside the high-bandwidth memory.",
    ),
    MetricFamily(
        name="xpu_npu_link_errors_total",
        type="counter",
        help="Transfers that the chip's own links had to repeat or found damaged.",
        labels=("link", "port", "kind"),
    ),
    MetricFamily(
        name="xpu_npu_network_up",
        type="gauge",
        help="Whether the chip's network port works.",
        labels=("address",),
    ),
    MetricFamily(
        name="xpu_npu_vnpu_utilization_ratio",
        type="gauge",
        help="Busy share of the AI cores of a vNPU.",
        labels=("vnpu",),
    ),
    MetricFamily(
        name="xpu_npu_vnpu_memory_used_bytes",
        type="gauge",
        help="Memory in use of a vNPU.",
        labels=("vnpu",),
    ),
)


class AscendVendor:
    """NPUs of Huawei. Settings: those of `AscendSettings`, state_dir, replay."""

    name: str = "ascend"
    families: tuple[MetricFamily, ...] = FAMILIES
    edits = staticmethod(lazily("plugins.injection.ascend.edits"))
    needs = staticmethod(needs_lazily("plugins.injection.ascend.edits"))

    def sighted(self, host: HostFiles) -> tuple[VendorDevice, ...]:
        """List the NPUs with whose driver they are bound to."""
        return tuple(device(seen) for seen in look(host))

    def check(self, settings: Mapping[str, object]) -> None:
        """Find nothing wrong: what may be set is text that no rule forbids."""

    def remedy(self, reason: str, message: str) -> str:
        """Return what a person does about a reason given for a chip."""
        from plugins.faults.ascend.remedies import remedy  # noqa: PLC0415 - only commands ask

        return remedy(reason, message)

    def open(self, host: HostFiles, settings: Mapping[str, object]) -> AscendSession:
        """Return a session; the library is looked for at its first discovery."""
        from plugins.vendors.ascend.session import AscendSession  # noqa: PLC0415 - workers only

        return AscendSession(host, settings)
