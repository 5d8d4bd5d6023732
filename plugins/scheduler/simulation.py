"""One scheduling decision, or a stream of them, on a cluster that files describe.

Besides the rules of this plug-in it checks kube-scheduler's first ones: cordoned nodes, the node
selector, taints, and the free amounts of nodes. Other rules of kube-scheduler (affinity, spread,
volumes) are not applied; the answer reports that for pods that use them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import yaml

from agent.clock import ManualClock
from agent.errors import AgentError, ParseError
from agent.snapshot.cluster import NodeView
from agent.wire_formats.device_allocated import ANNOTATION, decode_allocated
from agent.wire_formats.json_values import JSON_ERRORS, JsonDict
from agent.wire_formats.plain_yaml import decode_yaml_documents
from agent.wire_formats.resource_status import RESOURCE_STATUS
from plugins.scheduler.cluster_state import AssignedPod, ClusterState, Plan
from plugins.scheduler.decisions import DecisionMaker, NodeAnswer, designate
from plugins.scheduler.devices.allocator import NodeRefused
from plugins.scheduler.devices.binding_metadata import vendor_metadata
from plugins.scheduler.devices.device_table import GPU, Amounts, decode_device_table
from plugins.scheduler.devices.requests import RESOURCE_KINDS, InvalidRequest
from plugins.scheduler.gangs import Gang, decode_pod_group, gang_of
from plugins.scheduler.load.node_loads import LoadCapacity, NodeLoads
from plugins.scheduler.load.pod_load import PodLoad, decode_pod_load
from plugins.scheduler.load.reported_usage import ReportedUsage, ReportedUsageObject, reported_usage
from plugins.scheduler.numa.alignment import PodPlacement
from plugins.scheduler.numa.cpu_request import PodRequest, pod_request
from plugins.scheduler.numa.node_cpus import CpuCapacity, cpu_capacity, decode_node_cpus
from plugins.scheduler.pod_object import CPU, SchedulerPod, decode_scheduler_pod, parse_amounts
from plugins.scheduler.server.binding import assigned_pod, pod_annotations
from plugins.scheduler.server.cluster_feed import (
    ReservationObject,
    Reservations,
    reserved_devices,
    used_reservation,
)
from plugins.scheduler.server.load_feed import load_capacity
from plugins.scheduler.server.settings import DEFAULT_SETTINGS, SchedulerSettings

B = TypeVar("B")
V = TypeVar("V")

MAX_FILE_BYTES = 64 << 20
MAX_DEPTH = 64
MAX_DOCUMENTS = 200_000
TOLERATED_KINDS = ("ClusterNetworkTopology",)
NO_LOAD_SCORE = "NodeMetrics are not used: load_score is off in the settings (--config)"
# fields of a pod's spec that kube-scheduler decides by and this simulation does not
UNCHECKED_FIELDS = ("affinity", "topologySpreadConstraints", "resourceClaims")


class ClusterFilesError(AgentError):
    """The files do not describe a cluster; the message names the file."""


class SimulatedNode(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a Node that kube-scheduler itself reads."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[tuple[str, str, str], ...] = ()  # key, value, effect
    is_cordoned: bool = False
    allocatable: Amounts = {}
    cpu_capacity: CpuCapacity = CpuCapacity()
    load_capacity: LoadCapacity = LoadCapacity()


class SimulatedPod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod, as it is decided on and as it counts for the load of its node."""

    pod: SchedulerPod
    load: PodLoad
    unchecked: tuple[str, ...] = ()  # fields by which kube-scheduler alone decides

    @property
    def name(self) -> str:
        """Return namespace and name."""
        return f"{self.pod.key.namespace}/{self.pod.key.name}"


class NodeDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one node, as the command prints it."""

    name: str
    fits: bool
    reasons: tuple[str, ...] = ()
    score: int = 0
    allocation: JsonDict = {}
    cpus: JsonDict = {}  # CPU set, and amounts of NUMA nodes
    annotations: Mapping[str, str] = {}


class PodDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one pod; nodes in order of preference."""

    pod: str
    chosen: str | None
    nodes: tuple[NodeDecision, ...]
    notes: tuple[str, ...] = ()


