"""Annotations of pods and nodes, and Koordinator's QoS and priority classes. Text is untrusted."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

import msgspec

from agent.errors import AgentError, ParseError
from agent.snapshot.cluster import NodeView
from agent.snapshot.cpu import CpuSet
from agent.snapshot.device import Pairs
from agent.snapshot.pod import KubeQos, PodView
from agent.wire_formats.kernel_text import format_cpu_list, parse_cpu_list
from agent.wire_formats.quantities import parse_amount, parse_quantity

MAX_BYTES = 64 * 1024
MAX_CPUS = 8192  # no machine has more, and every pod may have its list read at each change
MAX_LIST_CHARS = 4096


class AnnotationError(AgentError):
    """An annotation is not used; the message has the reason, and never the annotation's value."""


class InvalidAnnotation(msgspec.Struct, frozen=True, kw_only=True):
    """An annotation, or one member of it, that is not used."""

    path: str  # "node.koordinator.sh/reservation.reservedCPUs"
    why: str
    pod: PodView | None = None  # None: an annotation of the Node

    @property
    def object_name(self) -> str:
        """Return the object's name for people: `Node`, or `Pod namespace/name`."""
        return "Node" if self.pod is None else f"Pod {self.pod.namespace}/{self.pod.name}"


def parse_json_object(text: str) -> Mapping[str, object]:
    """Return the members of a JSON object; raise `AnnotationError` for anything else."""
    if len(text) > MAX_BYTES:
        raise AnnotationError(f"longer than {MAX_BYTES} characters")
    try:
        document = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise AnnotationError("no JSON") from error
    if not isinstance(document, dict):
        raise AnnotationError("no JSON object")
    return document


def parse_cpus(value: object) -> CpuSet:
    """Return the CPUs of a Linux list, `0-3,8`; raise `AnnotationError` for anything else."""
    if not isinstance(value, str):
        raise AnnotationError("no text; a list of CPUs is written as 0-3,8")
    if len(value) > MAX_LIST_CHARS:
        raise AnnotationError(f"a list of CPUs longer than {MAX_LIST_CHARS} characters")
    if ":" in value:  # the kernel's `0-31:2/4`, which no scheduler writes and which takes long
        raise AnnotationError("no list of CPUs such as 0-3,8")
    try:
        return parse_cpu_list(value, MAX_CPUS)
    except ParseError as error:
        raise AnnotationError("no list of CPUs such as 0-3,8") from error


QOS_LABEL = "koordinator.sh/qosClass"
POD_BLOCK_IO = "koordinator.sh/blkioQOS"
# name prefix of resctrl groups of single pods, as dashboards expect it
RESCTRL_GROUP_PREFIX = "koordlet-"
PRIORITY_LABEL = "koordinator.sh/priority-class"
QOS_CLASSES = ("LSE", "LSR", "LS", "BE", "SYSTEM")
PRIORITY_CLASSES = ("koord-prod", "koord-mid", "koord-batch", "koord-free")

_BY_KUBE_QOS = {
    KubeQos.GUARANTEED: "LSR",
    KubeQos.BURSTABLE: "LS",
    KubeQos.BEST_EFFORT: "BE",
}

_BY_PRIORITY = (
    (range(9000, 10000), "koord-prod"),
    (range(7000, 8000), "koord-mid"),
    (range(5000, 6000), "koord-batch"),
    (range(3000, 4000), "koord-free"),
)


def qos_class(pod: PodView) -> str:
    """Return the QoS class: that of the label, if it is valid, else by Kubernetes' own class."""
    label = pod.label(QOS_LABEL)
    return label if label in QOS_CLASSES else _BY_KUBE_QOS[pod.qos]


def priority_class(pod: PodView) -> str:
    """Return the priority class; that of the QoS class if the pod names none."""
    return named_priority_class(pod) or default_priority_class(qos_class(pod))


def default_priority_class(qos: str) -> str:
    """Return the priority class of pods of a QoS class that name none."""
    return "koord-batch" if qos == "BE" else "koord-prod"


def named_priority_class(pod: PodView) -> str:
    """Return the priority class that the pod names, by label or by `spec.priority`; else empty.

    With a label that is no class, `spec.priority` does not count.
    """
    label = pod.label(PRIORITY_LABEL)
    if label in PRIORITY_CLASSES:
        return label
    if label is None and pod.priority is not None:
        return next((name for span, name in _BY_PRIORITY if pod.priority in span), "")
    return ""


RESERVATION = "node.koordinator.sh/reservation"
SYSTEM_QOS = "node.koordinator.sh/system-qos-resource"
RAW_ALLOCATABLE = "node.koordinator.sh/raw-allocatable"
POLICIES = ("Default", "ReservedCPUsOnly")
MAX_RESOURCES = 64
_RESOURCE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_./]{0,252}")


class NodeReservation(msgspec.Struct, frozen=True, kw_only=True):
    """CPUs and amounts that pods must not use. CPUs are named, or only counted."""

    resources: Pairs = ()  # canonical quantities, by name
    cpus: CpuSet = frozenset()
    count: int = 0  # CPUs to be chosen, if none are named
    policy: str = ""  # Default, ReservedCPUsOnly; empty: not set


