"""PCIe switches below one root: read from the agent's annotation, and preferred."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from plugins.scheduler.cluster_state import signature_content
from plugins.scheduler.devices.allocator import (
    DEFAULT_RULES,
    NodeRefused,
    NodeState,
    Rules,
    allocate,
)
from plugins.scheduler.devices.device_table import (
    GPU,
    RDMA,
    DeviceTable,
    decode_device_table,
    decode_switches,
)
from plugins.scheduler.devices.device_usage import sum_usage
from plugins.scheduler.devices.requests import DeviceRequest, device_request
from tests.process.agent import run_agent
from tests.unit.scheduler.vectors import RDMA_NAME, gpu, holding, nic

HOSTS = Path(__file__).parents[3] / "fixtures" / "hosts"
ANNOTATIONS = "scheduling.koordinator.sh/device-"
COMPATIBLE = Rules(upstream_compatible=True)


def rendered(host: str) -> dict[str, Any]:
    """Return the Device object that the agent publishes for a recorded host."""
    result = run_agent("render", "device", "--host", str(HOSTS / host), "--node-name", "n1")
    documents = yaml.safe_load_all(result.stdout)
    return next(document for document in documents if document and document["kind"] == "Device")


def node(used: tuple[int, ...] = (), *, nics: int = 0) -> NodeState:
    """Return a node of eight cards: two roots with two switches of two cards each.

    NIC `i` is on switch `i % 4`; its minor counts down, so that minors do not favour the switch.
    """
    cards = tuple(
        msgspec.structs.replace(gpu(minor, f"root{minor // 4}", 0), switch=f"switch{minor // 2}")
        for minor in range(8)
    )
    of_nics = sorted(
        (
            msgspec.structs.replace(
                nic(nics - i, f"0000:{i:02x}:00.0", f"root{i % 4 // 2}", 0), switch=f"switch{i % 4}"
            )
            for i in range(nics)
        ),
        key=lambda one: one.minor,
    )
    table = DeviceTable(node="n1", devices={GPU: cards, RDMA: tuple(of_nics)})
    return NodeState(name="n1", table=table, usage=sum_usage([holding(table, used)], table))


def request(cards: int, nics: int = 0, scope: str = "", joint: str = "") -> DeviceRequest:
    amounts = {"nvidia.com/gpu": cards, **({RDMA_NAME: nics} if nics else {})}
    annotations = {
        f"{ANNOTATIONS}allocate-hint": json.dumps({"gpu": {"requiredTopologyScope": scope}})
    }
    if nics:
        spec = {"deviceTypes": ["gpu", "rdma"], "requiredScope": joint}
        annotations[f"{ANNOTATIONS}joint-allocate"] = json.dumps(spec)
    result = device_request(amounts, annotations)
    assert result is not None
    return result


def minors(
    state: NodeState, desired: DeviceRequest, rules: Rules = DEFAULT_RULES, *, kind: str = GPU
) -> list[int]:
    return [one.device.minor for one in allocate(state, desired, rules) if one.device.kind == kind]


def nic_switches(
    state: NodeState, desired: DeviceRequest, rules: Rules = DEFAULT_RULES
) -> list[str]:
    grant = allocate(state, desired, rules)
    return sorted(one.device.switch for one in grant if one.device.kind == RDMA)


def test_switches_of_a_recorded_host_are_those_of_the_annotation() -> None:
    document = rendered("qemu-4numa-8xh100")
    table = decode_device_table(json.dumps(document).encode())

    switches = ["0000:21:00.0", "0000:51:00.0", "0000:81:00.0", "0000:b1:00.0"]
    assert [one.switch for one in table.of(GPU)] == sorted(switches * 2)


def test_cards_of_a_recorded_a100_host_below_root_ports_have_no_switch() -> None:
    table = decode_device_table(json.dumps(rendered("a100-mig-4x")).encode())

    assert [one.switch for one in table.of(GPU)] == [""] * 4
    assert minors(NodeState(name="n1", table=table), request(1)) == [0]


def test_a_recorded_host_whose_roots_have_one_switch_each_is_decided_as_without_switches() -> None:
    document = rendered("qemu-4numa-8xh100")
    table = decode_device_table(json.dumps(document).encode())
    del document["metadata"]["annotations"]["xpu-agent.io/topology"]
    plain = decode_device_table(json.dumps(document).encode())

    for used in ((), (0,), (2, 3), (1, 6), (0, 2, 4, 6)):
        usage = sum_usage([holding(table, used)], table)
        for count in (1, 2, 3, 4):
            with_switches = NodeState(name="n1", table=table, usage=usage)
            without = NodeState(name="n1", table=plain, usage=usage)
            assert minors(with_switches, request(count)) == minors(without, request(count))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, {}),
        ("", {}),
        ("[]", {}),
        ('{"v":1}', {}),
        ('{"devices":{"a":{"switch":"s"},"b":{"switch":7},"c":3,"d":{}}}', {"a": "s"}),
        ('{"devices":{"a":{"switch":"s","chip":"t"}}}', {"a": "t"}),
    ],
)
def test_what_cannot_be_read_of_the_annotation_costs_itself_only(
    text: str | None, expected: dict[str, str]
) -> None:
    assert decode_switches(text) == expected


def test_two_cards_come_from_one_switch() -> None:
    assert minors(node(used=(0,)), request(2)) == [2, 3]
    assert minors(node(used=(0,)), request(2), COMPATIBLE) == [1, 2]


def test_one_card_comes_from_the_switch_in_use_so_that_idle_ones_stay_idle() -> None:
    assert minors(node(used=(2,)), request(1)) == [3]
    assert minors(node(used=(2,)), request(1), COMPATIBLE) == [0]


def test_cards_that_no_switch_holds_come_from_one_root() -> None:
    assert minors(node(used=(0, 2)), request(3)) == [4, 5, 6]
    assert minors(node(used=(0, 2, 4, 6)), request(2)) == [1, 3]


def test_the_scope_of_a_root_is_met_across_its_switches() -> None:
    assert minors(node(), request(4, scope="PCIe")) == [0, 1, 2, 3]
    with pytest.raises(NodeRefused, match="Topology Scoped"):
        minors(node(used=(0, 2, 4, 6)), request(3, scope="PCIe"))


def test_no_part_is_as_narrow_as_a_device() -> None:
    with pytest.raises(NodeRefused, match="Topology Scoped"):
        minors(node(), request(1, scope="Device"))


def test_a_card_without_switch_is_a_part_of_its_own() -> None:
    state = node(used=(0,))
    assert state.table is not None
    cards = tuple(
        msgspec.structs.replace(one, switch="") if one.minor in (2, 3) else one
        for one in state.table.of(GPU)
    )
    table = msgspec.structs.replace(state.table, devices={GPU: cards})

    assert minors(msgspec.structs.replace(state, table=table), request(2)) == [4, 5]


def test_a_nic_on_the_switch_of_the_cards_is_preferred_to_another_one_of_the_root() -> None:
    state = node(used=(0, 1), nics=4)  # the two free cards of the root are on switch 1

    assert minors(state, request(2, nics=1)) == [2, 3]
    assert nic_switches(state, request(2, nics=1)) == ["switch1"]
    assert nic_switches(node(nics=4), request(2, nics=1)) == ["switch0"]
    assert nic_switches(node(nics=4), request(2, nics=1), COMPATIBLE) == ["switch1"]


def test_nics_are_taken_from_the_switches_of_the_cards_in_turns() -> None:
    state = node(nics=8)

    assert nic_switches(state, request(4, nics=200)) == ["switch0", "switch1"]
    assert nic_switches(state, request(2, nics=200)) == ["switch0", "switch0"]
    four = nic_switches(state, request(8, nics=400, joint="SamePCIe"))
    assert four == ["switch0", "switch1", "switch2", "switch3"]


def test_nodes_whose_switches_differ_have_different_signatures() -> None:
    state = node()
    assert state.table is not None
    cards = tuple(msgspec.structs.replace(one, switch="") for one in state.table.of(GPU))
    table = msgspec.structs.replace(state.table, devices={**state.table.devices, GPU: cards})

    other = msgspec.structs.replace(state, table=table)
    assert signature_content(state) != signature_content(other)
