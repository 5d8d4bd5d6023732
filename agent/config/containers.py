"""Settings of the way into containers: the runtime, the kubelet's plug-in, hooks, proof."""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.config.field import Rule, Table

MODES = ("off", "plan", "on")
ATTACH = ("auto", "on", "off")


class NriSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The plug-in of the container runtime (NRI)."""

    attach: Annotated[
        str,
        Rule("dial the runtime; auto: with a cluster, never on a recording", choices=ATTACH),
    ] = "auto"
    socket: Annotated[str, Rule("the runtime's NRI socket")] = "/var/run/nri/nri.sock"
    name: Annotated[str, Rule("the plug-in's name, which a pod may require")] = "xpu-agent"
    index: Annotated[
        int, Rule("plug-ins of the runtime are asked in this order", low=0, high=99)
    ] = 10
    budget_ms: Annotated[
        int,
        Rule(
            "a call not answered by then is answered with no change", unit="ms", low=10, high=1500
        ),
    ] = 500


class DevicePluginSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The kubelet's device plug-in."""

    vendors: Annotated[
        tuple[str, ...],
        Rule(
            "whose devices are served to the kubelet",
            choices=("nvidia", "ascend", "cambricon", "rdma"),
        ),
    ] = ()
    injection: Annotated[
        str,
        Rule("how an allocation is answered", choices=("auto", "cdi", "nodes", "env")),
    ] = "auto"
    mig: Annotated[str, Rule("how MIG slices are served", choices=("none", "single", "mixed"))] = (
        "mixed"
    )
    sharing: Annotated[
        Table,
        Rule("replicas: rows of resource, replicas, and optionally rename, devices"),
    ] = ()
    fail_requests_greater_than_one: Annotated[
        bool, Rule("refuse more than one replica for a container")
    ] = False
    replicas_policy: Annotated[
        str, Rule("cards that replicas are taken from first", choices=("distributed", "packed"))
    ] = "distributed"
    rdma_resource: Annotated[str, Rule("resource name of RDMA devices")] = "rdma/hca"
    check_occupancy: Annotated[
        bool, Rule("look before a start that nobody else is on a whole card", maturity="beta")
    ] = True


class CdiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """CDI specifications of our devices."""

    write: Annotated[bool, Rule("keep CDI files of our devices", maturity="beta")] = True
    dir: Annotated[str, Rule("folder they are written to, which runtimes watch")] = "/var/run/cdi"
    nvidia: Annotated[
        bool,
        Rule(
            "name NVIDIA cards too that no file of nvidia-ctk names; needs nvidia-cdi-hook",
            maturity="alpha",
        ),
    ] = False


class HookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What hooks may do beyond what a grant or the cluster asks for."""

    ungranted: Annotated[
        str,
        Rule(
            "containers that ask for devices by their environment and were granted none",
            choices=("off", "warn", "void"),
        ),
    ] = "warn"
    protected_namespaces: Annotated[
        tuple[str, ...], Rule("namespaces whose containers may have devices without a grant")
    ] = ("kube-system",)
    best_effort_cpus: Annotated[
        bool,
        Rule("place best-effort pods on the CPUs of their memory nodes", maturity="alpha"),
    ] = False
    unset_cpu_quota: Annotated[
        bool, Rule("take the CPU limit from pods that have CPUs of their own", maturity="beta")
    ] = True


class EnforceHooksSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Each hook: off, plan (say what it would change), on."""

    devices: Annotated[str, Rule("devices of a grant", choices=MODES, maturity="beta")] = "on"
    cpuset: Annotated[str, Rule("CPUs of a pod", choices=MODES, maturity="beta")] = "on"
    batch_resources: Annotated[
        str, Rule("shares, quota, memory of batch pods", choices=MODES, maturity="beta")
    ] = "on"
    group_identity: Annotated[
        str, Rule("cpu.bvt_warp_ns on kernels that have it", choices=MODES, maturity="beta")
    ] = "on"
    cpu_normalization: Annotated[
        str, Rule("quota by the node's ratio", choices=MODES, maturity="alpha")
    ] = "off"
    core_scheduling: Annotated[
        str, Rule("core-scheduling cookies", choices=MODES, maturity="alpha")
    ] = "off"
    resctrl: Annotated[str, Rule("resctrl class of a pod", choices=MODES, maturity="alpha")] = "off"
    oom_score: Annotated[
        str, Rule("oom_score_adj by annotation", choices=MODES, maturity="alpha")
    ] = "off"


class EnforceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What may be changed on this node. Nothing is that no NodeSLO and no pod asks for."""

    mode: Annotated[str, Rule("the most that anything below may do", choices=MODES)] = "on"
    hooks: Annotated[EnforceHooksSettings, Rule("hooks of pods and containers")] = (
        EnforceHooksSettings()
    )


class ProofSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Looking into running containers."""

    enabled: Annotated[
        bool, Rule("look whether a container has what it was granted", maturity="beta")
    ] = True
    grace_s: Annotated[
        float,
        Rule("a slice whose pod is gone is taken back after that", unit="s", low=1, high=3600),
    ] = 60.0
