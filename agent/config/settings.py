"""Every setting of the agent, by section. Units are in the names.

A vendor's own settings are a struct of its plug-in: `settings_type` puts it into `discovery`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Annotated, cast, get_args, get_type_hints

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from agent.config.access import MetricsAuthSettings, MetricsTlsSettings
from agent.config.cluster import ApiSettings, KubeletSettings
from agent.config.containers import (
    CdiSettings,
    DevicePluginSettings,
    EnforceSettings,
    HookSettings,
    NriSettings,
    ResctrlSettings,
    VerificationSettings,
)
from agent.config.health import HealthSettings
from agent.snapshot.settings import SettingRule, SettingTable, VendorSettings
from agent.snapshot.vendor import VendorDescription


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The name and the folders of this node."""

    name: Annotated[str, SettingRule("name of the Node object; empty: the host's name")] = ""
    state_dir: Annotated[
        str,
        SettingRule(
            "folder for state that survives a restart; empty: none is stored (standalone mode)"
        ),
    ] = ""
    host_root: Annotated[
        str,
        SettingRule("where the host's root is mounted in the agent's container; empty: it is /"),
    ] = ""
    run_dir: Annotated[
        str,
        SettingRule(
            "folder of the lock that keeps a second agent from writing, and of the journals of "
            "calls into vendors' libraries; gone at boot"
        ),
    ] = "/run/xpu-agent"


class VendorSwitches(msgspec.Struct, frozen=True, kw_only=True):
    """The switch of each vendor's worker; `settings_type` adds a field for each vendor."""


class VendorSections(msgspec.Struct, frozen=True, kw_only=True):
    """Reads the fields that `settings_type` adds to `discovery` for each vendor."""

    def of(self, vendor: VendorDescription) -> VendorSettings:
        """Return a vendor's own settings."""
        section = getattr(self, vendor.name, None)
        return section if isinstance(section, VendorSettings) else vendor.settings()

    def switch(self, vendor: VendorDescription) -> str:
        """Return the switch of a vendor's worker: auto, on or off."""
        switches = getattr(self, "vendors", None)
        return str(getattr(switches, vendor.name, vendor.switch_default))


class DiscoverySettings(VendorSections, frozen=True, kw_only=True):
    """Discovery of devices and topology, and a person's corrections of the firmware."""

    interval_s: Annotated[
        float,
        SettingRule("interval of full discoveries of every vendor", unit="s", low=5, high=3600),
    ] = 300.0
    host_interval_s: Annotated[
        float,
        SettingRule(
            "interval of reading CPUs, NUMA nodes and PCI; five times that with uevents",
            unit="s",
            low=5,
            high=3600,
        ),
    ] = 60.0
    discover_deadline_s: Annotated[
        float,
        SettingRule("a vendor's discovery that takes longer is ended", unit="s", low=1, high=600),
    ] = 30.0
    sample_deadline_s: Annotated[
        float,
        SettingRule("a vendor's sample that takes longer is ended", unit="s", low=0.1, high=60),
    ] = 5.0
    worker_memory_bytes: Annotated[
        int,
        SettingRule("a worker that uses more memory is replaced; 0: never", low=0, high=2**40),
    ] = 512 * 2**20
    hotplug: Annotated[
        bool,
        SettingRule("listen to the kernel's events of added and removed devices", maturity="beta"),
    ] = True
    release_by_label: Annotated[
        bool,
        SettingRule(
            "release a vendor's driver while a label of the Node asks for it", maturity="beta"
        ),
    ] = True
    vendors: Annotated[VendorSwitches, SettingRule("vendors on, off, or on where hardware is")] = (
        VendorSwitches()
    )
    numa_overrides: Annotated[
        SettingTable,
        SettingRule(
            "NUMA nodes where the firmware is wrong: {match, node}, the first match counts"
        ),
    ] = ()
    topology_file: Annotated[
        str, SettingRule("NCCL topology file that fills what a virtual machine hides; empty: none")
    ] = "/var/run/nvidia-topologyd/virtualTopology.xml"


class PredictionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Prediction of NodeMetric's reclaimable amounts."""

    enabled: Annotated[
        bool, SettingRule("predict peaks of pods for NodeMetric", maturity="beta")
    ] = True
    cold_start_s: Annotated[
        float,
        SettingRule(
            "minimum age of pods, and of models of their usage, for predictions",
            unit="s",
            low=0,
            high=604800,
        ),
    ] = 86400.0
    safety_margin_percent: Annotated[
        float, SettingRule("added to each predicted peak", unit="%", low=0, high=100)
    ] = 10.0


class UsageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Measurement of usage."""

    interval_s: Annotated[
        float, SettingRule("cycle of CPU and memory usage", unit="s", low=0.1, high=60)
    ] = 1.0
    pressure_interval_s: Annotated[
        float, SettingRule("cycle of pressure stall information", unit="s", low=1, high=300)
    ] = 10.0
    device_interval_s: Annotated[
        float, SettingRule("cycle of device samples", unit="s", low=0.1, high=60)
    ] = 1.0
    pods: Annotated[bool, SettingRule("measure pods and containers", maturity="beta")] = True
    pressure: Annotated[bool, SettingRule("read pressure stall information", maturity="beta")] = (
        True
    )
    best_effort: Annotated[
        bool,
        SettingRule("measure the best-effort tier: usage, request, limit", maturity="beta"),
    ] = True
    best_effort_interval_s: Annotated[
        float, SettingRule("cycle of those readings", unit="s", low=1, high=3600)
    ] = 10.0
    cycles: Annotated[
        bool,
        SettingRule(
            "count CPU cycles and instructions of containers, with the hardware's counters",
            maturity="alpha",
        ),
    ] = False
    cycles_interval_s: Annotated[
        float, SettingRule("cycle of those counts", unit="s", low=10, high=3600)
    ] = 60.0
    cycles_window_s: Annotated[
        float, SettingRule("window in which each container is counted", unit="s", low=1, high=60)
    ] = 10.0
    resctrl: Annotated[
        bool,
        SettingRule(
            "read cache occupancy and memory bandwidth of resctrl groups", maturity="alpha"
        ),
    ] = False
    resctrl_interval_s: Annotated[
        float, SettingRule("cycle of those readings", unit="s", low=1, high=3600)
    ] = 10.0
    cold_memory: Annotated[
        bool,
        SettingRule("read memory that kidled found to be cold", maturity="alpha"),
    ] = False
    cold_memory_interval_s: Annotated[
        float, SettingRule("cycle of those readings", unit="s", low=1, high=300)
    ] = 5.0
    storage: Annotated[
        bool,
        SettingRule(
            "read block devices, volume groups, mounts and the block IO of pods", maturity="beta"
        ),
    ] = True
    storage_interval_s: Annotated[
        float, SettingRule("cycle of those readings", unit="s", low=1, high=3600)
    ] = 10.0
    hami_regions: Annotated[
        str,
        SettingRule(
            "folder of HAMi-core's shared regions, one folder a container; empty: not read"
        ),
    ] = "/usr/local/vgpu/containers"
    prediction: Annotated[PredictionSettings, SettingRule("prediction of peaks")] = (
        PredictionSettings()
    )


class PublishSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The published objects, their intervals and their content."""

    interval_s: Annotated[
        float,
        SettingRule(
            "interval of comparing Device and NodeResourceTopology", unit="s", low=0.5, high=300
        ),
    ] = 3.0
    coalesce_ms: Annotated[
        int,
        SettingRule(
            "changes of devices within that are published together", unit="ms", low=0, high=1000
        ),
    ] = 50
    device: Annotated[bool, SettingRule("publish the Device object", maturity="beta")] = True
    node_metric: Annotated[bool, SettingRule("publish the NodeMetric object", maturity="beta")] = (
        True
    )
    node_resource_topology: Annotated[
        bool, SettingRule("publish the NodeResourceTopology object", maturity="beta")
    ] = True
    pcie_scope: Annotated[
        str,
        SettingRule(
            "what pcieID names: the host bridge as Koordinator does, or the PCIe switch",
            choices=("root", "switch"),
        ),
    ] = "root"
    device_info_files: Annotated[
        bool, SettingRule("describe the accelerators in a device-info file", maturity="beta")
    ] = False
    device_info_directory: Annotated[
        str, SettingRule("folder of that file, which koordlet reads")
    ] = "/var/run/koordlet/xpu-device-infos"
    report_interval_s: Annotated[
        float,
        SettingRule(
            "period of NodeMetric if the object does not set it", unit="s", low=30, high=3600
        ),
    ] = 60.0
    aggregate_duration_s: Annotated[
        float,
        SettingRule(
            "window of its means if the object does not set it", unit="s", low=60, high=3600
        ),
    ] = 300.0
    memory_policy: Annotated[
        str,
        SettingRule(
            "memory that counts as used if the object does not set it",
            choices=("usageWithoutPageCache", "usageWithHotPageCache", "usageWithPageCache"),
        ),
    ] = "usageWithoutPageCache"


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics for Prometheus, and the addresses of the HTTP server."""

    listen: Annotated[str, SettingRule("address of /metrics and the status page, HOST:PORT")] = (
        "127.0.0.1:9316"
    )
    page_listen: Annotated[
        str,
        SettingRule("a second address, for the page where the first is not loopback; empty: none"),
    ] = ""
    pods: Annotated[bool, SettingRule("export xpu_pod_* and xpu_container_*", maturity="beta")] = (
        True
    )
    max_series: Annotated[
        int,
        SettingRule(
            "series of pods and containers in one metric; xpu_agent_metrics_cut_series counts "
            "those left out",
            low=1,
            high=1_000_000,
        ),
    ] = 10_000
    aliases: Annotated[
        tuple[str, ...],
        SettingRule(
            "export also under the names of other exporters: HAMi's monitor, koordlet, "
            "node_exporter (RDMA ports), and those of vendors",
            # and the tables of vendors, by `settings_type`
            choices=("hami", "hami_legacy", "koordlet", "node_exporter"),
        ),
    ] = ()
    tls: Annotated[MetricsTlsSettings, SettingRule("TLS of /metrics")] = MetricsTlsSettings()
    auth: Annotated[MetricsAuthSettings, SettingRule("who may read /metrics")] = (
        MetricsAuthSettings()
    )
    web_config_file: Annotated[
        str,
        SettingRule(
            "file in the format of Prometheus' exporter-toolkit, with TLS, users and their bcrypt "
            "hashes; empty: none",
            maturity="beta",
        ),
    ] = ""


class AdminSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The socket for actions of people on this machine."""

    socket: Annotated[
        str,
        SettingRule(
            "path of the admin socket; empty: admin.sock in node.run_dir, or in the folder of "
            "--out in standalone mode and of a recorded host; off: none"
        ),
    ] = ""


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Logging; always JSON lines to standard error."""

    level: Annotated[
        str, SettingRule("lowest level", choices=("debug", "info", "warning", "error"))
    ] = "info"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings."""

    node: Annotated[NodeSettings, SettingRule("which node this is")] = NodeSettings()
    discovery: Annotated[DiscoverySettings, SettingRule("devices and topology")] = (
        DiscoverySettings()
    )
    collect: Annotated[UsageSettings, SettingRule("usage")] = UsageSettings()
    health: Annotated[HealthSettings, SettingRule("health of devices")] = HealthSettings()
    publish: Annotated[PublishSettings, SettingRule("objects")] = PublishSettings()
    api: Annotated[ApiSettings, SettingRule("the API server")] = ApiSettings()
    kubelet: Annotated[KubeletSettings, SettingRule("the kubelet")] = KubeletSettings()
    metrics: Annotated[MetricsSettings, SettingRule("Prometheus")] = MetricsSettings()
    nri: Annotated[NriSettings, SettingRule("the container runtime")] = NriSettings()
    device_plugin: Annotated[DevicePluginSettings, SettingRule("the kubelet's device plug-in")] = (
        DevicePluginSettings()
    )
    cdi: Annotated[CdiSettings, SettingRule("CDI files")] = CdiSettings()
    hooks: Annotated[HookSettings, SettingRule("options of hooks")] = HookSettings()
    enforce: Annotated[EnforceSettings, SettingRule("what may be changed on this node")] = (
        EnforceSettings()
    )
    resctrl: Annotated[ResctrlSettings, SettingRule("partitions of cache and memory bandwidth")] = (
        ResctrlSettings()
    )
    proof: Annotated[VerificationSettings, SettingRule("verification of containers")] = (
        VerificationSettings()
    )
    admin: Annotated[AdminSettings, SettingRule("actions")] = AdminSettings()
    log: Annotated[LogSettings, SettingRule("logs")] = LogSettings()


