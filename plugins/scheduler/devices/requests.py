"""The devices that a pod requests, in a normal form, and errors of impossible requests.

Rules and texts are those of Koordinator's `pkg/scheduler/plugins/deviceshare/utils.go`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, TypeVar

import msgspec

from agent.errors import AgentError
from agent.snapshot.allocation import AllocatedDevice
from agent.wire_formats.json_values import JSON_ERRORS
from agent.wire_formats.quantities import parse_amount
from plugins.scheduler.devices.device_table import (
    FPGA,
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    KINDS,
    NO_LABELS,
    RDMA,
    Amounts,
    Labels,
)

WHOLE_CARD_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu")
GPU_PERCENT = "koordinator.sh/gpu"
GPU_SHARED = "koordinator.sh/gpu.shared"
NPU_CORE, NPU_CPU, NPU_DVPP = "huawei.com/npu-core", "huawei.com/npu-cpu", "huawei.com/npu-dvpp"
RDMA_PERCENT, FPGA_PERCENT = "koordinator.sh/rdma", "koordinator.sh/fpga"
WHOLE = 100  # percent of a card

RESOURCE_KINDS: Mapping[str, str] = {
    **dict.fromkeys(WHOLE_CARD_RESOURCES, GPU),
    **dict.fromkeys((GPU_PERCENT, GPU_SHARED, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO), GPU),
    **dict.fromkeys((NPU_CORE, NPU_CPU, NPU_DVPP), GPU),
    RDMA_PERCENT: RDMA,
    FPGA_PERCENT: FPGA,
}
# members of the sets of resources that a pod may request together
_SHARED_SETS = tuple(
    frozenset((GPU_SHARED, *names))
    for names in (
        (GPU_MEMORY,),
        (GPU_MEMORY_RATIO,),
        (GPU_CORE, GPU_MEMORY),
        (GPU_CORE, GPU_MEMORY_RATIO),
    )
)
_NPU_SETS = tuple(
    frozenset((GPU_SHARED, NPU_CORE, NPU_CPU, GPU_MEMORY, *names)) for names in ((), (NPU_DVPP,))
)
_PERCENT_SETS: Mapping[frozenset[str], tuple[str, ...]] = {  # resources that are percentages
    frozenset((GPU_MEMORY,)): (),
    frozenset((GPU_MEMORY_RATIO,)): (GPU_MEMORY_RATIO,),
    frozenset((GPU_CORE, GPU_MEMORY)): (GPU_CORE,),
    frozenset((GPU_CORE, GPU_MEMORY_RATIO)): (GPU_CORE, GPU_MEMORY_RATIO),
    frozenset((NPU_CORE, GPU_MEMORY_RATIO)): (GPU_MEMORY_RATIO,),
}
_VENDOR_RESOURCES = {"nvidia.com/gpu": "nvidia", NPU_CORE: "huawei"}
_OTHER_VENDORS = ("nvidia", "huawei", "cambricon", "metax", "baidu")  # that the label may name
_DIVIDED = (GPU_CORE, NPU_CORE, NPU_CPU, NPU_DVPP, GPU_MEMORY_RATIO, GPU_MEMORY)

ALLOCATE_HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT_ALLOCATE = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION_SPEC = "scheduling.koordinator.sh/gpu-partition-spec"
ISOLATION_LABEL = "koordinator.sh/gpu-isolation-provider"
SAME_PCIE = "SamePCIe"
APPLY_FOR_ALL, REQUESTS_AS_COUNT = "ApplyForAll", "RequestsAsCount"
DEVICE_LEVEL, PCIE_LEVEL = "DeviceLevel", "PCIeLevel"
RESTRICTED = "Restricted"


T = TypeVar("T")


def is_of_other_vendor(resource: str, vendor: str) -> bool:
    """Return whether a requested resource names another vendor than the node's.

    A node without the label of the vendor may have any.
    """
    if resource in _VENDOR_RESOURCES:
        return vendor not in ("", _VENDOR_RESOURCES[resource])
    return resource in WHOLE_CARD_RESOURCES and vendor in _OTHER_VENDORS


class InvalidRequest(AgentError):
    """No node can satisfy the request; the text is for people."""


class Expression(msgspec.Struct, frozen=True):
    """One requirement of a label selector."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] | None = None

    def matches(self, labels: Labels) -> bool:
        """Return whether the labels meet the requirement, as Kubernetes defines it."""
        value = labels.get(self.key)
        if self.operator == "Exists":
            return value is not None
        if self.operator == "DoesNotExist":
            return value is None
        is_listed = value is not None and value in (self.values or ())
        return is_listed if self.operator == "In" else not is_listed