class GangPlacement(msgspec.Struct, frozen=True):
    """Which pods of a gang are on which nodes, by uid, and why others are on none."""

    nodes: Mapping[str, str] = {}
    reasons: tuple[str, ...] = ()


class SimulatedCluster:
    """Nodes, devices and pods of a cluster, read from files."""

    def __init__(
        self, settings: SchedulerSettings = DEFAULT_SETTINGS, *, honors_designations: bool = False
    ) -> None:
        """With `honors_designations`, a pod gets the devices of its own annotation.

        It gets them on its own node or, without one, on each that has the devices.
        """
        self.state = ClusterState()
        self.notes: list[str] = []
        self._honors_designations = honors_designations
        # by namespace and name of a gang: pods that its PodGroup asks for, and those on nodes
        self._least: dict[tuple[str, str], int] = {}
        self._running = Counter[tuple[str, str]]()
        self._nodes: dict[str, SimulatedNode] = {}
        self._reservations = Reservations(self.state)
        self._requested: dict[str, dict[str, int]] = {}  # by node
        self._decisions = DecisionMaker(self.state, settings.rules(), settings.strategy())
        self._settings = settings
        self._clock = ManualClock(wall_s=0.0)  # has the time of the newest NodeMetric
        self._loads = NodeLoads(
            settings.load_score,
            settings.fit_plus,
            settings.scarce_resources,
            self._clock,
        )

    def add(self, document: Mapping[str, object]) -> None:
        """Add one object; kinds that the plug-in does not read are noted."""
        kind = document.get("kind")
        data = msgspec.json.encode(document, enc_hook=str)
        if kind == "Node":
            self._add_node(_node(document))
        elif kind == "Device":
            self.state.set_devices(decode_device_table(data))
        elif kind == "NodeResourceTopology":
            self.state.set_cpus(decode_node_cpus(data))
        elif kind == "PodGroup":
            self._add_group(decode_pod_group(data))
        elif kind == "Pod":
            pod = SimulatedPod(pod=decode_scheduler_pod(data), load=decode_pod_load(data))
            if pod.pod.node and not pod.pod.has_ended:
                self._add_pod(pod)
        elif kind == "NodeMetric":
            self._add_usage(_decode("NodeMetric", document, ReportedUsageObject, reported_usage))
        elif kind == "Reservation":
            self._add_reservation(
                _decode("Reservation", document, ReservationObject, reserved_devices)
            )
        elif kind not in TOLERATED_KINDS:
            self.notes.append(f"objects of kind {kind!r} are not read")

    def decide(self, pod: SimulatedPod) -> PodDecision:
        """Return the decision for a pod; nothing is bound."""
        notes = list(self.notes)
        if pod.unchecked:
            fields = ", ".join(pod.unchecked)
            notes.append(f"kube-scheduler also decides by {fields}, which are not checked here")
        gang = gang_of(pod.pod)
        if gang is not None:
            notes.append(f"{gang} needs {self.least_of(gang)} pods; this is the decision for one")
        try:
            requested = self._request(pod.pod)
        except InvalidRequest as error:
            refused = NodeAnswer(str(error), is_final=True)
            answers: Mapping[str, NodeAnswer] = dict.fromkeys(self._nodes, refused)
            scores: Mapping[str, int] = {}
            request: PodRequest | None = None
        else:
            answers, scores = self._answers(pod, requested)
            request = requested
        order = sorted(
            self._nodes, key=lambda name: (not answers[name].fits, -scores.get(name, 0), name)
        )
        nodes = [self._node_decision(pod.pod, request, name, answers, scores) for name in order]
        chosen = next((node.name for node in nodes if node.fits), None)
        return PodDecision(
            pod=pod.name,
            chosen=chosen,
            nodes=tuple(nodes),
            notes=tuple(notes),
        )

    def bind(self, pod: SimulatedPod, name: str) -> None:
        """Put a pod on a node, with devices as its decision has them."""
        self._add_pod(self._bound(pod, name))

    def bind_together(self, gang: Gang, pods: Sequence[SimulatedPod]) -> GangPlacement:
        """Put the pods of a gang on their best nodes, or none of them if too few fit.

        The devices of each are held while the others are placed. Pods of the gang that run already
        count for the number that it needs.
        """
        least, running = self.least_of(gang), self._running[gang.namespace, gang.name]
        if running + len(pods) < least:
            text = f"{gang}: {running + len(pods)} of {least} pods exist"
            return GangPlacement(reasons=(text,))
        requested = {name: dict(amounts) for name, amounts in self._requested.items()}
        plan = Plan(str(gang))
        members: list[SimulatedPod] = []
        reasons: list[str] = []
        for pod in pods:
            decision = self.decide(pod)
            if decision.chosen is None:
                reasons += (reason for node in decision.nodes for reason in node.reasons)
            else:
                members.append(self._bound(pod, decision.chosen))
                self._hold(members[-1], plan)
        self.state.release_plan(plan)
        self._requested = requested
        for pod in members:
            self._loads.remove_pod(pod.pod.key.uid)
        if running + len(members) < least:
            text = f"{gang}: {running + len(members)} of {least} pods fit"
            return GangPlacement(reasons=(text, *reasons))
        for pod in members:
            self._add_pod(pod)
        return GangPlacement(
            {member.pod.key.uid: member.pod.node for member in members}, tuple(reasons)
        )

    def least_of(self, gang: Gang) -> int:
        """Return the smallest number of pods that a gang is of use with; 1 if that is not known."""
        of_group = self._least.get((gang.namespace, gang.name))
        return max(1, of_group or gang.least or 1)

    def free_gpus(self) -> Mapping[str, int]:
        """Return the number of free whole GPUs, by node."""
        free: dict[str, int] = {}
        for name in self._nodes:
            state = self.state.state(name)
            gpus = state.table.of(GPU) if state.table is not None else ()
            free[name] = sum(bool(one.total) and not state.usage.is_used(one) for one in gpus)
        return free

    def _answers(
        self, pod: SimulatedPod, request: PodRequest
    ) -> tuple[Mapping[str, NodeAnswer], Mapping[str, int]]:
        """Return the answer of each node, and the scores of those that fit."""
        answers = {
            name: NodeAnswer(reason)
            for name, node in self._nodes.items()
            if (reason := self._refusal(pod.pod, node))
        }
        others = [name for name in self._nodes if name not in answers]
        decided = self._decisions.decide(request, others)
        has_loads = self._settings.has_load_scores and self._decisions.is_concerned(request)
        if has_loads:
            decided = decided.with_refusals(self._loads.refusals(pod.load, decided.fitting()))
        scores = decided.scores()
        if has_loads:
            weight = self._settings.device_score_weight
            scores = self._loads.combined_scores(pod.load, scores, weight)
        return {**answers, **{name: decided.of(name) for name in others}}, scores

    def _refusal(self, pod: SchedulerPod, node: SimulatedNode) -> str:
        """Return why kube-scheduler itself would not choose a node; its own texts."""
        if self._honors_designations and pod.node not in ("", node.name):
            return "node(s) didn't match the requested node name"
        if node.is_cordoned:
            return "node(s) were unschedulable"
        if any(node.labels.get(key) != value for key, value in pod.node_selector.items()):
            return "node(s) didn't match Pod's node affinity/selector"
        for key, value, effect in node.taints:
            if effect == "PreferNoSchedule":
                continue
            if not any(toleration.tolerates(key, value, effect) for toleration in pod.tolerations):
                return f"node(s) had untolerated taint {{{key}: {value}}}"
        requested = self._requested.get(node.name, {})
        for name, amount in {**pod.amounts, "pods": 1}.items():
            if name in RESOURCE_KINDS or not amount:
                continue
            if requested.get(name, 0) + amount > node.allocatable.get(name, 0):
                return "Too many pods" if name == "pods" else f"Insufficient {name}"
        return ""

    def _node_decision(
        self,
        pod: SchedulerPod,
        request: PodRequest | None,
        name: str,
        answers: Mapping[str, NodeAnswer],
        scores: Mapping[str, int],
    ) -> NodeDecision:
        answer = answers[name]
        if request is None or not answer.fits:
            return NodeDecision(name=name, fits=False, reasons=(answer.reason,))
        try:
            placement = self._decisions.allocate(request, name)
        except NodeRefused as refused:  # another scorer may need other devices
            return NodeDecision(name=name, fits=False, reasons=(refused.reason,))
        annotations = self._annotations(pod, name, placement)
        return NodeDecision(
            name=name,
            fits=True,
            score=scores.get(name, 0),
            allocation=msgspec.json.decode(annotations.get(ANNOTATION, "{}")),
            cpus=msgspec.json.decode(annotations.get(RESOURCE_STATUS, "{}")),
            annotations=annotations,
        )

    def _annotations(
        self, pod: SchedulerPod, name: str, placement: PodPlacement
    ) -> Mapping[str, str]:
        """Return what a binding would write, by the settings also for vendors' own plug-ins."""
        annotations = pod_annotations(placement, pod.annotations)
        if not self._settings.vendor_annotations:
            return annotations
        labels = self.state.state(name).device_labels
        now_ns = int(self._clock.wall_s * 1e9)
        vendor = vendor_metadata(placement.devices, name, labels, pod.labels, now_ns)
        return {**annotations, **vendor.annotations}

    def _request(self, pod: SchedulerPod) -> PodRequest:
        request = pod_request(pod)
        if not self._honors_designations or request.devices is None:
            return request
        try:
            return designate(request, decode_allocated(pod.annotations.get(ANNOTATION, "{}")))
        except ParseError as error:
            raise InvalidRequest(f"invalid device-allocated annotation, err: {error}") from error

    def _bound(self, pod: SimulatedPod, name: str) -> SimulatedPod:
        """Return a pod as the server would have it once it is bound."""
        placement = self._decisions.allocate(self._request(pod.pod), name)
        annotations = {**pod.pod.annotations, **self._annotations(pod.pod, name, placement)}
        bound = msgspec.structs.replace(pod.pod, node=name, annotations=annotations)
        load = msgspec.structs.replace(pod.load, node=name, bound_s=self._clock.wall_s)
        return SimulatedPod(pod=bound, load=load)

    def _hold(self, simulated: SimulatedPod, plan: Plan) -> None:
        """Let a pod of a plan count like a bound one."""
        self._count(simulated)
        hold = assigned_pod(simulated.pod)
        if hold is not None:
            self.state.hold(hold, plan)

    def _add_group(self, gang: Gang) -> None:
        if gang.least is not None:
            self._least[gang.namespace, gang.name] = gang.least

    def _add_node(self, node: SimulatedNode) -> None:
        self._nodes[node.name] = node
        self.state.set_node(node.name, node.labels, node.cpu_capacity)
        self._loads.set_capacity(node.name, node.load_capacity)

    def _add_usage(self, usage: ReportedUsage) -> None:
        self._loads.set_usage(usage.node, usage)
        self._clock.wall_s = max(self._clock.wall_s, usage.updated_s or 0.0)
        if not self._settings.load_score.enabled and NO_LOAD_SCORE not in self.notes:
            self.notes.append(NO_LOAD_SCORE)

    def _add_reservation(self, devices: AssignedPod | None) -> None:
        if devices is not None:
            self._reservations.set_reservation(devices.key.name, devices)

    def _count(self, simulated: SimulatedPod) -> None:
        """Count what a pod requests, and its load."""
        self._loads.set_pod(simulated.load)
        pod = simulated.pod
        requested = self._requested.setdefault(pod.node, {})
        for name, amount in {**pod.amounts, "pods": 1}.items():
            requested[name] = requested.get(name, 0) + amount

    def _add_pod(self, simulated: SimulatedPod) -> None:
        self._count(simulated)
        pod = simulated.pod
        gang = gang_of(pod)
        if gang is not None:
            self._running[gang.namespace, gang.name] += 1
        text = pod.annotations.get(ANNOTATION)
        try:
            decode_allocated(text or "{}")
        except ParseError as error:
            self.notes.append(f"pod {simulated.name}: {error}")
        assigned = assigned_pod(pod)
        if assigned is not None:
            self.state.set_pod(assigned)
        self._reservations.set_user(pod.key.uid, used_reservation(pod))