_Field = tuple[str, object, object]  # name, annotated type, default


def _fields(cls: type[msgspec.Struct]) -> list[_Field]:
    hints = get_type_hints(cls, include_extras=True)
    defaults = cls()
    return [(name, hints[name], getattr(defaults, name)) for name in cls.__struct_fields__]


def _define(
    name: str, fields: Iterable[_Field], base: type[msgspec.Struct], doc: str | None
) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        name,
        list(fields),
        bases=(base,),
        module=__name__,
        namespace={"__doc__": doc},
        frozen=True,
        kw_only=True,
    )


def _with_rule(
    section: type[msgspec.Struct], key: str, change: Callable[[SettingRule], SettingRule]
) -> type[msgspec.Struct]:
    """Return the section with another rule for one key."""
    fields: list[_Field] = []
    for name, annotated, default in _fields(section):
        kind, rule = get_args(annotated)
        fields.append((name, Annotated[kind, change(rule) if name == key else rule], default))
    return _define(section.__name__, fields, section, section.__doc__)


def _health_type(vendors: tuple[VendorDescription, ...]) -> type[msgspec.Struct]:
    """Return the section in which `clean_s` names the vendors with another default."""
    others = ", ".join(
        f"{vendor.name} {vendor.health.clean_s:g}"
        for vendor in vendors
        if vendor.health.clean_s is not UNSET and vendor.health.clean_s
    )
    return _with_rule(
        HealthSettings,
        "clean_s",
        lambda rule: replace(rule, doc=f"{rule.doc}; {others}" if others else rule.doc),
    )


