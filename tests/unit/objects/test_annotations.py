from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from agent.objects.device import DevicePublisher
from agent.objects.device_annotations import (
    agent_annotations,
    health_annotation,
    topology_annotation,
)
from agent.snapshot.cpu import NumaNode, NumaTopology
from agent.snapshot.device import (
    Device,
    DeviceLink,
    DevicePartition,
    Health,
    HealthState,
    Placement,
    VendorDevice,
)
from agent.snapshot.node import DeviceView
from agent.snapshot.part import SnapshotPart
from agent.version import VERSION
from agent.wire_formats.device_object import MAX_ANNOTATION_BYTES, keep_health_times, select_devices
from tests.factory import BOOT_S, NOW_S, gpu, nic, snapshot
from tests.hostile import device_sets, few


def topology(*devices: Device, **view: Any) -> dict[str, Any]:
    snap = snapshot(devices)
    snap = replace(snap, devices=SnapshotPart(replace(snap.devices.value, **view), NOW_S))
    return json.loads(topology_annotation(snap, select_devices(devices).published))  # type: ignore[no-any-return]  # JSON


def test_the_place_of_a_device_is_written_as_documented() -> None:
    entry = topology(gpu(0))
    assert entry["v"] == 1
    assert entry["devices"]["0000:1b:00.0"] == {
        "path": ["pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:1b:00.0"],
        "switch": "0000:16:00.0",
        "node": 0,
        "nodeSource": "firmware",
        "socket": 0,
        "package": 0,
        "link": {"speed": 320, "width": 16, "maxSpeed": 320, "maxWidth": 16},
        "acs": [0, None, 29],
    }


def test_the_chip_is_named_only_when_it_is_not_the_switch() -> None:
    card = gpu(0)
    other = replace(card, place=replace(card.place, chip="0000:20:00.0"))
    assert topology(other)["devices"]["0000:1b:00.0"]["chip"] == "0000:20:00.0"


def test_unknown_facts_are_omitted() -> None:
    entry = topology(Device(info=gpu(0).info, place=Placement()))
    assert entry["devices"] == {"0000:1b:00.0": {}}


def test_memory_nodes_and_links_are_listed() -> None:
    snap = snapshot()
    nodes = (
        NumaNode(id=0, cpus=frozenset((0, 1, 2)), memory_bytes=1, distances=(10, 21)),
        NumaNode(id=2, cpus=frozenset((5,)), memory_bytes=1, distances=(21, 10)),
    )
    snap = replace(snap, numa=SnapshotPart(NumaTopology(nodes=nodes), NOW_S))
    document = json.loads(topology_annotation(snap, snap.devices.value.devices))
    assert document["numa"] == {
        "0": {"cpus": "0-2", "distances": {"0": 10, "2": 21}, "kind": "cpu"},
        "2": {"cpus": "5", "distances": {"0": 21, "2": 10}, "kind": "cpu"},
    }
    assert document["links"] == [["0000:1b:00.0", "0000:43:00.0", "NVLink", 18]]


def test_instances_of_a_partitioned_card_are_listed() -> None:
    card = gpu(
        0, partitions=(DevicePartition(uuid="MIG-1", profile="1g.10gb", memory_bytes=1 << 30),)
    )
    assert topology(card)["devices"]["0000:1b:00.0"]["instances"] == [
        {"uuid": "MIG-1", "profile": "1g.10gb", "memory": 1 << 30}
    ]


def test_text_is_compact_with_sorted_keys() -> None:
    text = topology_annotation(snapshot(), snapshot().devices.value.devices)
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


def crowd(count: int, depth: int) -> tuple[Device, ...]:
    """Many devices on long paths, every third one a NIC."""
    devices = []
    for i in range(count):
        base = nic(0) if i % 3 == 0 else gpu(0)
        info: VendorDevice = replace(base.info, bus_id=f"{i:04x}:00:00.0", minor=i, uuid=f"id-{i}")
        path = tuple(f"0000:{j:02x}:00.0" for j in range(depth))
        place = replace(base.place, path=path, acs=(0,) * depth)
        devices.append(Device(info=info, place=place))
    return tuple(devices)


