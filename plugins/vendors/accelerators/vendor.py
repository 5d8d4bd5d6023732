"""Accelerators without a plug-in of their own, as one vendor that reads sysfs inside the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.snapshot.device import VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.settings import SettingRule, VendorSettings
from agent.snapshot.vendor import SWITCH_CHOICES, SessionContext, VendorDescription
from plugins.shared import injection
from plugins.vendors.accelerators.settings import AcceleratorsSettings
from plugins.vendors.accelerators.sysfs import describe_unmanaged, find_accelerators

if TYPE_CHECKING:
    from plugins.vendors.accelerators.session import AcceleratorsSession


class AcceleratorsVendor:
    """Functions with the PCI class of accelerators, of makers without a vendor plug-in."""

    description = VendorDescription(
        name="accelerators",
        title="other accelerators",
        switch=SettingRule(
            "other makers' accelerators by their PCI identity",
            choices=SWITCH_CHOICES,
            maturity="beta",
        ),
        settings=AcceleratorsSettings,
        kernel_modules=("amdgpu", "xe", "habanalabs"),
        is_isolated=False,
    )
    host_query = staticmethod(injection.host_query)
    edits = staticmethod(injection.edits)

    def detect(self, host: HostFiles, settings: VendorSettings) -> tuple[VendorDevice, ...]:  # noqa: ARG002 - see DeviceVendor
        """Return the functions.

        Cards that settings describe are managed from the first discovery on.
        """
        return tuple(describe_unmanaged(function) for function in find_accelerators(host))

    def open(
        self, host: HostFiles, settings: AcceleratorsSettings, context: SessionContext
    ) -> AcceleratorsSession:
        """Return a session; there is no library."""
        # imported here: the agent starts its workers first
        from plugins.vendors.accelerators.session import AcceleratorsSession  # noqa: PLC0415 - see above

        return AcceleratorsSession(host, settings, context)
