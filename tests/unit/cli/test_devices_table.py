from __future__ import annotations

from agent.cli.devices import devices_text
from agent.snapshot.device import DeviceCondition, DevicePartition, Health, HealthState
from agent.snapshot.inventory import DeviceGroup
from agent.snapshot.node import DeviceView
from agent.web.device_json import devices_json
from tests.factory import gpu, nic

CARDS = tuple(gpu(index) for index in range(4))


def lines(view: DeviceView) -> list[str]:
    return devices_text(view).splitlines()


def test_slices_stand_below_their_card_with_their_placement() -> None:
    parts = (
        DevicePartition(uuid="MIG-a", profile="3g.20gb", memory_bytes=20 << 30, instance=1,
                        compute_instance=0, start=0, size=4),
        DevicePartition(uuid="MIG-b", profile="1g.5gb", instance=9, compute_instance=0, start=4,
                        size=1, health=Health(state=HealthState.FAILED, reason="Xid95",
                                              message="contained")),
    )  # fmt: skip
    _, card, first, second = lines(DeviceView(devices=(gpu(0, partitions=parts),)))
    assert card.startswith("GPU 0 ")
    assert " ".join(first.split()) == ("1/0 - 3g.20gb - - - 20.0Gi healthy MIG-a at 0-3")
    assert second.endswith("Xid95: contained")


def test_conditions_and_virtual_functions_are_among_the_reasons() -> None:
    condition = DeviceCondition(type="Schedulable", status=False, reason="MIGEnabled")
    _, row = lines(DeviceView(devices=(gpu(0, conditions=(condition,)),)))
    assert row.endswith("Schedulable=False: MIGEnabled")
    ready = DeviceCondition(type="FabricReady", status=True, reason="FabricReady")
    _, row = lines(DeviceView(devices=(gpu(0, conditions=(ready,)),)))
    assert "Fabric" not in row
    _, row = lines(DeviceView(devices=(nic(0, vfs=2),)))
    assert row.endswith("2 virtual functions")


def test_groups_are_one_line_for_each_size_and_single_cards_none() -> None:
    keys = [card.key for card in CARDS]
    pairs = [(keys[2], keys[3]), (keys[0], keys[1]), tuple(keys), (keys[0],)]
    groups = tuple(DeviceGroup(keys=k, link_type="NVLink") for k in pairs)
    view = DeviceView(devices=CARDS, groups=groups, group_policy="Prefer")
    assert lines(view)[-3:] == [
        "groups of 2 (NVLink): [2 3] [0 1]",
        "groups of 4 (NVLink): [0 1 2 3]",
        "policy of groups: Prefer",
    ]
    assert devices_json(view)["groups"] == [
        {"size": 2, "link_type": "NVLink", "devices": ["GPU 2", "GPU 3"]},
        {"size": 2, "link_type": "NVLink", "devices": ["GPU 0", "GPU 1"]},
        {"size": 4, "link_type": "NVLink", "devices": ["GPU 0", "GPU 1", "GPU 2", "GPU 3"]},
    ]


def test_without_groups_there_is_no_line_about_them() -> None:
    assert len(lines(DeviceView(devices=CARDS, group_policy="Prefer"))) == 5