@pytest.mark.parametrize(
    ("count", "depth", "links", "remaining", "dropped"),
    [
        (220, 8, 0, {"link", "path"}, {"acs"}),
        (230, 11, 0, {"path"}, {"acs", "link"}),
        (300, 8, 3000, {"path"}, {"acs", "link", "links"}),
        (280, 11, 0, {"path of cards"}, {"acs", "link", "path of nics"}),
        (600, 16, 0, {"node"}, {"acs", "link", "path", "path of cards"}),
        (3000, 4, 0, {"numa"}, {"devices"}),
    ],
)
def test_what_does_not_fit_is_dropped_in_order(
    count: int, depth: int, links: int, remaining: set[str], dropped: set[str]
) -> None:
    devices = crowd(count, depth)
    view = DeviceView(
        devices=devices,
        links=tuple(DeviceLink(a=f"a{i}", b=f"b{i}", type="NVLink", count=1) for i in range(links)),
    )
    snap = replace(snapshot(devices), devices=SnapshotPart(view, NOW_S))
    text = topology_annotation(snap, devices)
    assert len(text.encode()) <= MAX_ANNOTATION_BYTES
    document = json.loads(text)
    entries = document.get("devices", {})
    members = {name for entry in entries.values() for name in entry} | set(document)
    nics = {d.info.bus_id for d in devices if d.info.kind.wire_type == "rdma"}
    members |= {"path of nics" for key in entries if key in nics and "path" in entries[key]}
    members |= {"path of cards" for key in entries if key not in nics and "path" in entries[key]}
    assert remaining <= members
    assert not dropped & members


@few
@given(device_sets)
def test_any_device_set_gives_bounded_json(devices: tuple[Device, ...]) -> None:
    for text in agent_annotations(snapshot(devices), select_devices(devices).published).values():
        assert len(text.encode()) <= MAX_ANNOTATION_BYTES
        assert isinstance(json.loads(text), dict)


def test_health_is_listed_for_each_device() -> None:
    bad = Health(state=HealthState.SUSPECT, reason="Xid 63", since_s=BOOT_S)
    assert json.loads(health_annotation((gpu(0), gpu(1, health=bad)))) == {
        "0000:1b:00.0": {"state": "healthy", "reason": "DeviceHealthy"},
        "0000:43:00.0": {"state": "suspect", "reason": "Xid63", "since": "2026-01-02T03:04:05Z"},
    }


def test_changes_and_the_last_event_are_listed_if_there_were_any() -> None:
    moved = Health(since_s=BOOT_S, changes=2, last_event="Xid 79")
    assert json.loads(health_annotation((gpu(0, health=moved),)))["0000:1b:00.0"] == {
        "state": "healthy",
        "reason": "DeviceHealthy",
        "since": "2026-01-02T03:04:05Z",
        "count": 2,
        "lastEvent": "Xid79",
    }


def test_where_not_all_fit_the_healthy_ones_go_first() -> None:
    bad = Health(state=HealthState.FAILED, reason="Xid79")
    many = [
        gpu(0, bus_id=f"{i:08x}:00:00.0", health=bad if i == 7 else Health()) for i in range(2000)
    ]
    assert list(json.loads(health_annotation(tuple(many)))) == ["00000007:00:00.0"]


def test_an_uncertain_state_is_marked_beside_its_last_value() -> None:
    stalled = Health(reason="DriverStalled", since_s=BOOT_S, changes=2, certain=False)
    assert json.loads(health_annotation((gpu(0, health=stalled),)))["0000:1b:00.0"] == {
        "state": "healthy",
        "certain": False,
        "reason": "DriverStalled",
        "since": "2026-01-02T03:04:05Z",
        "count": 2,
    }


def test_the_writer_names_its_version_and_boot() -> None:
    text = agent_annotations(snapshot(), ())["xpu-agent.io/instance"]
    assert json.loads(text) == {"version": VERSION, "bootID": "b007"}


def written(health: Health) -> dict[str, Any]:
    (desired,) = DevicePublisher().render(snapshot((gpu(0, health=health),)), 0.0)
    return dict(desired.body)


def since(body: Any) -> object:
    (entry,) = json.loads(body["metadata"]["annotations"]["xpu-agent.io/health"]).values()
    return entry.get("since")


def test_a_restarted_agent_keeps_the_time_of_a_state_that_lasts() -> None:
    bad, fresh = Health(state=HealthState.FAILED, reason="Xid79"), Health()
    stored = written(replace(bad, since_s=BOOT_S))
    assert since(keep_health_times(stored, written(bad))) == "2026-01-02T03:04:05Z"
    assert since(keep_health_times(stored, written(fresh))) is None
    assert since(keep_health_times(stored, written(replace(bad, since_s=BOOT_S + 9)))) != since(
        stored
    )


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "5", '{"0000:1b:00.0": 5}', '{"0000:1b:00.0": {"since": "x"}}']
)
def test_whatever_is_stored_as_health_is_no_time(text: str) -> None:
    desired = written(Health())
    for stored in (None, {}, {"metadata": {"annotations": {"xpu-agent.io/health": text}}}):
        assert keep_health_times(stored, desired) is desired
