"""Objects of others with anything in them: each is read, or refused as unreadable, and no more."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from agent.errors import ParseError
from agent.kube.watch.decoder import WatchedKind
from agent.wire_formats.device_allocated import ANNOTATION
from agent.wire_formats.json_values import JSON_ERRORS
from plugins.scheduler.cluster_state import ClusterState
from plugins.scheduler.decisions import DecisionMaker
from plugins.scheduler.devices.device_table import (
    GPU_CORE,
    GPU_MEMORY_RATIO,
    DeviceTable,
    decode_partitions,
)
from plugins.scheduler.devices.requests import InvalidRequest
from plugins.scheduler.numa.cpu_request import pod_request
from plugins.scheduler.numa.node_cpus import NodeCpus
from plugins.scheduler.pod_object import PodKey, SchedulerPod, parse_amounts
from plugins.scheduler.server.binding import assigned_pod
from plugins.scheduler.server.cluster_feed import (
    ALL_DEVICES,
    ALL_NODES,
    ALL_PODS,
    ALL_RESERVATIONS,
    ALL_TOPOLOGIES,
    used_reservation,
)
from plugins.scheduler.server.extender_metrics import device_lines
from plugins.scheduler.server.load_feed import NODE_CAPACITIES, POD_LOADS, USAGES
from plugins.scheduler.server.resource_publisher import ADVERTISED_RESOURCES

Object = dict[str, Any]

CARD = {
    "type": "gpu",
    "minor": 0,
    "id": "GPU-0",
    "health": True,
    "resources": {GPU_CORE: "100", GPU_MEMORY_RATIO: "100"},
    "labels": {"a": "b"},
    "topology": {"nodeID": 0, "socketID": 0, "pcieID": "0", "busID": "0000:11:00.0"},
    "vfGroups": [{"labels": {"a": "b"}, "vfs": [{"minor": 0, "busID": "0000:11:00.1"}]}],
}
PARTITION = {"minors": [0], "allocationScore": "1", "ringBusBandwidth": "200Gi"}
DEVICE: Object = {
    "metadata": {
        "name": "n",
        "labels": {"node.koordinator.sh/gpu-partition-policy": "Honor"},
        "annotations": {
            "scheduling.koordinator.sh/gpu-partitions": {"1": [PARTITION]},
            "xpu-agent.io/topology": {"devices": {"0000:11:00.0": {"switch": "s", "chip": "c"}}},
        },
    },
    "spec": {"devices": [CARD]},
}
NODE: Object = {
    "metadata": {
        "name": "n",
        "uid": "u-n",
        "labels": {"node.koordinator.sh/gpu-model": "H100"},
        "annotations": {
            "node.koordinator.sh/resource-amplification-ratio": {"cpu": 1.5},
            "node.koordinator.sh/raw-allocatable": {"cpu": "4", "memory": "1Gi"},
            "scheduling.koordinator.sh/usage-thresholds": {"usageThresholds": {"cpu": 5}},
        },
    },
    "status": {"allocatable": {"cpu": "8", "memory": "1Gi"}, "capacity": {"cpu": "8"}},
}
TOPOLOGY: Object = {
    "metadata": {
        "name": "n",
        "annotations": {
            "node.koordinator.sh/cpu-topology": {
                "detail": [{"id": 0, "core": 0, "socket": 0, "node": 0}]
            },
            "kubelet.koordinator.sh/cpu-manager-policy": {
                "policy": "static",
                "options": {"full-pcpus-only": "true"},
                "reservedCPUs": "0",
            },
            "node.koordinator.sh/pod-cpu-allocs": [
                {"uid": "u", "cpuset": "0", "managedByKubelet": True}
            ],
            "node.koordinator.sh/reservation": {"reservedCPUs": "0"},
            "node.koordinator.sh/system-qos-resource": {"cpuset": "0", "cpusetExclusive": True},
        },
    },
    "topologyPolicies": ["None"],
    "zones": [
        {"name": "node-0", "type": "Node", "resources": [{"name": "cpu", "allocatable": "1"}]}
    ],
}
GRANT = {"gpu": [{"minor": 0, "id": "GPU-0", "resources": {GPU_CORE: "100"}}]}
POD: Object = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u-p",
        "labels": {"koordinator.sh/qosClass": "LSR"},
        "annotations": {
            ANNOTATION: GRANT,
            "scheduling.koordinator.sh/resource-status": {
                "cpuset": "0",
                "numaNodeResources": [{"node": 0, "resources": {"cpu": "1"}}],
            },
            "scheduling.koordinator.sh/resource-spec": {"preferredCPUBindPolicy": "FullPCPUs"},
            "scheduling.koordinator.sh/numa-topology-spec": {"numaTopologyPolicy": "BestEffort"},
            "scheduling.koordinator.sh/device-allocate-hint": {
                "gpu": {"requiredTopologyScope": "PCIe", "selector": {"matchLabels": {"a": "b"}}}
            },
            "scheduling.koordinator.sh/device-joint-allocate": {"deviceTypes": ["gpu", "rdma"]},
            "scheduling.koordinator.sh/gpu-partition-spec": {"ringBusBandwidth": "1"},
            "scheduling.koordinator.sh/reservation-allocated": {"name": "r", "uid": "u-r"},
        },
        "ownerReferences": [{"kind": "DaemonSet", "controller": True}],
    },
    "spec": {
        "priority": 9500,
        "containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "1"}}}],
        "initContainers": [{"name": "i", "restartPolicy": "Always"}],
        "tolerations": [{"key": "k", "operator": "Exists"}],
    },
    "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]},
}
BOUND: Object = {**POD, "spec": {**POD["spec"], "nodeName": "n"}}
USAGE: Object = {
    "metadata": {"name": "n"},
    "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}},
    "status": {
        "updateTime": "2026-01-05T10:00:00Z",
        "nodeMetric": {
            "nodeUsage": {"resources": {"cpu": "1"}},
            "aggregatedNodeUsages": [{"duration": "5m", "usage": {"p95": {"resources": {}}}}],
        },
        "podsMetric": [{"name": "p", "namespace": "ns", "podUsage": {"resources": {"cpu": "1"}}}],
    },
}
RESERVATION: Object = {
    "metadata": {"name": "r", "uid": "u-r", "annotations": {ANNOTATION: GRANT}},
    "status": {"phase": "Available", "nodeName": "n"},
}
OBJECTS: tuple[tuple[str, WatchedKind[Any, Any], Object], ...] = (
    ("device", ALL_DEVICES, DEVICE),
    ("node", ALL_NODES, NODE),
    ("capacity", NODE_CAPACITIES, NODE),
    ("advertised", ADVERTISED_RESOURCES, NODE),
    ("topology", ALL_TOPOLOGIES, TOPOLOGY),
    ("pod", ALL_PODS, POD),
    ("bound pod", ALL_PODS, BOUND),
    ("load", POD_LOADS, BOUND),
    ("usage", USAGES, USAGE),
    ("reservation", ALL_RESERVATIONS, RESERVATION),
)
TEXTS = ("", "-1", "--5", "1e999", "0x1", "9" * 40, "\u0663", "\ud800", "{", "[]", "0-")
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(TEXTS),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each part of a document."""
    members = value.items() if isinstance(value, dict) else ()
    elements = enumerate(value) if isinstance(value, list) else ()
    for key, part in (*members, *elements):
        yield (*before, key)
        yield from paths(part, (*before, key))


