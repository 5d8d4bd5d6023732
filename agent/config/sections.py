"""Every setting of the agent, by section. Units are in the names.

The annotations stay text until a setting is decoded or explained: a start pays for none of them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.config.cluster import ApiSettings, KubeletSettings
from agent.config.containers import (
    CdiSettings,
    DevicePluginSettings,
    EnforceSettings,
    HookSettings,
    NriSettings,
    ProofSettings,
)
from agent.config.field import Rule, Table
from agent.config.health import HealthSettings
from agent.config.vendors import (
    AcceleratorsSettings,
    AscendSettings,
    CambriconSettings,
    FakeSettings,
    InfofilesSettings,
    NvidiaSettings,
    RdmaSettings,
    VendorSwitches,
)


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which node this is."""

    name: Annotated[str, Rule("name of the Node object; empty: the host's name")] = ""
    state_dir: Annotated[
        str,
        Rule("folder for what must survive a restart; empty: nothing is kept (standalone mode)"),
    ] = ""
    host_root: Annotated[
        str, Rule("where the host's root is mounted in the agent's container; empty: it is /")
    ] = ""
    run_dir: Annotated[
        str,
        Rule(
            "folder of the lock that keeps a second agent from writing, and of the journals of "
            "calls into vendors' libraries; gone at boot"
        ),
    ] = "/run/xpu-agent"


class DiscoverySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for, how often, and what a person knows better than the firmware."""

    interval_s: Annotated[
        float, Rule("full look at every vendor's devices", unit="s", low=5, high=3600)
    ] = 300.0
    host_interval_s: Annotated[
        float,
        Rule(
            "full look at CPUs, memory nodes and PCI; five times that while the kernel tells",
            unit="s",
            low=5,
            high=3600,
        ),
    ] = 60.0
    discover_deadline_s: Annotated[
        float, Rule("a vendor's discovery that takes longer is ended", unit="s", low=1, high=600)
    ] = 30.0
    sample_deadline_s: Annotated[
        float, Rule("a vendor's sample that takes longer is ended", unit="s", low=0.1, high=60)
    ] = 5.0
    worker_memory_bytes: Annotated[
        int,
        Rule("a worker that holds more is replaced by a fresh one; 0: never", low=0, high=2**40),
    ] = 512 * 2**20
    hotplug: Annotated[
        bool, Rule("hear the kernel's events of devices that come and go", maturity="beta")
    ] = True
    vendors: Annotated[VendorSwitches, Rule("vendors on, off, or on where hardware is")] = (
        VendorSwitches()
    )
    nvidia: Annotated[NvidiaSettings, Rule("NVIDIA")] = NvidiaSettings()
    ascend: Annotated[AscendSettings, Rule("Ascend")] = AscendSettings()
    cambricon: Annotated[CambriconSettings, Rule("Cambricon")] = CambriconSettings()
    rdma: Annotated[RdmaSettings, Rule("RDMA")] = RdmaSettings()
    fake: Annotated[FakeSettings, Rule("fake devices")] = FakeSettings()
    accelerators: Annotated[AcceleratorsSettings, Rule("other accelerators")] = (
        AcceleratorsSettings()
    )
    infofiles: Annotated[InfofilesSettings, Rule("device-info files")] = InfofilesSettings()
    numa_overrides: Annotated[
        Table,
        Rule("NUMA nodes of devices whose firmware lies: {match, node}, the first match counts"),
    ] = ()
    topology_file: Annotated[
        str, Rule("NCCL topology file that fills what a virtual machine hides; empty: none")
    ] = "/var/run/nvidia-topologyd/virtualTopology.xml"


class CollectSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How often usage is measured."""

    interval_s: Annotated[
        float, Rule("cycle of CPU and memory usage", unit="s", low=0.1, high=60)
    ] = 1.0
    pressure_interval_s: Annotated[
        float, Rule("cycle of pressure stall information", unit="s", low=1, high=300)
    ] = 10.0
    device_interval_s: Annotated[
        float, Rule("cycle of device samples", unit="s", low=0.1, high=60)
    ] = 1.0
    pods: Annotated[bool, Rule("measure pods and containers", maturity="beta")] = True
    pressure: Annotated[bool, Rule("read pressure stall information", maturity="beta")] = True
    hami_regions: Annotated[
        str, Rule("folder of HAMi-core's shared regions, one folder a container; empty: not read")
    ] = "/usr/local/vgpu/containers"


class PublishSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which objects are published, how often and with what in them."""

    interval_s: Annotated[
        float,
        Rule("look for changes of Device and NodeResourceTopology", unit="s", low=0.5, high=300),
    ] = 3.0
    coalesce_ms: Annotated[
        int,
        Rule("changes of devices within that are published together", unit="ms", low=0, high=1000),
    ] = 50
    device: Annotated[bool, Rule("publish the Device object", maturity="beta")] = True
    node_metric: Annotated[bool, Rule("publish the NodeMetric object", maturity="beta")] = True
    node_resource_topology: Annotated[
        bool, Rule("publish the NodeResourceTopology object", maturity="beta")
    ] = True
    pcie_scope: Annotated[
        str,
        Rule(
            "what pcieID names: the host bridge as Koordinator does, or the PCIe switch",
            choices=("root", "switch"),
        ),
    ] = "root"
    device_info_files: Annotated[
        bool, Rule("describe our accelerators in a device-info file", maturity="beta")
    ] = False
    device_info_directory: Annotated[str, Rule("folder of that file, which koordlet reads")] = (
        "/var/run/koordlet/xpu-device-infos"
    )
    report_interval_s: Annotated[
        float,
        Rule("period of NodeMetric where the object does not say", unit="s", low=30, high=3600),
    ] = 60.0
    aggregate_duration_s: Annotated[
        float,
        Rule("window of its means where the object does not say", unit="s", low=60, high=3600),
    ] = 300.0
    memory_policy: Annotated[
        str,
        Rule(
            "memory that counts as used where the object does not say",
            choices=("usageWithoutPageCache", "usageWithHotPageCache", "usageWithPageCache"),
        ),
    ] = "usageWithoutPageCache"


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is exported to Prometheus and where."""

    listen: Annotated[str, Rule("address of /metrics and the status page, HOST:PORT")] = (
        "127.0.0.1:9316"
    )
    page_listen: Annotated[
        str,
        Rule("a second address, for the page where the first is not loopback; empty: none"),
    ] = ""
    pods: Annotated[bool, Rule("export xpu_pod_* and xpu_container_*", maturity="beta")] = True
    aliases: Annotated[
        tuple[str, ...],
        Rule(
            "export also under the names of HAMi's monitor, or RDMA ports under node_exporter's",
            choices=("hami", "hami_legacy", "node_exporter"),
        ),
    ] = ()


class AdminSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a person on this machine may act on the running agent."""

    socket: Annotated[
        str,
        Rule(
            "path of the admin socket; empty: admin.sock in node.run_dir, or in the folder of "
            "--out in standalone mode and of a recorded host; off: none"
        ),
    ] = ""


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is logged; always JSON lines to standard error."""

    level: Annotated[str, Rule("least level", choices=("debug", "info", "warning", "error"))] = (
        "info"
    )


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of the settings."""

    node: Annotated[NodeSettings, Rule("which node this is")] = NodeSettings()
    discovery: Annotated[DiscoverySettings, Rule("devices and topology")] = DiscoverySettings()
    collect: Annotated[CollectSettings, Rule("usage")] = CollectSettings()
    health: Annotated[HealthSettings, Rule("health of devices")] = HealthSettings()
    publish: Annotated[PublishSettings, Rule("objects")] = PublishSettings()
    api: Annotated[ApiSettings, Rule("the API server")] = ApiSettings()
    kubelet: Annotated[KubeletSettings, Rule("the kubelet")] = KubeletSettings()
    metrics: Annotated[MetricsSettings, Rule("Prometheus")] = MetricsSettings()
    nri: Annotated[NriSettings, Rule("the container runtime")] = NriSettings()
    device_plugin: Annotated[DevicePluginSettings, Rule("the kubelet's device plug-in")] = (
        DevicePluginSettings()
    )
    cdi: Annotated[CdiSettings, Rule("CDI files")] = CdiSettings()
    hooks: Annotated[HookSettings, Rule("what hooks may do on their own")] = HookSettings()
    enforce: Annotated[EnforceSettings, Rule("what may be changed on this node")] = (
        EnforceSettings()
    )
    proof: Annotated[ProofSettings, Rule("looking into running containers")] = ProofSettings()
    admin: Annotated[AdminSettings, Rule("actions")] = AdminSettings()
    log: Annotated[LogSettings, Rule("logs")] = LogSettings()
