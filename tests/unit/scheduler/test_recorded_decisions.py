"""Our decisions beside those that Koordinator's own scheduler made on random nodes and pods."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.wire_formats.device_allocated import decode_allocated
from agent.wire_formats.quantities import parse_quantity
from plugins.scheduler.devices.allocator import (
    DeviceChoices,
    NodeRefused,
    NodeState,
    Rules,
    allocate,
    check_request,
    filter_node,
)
from plugins.scheduler.devices.device_table import decode_device_table
from plugins.scheduler.devices.device_usage import sum_usage
from plugins.scheduler.devices.requests import (
    ContainerAmounts,
    DeviceRequest,
    InvalidRequest,
    device_request,
    pod_amounts,
)
from plugins.scheduler.devices.scores import ScoringStrategy

RECORDED = Path(__file__).parents[4] / "shared" / "oracle" / "deviceshare-decisions.json.xz"
COMPATIBLE = Rules(upstream_compatible=True)

pytestmark = pytest.mark.skipif(
    not RECORDED.exists(), reason=f"no recorded decisions: {RECORDED.name} is not here"
)

Decision = tuple[NodeState, Mapping[str, Any], Mapping[str, Any]]  # node, pod, result


def decisions() -> Iterator[Decision]:
    """Yield each pod with the node as it was then: the recorded grants are in use."""
    for name, case in json.loads(lzma.decompress(RECORDED.read_bytes())).items():
        table = decode_device_table(json.dumps(case["device"]).encode())
        labels = case["device"]["metadata"].get("labels") or {}
        held: dict[str, Any] = {}
        for step in case["steps"]:
            if step["op"] == "delete":
                held.pop(step["pod"], None)
                continue
            usage = sum_usage(held.values(), table)
            yield (
                NodeState(name=name, labels=labels, table=table, usage=usage),
                step["pod"],
                step["result"],
            )
            grant = step["result"].get("device_allocated")
            if step["result"]["bound"]:
                held[step["pod"]["metadata"]["name"]] = decode_allocated(json.dumps(grant or {}))


def request_of(pod: Mapping[str, Any]) -> DeviceRequest | None:
    containers = [
        ContainerAmounts(
            {
                name: quantity.value
                for name, text in (container["resources"].get("requests") or {}).items()
                if (quantity := parse_quantity(str(text))) is not None
            }
        )
        for container in pod["spec"]["containers"]
    ]
    metadata = pod["metadata"]
    return device_request(
        pod_amounts(containers), metadata.get("annotations") or {}, metadata.get("labels") or {}
    )


def decide(node: NodeState, pod: Mapping[str, Any], rules: Rules) -> DeviceChoices | None:
    try:
        request = request_of(pod)
        assert request is not None
        check_request(request, rules)
        filter_node(node, request, rules)
        return allocate(node, request, rules, strategy=ScoringStrategy())
    except (InvalidRequest, NodeRefused):
        return None


def entries(grant: DeviceChoices | None) -> object:
    """Return what a grant gives, without the order of devices of different kinds."""
    return {
        (
            one.device.kind,
            one.device.minor,
            one.device.id,
            one.function.bus_id if one.function is not None else "",
            tuple(sorted(one.amounts.items())),
        )
        for one in grant or ()
    }


def recorded_entries(result: Mapping[str, Any]) -> object:
    allocated = decode_allocated(json.dumps(result.get("device_allocated") or {}))
    return {
        (
            one.type,
            one.minor,
            one.id,
            one.vfs[0] if one.vfs else "",
            tuple(sorted(one.resources)),
        )
        for one in allocated
    }


def test_in_compatible_mode_every_decision_is_the_same() -> None:
    count = Counter[str]()
    for node, pod, result in decisions():
        grant = decide(node, pod, COMPATIBLE)
        assert (grant is not None) is result["bound"], (node.name, pod["metadata"]["name"])
        assert entries(grant) == recorded_entries(result), (node.name, pod["metadata"]["name"])
        count["bound" if result["bound"] else "refused"] += 1
    assert count == {"bound": 692, "refused": 748}


def has_used_shared_card(node: NodeState, request: DeviceRequest) -> bool:
    """Koordinator scores cards of one switch with total and free amounts swapped."""
    return request.is_shared and any(
        map(node.usage.is_used, node.table.of("gpu") if node.table else ())
    )


def wants_distant_nic(node: NodeState, request: DeviceRequest) -> bool:
    """Beyond the PCIe roots of the cards Koordinator takes any NIC, ours the nearest one."""
    return node.table is not None and request.joint is not None and not request.is_shared


def test_otherwise_whether_a_pod_fits_is_the_same_and_other_devices_have_one_of_two_causes() -> (
    None
):
    causes = Counter[str]()
    for node, pod, result in decisions():
        grant = decide(node, pod, Rules())
        assert (grant is not None) is result["bound"], (node.name, pod["metadata"]["name"])
        if entries(grant) == recorded_entries(result):
            continue
        request = request_of(pod)
        assert request is not None
        if has_used_shared_card(node, request):
            causes["score of shared cards"] += 1
        elif wants_distant_nic(node, request):
            causes["nearest NIC"] += 1
        else:
            causes["none"] += 1
    assert causes == {"score of shared cards": 25, "nearest NIC": 1}