@st.composite
def damaged(draw: st.DrawFn, document: Object) -> bytes:
    """Return a document with up to three parts replaced by something else, or left out."""
    result = copy.deepcopy(document)
    for path in draw(st.lists(st.sampled_from(list(paths(document))), min_size=1, max_size=3)):
        target: Any = result
        for key in path[:-1]:
            target = target[key] if _has(target, key) else None
        if _has(target, path[-1]):
            if draw(st.booleans()) and isinstance(target, dict):
                del target[path[-1]]
            else:
                target[path[-1]] = draw(JUNK)
    annotations = _annotations(result.get("metadata"))
    for key, value in annotations.items():
        if not isinstance(value, str):
            annotations[key] = json.dumps(value)
    return json.dumps(result).encode()


def _has(target: Any, key: Any) -> bool:
    if isinstance(target, list):
        return isinstance(key, int) and key < len(target)
    return isinstance(target, dict) and key in target


def _annotations(metadata: Any) -> Object:
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    return annotations if isinstance(annotations, dict) else {}


def use(value: object) -> None:
    """Do with a value what the scheduler does with it."""
    state = ClusterState()
    state.set_node("n", {})
    if isinstance(value, DeviceTable):
        state.set_devices(msgspec.structs.replace(value, node="n"))
    elif isinstance(value, NodeCpus):
        state.set_cpus(msgspec.structs.replace(value, node="n"))
    elif isinstance(value, SchedulerPod):
        used_reservation(value)
        assigned = assigned_pod(value)
        if assigned is not None:
            state.set_pod(assigned)
    card = SchedulerPod(key=PodKey("u", "ns", "q"), amounts={GPU_CORE: 50, GPU_MEMORY_RATIO: 50})
    for pod in (card, *([value] if isinstance(value, SchedulerPod) else [])):
        with contextlib.suppress(InvalidRequest):
            DecisionMaker(state).decide(pod_request(pod), ["n"])


