"""The object beside what a real koordlet published, and beside what a scheduler was given."""

from __future__ import annotations

import functools
import json
import lzma
from typing import Any

import pytest

from agent.objects.node_resource_topology import (
    ANNOTATIONS,
    BE_SHARED_POOLS,
    CPU_MANAGER_POLICY,
    CPU_TOPOLOGY,
    POD_CPU_ALLOCS,
    SHARED_POOLS,
    TopologyPublisher,
)
from agent.snapshot.cluster import KubeletView
from agent.snapshot.cpu import Cpu, CpuInfo, CpuTopology
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import KubeQos, PodView
from agent.wire_formats.kernel_text import parse_cpu_list
from tests.captures import SHARED, needs_shared
from tests.clustered import KUBELET, machine, node, pod, snapshot

pytestmark = needs_shared
Tree = Any
ORACLE = SHARED / "oracle"
RESERVATION = "node.koordinator.sh/reservation"


@functools.cache
def koordlets() -> Tree:
    return json.loads((ORACLE / "koordlet-objects.json").read_text())["noderesourcetopology"]


def listed_pods() -> tuple[PodView, ...]:
    """The pods of that machine as its kubelet listed them."""
    items = json.loads((ORACLE / "koordlet-cgroup-files.json").read_text())["pods"]
    entries = items["items"] if isinstance(items, dict) else items
    return tuple(
        PodView(
            uid=item["metadata"]["uid"],
            qos=KubeQos(item["status"]["qosClass"]),
            name=item["metadata"]["name"],
            namespace=item["metadata"]["namespace"],
            labels=tuple(item["metadata"].get("labels", {}).items()),
            annotations=tuple(item["metadata"].get("annotations", {}).items()),
        )
        for item in entries
    )


def agent_objects() -> dict[str, Tree]:
    info = CpuInfo(model="Intel(R) Xeon(R) Processor", vendor="GenuineIntel")
    base = machine(1, 2, 1)
    cpus = CpuTopology(usable=base.usable, cpus=base.cpus, packages=base.packages, info=info)
    now = snapshot(cpus, kubelet=None, pods=listed_pods())  # that koordlet did not ask its kubelet
    return managed(now, TopologyPublisher(is_kubelet_enabled=False))


def managed(now: NodeSnapshot, publisher: TopologyPublisher) -> dict[str, Tree]:
    (desired,) = publisher.render(now, 0.0)
    body: Tree = desired.body
    return {key: json.loads(value) for key, value in body["metadata"]["annotations"].items()}


@pytest.mark.parametrize("key", ANNOTATIONS)
def test_every_annotation_equals_koordlets_after_decoding(key: str) -> None:
    theirs = koordlets()["metadata"]["annotations"]
    assert agent_objects()[key] == json.loads(theirs[key])


def test_of_fifteen_pods_one_annotation_is_refused() -> None:
    (refused,) = agent_objects()["xpu-agent.io/refused"]
    assert refused["of"] == "Pod d/badjson"


@functools.cache
def cases() -> dict[str, Tree]:
    with lzma.open(ORACLE / "numa-decisions.json.xz") as file:
        document: dict[str, Tree] = json.load(file)
    return document


def kubelet_facts(case: Tree) -> tuple[CpuTopology, KubeletView, dict[str, Tree]]:
    texts = case["nodeResourceTopology"]["metadata"]["annotations"]
    theirs = {key: json.loads(value) for key, value in texts.items()}
    detail = theirs[CPU_TOPOLOGY]["detail"]
    cpus = CpuTopology(
        usable=frozenset(cpu["id"] for cpu in detail),
        cpus=tuple(Cpu(**cpu, l3=0) for cpu in detail),
    )
    policy = theirs[CPU_MANAGER_POLICY]
    kubelet = KubeletView(
        cpu_manager_policy=policy.get("policy"),
        cpu_manager_options=tuple(policy.get("options", {}).items()),
        reserved_cpus=parse_cpu_list(policy.get("reservedCPUs", "")),
        topology_policy="none",
    )
    return cpus, kubelet, theirs


def test_what_the_scheduler_was_given_of_eighty_nodes_is_what_we_publish() -> None:
    assert len(cases()) == 80
    for name, case in cases().items():
        cpus, kubelet, theirs = kubelet_facts(case)
        owner = node(case["annotations"] or {})
        annotations = managed(snapshot(cpus, owner, kubelet), TopologyPublisher())
        for key in (CPU_TOPOLOGY, CPU_MANAGER_POLICY, POD_CPU_ALLOCS, RESERVATION):
            assert annotations[key] == theirs.get(key, {}), (name, key)


def test_what_the_scheduler_gave_away_is_in_no_pool_of_shared_cpus() -> None:
    checked = 0
    for case in cases().values():
        cpus_by_pod: dict[str, str] = {}
        for step in case["steps"]:
            if step["op"] == "delete":
                cpus_by_pod.pop(step["pod"], None)
            elif (step["result"].get("resource_status") or {}).get("cpuset"):
                cpus_by_pod[step["pod"]["metadata"]["name"]] = step["result"]["resource_status"][
                    "cpuset"
                ]
        cpus, _, _ = kubelet_facts(case)
        pods = tuple(pod(name, given_cpus, "LSR") for name, given_cpus in cpus_by_pod.items())
        annotations = managed(
            snapshot(cpus, node(case["annotations"] or {}), KUBELET, pods), TopologyPublisher()
        )
        shared = cpus_of(annotations[SHARED_POOLS])
        allocated = frozenset[int]().union(*map(parse_cpu_list, cpus_by_pod.values()))
        reserved = parse_cpu_list(annotations[RESERVATION].get("reservedCPUs", ""))
        assert shared == cpus.usable - allocated - reserved
        assert cpus_of(annotations[BE_SHARED_POOLS]) == cpus.usable - reserved
        checked += len(cpus_by_pod)
    assert checked > 100


def cpus_of(pools: Tree) -> frozenset[int]:
    return frozenset[int]().union(*(parse_cpu_list(pool["cpuset"]) for pool in pools))
