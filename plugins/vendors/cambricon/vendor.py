"""The vendor Cambricon: the agent detects cards in sysfs, the worker opens the session."""

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
from plugins.vendors.cambricon import injection, kubelet
from plugins.vendors.cambricon.aliases import MLU_EXPORTER
from plugins.vendors.cambricon.discovery.sysfs import describe_function, find_cards
from plugins.vendors.cambricon.metrics import FAMILIES, TRAFFIC
from plugins.vendors.cambricon.runbook import CambriconRunbook
from plugins.vendors.cambricon.settings import CambriconSettings
from plugins.vendors.cambricon.smlu import profiles

if TYPE_CHECKING:
    from plugins.vendors.cambricon.session import CambriconSession


class CambriconVendor:
    """Cambricon's MLUs."""

    description = VendorDescription(
        name="cambricon",
        title="Cambricon",
        switch=SettingRule("Cambricon MLUs through CNDev", choices=SWITCH_CHOICES, maturity="beta"),
        settings=CambriconSettings,
        kernel_modules=("cambricon",),
        cdi=CdiNaming(
            kind=injection.OWN_KIND,
            is_named_by_number=True,
            prefix="mlu-",
            resource_domain="cambricon.com/",
        ),
        serves_kubelet=True,
        health=HealthOverrides(clean_probes=3),
        families=FAMILIES,
        aliases=(MLU_EXPORTER,),
        requirements=NodeRequirements(
            device_nodes=("/dev/cambricon_ctl",),
            device_plugins=("cambricon-device-plugin", "device-plugin"),
            exporters=(("mlu-exporter", "mlu_exporter"),),
        ),
        slice_files=("smlu-owned.json",),
        state_files=("cambricon-devices.json",),
        traffic=TRAFFIC,
    )
    request_variables = frozenset((injection.VISIBLE,))
    runtime_handler = injection.RUNTIME_HANDLER
    host_query = staticmethod(injection.host_query)
    edits = staticmethod(injection.edits)
    socket_prefixes = kubelet.SOCKET_PREFIXES
    serves_device = staticmethod(kubelet.serves_device)
    kubelet_units = staticmethod(kubelet.kubelet_units)
    slices_device = staticmethod(profiles.slices_device)
    resolve_entry = staticmethod(profiles.resolve_entry)
    slice_request = staticmethod(profiles.slice_request)
    is_sliced_by_runtime = staticmethod(profiles.is_sliced_by_runtime)
    runbook = CambriconRunbook()

    def detect(self, host: HostFiles, settings: VendorSettings) -> tuple[VendorDevice, ...]:  # noqa: ARG002 - see DeviceVendor
        """List Cambricon's accelerator functions in sysfs."""
        return tuple(describe_function(bus_id) for bus_id in find_cards(host))

    def open(
        self, host: HostFiles, settings: CambriconSettings, context: SessionContext
    ) -> CambriconSession:
        """Return a session; its first discovery loads the library."""
        from plugins.vendors.cambricon.session import CambriconSession  # noqa: PLC0415 - workers only

        return CambriconSession(host, settings, context)