KINDS = pytest.mark.parametrize(
    ("kind", "document"), [one[1:] for one in OBJECTS], ids=[one[0] for one in OBJECTS]
)


@KINDS
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_an_object_is_read_or_refused(
    kind: WatchedKind[Any, Any], document: Object, data: st.DataObject
) -> None:
    text = data.draw(damaged(document))
    try:
        body = msgspec.json.decode(text, type=kind.body_type)
    except JSON_ERRORS:
        return  # the watch says so
    try:
        value = kind.convert(body)
    except ParseError:
        return
    use(value)


def with_texts(document: Object) -> Object:
    """Return a document whose annotations are texts, as they are at the server."""
    whole = copy.deepcopy(document)
    annotations = _annotations(whole["metadata"])
    for key, value in annotations.items():
        annotations[key] = json.dumps(value)
    return whole


def decode(kind: WatchedKind[Any, Any], document: Object) -> Any:
    return msgspec.json.decode(json.dumps(document).encode(), type=kind.body_type)


@pytest.mark.parametrize(
    ("kind", "document", "path", "value"),
    [
        (ALL_PODS, POD, ("spec", "containers", 0, "resources", "requests", "cpu"), "9" * 40),
        (ALL_NODES, NODE, ("status", "allocatable", "cpu"), "1e30"),
        (NODE_CAPACITIES, NODE, ("status", "allocatable", "cpu"), "9" * 40),
        (ALL_TOPOLOGIES, TOPOLOGY, ("zones", 0, "resources", 0, "allocatable"), "9" * 40),
    ],
)
def test_a_huge_amount_counts_as_the_largest(
    kind: WatchedKind[Any, Any], document: Object, path: tuple[Any, ...], value: str
) -> None:
    whole = with_texts(document)
    target: Any = whole
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    assert kind.convert(decode(kind, whole)) is not None
    assert parse_amounts({"cpu": value}) == {"cpu": (1 << 63) - 1}


def test_no_name_in_a_device_object_ends_a_line_of_the_metrics() -> None:
    whole = with_texts(DEVICE)
    name = 'a"} 5\nxpu_scheduler_double_granted 7\n\\'
    whole["spec"]["devices"] = [{**CARD, "type": name, "resources": {name: "100"}}]
    state = ClusterState()
    state.set_node("n", {})
    state.set_devices(ALL_DEVICES.convert(decode(ALL_DEVICES, whole)))
    page = "\n".join(asyncio.run(device_lines(state))) + "\n"
    samples = [one for family in text_string_to_metric_families(page) for one in family.samples]
    assert [one.value for one in samples] == [100, 0]


def test_a_zone_whose_number_is_too_long_for_one_is_left_out() -> None:
    whole = with_texts(TOPOLOGY)
    whole["zones"].append({"name": "node-" + "1" * 5000, "type": "Node"})
    cpus = ALL_TOPOLOGIES.convert(decode(ALL_TOPOLOGIES, whole))
    assert set(cpus.zones) == {0}


@pytest.mark.parametrize("score", ["--5", "-", "1.5", "\u0663", "9" * 12, ""])
def test_a_score_of_a_partition_that_is_no_number_is_0(score: str) -> None:
    text = json.dumps({"1": [{**PARTITION, "allocationScore": score}]})
    table = decode_partitions(text)
    assert table is not None
    assert table[1][0].score == 0


@KINDS
def test_an_undamaged_object_is_read(kind: WatchedKind[Any, Any], document: Object) -> None:
    assert kind.convert(decode(kind, with_texts(document))) is not None
