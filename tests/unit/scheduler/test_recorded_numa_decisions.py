"""Our CPU sets and NUMA nodes beside those that Koordinator's own scheduler chose."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from agent.snapshot.allocation import AllocatedDevice
from agent.wire_formats.device_allocated import decode_allocated
from agent.wire_formats.kernel_text import parse_cpu_list
from plugins.scheduler.devices.allocator import NodeRefused, NodeState, Rules, filter_node
from plugins.scheduler.devices.device_table import Amounts, decode_device_table
from plugins.scheduler.devices.device_usage import sum_usage
from plugins.scheduler.devices.requests import InvalidRequest
from plugins.scheduler.devices.scores import ScoringStrategy
from plugins.scheduler.numa.alignment import PodPlacement, align_pod
from plugins.scheduler.numa.cpu_choice import NumaPod, NumaState
from plugins.scheduler.numa.cpu_request import PodRequest, pod_numa_request
from plugins.scheduler.numa.node_cpus import decode_node_cpus
from plugins.scheduler.pod_object import SchedulerPod, decode_scheduler_pod, parse_amounts

RECORDED = Path(__file__).parents[4] / "shared" / "oracle" / "numa-decisions.json.xz"
COMPATIBLE = Rules(upstream_compatible=True)
RESERVATION = "node.koordinator.sh/reservation"
RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
RESOURCE_SPEC = "scheduling.koordinator.sh/resource-spec"

pytestmark = pytest.mark.skipif(
    not RECORDED.exists(), reason=f"no recorded decisions: {RECORDED.name} is not here"
)


class Recorded(NamedTuple):
    """A pod that was bound: what it requested and what it got."""

    amounts: Amounts
    numa: NumaPod
    devices: tuple[AllocatedDevice, ...]


class Decision(NamedTuple):
    """A pod, and the node as it was then: what earlier pods were given is in use."""

    node: NodeState
    numa: NumaState
    unrecorded: Amounts  # CPU and memory of pods on no NUMA node in particular
    left: Amounts  # CPU and memory of the node that no pod requested
    pod: SchedulerPod
    is_bound: bool
    message: str
    recorded: Recorded | None


def recorded_grant(pod: SchedulerPod, result: Mapping[str, Any]) -> Recorded:
    status = result.get("resource_status") or {}
    spec = json.loads(pod.annotations.get(RESOURCE_SPEC, "{}"))
    zones = {
        zone["node"]: parse_amounts({key: str(value) for key, value in zone["resources"].items()})
        for zone in status.get("numaNodeResources", ())
    }
    return Recorded(
        amounts=pod.amounts,
        numa=NumaPod(
            cpus=parse_cpu_list(status.get("cpuset", "")),
            exclusive_policy=spec.get("preferredCPUExclusivePolicy", ""),
            amounts=zones,
        ),
        devices=decode_allocated(json.dumps(result.get("device_allocated") or {})),
    )


def decisions() -> Iterator[Decision]:
    for name, case in json.loads(lzma.decompress(RECORDED.read_bytes())).items():
        device = case.get("device")
        table = None if device is None else decode_device_table(json.dumps(device).encode())
        of_device = {} if device is None else device["metadata"].get("labels") or {}
        labels = {**of_device, **(case["labels"] or {})}
        cpus = decode_node_cpus(json.dumps(case["nodeResourceTopology"]).encode())
        capacity = parse_amounts({key: str(value) for key, value in case["allocatable"].items()})
        # Koordinator's scheduler takes the reserved CPUs off what the Node offers
        reservation = json.loads((case["annotations"] or {}).get(RESERVATION, "{}"))
        reserved = len(parse_cpu_list(reservation.get("reservedCPUs", "")))
        bound: dict[str, Recorded] = {}
        for step in case["steps"]:
            if step["op"] == "delete":
                bound.pop(step["pod"], None)
                continue
            pod = decode_scheduler_pod(json.dumps(step["pod"]).encode())
            result = step["result"]
            recorded = recorded_grant(pod, result) if result["bound"] else None
            used = sum_usage((one.devices for one in bound.values()), table)
            remaining = {
                resource: capacity[resource]
                - (1000 * reserved if resource == "cpu" else 0)
                - sum(one.amounts.get(resource, 0) for one in bound.values())
                for resource in ("cpu", "memory")
            }
            unrecorded = {
                resource: sum(
                    one.amounts.get(resource, 0)
                    for one in bound.values()
                    if not (one.numa.cpus or one.numa.amounts)
                )
                for resource in ("cpu", "memory")
            }
            yield Decision(
                unrecorded=unrecorded,
                node=NodeState(name=name, labels=labels, table=table, usage=used),
                numa=NumaState(
                    labels=labels, cpus=cpus, pods=tuple(one.numa for one in bound.values())
                ),
                left=remaining,
                pod=pod,
                is_bound=result["bound"],
                message=result.get("message", ""),
                recorded=recorded,
            )
            if recorded is not None:
                bound[pod.key.name] = recorded


def decide(decision: Decision, rules: Rules) -> PodPlacement | str:
    """Return the grant, or the reason of the refusal."""
    amounts = {name: decision.pod.amounts.get(name, 0) for name in ("cpu", "memory")}
    for name, amount in amounts.items():  # which kube-scheduler itself checks
        if amount > decision.left[name]:
            return f"Insufficient {name}"
    try:
        request = PodRequest(
            numa=pod_numa_request(decision.pod),
            amounts=amounts,
            devices=decision.pod.device_request(),
        )
        if request.devices is not None:
            filter_node(decision.node, request.devices, rules)
        return align_pod(decision.node, decision.numa, request, rules, ScoringStrategy())
    except (InvalidRequest, NodeRefused) as error:
        return str(error)


def is_same(grant: PodPlacement, recorded: Recorded) -> bool:
    devices = sorted((device.device.kind, device.device.minor) for device in grant.devices)
    return (
        grant.cpus == recorded.numa.cpus
        and {numa: dict(amounts) for numa, amounts in grant.amounts.items()}
        == {numa: dict(amounts) for numa, amounts in recorded.numa.amounts.items()}
        and devices == sorted((device.type, device.minor or 0) for device in recorded.devices)
    )


def test_in_compatible_mode_every_decision_is_the_same() -> None:
    count = Counter[str]()
    for decision in decisions():
        grant = decide(decision, COMPATIBLE)
        where = (decision.node.name, decision.pod.key.name, grant, decision.message)
        assert isinstance(grant, PodPlacement) is decision.is_bound, where
        if isinstance(grant, PodPlacement):
            assert decision.recorded is not None
            assert is_same(grant, decision.recorded), where
        count["bound" if decision.is_bound else "refused"] += 1
    assert count == {"bound": 589, "refused": 531}


def prefers_exclusive_nodes(decision: Decision) -> bool:
    """Koordinator ignores the preference for NUMA nodes without pods that span several."""
    spec = json.loads(
        decision.pod.annotations.get("scheduling.koordinator.sh/numa-topology-spec", "{}")
    )
    return bool(spec.get("singleNUMANodeExclusive") == "Preferred")


def has_cpus_outside_of_amounts(decision: Decision) -> bool:
    """Pods without NUMA nodes hold CPUs that Koordinator still counts as free amounts of them.

    For a CPU set ours counts the free CPUs.
    """
    return any(pod.cpus and not pod.amounts for pod in decision.numa.pods)


def score(decision: Decision, grant: NumaPod | PodPlacement) -> tuple[int, ...]:
    """Return how good a choice is, less is better: NUMA nodes, cores that are shared with others.

    Last the cores that are wholly free after it, as a negative number.
    """
    cpus = decision.numa.cpus
    assert cpus is not None
    chosen = frozenset[int]().union(*(pod.cpus for pod in decision.numa.pods)) | cpus.reserved
    nodes = set(grant.amounts) | {cpus.places[cpu].node for cpu in grant.cpus}
    cores: dict[object, set[int]] = {}
    for place in cpus.places.values():
        cores.setdefault(place.core_key, set()).add(place.cpu)
    broken = sum(bool(own & grant.cpus) and not own <= grant.cpus for own in cores.values())
    free = sum(own.isdisjoint(chosen | grant.cpus) for own in cores.values())
    return len(nodes), broken, -free


def test_otherwise_fits_are_the_same_and_other_choices_have_a_cause_and_are_no_worse() -> None:
    causes = Counter[str]()
    for decision in decisions():
        grant = decide(decision, Rules())
        assert isinstance(grant, PodPlacement) is decision.is_bound, (decision.node.name, grant)
        if not isinstance(grant, PodPlacement) or decision.recorded is None:
            continue
        if is_same(grant, decision.recorded):
            continue
        assert score(decision, grant) <= score(decision, decision.recorded.numa)
        if prefers_exclusive_nodes(decision):
            causes["exclusive NUMA nodes"] += 1
        elif has_cpus_outside_of_amounts(decision):
            causes["CPUs counted"] += 1
        else:
            causes["none"] += 1
    assert causes == {"exclusive NUMA nodes": 1, "CPUs counted": 2}


def test_pods_without_a_record_count_evenly_which_koordinator_ignores() -> None:
    fits = Counter[bool]()
    for decision in decisions():
        counted = decision._replace(
            numa=msgspec.structs.replace(decision.numa, unrecorded=decision.unrecorded)
        )
        grant = decide(counted, Rules())
        is_same_fit = isinstance(grant, PodPlacement) is decision.is_bound
        assert is_same_fit or any(decision.unrecorded.values())
        fits[is_same_fit] += 1
    assert fits == {True: 1117, False: 3}


def test_no_cpu_is_given_twice_and_cpus_agree_with_the_amounts_of_numa_nodes() -> None:
    for decision in decisions():
        grant = decide(decision, Rules())
        if not isinstance(grant, PodPlacement) or decision.numa.cpus is None:
            continue
        chosen = frozenset[int]().union(*(pod.cpus for pod in decision.numa.pods))
        assert grant.cpus.isdisjoint(chosen | decision.numa.cpus.reserved)
        if grant.cpus:
            assert len(grant.cpus) * 1000 == decision.pod.amounts["cpu"]
            places = decision.numa.cpus.places
            by_node = Counter(places[cpu].node for cpu in grant.cpus)
            if grant.amounts:
                amounts = {node: one.get("cpu", 0) // 1000 for node, one in grant.amounts.items()}
                assert dict(by_node) == {node: count for node, count in amounts.items() if count}