def simulated_pod(document: Mapping[str, object]) -> SimulatedPod:
    """Return the pod of a document; raise `ParseError` for what is none."""
    data = msgspec.json.encode(document, enc_hook=str)
    spec = document.get("spec")
    return SimulatedPod(
        pod=decode_scheduler_pod(data),
        load=decode_pod_load(data),
        unchecked=tuple(
            name for name in UNCHECKED_FIELDS if isinstance(spec, Mapping) and name in spec
        ),
    )


def _decode(
    kind: str, document: Mapping[str, object], body: type[B], convert: Callable[[B], V]
) -> V:
    data = msgspec.json.encode(document, enc_hook=str)
    try:
        return convert(msgspec.json.decode(data, type=body))
    except JSON_ERRORS as error:
        raise ParseError(f"{kind}: {str(error)[:120]}", "") from error


def _node(document: Mapping[str, object]) -> SimulatedNode:
    try:
        node = msgspec.convert(document, _NodeDocument, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ParseError(f"Node: {str(error)[:120]}", "") from error
    spec, status = node.spec or _NodeSpec(), node.status or _NodeAmounts()
    allocatable = {name: str(value) for name, value in (status.allocatable or {}).items()}
    annotations = node.metadata.annotations or {}
    return SimulatedNode(
        name=node.metadata.name,
        labels=node.metadata.labels or {},
        taints=tuple((taint.key, taint.value, taint.effect) for taint in spec.taints or ()),
        is_cordoned=spec.unschedulable,
        allocatable=parse_amounts(allocatable),
        cpu_capacity=cpu_capacity(annotations, allocatable.get(CPU, "0")),
        load_capacity=load_capacity(
            NodeView(
                name=node.metadata.name,
                uid="",
                annotations=tuple(annotations.items()),
                allocatable=allocatable,
            )
        ),
    )


class _Taint(msgspec.Struct):
    key: str
    effect: str = ""
    value: str = ""


class _NodeSpec(msgspec.Struct):
    taints: list[_Taint] | None = None
    unschedulable: bool = False


class _NodeAmounts(msgspec.Struct):
    allocatable: dict[str, str | int | float] | None = None


class _SimulatedMetadata(msgspec.Struct):
    name: str
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _NodeDocument(msgspec.Struct):
    metadata: _SimulatedMetadata
    spec: _NodeSpec | None = None
    status: _NodeAmounts | None = None


def load_cluster(folder: Path, cluster: SimulatedCluster) -> None:
    """Add all objects of a folder's YAML and JSON files; raise `ClusterFilesError`."""
    if not folder.is_dir():
        remedy = "name a folder of YAML or JSON files with Nodes, Devices and Pods"
        raise ClusterFilesError(f"{folder}: no such folder; {remedy}")
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".yaml", ".yml", ".json"))
    if not files:
        raise ClusterFilesError(f"{folder}: no .yaml, .yml or .json file in it")
    for path in files:
        if not path.is_file():  # to open a FIFO would wait for its writer
            raise ClusterFilesError(f"{path}: not a regular file")
        for document in load_documents(path):
            try:
                cluster.add(document)
            except ParseError as error:
                raise ClusterFilesError(f"{path}: {error}") from error


def load_documents(path: Path) -> Iterator[Mapping[str, object]]:
    """Yield the objects of a file, and of the lists in it; raise `ClusterFilesError`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        remedy = "name a YAML or JSON file that this user can read"
        raise ClusterFilesError(f"{path}: {error.strerror}; {remedy}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ClusterFilesError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        loaded = decode_yaml_documents(data, MAX_DEPTH)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = str(getattr(error, "problem", error))[:200]
        raise ClusterFilesError(f"{path}{line}: not YAML: {problem}") from error
    yield from _flatten(path, loaded)


def _flatten(path: Path, documents: Iterable[object]) -> Iterator[Mapping[str, object]]:
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict) or "kind" not in document:
            raise ClusterFilesError(f"{path}: a document that is no Kubernetes object")
        items = document.get("items")
        if str(document["kind"]).endswith("List") and isinstance(items, list):
            kind = str(document["kind"]).removesuffix("List")
            yield from _flatten(
                path,
                [
                    {"kind": kind, **item} if isinstance(item, dict) and kind else item
                    for item in items
                ],
            )
        else:
            yield document
