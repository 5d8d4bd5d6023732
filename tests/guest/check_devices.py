"""Devices and the PCIe tree, as the agent tells them, against the kernel's own files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import pytest

from tests.guest.machine import NODES, ROOT, Ended

BRIDGES = {"pci0000:20": 0, "pci0000:50": 1, "pci0000:80": 2, "pci0000:b0": 3}
GPU_CLASS = "0x030200"


@pytest.fixture
def machine_facts(facts: dict[str, Any]) -> Any:
    return facts["devices"]


def devices(machine_facts: Any, kind: str) -> list[Any]:
    return [device for device in machine_facts["devices"]["devices"] if device["type"] == kind]


def walk(nodes: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for node in nodes:
        path = (*above, node["address"])
        yield path, node
        yield from walk(node["children"], path)


def parents(path: str) -> tuple[str, ...]:
    """Return host bridge, bridges and the function of a path below /sys/devices."""
    return PurePosixPath(path).parts[3:]


def test_the_tree_is_that_of_the_kernel(machine_facts: Any) -> None:
    observations = {
        path[-1]: path for path, _ in walk(machine_facts["topology"]["pci"]) if len(path) > 1
    }
    assert observations == {
        address: parents(one["path"]) for address, one in machine_facts["pci"].items()
    }


def test_every_function_has_the_class_and_ids_of_the_kernel(machine_facts: Any) -> None:
    for path, node in walk(machine_facts["topology"]["pci"]):
        if len(path) > 1:
            one = machine_facts["pci"][path[-1]]
            reports = (node["class"], node["vendor_id"], node["device_id"])
            assert reports == (one["class"], one["vendor"], one["device"])


def test_every_function_below_a_bridge_is_on_the_node_of_the_bridge(machine_facts: Any) -> None:
    nodes = {path[-1]: (path[0], node) for path, node in walk(machine_facts["topology"]["pci"])}
    for address, one in machine_facts["pci"].items():
        bridge, node = nodes[address]
        assert node["numa_node"] == BRIDGES.get(bridge), address
        assert int(one["numa_node"]) == BRIDGES.get(bridge, -1), address


def test_sockets_and_memory_nodes_are_those_of_the_machine(machine_facts: Any) -> None:
    topology = machine_facts["topology"]
    assert [s["numa_nodes"] for s in topology["sockets"]] == [[0, 1], [2, 3]]
    assert [n["cpus"] for n in topology["numa_nodes"]] == ["0", "1", "2", "3"]
    assert [n["distances"] for n in topology["numa_nodes"]] == [
        [10, 12, 32, 32],
        [12, 10, 32, 32],
        [32, 32, 10, 12],
        [32, 32, 12, 10],
    ]


def test_gpus_are_listed_with_their_place_and_why_no_more_is_known(machine_facts: Any) -> None:
    gpus = devices(machine_facts, "gpu")
    on_bus = [a for a, one in machine_facts["pci"].items() if one["class"] == GPU_CLASS]
    assert sorted(gpu["bus_id"] for gpu in gpus) == sorted(on_bus)
    assert sorted(gpu["numa_node"] for gpu in gpus) == sorted([*range(NODES)] * 2)
    for gpu in gpus:
        path = parents(machine_facts["pci"][gpu["bus_id"]]["path"])
        assert tuple(gpu["pcie_path"]) == path
        assert gpu["pcie_switch"] == path[2]  # below the host bridge and the root port
        assert gpu["vendor"] == "nvidia"
        assert gpu["health"]["state"] != "healthy"
        assert gpu["health"]["reason"]


@pytest.mark.parametrize("nic", range(NODES), ids="vector-70-eth{}".format)
def test_soft_roce_leads_to_the_function_below_its_network_device(
    machine_facts: Any, nic: int
) -> None:
    name = f"rxe_eth{nic}"
    (device,) = [one for one in devices(machine_facts, "rdma") if one["facts"]["name"] == name]
    truth = machine_facts["rdma"][name]
    assert (truth["parent"], device["facts"]["parent"]) == (f"eth{nic}", f"eth{nic}")
    assert device["facts"]["parent_bus_id"] == truth["function"]
    path = parents(machine_facts["pci"][truth["function"]]["path"])
    assert tuple(device["pcie_path"]) == path
    assert device["numa_node"] == BRIDGES[path[0]]
    assert device["pcie_switch"] == path[2]
    assert [port["state"] for port in device["ports"]] == ["ACTIVE"]
    assert device["ports"][0]["netdev"] == f"eth{nic}"
    assert (device["managed"], device["health"]["reason"]) == (False, "SoftDevice")


@pytest.mark.parametrize("nic", range(NODES), ids="vector-71-eth{}".format)
def test_the_device_node_of_verbs_is_the_kernels(machine_facts: Any, nic: int) -> None:
    """A number that differs, or a node that is missing, would make the device ill."""
    truth = machine_facts["rdma"][f"rxe_eth{nic}"]
    assert truth["verbs_number"] == truth["node_number"]
    (device,) = [
        one for one in devices(machine_facts, "rdma") if one["facts"]["name"] == f"rxe_eth{nic}"
    ]
    assert "missing" not in device["facts"]


def answer_of_recording(guest: Ended, command: str) -> Any:
    recording = str(guest.share / "recording")
    outcome = subprocess.run(
        [sys.executable, *("-m", "agent", command, "-o", "json", "--host"), recording],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert outcome.returncode in (0, 1), outcome.stderr
    return json.loads(outcome.stdout)


def test_a_recording_gives_the_topology_of_the_machine(machine_facts: Any, guest: Ended) -> None:
    assert answer_of_recording(guest, "topology") == machine_facts["topology"]


def test_a_recording_gives_the_devices_of_the_machine(machine_facts: Any, guest: Ended) -> None:
    """But for the reason of GPUs: on the machine no driver told of them, in a recording no tape."""
    for there, here in zip(
        machine_facts["devices"]["devices"],
        answer_of_recording(guest, "devices")["devices"],
        strict=True,
    ):
        if there["type"] == "gpu":
            assert here["health"]["reason"] == "NoRecordedAnswers"
            assert here["health"]["message"].endswith(there["health"]["message"])
            here["health"] = there["health"]
        assert here == there