def _device_plugin_type(vendors: tuple[VendorDescription, ...]) -> type[msgspec.Struct]:
    """Return the section in which `vendors` may name those that serve the kubelet."""
    choices = tuple(vendor.name for vendor in vendors if vendor.serves_kubelet)
    return _with_rule(DevicePluginSettings, "vendors", lambda rule: replace(rule, choices=choices))


def _metrics_type(vendors: tuple[VendorDescription, ...]) -> type[msgspec.Struct]:
    """Return the section in which `aliases` may name the tables of vendors."""
    names = tuple(table.name for vendor in vendors for table in vendor.aliases)
    return _with_rule(
        MetricsSettings, "aliases", lambda rule: replace(rule, choices=(*rule.choices, *names))
    )


def _cdi_type(vendors: tuple[VendorDescription, ...]) -> type[msgspec.Struct]:
    """Return the section with the switches of vendors' CDI files."""
    switches: list[_Field] = [
        (vendor.name, Annotated[bool, vendor.cdi.switch], False)
        for vendor in vendors
        if vendor.cdi is not None and vendor.cdi.switch is not None
    ]
    fields = [*_fields(CdiSettings), *switches]
    return _define("CdiSettings", fields, CdiSettings, CdiSettings.__doc__)


@lru_cache(maxsize=8)
def settings_type(vendors: tuple[VendorDescription, ...]) -> type[Settings]:
    """Return `Settings` with all that vendors add: switches, sections, choices."""
    switches = _define(
        "VendorSwitches",
        [(vendor.name, Annotated[str, vendor.switch], vendor.switch_default) for vendor in vendors],
        VendorSwitches,
        VendorSwitches.__doc__,
    )
    sections: list[_Field] = [
        (vendor.name, Annotated[vendor.settings, SettingRule(vendor.title)], vendor.settings())
        for vendor in vendors
    ]
    fields: list[_Field] = []
    for name, kind, default in _fields(DiscoverySettings):
        if name == "vendors":
            rule = get_args(kind)[1]
            fields += [(name, Annotated[switches, rule], switches()), *sections]
        else:
            fields.append((name, kind, default))
    # not derived from `DiscoverySettings`: fields of a base would come before the vendors'
    discovery = _define("DiscoverySettings", fields, VendorSections, DiscoverySettings.__doc__)
    sections_by_name = {
        "discovery": discovery,
        "health": _health_type(vendors),
        "device_plugin": _device_plugin_type(vendors),
        "cdi": _cdi_type(vendors),
        "metrics": _metrics_type(vendors),
    }
    whole: list[_Field] = []
    for name, kind, default in _fields(Settings):
        section = sections_by_name.get(name)
        if section is None:
            whole.append((name, kind, default))
        else:
            whole.append((name, Annotated[section, get_args(kind)[1]], section()))
    return cast("type[Settings]", _define("Settings", whole, Settings, Settings.__doc__))
