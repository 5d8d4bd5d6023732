"""One scheduling decision, or a stream of them, on a cluster that files describe.

Beside the rules of this plug-in it checks what kube-scheduler checks first of all: cordoned nodes,
the node selector, taints, and the amounts that nodes have left. Other rules of kube-scheduler
(affinity, spread, volumes) are not applied, which the answer says for pods that use them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import yaml

from agent.errors import AgentError, ParseError
from agent.wire_formats.device_allocated import ANNOTATION, decode_allocated
from agent.wire_formats.json_values import JsonDict
from agent.wire_formats.resource_status import RESOURCE_STATUS
from plugins.scheduler.cluster_state import ClusterState
from plugins.scheduler.decisions import DecisionMaker, NodeAnswer
from plugins.scheduler.devices.allocator import DEFAULT_RULES, NodeRefused, Rules
from plugins.scheduler.devices.device_table import GPU, Amounts, decode_device_table
from plugins.scheduler.devices.requests import RESOURCE_KINDS, InvalidRequest
from plugins.scheduler.devices.scores import ScoringStrategy
from plugins.scheduler.numa.cpu_request import PodRequest, pod_request
from plugins.scheduler.numa.node_cpus import CpuCapacity, cpu_capacity, decode_node_cpus
from plugins.scheduler.pod_object import CPU, SchedulerPod, decode_scheduler_pod, parse_amounts
from plugins.scheduler.server.binding import assigned_pod, pod_annotations

MAX_FILE_BYTES = 64 << 20
MAX_DOCUMENTS = 200_000
TOLERATED_KINDS = ("PodGroup", "ClusterNetworkTopology", "NodeMetric")
# fields of a pod's spec that kube-scheduler decides by and this simulation does not
UNCHECKED_FIELDS = ("affinity", "topologySpreadConstraints", "resourceClaims")


class ClusterFilesError(AgentError):
    """The files do not describe a cluster; the message names the file."""


class SimulatedNode(msgspec.Struct, frozen=True, kw_only=True):
    """What kube-scheduler itself reads of a Node."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[tuple[str, str, str], ...] = ()  # key, value, effect
    is_cordoned: bool = False
    allocatable: Amounts = {}
    cpu_capacity: CpuCapacity = CpuCapacity()


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


