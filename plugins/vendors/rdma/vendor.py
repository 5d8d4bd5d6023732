"""RDMA devices as a vendor: detection in the agent, and the resources for the kubelet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from agent.snapshot.device import Device, DeviceKind, VendorDevice
from agent.snapshot.device_plugin import DeviceUnit
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import Problem
from agent.snapshot.settings import HealthOverrides, SettingRule, VendorSettings
from agent.snapshot.vendor import (
    SWITCH_CHOICES,
    CdiNaming,
    NodeRequirements,
    SessionContext,
    VendorDescription,
)
from plugins.vendors.rdma import injection
from plugins.vendors.rdma.health.runbook import RUNBOOK
from plugins.vendors.rdma.host_functions import RdmaFunctionReader
from plugins.vendors.rdma.metrics import FAMILIES, TRAFFIC
from plugins.vendors.rdma.settings import RdmaSettings
from plugins.vendors.rdma.sysfs.functions import detect_devices

if TYPE_CHECKING:
    from plugins.vendors.rdma.session import RdmaSession


_DEMONSTRATION = "fake"  # maker of devices from a file: no container can have one


class RdmaKubeletSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of `device_plugin` that concern only NICs."""

    rdma_resource: str = "rdma/hca"


def serves_device(device: VendorDevice) -> bool:
    """Return whether the device is a NIC, of any maker."""
    return device.kind is DeviceKind.RDMA and device.vendor != _DEMONSTRATION


def kubelet_units(
    devices: Sequence[Device],
    settings: msgspec.Struct,
    problems: list[Problem],  # noqa: ARG001 - nothing can go wrong here
) -> Iterator[tuple[str, DeviceUnit]]:
    """Yield NICs by address; for a NIC with virtual functions only these."""
    name = msgspec.convert(settings, RdmaKubeletSettings, from_attributes=True).rdma_resource
    for device in devices:
        info = device.info
        address = info.bus_id or info.uuid
        if not address or not info.managed or not info.resources:
            continue
        functions = [vf.bus_id for group in info.vf_groups for vf in group.vfs]
        if not functions:
            yield name, DeviceUnit(id=address, device=device, is_exclusive=False)
        for function in functions:
            yield (
                name,
                DeviceUnit(id=function, device=device, function=function, is_exclusive=False),
            )


class RdmaVendor:
    """InfiniBand, RoCE, iWARP and software RDMA devices of any driver."""

    description = VendorDescription(
        name="rdma",
        title="RDMA",
        switch=SettingRule(
            "InfiniBand, RoCE and soft-RoCE devices", choices=SWITCH_CHOICES, maturity="beta"
        ),
        settings=RdmaSettings,
        is_network=True,
        kernel_modules=(
            *("mlx", "ib_", "rdma", "irdma", "bnxt", "qedr", "hns", "erdma", "efa", "siw"),
        ),
        cdi=CdiNaming(kind="xpu-agent.io/rdma", resource_domain="rdma/"),
        serves_kubelet=True,
        # a port is watched for seconds before the session reports that it went down or came up
        health=HealthOverrides(clean_probes=1, clean_s=0.0, clear_looks=1),
        families=FAMILIES,
        requirements=NodeRequirements(
            device_nodes=("/dev/infiniband/rdma_cm",),
            device_plugins=("k8s-rdma-shared-dp", "sriovdp"),
        ),
        state_files=("rdma.json",),
        traffic=TRAFFIC,
    )
    host_query = staticmethod(injection.host_query)
    edits = staticmethod(injection.edits)
    function_reader = staticmethod(RdmaFunctionReader)
    socket_prefixes: tuple[str, ...] = ()  # of the vendor's own device plug-in
    serves_device = staticmethod(serves_device)
    kubelet_units = staticmethod(kubelet_units)
    runbook = RUNBOOK

    def detect(self, host: HostFiles, settings: VendorSettings) -> tuple[VendorDevice, ...]:  # noqa: ARG002 - see DeviceVendor
        """Return RDMA devices, and functions whose driver should have one, from links alone."""
        return detect_devices(host)

    def open(self, host: HostFiles, settings: RdmaSettings, context: SessionContext) -> RdmaSession:
        """Return a session; it opens no file before its first discovery."""
        from plugins.vendors.rdma.session import RdmaSession  # noqa: PLC0415 - workers only

        return RdmaSession(host, settings, context)