class SystemQos(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs of system services. Pods cannot use the exclusive ones."""

    cpus: CpuSet = frozenset()
    exclusive: bool | None = None  # None: not set, which means true

    @property
    def exclusive_cpus(self) -> CpuSet:
        """Return the CPUs that pods must not use."""
        return frozenset() if self.exclusive is False else self.cpus


class NodeAnnotations(msgspec.Struct, frozen=True, kw_only=True):
    """Both annotations of the Node, and their invalid members."""

    reservation: NodeReservation = NodeReservation()
    system_qos: SystemQos | None = None  # None: the Node has no annotation at all
    invalid: tuple[InvalidAnnotation, ...] = ()


class _AnnotationReader:
    """Reads one annotation: an invalid member is recorded and does not affect the others."""

    def __init__(self, annotations: Mapping[str, str], key: str, machine: CpuSet) -> None:
        self.refused: list[InvalidAnnotation] = []
        self._key = key
        self._machine = machine
        self.members: Mapping[str, object] = {}
        text = annotations.get(key)
        try:
            self.members = parse_json_object(text) if text else {}
        except AnnotationError as error:
            self.refuse("", str(error))

    def refuse(self, member: str, reason: str) -> None:
        path = f"{self._key}.{member}" if member else self._key
        self.refused.append(InvalidAnnotation(path=path, why=reason))

    def cpus(self, member: str) -> CpuSet:
        """Return the CPUs of a member that this machine has."""
        try:
            named = parse_cpus(self.members.get(member) or "")
        except AnnotationError as error:
            self.refuse(member, str(error))
            return frozenset()
        if strange := named - self._machine:
            self.refuse(member, f"this machine has no CPU {format_cpu_list(strange)[:40]}")
        return named & self._machine


def parse_node_annotations(node: NodeView | None, machine: CpuSet) -> NodeAnnotations:
    """Parse the annotations of the Node; `machine` are the existing CPUs. Empty without a Node."""
    if node is None:
        return NodeAnnotations()
    annotations = dict(node.annotations)
    reserved = _AnnotationReader(annotations, RESERVATION, machine)
    services = _AnnotationReader(annotations, SYSTEM_QOS, machine)
    reservation, system_qos = _reservation(reserved, machine), _system_qos(services)
    return NodeAnnotations(
        reservation=reservation,
        system_qos=system_qos if node.annotations else None,
        invalid=(*reserved.refused, *services.refused),
    )


def raw_allocatable(node: NodeView) -> tuple[float, float] | None:
    """Return the node's allocatable CPU in cores and memory in bytes, without overcommitment.

    If koord-manager changes `status.allocatable`, it stores the original in an annotation. `None`
    unless both amounts are known.
    """
    text = node.annotation(RAW_ALLOCATABLE)
    original: Mapping[str, object] = {}
    with contextlib.suppress(AnnotationError):
        original = parse_json_object(text) if text else {}
    amounts = [
        parse_amount(str(original.get(name) or node.allocatable.get(name, "")))
        for name in ("cpu", "memory")
    ]
    if any(amount is None or amount < 0 for amount in amounts):
        return None
    cpu, memory = (float(amount) for amount in amounts if amount is not None)
    return cpu, memory


def _reservation(reading: _AnnotationReader, machine: CpuSet) -> NodeReservation:
    if not reading.members:
        return NodeReservation()
    resources = tuple(sorted(_reserved_resources(reading)))
    cpus = reading.cpus("reservedCPUs")
    count = 0 if cpus else _whole_cpus(dict(resources).get("cpu", "0"))
    if count > len(machine):
        reading.refuse("resources.cpu", f"more than the {len(machine)} CPUs of this machine")
        count = 0
    policy = reading.members.get("applyPolicy") or ""
    if policy and policy not in POLICIES:
        reading.refuse("applyPolicy", f"neither {POLICIES[0]} nor {POLICIES[1]}")
        policy = ""
    return NodeReservation(resources=resources, cpus=cpus, count=count, policy=str(policy))


def _reserved_resources(reading: _AnnotationReader) -> Iterator[tuple[str, str]]:
    resources = reading.members.get("resources") or {}
    if not isinstance(resources, dict) or len(resources) > MAX_RESOURCES:
        reading.refuse("resources", f"no object of at most {MAX_RESOURCES} quantities by name")
        return
    for name, value in resources.items():
        quantity = parse_quantity(value if isinstance(value, str) else _number_text(value))
        if quantity is None or not _RESOURCE.fullmatch(name):
            reading.refuse("resources", "a member is no quantity of 0 or more")
        else:
            yield name, quantity.text


def _number_text(value: object) -> str:
    """Return the text of a bare number, which Kubernetes takes for a quantity too."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def _whole_cpus(text: str) -> int:
    """Return a canonical quantity of CPUs, rounded up: a part of a CPU cannot be reserved."""
    quantity = parse_quantity(text)
    return quantity.value if quantity is not None else 0


def _system_qos(reading: _AnnotationReader) -> SystemQos:
    if not reading.members:
        return SystemQos()
    exclusive = reading.members.get("cpusetExclusive")
    if exclusive is not None and not isinstance(exclusive, bool):
        reading.refuse("cpusetExclusive", "neither true nor false; taken for true")
        exclusive = None
    return SystemQos(cpus=reading.cpus("cpuset"), exclusive=exclusive)