class Selector(msgspec.Struct, frozen=True, rename="camel"):
    """A label selector; an empty one selects everything."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Expression, ...] | None = None

    def matches(self, labels: Labels) -> bool:
        """Return whether an object with these labels is selected."""
        pairs = (self.match_labels or {}).items()
        return all(labels.get(key) == value for key, value in pairs) and all(
            expression.matches(labels) for expression in self.match_expressions or ()
        )


class Hint(msgspec.Struct, frozen=True, rename="camel"):
    """How devices of one kind are chosen. `vf_selector`: a virtual function is required."""

    selector: Selector | None = None
    vf_selector: Selector | None = None
    allocate_strategy: str = ""
    required_topology_scope: str = ""
    exclusive_policy: str = ""

    def selects(self, labels: Labels) -> bool:
        """Return whether a device with these labels may be chosen."""
        return self.selector is None or self.selector.matches(labels)


class JointSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Kinds whose devices should be near each other; the first one is the primary kind."""

    device_types: tuple[str, ...] | None = None
    required_scope: str = ""


class PartitionSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The pod requests a published partition."""

    allocate_policy: str = ""
    ring_bus_bandwidth: str | int | None = None

    @property
    def bandwidth(self) -> int | None:
        """Return the least bandwidth; `None`: any."""
        text = self.ring_bus_bandwidth
        amount = None if text is None else parse_amount(str(text))
        return None if amount is None else math.ceil(amount)

    @property
    def is_readable(self) -> bool:
        """Return whether a bandwidth, if there is one, is a quantity."""
        return self.ring_bus_bandwidth is None or self.bandwidth is not None


NO_HINT = Hint()


class KindRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The number of devices of a kind, and the amounts of each.

    `applies_for_all`: of all that match.
    """

    kind: str
    count: int
    amounts: Amounts  # of one device
    is_shared: bool = False  # less than a whole GPU of each, or an amount of memory
    applies_for_all: bool = False


class DeviceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The devices that a pod requests; kinds in the fixed order GPU, RDMA, FPGA."""

    kinds: tuple[KindRequest, ...]
    hints: Mapping[str, Hint] = {}
    joint: JointSpec | None = None
    partition: PartitionSpec | None = None
    isolation_provider: str = ""
    resources: tuple[str, ...] = ()  # names of the requested resources, sorted
    # devices that were chosen for the pod before: it gets these of each kind, or none
    designation: tuple[AllocatedDevice, ...] = ()

    def of(self, kind: str) -> KindRequest | None:
        """Return the request for a kind."""
        return next((one for one in self.kinds if one.kind == kind), None)

    def hint(self, kind: str) -> Hint:
        """Return the hint for a kind; an empty one without a hint."""
        return self.hints.get(kind, NO_HINT)

    @property
    def is_shared(self) -> bool:
        """Return whether the pod shares GPUs with others."""
        gpu = self.of(GPU)
        return gpu is not None and gpu.is_shared


_HINTS = msgspec.json.Decoder(dict[str, Hint])
_JOINT = msgspec.json.Decoder(JointSpec)
_PARTITION = msgspec.json.Decoder(PartitionSpec)


def device_request(
    amounts: Amounts, annotations: Labels = NO_LABELS, labels: Labels = NO_LABELS
) -> DeviceRequest | None:
    """Return the normal form of a pod's request; `None` if it requests no device.

    `amounts` are those of the whole pod. Raises `InvalidRequest`.
    """
    by_kind: dict[str, dict[str, int]] = {}
    for name, amount in amounts.items():
        if amount and name in RESOURCE_KINDS:
            by_kind.setdefault(RESOURCE_KINDS[name], {})[name] = amount
    if not by_kind:
        return None
    hints = _decode(_HINTS, annotations.get(ALLOCATE_HINT), "DeviceAllocateHint") or {}
    partition = _decode(_PARTITION, annotations.get(PARTITION_SPEC), "GPUPartitionSpec")
    if partition is not None and not partition.is_readable:
        text = str(partition.ring_bus_bandwidth)[:200]
        message = f"invalid GPUPartitionSpec annotation, err: ringBusBandwidth {text!r}"
        raise InvalidRequest(f"{message} is no quantity")
    kinds = []
    for kind in KINDS:
        if kind in by_kind:
            hint = hints.get(kind, NO_HINT)
            kinds.append(
                _gpu_request(by_kind[kind])
                if kind == GPU
                else _percent_request(kind, by_kind[kind], hint)
            )
    return DeviceRequest(
        kinds=tuple(kinds),
        hints=hints,
        joint=_decode(_JOINT, annotations.get(JOINT_ALLOCATE), "DeviceJointAllocate"),
        partition=partition,
        isolation_provider=labels.get(ISOLATION_LABEL, ""),
        resources=tuple(sorted(name for of_kind in by_kind.values() for name in of_kind)),
    )


def _decode(decoder: msgspec.json.Decoder[T], text: str | None, name: str) -> T | None:
    if text is None:
        return None
    try:
        return decoder.decode(text)
    except JSON_ERRORS as error:
        raise InvalidRequest(f"invalid {name} annotation, err: {str(error)[:200]}") from error


def _gpu_request(amounts: dict[str, int]) -> KindRequest:
    _check_gpu_amounts(amounts)
    normal = dict(amounts)
    whole = [normal.pop(name) for name in WHOLE_CARD_RESOURCES if name in normal]
    percent = whole[0] * WHOLE if whole else normal.pop(GPU_PERCENT, None)
    if percent is not None:
        normal = {GPU_CORE: percent, GPU_MEMORY_RATIO: percent}
    ratio = normal.get(GPU_MEMORY_RATIO)
    count = normal.pop(GPU_SHARED, 0)
    if not count:
        is_multiple = ratio is not None and ratio > WHOLE and ratio % WHOLE == 0
        count = ratio // WHOLE if is_multiple and ratio is not None else 1
    each = {name: normal[name] // count for name in _DIVIDED if name in normal}
    return KindRequest(
        kind=GPU,
        count=count,
        amounts=each,
        is_shared=ratio is None or each[GPU_MEMORY_RATIO] < WHOLE,
    )


def _check_gpu_amounts(amounts: Amounts) -> None:
    """Raise `InvalidRequest` unless these resources may be requested together."""
    names = frozenset(amounts)
    if names == {GPU_PERCENT}:
        _check_percent_amount(GPU_PERCENT, amounts[GPU_PERCENT])
        return
    shared = amounts.get(GPU_SHARED, 0)
    if names in _PERCENT_SETS:
        is_legal = all(map(_is_percent, (amounts[name] for name in _PERCENT_SETS[names])))
    elif names in _SHARED_SETS:
        parts = [amounts[name] for name in (GPU_CORE, GPU_MEMORY_RATIO) if name in amounts]
        is_legal = all(part % shared == 0 and part // shared <= WHOLE for part in parts)
    elif names in _NPU_SETS:
        is_legal = shared <= 1 and amounts.get(NPU_DVPP, 0) <= WHOLE
    else:
        is_legal = len(names) == 1 and names <= set(WHOLE_CARD_RESOURCES)
    if not is_legal:
        raise InvalidRequest(f"invalid resource device requests: [{' '.join(sorted(names))}]")


def _is_percent(amount: int) -> bool:
    return amount <= WHOLE or amount % WHOLE == 0


def _check_percent_amount(name: str, amount: int) -> None:
    if not _is_percent(amount):
        raise InvalidRequest(f"invalid resource unit {name}: {amount}")


def _percent_request(kind: str, amounts: Amounts, hint: Hint) -> KindRequest:
    ((name, amount),) = amounts.items()
    _check_percent_amount(name, amount)
    if amount > WHOLE:
        return KindRequest(kind=kind, count=amount // WHOLE, amounts={name: WHOLE})
    if hint.allocate_strategy == APPLY_FOR_ALL:
        return KindRequest(kind=kind, count=1, amounts={name: amount}, applies_for_all=True)
    if hint.allocate_strategy == REQUESTS_AS_COUNT:
        each = WHOLE if hint.exclusive_policy == DEVICE_LEVEL else 1
        return KindRequest(kind=kind, count=amount, amounts={name: each})
    return KindRequest(kind=kind, count=1, amounts={name: amount})


class ContainerAmounts(msgspec.Struct, frozen=True):
    """The requested amounts of one container, and the phase in which it runs."""

    amounts: Amounts
    is_init: bool = False
    is_sidecar: bool = False


def pod_amounts(containers: Iterable[ContainerAmounts], overhead: Amounts | None = None) -> Amounts:
    """Return a pod's request by Kubernetes' rule.

    It is the larger of the sum of all containers that stay, and of the most demanding init
    container together with the sidecars that were started before it; the overhead comes on top.
    """
    running: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in containers:
        if not container.is_init or container.is_sidecar:
            _add(running, container.amounts)
        if container.is_sidecar:
            _add(sidecars, container.amounts)
        elif container.is_init:
            step = dict(sidecars)
            _add(step, container.amounts)
            for name, amount in step.items():
                peak[name] = max(peak.get(name, 0), amount)
    total = {name: max(running.get(name, 0), peak.get(name, 0)) for name in {*running, *peak}}
    _add(total, overhead or {})
    return total


def _add(total: dict[str, int], amounts: Amounts) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount


NO_MATCH = "no matched GPU shared resource template"
GIB = 1 << 30

ModelTemplates = Mapping[str, Amounts]  # by name
SharedTemplates = Mapping[str, ModelTemplates]  # by `<vendor>-<model>`


def _template(core: int, cpu: int, dvpp: int, memory_gib: int) -> Amounts:
    amounts = {NPU_CORE: core, NPU_CPU: cpu, NPU_DVPP: dvpp, GPU_MEMORY: memory_gib * GIB}
    return {name: amount for name, amount in amounts.items() if amount}


# as in the chart of Koordinator; those of other models are not verified on hardware
_ASCEND_310P: ModelTemplates = {
    "vir01": _template(1, 1, 12, 3),
    "vir02": _template(2, 2, 25, 6),
    "vir02_1c": _template(2, 1, 25, 6),
    "vir04": _template(4, 4, 50, 12),
    "vir04_3c": _template(4, 3, 50, 12),
    "vir04_3c_ndvpp": _template(4, 3, 0, 12),
    "vir04_4c_dvpp": _template(4, 4, 100, 12),
}
SHARED_TEMPLATES: SharedTemplates = MappingProxyType(
    {"huawei-Ascend-310P": _ASCEND_310P, "huawei-Ascend-310P3": _ASCEND_310P}
)


def matching_template(templates: ModelTemplates, amounts: Amounts) -> str:
    """Return the name of the template whose amounts equal these; empty if there is none."""
    return next((name for name, template in templates.items() if template == amounts), "")
