"""RDMA as a device vendor: sighted by the agent, discovered and watched in the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.snapshot.device import VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.settings import HealthOverrides, SettingRule, VendorSettings
from agent.snapshot.vendor import SWITCH_CHOICES, CdiNaming, SessionContext, VendorDescription
from plugins.vendors.rdma import injection, kubelet
from plugins.vendors.rdma.health.ports import remedy
from plugins.vendors.rdma.host_functions import RdmaFunctionReader
from plugins.vendors.rdma.metrics import FAMILIES
from plugins.vendors.rdma.settings import RdmaSettings
from plugins.vendors.rdma.sysfs.functions import detect_devices

if TYPE_CHECKING:
    from plugins.vendors.rdma.session import RdmaSession


class RdmaVendor:
    """InfiniBand, RoCE, iWARP and software RDMA devices of any driver."""

    description = VendorDescription(
        name="rdma",
        title="RDMA",
        switch=SettingRule(
            "InfiniBand, RoCE and soft-RoCE devices", choices=SWITCH_CHOICES, maturity="beta"
        ),
        settings=RdmaSettings,
        cdi=CdiNaming(kind="xpu-agent.io/rdma", resource_domain="rdma/"),
        serves_kubelet=True,
        # a port is watched for seconds before the session reports that it went down or came up
        health=HealthOverrides(clean_probes=1, clean_s=0.0, clear_looks=1),
        families=FAMILIES,
    )
    host_query = staticmethod(injection.host_query)
    edits = staticmethod(injection.edits)
    function_reader = staticmethod(RdmaFunctionReader)
    socket_prefixes = kubelet.SOCKET_PREFIXES
    serves_device = staticmethod(kubelet.serves_device)
    kubelet_units = staticmethod(kubelet.kubelet_units)

    def detect(self, host: HostFiles, settings: VendorSettings) -> tuple[VendorDevice, ...]:  # noqa: ARG002 - see DeviceVendor
        """List RDMA devices and functions whose driver should have one, from links alone."""
        return detect_devices(host)

    def remedy(self, reason: str, message: str) -> str:
        """Return what a person does about a reason given for a device."""
        return remedy(reason, message)

    def open(self, host: HostFiles, settings: RdmaSettings, context: SessionContext) -> RdmaSession:
        """Return a session, which opens no file before its first discovery."""
        from plugins.vendors.rdma.session import RdmaSession  # noqa: PLC0415 - workers only

        return RdmaSession(host, settings, context)
