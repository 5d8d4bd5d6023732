"""Every setting of the agent, by section. Units are in the names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.config.field import section, setting

Table = tuple[Mapping[str, object], ...]  # a list of small mappings, checked by who uses it
SWITCH = ("auto", "on", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Which node this is."""

    name: str = setting("", "name of the Node object; empty: the host's name")
    state_dir: str = setting(
        "", "folder for what must survive a restart; empty: nothing is kept (standalone mode)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorSwitches:
    """Which vendors may run a worker."""

    nvidia: str = setting("auto", "NVIDIA GPUs through NVML", choices=SWITCH, maturity="beta")
    rdma: str = setting(
        "auto", "InfiniBand, RoCE and soft-RoCE devices", choices=SWITCH, maturity="beta"
    )
    fake: str = setting(
        "auto", "devices described in discovery.fake.file", choices=SWITCH, maturity="stable"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaSettings:
    """How the NVIDIA worker finds its driver."""

    library_dirs: tuple[str, ...] = setting(
        (), "folders searched for libnvidia-ml.so.1; empty: the usual ones below driver_root"
    )
    driver_root: str = setting(
        "/", "root of the driver's files; /run/nvidia/driver with a container"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaSettings:
    """Which RDMA devices are published, and how their ports make health."""

    soft: bool = setting(False, "publish soft-RoCE and soft-iWARP devices", maturity="beta")
    port_policy: str = setting("any", "ports that must be active", choices=("any", "all"))
    expected_ports: Table = setting(
        (), "ports that count though they were never up: {match, ports}"
    )
    vf_pools: Table = setting((), "groups of virtual functions: {pf, vfs, driver, labels}")
    labels: Table = setting((), "labels of devices: {match, labels}")
    roles: Table = setting((), "use of a NIC: {match, role: compute or storage}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeSettings:
    """Devices that do not exist, for demonstrations and scale tests."""

    file: str = setting("", "YAML file that describes them; empty: none")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoverySettings:
    """What is looked for, how often, and what a person knows better than the firmware."""

    interval_s: float = setting(
        300.0, "full look at every vendor's devices", unit="s", low=5, high=3600
    )
    host_interval_s: float = setting(
        60.0, "full look at CPUs, memory nodes and PCI", unit="s", low=5, high=3600
    )
    discover_deadline_s: float = setting(
        30.0, "a vendor's discovery that takes longer is ended", unit="s", low=1, high=600
    )
    sample_deadline_s: float = setting(
        5.0, "a vendor's sample that takes longer is ended", unit="s", low=0.1, high=60
    )
    vendors: VendorSwitches = section(VendorSwitches, "vendors on, off, or on where hardware is")
    nvidia: NvidiaSettings = section(NvidiaSettings, "NVIDIA")
    rdma: RdmaSettings = section(RdmaSettings, "RDMA")
    fake: FakeSettings = section(FakeSettings, "fake devices")
    numa_overrides: Table = setting(
        (), "NUMA nodes of devices whose firmware lies: {match, node}, the first match counts"
    )
    topology_file: str = setting(
        "/var/run/nvidia-topologyd/virtualTopology.xml",
        "NCCL topology file that fills what a virtual machine hides; empty: none",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSettings:
    """How often usage is measured."""

    interval_s: float = setting(1.0, "cycle of CPU and memory usage", unit="s", low=0.1, high=60)
    pressure_interval_s: float = setting(
        10.0, "cycle of pressure stall information", unit="s", low=1, high=300
    )
    device_interval_s: float = setting(1.0, "cycle of device samples", unit="s", low=0.1, high=60)
    pods: bool = setting(True, "measure pods and containers", maturity="beta")
    pressure: bool = setting(True, "read pressure stall information", maturity="beta")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishSettings:
    """Which objects are published, how often and with what in them."""

    interval_s: float = setting(
        3.0, "look for changes of Device and NodeResourceTopology", unit="s", low=0.5, high=300
    )
    device: bool = setting(True, "publish the Device object", maturity="beta")
    node_metric: bool = setting(True, "publish the NodeMetric object", maturity="beta")
    node_resource_topology: bool = setting(
        True, "publish the NodeResourceTopology object", maturity="beta"
    )
    pcie_scope: str = setting(
        "root",
        "what pcieID names: the host bridge as Koordinator does, or the PCIe switch",
        choices=("root", "switch"),
    )
    report_interval_s: float = setting(
        60.0, "period of NodeMetric where the object does not say", unit="s", low=5, high=3600
    )
    aggregate_duration_s: float = setting(
        300.0, "window of its means where the object does not say", unit="s", low=60, high=3600
    )
    memory_policy: str = setting(
        "usageWithoutPageCache",
        "memory that counts as used where the object does not say",
        choices=("usageWithoutPageCache", "usageWithHotPageCache", "usageWithPageCache"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """What is exported to Prometheus and where."""

    listen: str = setting("127.0.0.1:9316", "address of /metrics and the status page, HOST:PORT")
    pods: bool = setting(True, "export xpu_pod_* and xpu_container_*", maturity="beta")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What is logged; always JSON lines to standard error."""

    level: str = setting("info", "least level", choices=("debug", "info", "warning", "error"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole of the settings."""

    node: NodeSettings = section(NodeSettings, "which node this is")
    discovery: DiscoverySettings = section(DiscoverySettings, "devices and topology")
    collect: CollectSettings = section(CollectSettings, "usage")
    publish: PublishSettings = section(PublishSettings, "objects")
    metrics: MetricsSettings = section(MetricsSettings, "Prometheus")
    log: LogSettings = section(LogSettings, "logs")
