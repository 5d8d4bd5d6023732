"""Device files of instances: from the driver's list, else from capability files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.host.files import LiveHostFiles
from agent.recording.tree import DeviceNodeEntry as Recorded
from agent.recording.tree import TreeBuilder
from agent.snapshot.device import DeviceNode, DevicePartition
from plugins.vendors.nvidia.mig.capabilities import MigCapabilities, parse_major, parse_minors
from plugins.vendors.nvidia.mig.instances import NO_INSTANCE, instances_of_event

MINORS = """\
config 1
monitor 2
gpu0/gi1/access 12
gpu0/gi1/ci0/access 13
gpu0/gi1/ci1/access
gpu0/gi1/access/extra 5
nonsense
"""
DEVICES = "Character devices:\n195 nvidia\n510 nvidia-caps\n\nBlock devices:\n511 nvidia-caps\n"
CAPABILITY = "/proc/driver/nvidia/capabilities/gpu0/mig/gi1"


def host_of(**nodes: Recorded) -> TreeBuilder:
    builder = TreeBuilder()
    builder.put("/proc/driver/nvidia-caps/mig-minors", MINORS.encode())
    builder.put("/proc/devices", DEVICES.encode())
    for name, node in nodes.items():
        builder.put(f"/dev/nvidia-caps/{name.replace('_', '-')}", node)
    return builder


def test_the_list_names_the_nodes_of_both_instances_v11() -> None:
    host = host_of(nvidia_cap12=Recorded(510, 12), nvidia_cap13=Recorded(510, 13)).build()
    access = MigCapabilities(host).access(0, 1, 0)
    assert (access.reason, access.nodes) == (
        "",
        (
            DeviceNode(path="/dev/nvidia-caps/nvidia-cap12", major=510, minor=12),
            DeviceNode(path="/dev/nvidia-caps/nvidia-cap13", major=510, minor=13),
        ),
    )


def test_capability_files_stand_in_for_the_list(tmp_path: Path) -> None:
    for name, number in (("access", 12), ("ci0/access", 13)):
        file = tmp_path / CAPABILITY[1:] / name
        file.parent.mkdir(parents=True, exist_ok=True)
        text = f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        file.write_text(text)
    (tmp_path / "proc/devices").write_text(DEVICES)
    access = MigCapabilities(LiveHostFiles(str(tmp_path))).access(0, 1, 0)
    assert [node.minor for node in access.nodes] == [12, 13]
    assert access.reason == "MIGNodeMissing"


@pytest.mark.parametrize(
    ("nodes", "reason", "words"),
    [
        ({"nvidia_cap12": Recorded(510, 12)}, "MIGNodeMissing", f"{CAPABILITY}/ci0/access"),
        ({}, "MIGNodeMissing", f"nvidia-modprobe -c 0 -f {CAPABILITY}/access"),
        (
            {"nvidia_cap12": Recorded(509, 12), "nvidia_cap13": Recorded(510, 13)},
            "NodeMismatch",
            "is 509:12, not 510:12",
        ),
    ],
)
def test_a_missing_or_wrong_node_is_reported(
    nodes: dict[str, Recorded], reason: str, words: str
) -> None:
    access = MigCapabilities(host_of(**nodes).build()).access(0, 1, 0)
    assert access.reason == reason
    assert words in access.message
    assert len(access.nodes) == 2


@pytest.mark.parametrize(
    "numbers", [(None, 1, 0), (0, None, 0), (0, 1, None), (3, 1, 0), (0, 1, 7)]
)
def test_an_instance_without_capability_has_a_reason(
    numbers: tuple[int | None, int | None, int | None],
) -> None:
    access = MigCapabilities(host_of().build()).access(*numbers)
    assert access.reason == "MIGNodeMissing"
    assert access.message


@given(st.text(max_size=300))
def test_any_list_is_read(text: str) -> None:
    assert all(number >= 0 for number in parse_minors(text).values())
    parse_major(text)


INSTANCES = tuple(
    DevicePartition(uuid=f"MIG-{gi}-{ci}", profile="1g.5gb", instance=gi, compute_instance=ci)
    for gi, ci in ((3, 0), (3, 1), (5, 0))
)


@pytest.mark.parametrize(
    ("gi", "ci", "uuids"),
    [
        pytest.param(3, NO_INSTANCE, ["MIG-3-0", "MIG-3-1"], id="V38"),
        pytest.param(3, 1, ["MIG-3-1"], id="V38-both-told"),
        pytest.param(
            NO_INSTANCE, NO_INSTANCE, ["MIG-3-0", "MIG-3-1", "MIG-5-0"], id="V38-neither-told"
        ),
        pytest.param(9, NO_INSTANCE, [], id="V38-gone-meanwhile"),
    ],
)
def test_an_event_concerns_the_instances_it_names(gi: int, ci: int, uuids: list[str]) -> None:
    assert [part.uuid for part in instances_of_event(INSTANCES, gi, ci)] == uuids