class SimulatedCluster:
    """Nodes, devices and pods of a cluster, read from files."""

    def __init__(
        self, rules: Rules = DEFAULT_RULES, strategy: ScoringStrategy | None = None
    ) -> None:
        self.state = ClusterState()
        self.notes: list[str] = []
        self._nodes: dict[str, SimulatedNode] = {}
        self._requested: dict[str, dict[str, int]] = {}  # by node
        self._decisions = DecisionMaker(self.state, rules, strategy)

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
        elif kind == "Pod":
            pod = decode_scheduler_pod(data)
            if pod.node and not pod.has_ended:
                self._add_pod(pod)
        elif kind not in TOLERATED_KINDS:
            self.notes.append(f"objects of kind {kind!r} are not read")

    def decide(self, pod: SchedulerPod) -> PodDecision:
        """Return the decision for a pod; nothing is bound."""
        notes = list(self.notes)
        try:
            requested = pod_request(pod)
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
        nodes = [self._node_decision(request, name, answers, scores) for name in order]
        chosen = next((one.name for one in nodes if one.fits), None)
        return PodDecision(
            pod=f"{pod.key.namespace}/{pod.key.name}",
            chosen=chosen,
            nodes=tuple(nodes),
            notes=tuple(notes),
        )

    def bind(self, pod: SchedulerPod, name: str) -> None:
        """Put a pod on a node, with devices as its decision has them."""
        grant = self._decisions.allocate(pod_request(pod), name)
        annotations = {**pod.annotations, **pod_annotations(grant)}
        self._add_pod(msgspec.structs.replace(pod, node=name, annotations=annotations))

    def free_gpus(self) -> Mapping[str, int]:
        """Return how many whole GPUs each node has left, by node."""
        free: dict[str, int] = {}
        for name in self._nodes:
            state = self.state.state(name)
            gpus = state.table.of(GPU) if state.table is not None else ()
            free[name] = sum(bool(one.total) and not state.usage.is_used(one) for one in gpus)
        return free

    def _answers(
        self, pod: SchedulerPod, request: PodRequest
    ) -> tuple[Mapping[str, NodeAnswer], Mapping[str, int]]:
        """Return the answer of each node, and the scores of those that fit."""
        answers = {
            name: NodeAnswer(reason)
            for name, node in self._nodes.items()
            if (reason := self._refusal(pod, node))
        }
        others = [name for name in self._nodes if name not in answers]
        decided = self._decisions.decide(request, others)
        return {**answers, **{name: decided.of(name) for name in others}}, decided.scores()

    def _refusal(self, pod: SchedulerPod, node: SimulatedNode) -> str:
        """Return why kube-scheduler itself would not choose a node; its own texts."""
        if node.is_cordoned:
            return "node(s) were unschedulable"
        if any(node.labels.get(key) != value for key, value in pod.node_selector.items()):
            return "node(s) didn't match Pod's node affinity/selector"
        for key, value, effect in node.taints:
            if effect == "PreferNoSchedule":
                continue
            if not any(one.tolerates(key, value, effect) for one in pod.tolerations):
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
        request: PodRequest | None,
        name: str,
        answers: Mapping[str, NodeAnswer],
        scores: Mapping[str, int],
    ) -> NodeDecision:
        answer = answers[name]
        if request is None or not answer.fits:
            return NodeDecision(name=name, fits=False, reasons=(answer.reason,))
        try:
            grant = self._decisions.allocate(request, name)
        except NodeRefused as refused:  # another scorer may need other devices
            return NodeDecision(name=name, fits=False, reasons=(refused.reason,))
        annotations = pod_annotations(grant)
        return NodeDecision(
            name=name,
            fits=True,
            score=scores.get(name, 0),
            allocation=msgspec.json.decode(annotations.get(ANNOTATION, "{}")),
            cpus=msgspec.json.decode(annotations.get(RESOURCE_STATUS, "{}")),
            annotations=annotations,
        )

    def _add_node(self, node: SimulatedNode) -> None:
        self._nodes[node.name] = node
        self.state.set_node(node.name, node.labels, node.cpu_capacity)

    def _add_pod(self, pod: SchedulerPod) -> None:
        requested = self._requested.setdefault(pod.node, {})
        for name, amount in {**pod.amounts, "pods": 1}.items():
            requested[name] = requested.get(name, 0) + amount
        text = pod.annotations.get(ANNOTATION)
        try:
            decode_allocated(text or "{}")
        except ParseError as error:
            self.notes.append(f"pod {pod.key.namespace}/{pod.key.name}: {error}")
        assigned = assigned_pod(pod)
        if assigned is not None:
            self.state.set_pod(assigned)


def unchecked_fields(document: Mapping[str, object]) -> tuple[str, ...]:
    """Return the fields of a pod by which kube-scheduler decides and the simulation does not."""
    spec = document.get("spec")
    return tuple(name for name in UNCHECKED_FIELDS if isinstance(spec, Mapping) and name in spec)


def _node(document: Mapping[str, object]) -> SimulatedNode:
    try:
        node = msgspec.convert(document, _NodeDocument, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ParseError(f"Node: {str(error)[:120]}", "") from error
    spec, status = node.spec or _NodeSpec(), node.status or _NodeAmounts()
    allocatable = {name: str(value) for name, value in (status.allocatable or {}).items()}
    return SimulatedNode(
        name=node.metadata.name,
        labels=node.metadata.labels or {},
        taints=tuple((one.key, one.value, one.effect) for one in spec.taints or ()),
        is_cordoned=spec.unschedulable,
        allocatable=parse_amounts(allocatable),
        cpu_capacity=cpu_capacity(node.metadata.annotations or {}, allocatable.get(CPU, "0")),
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
        raise ClusterFilesError(f"{folder}: no such folder")
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".yaml", ".yml", ".json"))
    if not files:
        raise ClusterFilesError(f"{folder}: no .yaml, .yml or .json file in it")
    for path in files:
        for document in load_documents(path):
            try:
                cluster.add(document)
            except ParseError as error:
                raise ClusterFilesError(f"{path}: {error}") from error


def load_documents(path: Path) -> Iterator[Mapping[str, object]]:
    """Yield the objects of a file, and of the lists in it; raise `ClusterFilesError`."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ClusterFilesError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB")
        loaded = list(yaml.load_all(path.read_bytes(), Loader=_LOADER))
    except (OSError, yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise ClusterFilesError(f"{path}: {str(error)[:200]}") from error
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
                [{"kind": kind, **one} if isinstance(one, dict) and kind else one for one in items],
            )
        else:
            yield document


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
