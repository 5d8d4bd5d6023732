"""The vendor Ascend: the agent detects chips in sysfs, the worker opens the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.snapshot.device import VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.settings import HealthOverrides, SettingRule, VendorSettings
from agent.snapshot.vendor import (
    SWITCH_CHOICES,
    CdiNaming,
    NodeRequirements,
    SessionContext,
    VendorDescription,
)
from plugins.vendors.ascend import injection, kubelet
from plugins.vendors.ascend.aliases import NPU_EXPORTER
from plugins.vendors.ascend.discovery.sysfs import describe_function, find_npus
from plugins.vendors.ascend.health.runbook import AscendRunbook
from plugins.vendors.ascend.metrics import FAMILIES, TRAFFIC
from plugins.vendors.ascend.settings import AscendSettings
from plugins.vendors.ascend.vnpu import templates

if TYPE_CHECKING:
    from plugins.vendors.ascend.session import AscendSession


class AscendVendor:
    """Huawei's NPUs."""

    description = VendorDescription(
        name="ascend",
        title="Ascend",
        switch=SettingRule("Ascend NPUs through libdcmi", choices=SWITCH_CHOICES, maturity="alpha"),
        settings=AscendSettings,
        kernel_modules=("drv_", "davinci", "devdrv"),
        cdi=CdiNaming(
            kind=injection.OWN_KIND,
            is_named_by_number=True,
            variables=(injection.LIBRARY_PATH,),
            resource_domain="huawei.com/",
        ),
        serves_kubelet=True,
        health=HealthOverrides(clean_probes=3, clean_s=15.0),
        families=FAMILIES,
        aliases=(NPU_EXPORTER,),
        requirements=NodeRequirements(
            device_nodes=("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
            device_plugins=("ascend-device-plugin", "ascendplugin"),
            exporters=(("npu-exporter", "npu_exporter"),),
        ),
        state_files=("ascend-devices.json", "ascend-faults.json"),
        slice_files=("ascend-vnpus.json",),
        traffic=TRAFFIC,
    )
    request_variables = frozenset((injection.VISIBLE,))
    runtime_handler = injection.RUNTIME_HANDLER
    host_query = staticmethod(injection.host_query)
    edits = staticmethod(injection.edits)
    socket_prefixes = kubelet.SOCKET_PREFIXES
    serves_device = staticmethod(kubelet.serves_device)
    kubelet_units = staticmethod(kubelet.kubelet_units)
    slices_device = staticmethod(templates.slices_device)
    resolve_entry = staticmethod(templates.resolve_entry)
    slice_request = staticmethod(templates.slice_request)
    is_sliced_by_runtime = staticmethod(templates.is_sliced_by_runtime)
    runbook = AscendRunbook()

    def detect(self, host: HostFiles, settings: VendorSettings) -> tuple[VendorDevice, ...]:  # noqa: ARG002 - see DeviceVendor
        """List the NPUs in sysfs with their drivers."""
        return tuple(describe_function(function) for function in find_npus(host))

    def open(
        self, host: HostFiles, settings: AscendSettings, context: SessionContext
    ) -> AscendSession:
        """Return a session; its first discovery loads the library."""
        from plugins.vendors.ascend.session import AscendSession  # noqa: PLC0415 - workers only

        return AscendSession(host, settings, context)
