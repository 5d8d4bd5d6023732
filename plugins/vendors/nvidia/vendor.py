"""The vendor NVIDIA: the agent detects cards in sysfs, the worker opens the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.snapshot.device import VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.settings import HealthOverrides, SettingRule, VendorSettings
from agent.snapshot.vendor import (
    SWITCH_CHOICES,
    CdiNaming,
    NodeDaemon,
    NodeRequirements,
    ReleaseLabel,
    SessionContext,
    VendorDescription,
)
from plugins.vendors.nvidia import kubelet
from plugins.vendors.nvidia.aliases import DCGM
from plugins.vendors.nvidia.discovery.sysfs import (
    cards_without_bus,
    describe_function,
    find_hardware,
)
from plugins.vendors.nvidia.health.runbook import NvidiaRunbook
from plugins.vendors.nvidia.injection import driver_files, edits
from plugins.vendors.nvidia.metrics import FAMILIES, TRAFFIC
from plugins.vendors.nvidia.settings import NvidiaSettings

if TYPE_CHECKING:
    from plugins.vendors.nvidia.session import NvidiaSession

# of NVIDIA's GPU Operator: the states of its upgrade controller in which the driver is unloaded,
# and the labels by which its driver manager and its MIG manager stop all programs that use a GPU
RELEASE_LABELS = (
    ReleaseLabel(
        key="nvidia.com/gpu-driver-upgrade-state",
        values=("pod-deletion-required", "drain-required", "pod-restart-required"),
    ),
    ReleaseLabel(
        key="nvidia.com/gpu.deploy.",
        values=("paused-for-driver-upgrade", "paused-for-mig-change"),
        is_prefix=True,
    ),
)


NVSWITCH = "10de:0680"  # vendor and class of its PCI functions

REQUIREMENTS = NodeRequirements(
    version_files=("/sys/module/nvidia/version", "/proc/driver/nvidia/version"),
    library="libnvidia-ml.so.",
    library_folders=driver_files.LIBRARY_FOLDERS,
    device_nodes=("/dev/nvidiactl", "/dev/nvidia-uvm"),
    daemons=(
        NodeDaemon(
            process="nvidia-persistenced",
            fact=("persistence", "off"),
            impact="the driver lets go of idle cards: the next process waits seconds for each, and "
            "settings such as power limits are lost",
            remedy="start the service nvidia-persistenced",
        ),
        NodeDaemon(
            process="nv-fabricmanager",
            function=NVSWITCH,
            impact="NVLinks through the switches stay down: CUDA fails with error 802 (system not "
            "yet initialized)",
            remedy="install nvidia-fabricmanager in exactly the version of the driver, and start "
            "its service",
        ),
    ),
    device_plugins=("nvidia-device-plugin",),
    exporters=(("dcgm-exporter", "dcgm"),),
)


class NvidiaVendor:
    """NVIDIA's GPUs."""

    description = VendorDescription(
        name="nvidia",
        title="NVIDIA",
        switch=SettingRule("NVIDIA GPUs through NVML", choices=SWITCH_CHOICES, maturity="beta"),
        settings=NvidiaSettings,
        kernel_modules=("nvidia", "nouveau"),
        char_link_prefix="/dev/nvidia",
        cdi=CdiNaming(
            kind=edits.OWN_KIND,
            resource_domain="nvidia.com/",
            has_slice_names=True,
            driver_domain="nvidia.com",
            switch=SettingRule(
                "name NVIDIA cards too that no file of nvidia-ctk names; needs nvidia-cdi-hook",
                maturity="alpha",
            ),
        ),
        serves_kubelet=True,
        health=HealthOverrides(clean_probes=3, clean_s=60.0),
        families=FAMILIES,
        aliases=(DCGM,),
        requirements=REQUIREMENTS,
        state_files=("nvidia-devices.json", "nvidia-causes.json"),
        release_labels=RELEASE_LABELS,
        traffic=TRAFFIC,
    )
    request_variables = frozenset((edits.VISIBLE, edits.OLD_IMAGE))
    runtime_handler = edits.RUNTIME_HANDLER
    host_query = staticmethod(edits.host_query)
    edits = staticmethod(edits.edits)
    driver_edits = staticmethod(driver_files.driver_edits)
    socket_prefixes = kubelet.SOCKET_PREFIXES
    serves_device = staticmethod(kubelet.serves_device)
    kubelet_units = staticmethod(kubelet.kubelet_units)
    runbook = NvidiaRunbook()

    def detect(self, host: HostFiles, settings: VendorSettings) -> tuple[VendorDevice, ...]:  # noqa: ARG002 - see DeviceVendor
        """List NVIDIA's display functions in sysfs with their drivers."""
        hardware = find_hardware(host)
        return tuple(
            describe_function(function)
            for function in (*hardware.cards, *cards_without_bus(hardware.platform))
        )

    def open(
        self, host: HostFiles, settings: NvidiaSettings, context: SessionContext
    ) -> NvidiaSession:
        """Return a session; its first discovery loads the library."""
        from plugins.vendors.nvidia.session import NvidiaSession  # noqa: PLC0415 - workers only

        return NvidiaSession(host, settings, context)
