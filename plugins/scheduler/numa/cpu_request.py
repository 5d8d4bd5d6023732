"""Requests of pods and policies of nodes for CPU sets and NUMA alignment.

Annotations are untrusted.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from agent.wire_formats.json_values import JSON_ERRORS
from plugins.scheduler.devices.device_table import Amounts, Labels
from plugins.scheduler.devices.requests import DeviceRequest, InvalidRequest
from plugins.scheduler.pod_object import CPU, MEMORY, SchedulerPod

T = TypeVar("T")

RESOURCE_SPEC = "scheduling.koordinator.sh/resource-spec"
NUMA_SPEC = "scheduling.koordinator.sh/numa-topology-spec"
QOS_LABEL = "koordinator.sh/qosClass"
PRIORITY_LABEL = "koordinator.sh/priority-class"
NODE_BIND_POLICY = "node.koordinator.sh/cpu-bind-policy"
NODE_NUMA_POLICY = "node.koordinator.sh/numa-topology-policy"
NODE_NUMA_STRATEGY = "node.koordinator.sh/numa-allocate-strategy"

CpuBindPolicy = Literal["", "Default", "FullPCPUs", "SpreadByPCPUs", "ConstrainedBurst"]
ExclusivePolicy = Literal["", "None", "PCPULevel", "NUMANodeLevel"]
NumaPolicy = Literal["", "None", "BestEffort", "Restricted", "SingleNUMANode"]
FULL_CORES: CpuBindPolicy = "FullPCPUs"
SPREAD: CpuBindPolicy = "SpreadByPCPUs"
PCPU_LEVEL, NUMA_NODE_LEVEL = "PCPULevel", "NUMANodeLevel"
REQUIRED_EXCLUSIVE = "Required"
FULL_CORES_ONLY = "FullPCPUsOnly"
HUGE_PAGES = "hugepages-"
CPU_SET_CLASSES = ("LSE", "LSR")


class ResourceSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The pod annotation about CPU sets."""

    required_cpu_bind_policy: CpuBindPolicy = msgspec.field(
        name="requiredCPUBindPolicy", default=""
    )
    preferred_cpu_bind_policy: CpuBindPolicy = msgspec.field(
        name="preferredCPUBindPolicy", default=""
    )
    preferred_cpu_exclusive_policy: ExclusivePolicy = msgspec.field(
        name="preferredCPUExclusivePolicy", default=""
    )


class NumaSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The pod annotation about NUMA alignment."""

    numa_topology_policy: NumaPolicy = ""
    exclusive: Literal["", "Required", "Preferred"] = msgspec.field(
        name="singleNUMANodeExclusive", default=""
    )


class CpuRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's request for a CPU set."""

    count: int  # whole CPUs
    bind_policy: CpuBindPolicy = FULL_CORES
    is_required: bool = False  # the policy must be met exactly
    exclusive_policy: ExclusivePolicy = ""


class PodNumaRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs and NUMA nodes that a pod requests, before a node's own policies.

    The CPU policies are those of a pod that gets a CPU set on every node.
    """

    cpu_milli: int = 0
    wants_cpu_set: bool = False  # by its class: LSE or LSR of production
    required_policy: CpuBindPolicy = ""
    preferred_policy: CpuBindPolicy = ""
    exclusive_policy: ExclusivePolicy = ""
    numa: NumaSpec = NumaSpec()


class PodRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of one pod to one node."""

    numa: PodNumaRequest = PodNumaRequest()
    amounts: Amounts = {}  # CPU in milli-cores, memory and huge pages in bytes
    devices: DeviceRequest | None = None

    @property
    def needs_numa(self) -> bool:
        """Return whether CPUs or NUMA nodes are chosen for the pod on every node."""
        return self.numa.wants_cpu_set or self.has_numa_policy

    @property
    def has_numa_policy(self) -> bool:
        """Return whether the pod itself requests alignment to NUMA nodes."""
        return self.numa.numa.numa_topology_policy not in ("", "None")

    @property
    def resources(self) -> tuple[str, ...]:
        """Return the names of the requested device resources."""
        return () if self.devices is None else self.devices.resources


_RESOURCE_SPEC = msgspec.json.Decoder(ResourceSpec)
_NUMA_SPEC = msgspec.json.Decoder(NumaSpec)


def pod_request(pod: SchedulerPod) -> PodRequest:
    """Return the request of a pod; raises `InvalidRequest` if no node can satisfy it."""
    return PodRequest(
        numa=pod_numa_request(pod),
        amounts=numa_amounts(pod.amounts),
        devices=pod.device_request(),
    )


def numa_amounts(amounts: Amounts) -> Amounts:
    """Return the amounts that belong to NUMA nodes."""
    return {
        name: amount
        for name, amount in amounts.items()
        if amount and (name in (CPU, MEMORY) or name.startswith(HUGE_PAGES))
    }


def pod_numa_request(pod: SchedulerPod) -> PodNumaRequest:
    """Return the request; raises `InvalidRequest` if no node can satisfy it."""
    cpu_milli = pod.amounts.get(CPU, 0)
    spec = _decode_spec(pod.annotations, RESOURCE_SPEC, _RESOURCE_SPEC) or ResourceSpec()
    numa = _decode_spec(pod.annotations, NUMA_SPEC, _NUMA_SPEC) or NumaSpec()
    shared = PodNumaRequest(cpu_milli=cpu_milli, numa=numa)
    if pod.labels.get(QOS_LABEL) not in CPU_SET_CLASSES or not is_production(pod):
        return shared
    required = _policy(spec.required_cpu_bind_policy) if spec.required_cpu_bind_policy else ""
    preferred = required or _policy(spec.preferred_cpu_bind_policy)
    if preferred not in (FULL_CORES, SPREAD):
        return shared
    if cpu_milli % 1000:
        raise InvalidRequest("the requested CPUs must be integer")
    return PodNumaRequest(
        cpu_milli=cpu_milli,
        wants_cpu_set=cpu_milli > 0,
        required_policy=required,
        preferred_policy=preferred,
        exclusive_policy=spec.preferred_cpu_exclusive_policy,
        numa=numa,
    )


def _policy(policy: CpuBindPolicy) -> CpuBindPolicy:
    return FULL_CORES if policy in ("", "Default") else policy


def resource_spec(annotations: Labels) -> ResourceSpec:
    """Return what a pod asks for its CPUs; nothing if it cannot be read."""
    try:
        return _decode_spec(annotations, RESOURCE_SPEC, _RESOURCE_SPEC) or ResourceSpec()
    except InvalidRequest:
        return ResourceSpec()


def is_production(pod: SchedulerPod) -> bool:
    """Return whether the pod is of the class koord-prod: by its label, else by its priority."""
    label = pod.labels.get(PRIORITY_LABEL)
    if label is not None:
        return label == "koord-prod"
    return pod.priority_class in ("", "koord-prod") and (
        not pod.priority or pod.priority in range(9000, 10000)
    )


def _decode_spec(annotations: Labels, key: str, decoder: msgspec.json.Decoder[T]) -> T | None:
    text = annotations.get(key)
    if text is None:
        return None
    try:
        return decoder.decode(text)
    except JSON_ERRORS as error:
        raise InvalidRequest(f"invalid annotation {key}: {str(error)[:200]}") from error
