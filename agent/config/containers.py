"""Settings of NRI, the device plug-in, CDI, hooks, enforcement and verification."""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.snapshot.settings import SettingRule, SettingTable

ENFORCE_MODES = ("off", "plan", "on")
ATTACH_MODES = ("auto", "on", "off")


class NriSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The plug-in of the container runtime (NRI)."""

    attach: Annotated[
        str,
        SettingRule(
            "dial the runtime; auto: with a cluster, never on a recording", choices=ATTACH_MODES
        ),
    ] = "auto"
    socket: Annotated[str, SettingRule("the runtime's NRI socket")] = "/var/run/nri/nri.sock"
    name: Annotated[str, SettingRule("the plug-in's name, which a pod may require")] = "xpu-agent"
    index: Annotated[
        int,
        SettingRule(
            "position among the runtime's plug-ins, which are called in this order", low=0, high=99
        ),
    ] = 10
    budget_ms: Annotated[
        int,
        SettingRule(
            "a call not answered by then is answered with no change; a container with an "
            "allocation is refused",
            unit="ms",
            low=10,
            high=1500,
        ),
    ] = 500


class DevicePluginSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The kubelet's device plug-in."""

    vendors: Annotated[
        tuple[str, ...],
        SettingRule("whose devices are served to the kubelet"),  # choices: `settings_type`
    ] = ()
    injection: Annotated[
        str,
        SettingRule("how an allocation is answered", choices=("auto", "cdi", "nodes", "env")),
    ] = "auto"
    mig: Annotated[
        str, SettingRule("how MIG slices are served", choices=("none", "single", "mixed"))
    ] = "mixed"
    sharing: Annotated[
        SettingTable,
        SettingRule("replicas: rows of resource, replicas, and optionally rename, devices"),
    ] = ()
    fail_requests_greater_than_one: Annotated[
        bool, SettingRule("refuse more than one replica for a container")
    ] = False
    replicas_policy: Annotated[
        str,
        SettingRule("cards that replicas are taken from first", choices=("distributed", "packed")),
    ] = "distributed"
    rdma_resource: Annotated[str, SettingRule("resource name of RDMA devices")] = "rdma/hca"
    check_occupancy: Annotated[
        bool,
        SettingRule(
            "refuse a start while another pod uses a whole card of it, or with the stored node of "
            "another device",
            maturity="beta",
        ),
    ] = True


class CdiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """CDI specifications of the devices; `settings_type` adds switches of vendors."""

    write: Annotated[bool, SettingRule("write CDI files of the devices", maturity="beta")] = True
    dir: Annotated[str, SettingRule("folder of CDI files, which runtimes watch")] = "/var/run/cdi"

    def is_enabled(self, vendor: str) -> bool:
        """Return whether the CDI file of a vendor with a switch of its own is written."""
        return getattr(self, vendor, False) is True


class HookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What hooks may do beyond allocations and the requests of the cluster."""

    ungranted: Annotated[
        str,
        SettingRule(
            "containers that request devices by their environment without an allocation",
            choices=("off", "warn", "void"),
        ),
    ] = "warn"
    protected_namespaces: Annotated[
        tuple[str, ...],
        SettingRule("namespaces whose containers may have devices without an allocation"),
    ] = ("kube-system",)
    best_effort_cpus: Annotated[
        bool,
        SettingRule("place best-effort pods on the CPUs of their memory nodes", maturity="alpha"),
    ] = False
    unset_cpu_quota: Annotated[
        bool,
        SettingRule("take the CPU limit from pods that have CPUs of their own", maturity="beta"),
    ] = True


class EnforceHooksSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The mode of each hook: off, plan (only report its changes), on."""

    devices: Annotated[
        str, SettingRule("devices of an allocation", choices=ENFORCE_MODES, maturity="beta")
    ] = "on"
    cpuset: Annotated[str, SettingRule("CPUs of a pod", choices=ENFORCE_MODES, maturity="beta")] = (
        "on"
    )
    batch_resources: Annotated[
        str,
        SettingRule("shares, quota, memory of batch pods", choices=ENFORCE_MODES, maturity="beta"),
    ] = "on"
    group_identity: Annotated[
        str,
        SettingRule(
            "cpu.bvt_warp_ns on kernels that have it", choices=ENFORCE_MODES, maturity="beta"
        ),
    ] = "on"
    cpu_normalization: Annotated[
        str, SettingRule("quota by the node's ratio", choices=ENFORCE_MODES, maturity="alpha")
    ] = "off"
    core_scheduling: Annotated[
        str, SettingRule("core-scheduling cookies", choices=ENFORCE_MODES, maturity="alpha")
    ] = "off"
    resctrl: Annotated[
        str,
        SettingRule(
            "resctrl class of new containers, whose group exists",
            choices=ENFORCE_MODES,
            maturity="alpha",
        ),
    ] = "on"
    oom_score: Annotated[
        str, SettingRule("oom_score_adj by annotation", choices=ENFORCE_MODES, maturity="alpha")
    ] = "off"


class EnforceStrategiesSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The mode of each strategy: off, plan (only report its changes), on.

    A NodeSLO must request it.
    """

    cpu_suppression: Annotated[
        str,
        SettingRule(
            "CPUs or quota of best-effort pods by the load of the node",
            choices=ENFORCE_MODES,
            maturity="alpha",
        ),
    ] = "on"
    cpu_burst: Annotated[
        str,
        SettingRule(
            "burst and quota of latency-sensitive pods", choices=ENFORCE_MODES, maturity="alpha"
        ),
    ] = "on"
    resctrl: Annotated[
        str,
        SettingRule(
            "cache and memory bandwidth of QoS classes", choices=ENFORCE_MODES, maturity="alpha"
        ),
    ] = "on"
    memory_qos: Annotated[
        str,
        SettingRule(
            "memory protection and limits of QoS classes", choices=ENFORCE_MODES, maturity="alpha"
        ),
    ] = "off"
    block_io: Annotated[
        str,
        SettingRule("limits and weights of block devices", choices=ENFORCE_MODES, maturity="alpha"),
    ] = "off"
    kernel_settings: Annotated[
        str,
        SettingRule("kernel settings of the NodeSLO", choices=ENFORCE_MODES, maturity="alpha"),
    ] = "off"
    memory_reclaim: Annotated[
        str,
        SettingRule(
            "memory.high and reclaim of best-effort pods before evictions for memory (cgroup v2)",
            choices=ENFORCE_MODES,
            maturity="alpha",
        ),
    ] = "off"
    cpu_eviction: Annotated[
        str, SettingRule("evictions for CPU", choices=ENFORCE_MODES, maturity="alpha")
    ] = "off"
    memory_eviction: Annotated[
        str, SettingRule("evictions for memory", choices=ENFORCE_MODES, maturity="alpha")
    ] = "off"


EVICTION_FEATURES = (
    "BECPUEvict",
    "CPUAllocatableEvict",
    "CPUEvict",
    "BEMemoryEvict",
    "MemoryAllocatableEvict",
    "MemoryEvict",
)


class EvictionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of evictions; `enforce.strategies` switches them."""

    features: Annotated[
        tuple[str, ...],
        SettingRule(
            "rules that may evict; the NodeSLO must configure them, too", choices=EVICTION_FEATURES
        ),
    ] = EVICTION_FEATURES
    protected_namespaces: Annotated[
        tuple[str, ...], SettingRule("namespaces whose pods are never evicted")
    ] = ("kube-system",)
    cpu_cool_s: Annotated[
        float,
        SettingRule(
            "between two evictions for CPU, and after the start", unit="s", low=1, high=3600
        ),
    ] = 20.0
    memory_cool_s: Annotated[
        float, SettingRule("between two evictions for memory", unit="s", low=1, high=3600)
    ] = 4.0
    max_per_minute: Annotated[
        int, SettingRule("evictions of all rules within a minute", low=1, high=60)
    ] = 5
    kill_fallback: Annotated[
        bool,
        SettingRule(
            "stop containers by the runtime, past disruption budgets, when memory is ten points"
            " above its threshold and the API server evicts no pod",
            maturity="alpha",
        ),
    ] = False
    runtime_socket: Annotated[
        str, SettingRule("the runtime's CRI socket, used by kill_fallback only")
    ] = "/run/containerd/containerd.sock"


class BrakeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When all enforcement is suspended, as in plan mode, and for how long."""

    max_refusals: Annotated[
        int, SettingRule("writes that the kernel refused within the window", low=1, high=100000)
    ] = 100
    max_evictions: Annotated[int, SettingRule("evictions within the window", low=1, high=1000)] = 20
    window_s: Annotated[float, SettingRule("the window", unit="s", low=10, high=86400)] = 600.0
    hold_s: Annotated[
        float,
        SettingRule(
            "the first stop; each one soon after another is twice as long",
            unit="s",
            low=1,
            high=86400,
        ),
    ] = 60.0
    max_hold_s: Annotated[float, SettingRule("the longest stop", unit="s", low=1, high=86400)] = (
        3600.0
    )


class CpuSuppressionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the strategy `cpu_suppression` beyond those of a NodeSLO."""

    idle: Annotated[
        str,
        SettingRule(
            "cpu.idle of best-effort groups: of pods among each other, of their class against all",
            choices=("off", "pods", "class"),
            maturity="alpha",
        ),
    ] = "off"
    pressure: Annotated[
        bool,
        SettingRule(
            "halve the quota of best-effort pods when others stall for CPU (PSI)", maturity="alpha"
        ),
    ] = False


class BlockIoSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the strategy `block_io` beyond those of Koordinator."""

    latency_targets: Annotated[
        bool,
        SettingRule(
            "io.latency of LS and LSR pods, from blkioQOS of their classes (cgroup v2)",
            maturity="alpha",
        ),
    ] = False


class EnforceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent may change on this node, if a NodeSLO or a pod requests it."""

    mode: Annotated[
        str, SettingRule("the highest mode of all hooks and strategies", choices=ENFORCE_MODES)
    ] = "on"
    interval_s: Annotated[
        float,
        SettingRule(
            "files of pods are compared this often, and after each change of a NodeSLO or a pod",
            unit="s",
            low=0.2,
            high=60,
        ),
    ] = 1.0
    hooks: Annotated[EnforceHooksSettings, SettingRule("hooks of pods and containers")] = (
        EnforceHooksSettings()
    )
    strategies: Annotated[EnforceStrategiesSettings, SettingRule("strategies of a NodeSLO")] = (
        EnforceStrategiesSettings()
    )
    protected_namespaces: Annotated[
        tuple[str, ...],
        SettingRule(
            "namespaces whose pods' own files no strategy writes, but for best-effort CPUs, and"
            " whose pods are in no resctrl group of a class"
        ),
    ] = ()
    eviction: Annotated[EvictionSettings, SettingRule("limits of evictions")] = EvictionSettings()
    brake: Annotated[BrakeSettings, SettingRule("when all enforcement stops by itself")] = (
        BrakeSettings()
    )
    cpu_suppression: Annotated[
        CpuSuppressionSettings, SettingRule("options of the strategy `cpu_suppression`")
    ] = CpuSuppressionSettings()
    block_io: Annotated[BlockIoSettings, SettingRule("options of the strategy `block_io`")] = (
        BlockIoSettings()
    )
    audit_file: Annotated[
        str,
        SettingRule(
            "JSON lines of every change of a file; off, or a path; empty: audit.jsonl in "
            "node.state_dir"
        ),
    ] = ""
    audit_mib: Annotated[
        int,
        SettingRule(
            "a larger audit file becomes FILE.1, which replaces the one before",
            unit="MiB",
            low=1,
            high=1024,
        ),
    ] = 16


class ResctrlSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions of the last-level cache and of the memory bandwidth."""

    mount: Annotated[
        bool,
        SettingRule("mount the resctrl file system if it is not, which needs CAP_SYS_ADMIN"),
    ] = False
    monitor_pods: Annotated[
        bool,
        SettingRule("a monitoring group for each pod while there are ids", maturity="alpha"),
    ] = False
    amd_domain_gbps: Annotated[
        int,
        SettingRule(
            "memory bandwidth of one AMD domain, which 100 % stands for",
            unit="GB/s",
            low=1,
            high=10000,
        ),
    ] = 20
    shared_ways_first: Annotated[
        bool,
        SettingRule(
            "count ranges of the cache from the ways that devices use too (shareable_bits): a class"
            " that starts at 0, as BE, gets them",
            maturity="alpha",
        ),
    ] = False
    domain_mbps: Annotated[
        int,
        SettingRule(
            "memory bandwidth of one domain where resctrl is mounted with mba_MBps; 0: unknown,"
            " bandwidth is then left alone",
            unit="MB/s",
            low=0,
            high=10_000_000,
        ),
    ] = 0


class VerificationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Verification of running containers."""

    enabled: Annotated[
        bool, SettingRule("check whether containers have their allocated devices", maturity="beta")
    ] = True
    grace_s: Annotated[
        float,
        SettingRule(
            "a slice whose pod does not exist any more is deleted after that",
            unit="s",
            low=1,
            high=3600,
        ),
    ] = 60.0
