from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.deviceplugin.resources import AllocationError
from agent.errors import BadConfig
from agent.snapshot.device import DevicePartition
from tests import factory
from tests.unit.deviceplugin.made import GPU, card, deciding, device, node

TWO = tuple(map(factory.gpu, range(2)))


def offered(**row: object) -> dict[str, list[str]]:
    resources = deciding(sharing=({"resource": GPU, **row},)).resources(node(devices=TWO))
    return {resource.name: [item.id for item in resource.devices] for resource in resources}


def replica(i: int, number: int) -> str:
    return f"{card(i)}::{number}"


def test_every_card_is_listed_as_often_as_it_is_shared() -> None:
    assert offered(replicas=2) == {GPU: [replica(i, n) for i in (0, 1) for n in (0, 1)]}


@pytest.mark.parametrize(
    ("rename", "name"), [(True, f"{GPU}.shared"), ("example.com/slice", "example.com/slice")]
)
def test_a_renamed_resource_takes_the_place_of_the_old_one(rename: object, name: str) -> None:
    assert list(offered(replicas=2, rename=rename)) == [name]


@pytest.mark.parametrize(
    "devices", [1, [card(0)], ["0"], [0]], ids=["number", "uuid", "index", "number of index"]
)
def test_cards_that_are_not_meant_stay_whole_under_the_old_name(devices: object) -> None:
    assert offered(replicas=2, rename=True, devices=devices) == {
        GPU: [card(1)],
        f"{GPU}.shared": [replica(0, 0), replica(0, 1)],
    }
    # without a new name the kubelet counts both together
    assert offered(replicas=2, devices=devices)[GPU] == [replica(0, 0), replica(0, 1), card(1)]


def test_slices_are_meant_by_the_index_of_their_card() -> None:
    parts = tuple(DevicePartition(uuid=f"MIG-{i}", profile="1g.10gb", instance=i) for i in (7, 8))
    info = replace(
        factory.gpu(0).info, labels=(("xpu-agent.io/mig", "true"),), resources=(), partitions=parts
    )
    row = {"resource": "nvidia.com/mig-1g.10gb", "replicas": 2, "devices": ["0:1"]}
    (result,) = deciding(sharing=(row,)).resources(node(devices=(device(info),)))
    assert [one.id for one in result.devices] == ["MIG-7", "MIG-8::0", "MIG-8::1"]


def test_a_missing_device_is_reported_and_affects_nothing_else() -> None:
    decide = deciding(sharing=({"resource": GPU, "replicas": 2, "devices": ["GPU-gone", "1"]},))
    snapshot = node(devices=TWO)
    (result,) = decide.resources(snapshot)
    assert [one.id for one in result.devices] == [card(0), replica(1, 0), replica(1, 1)]
    assert [(vendor, one.reason) for vendor, one in decide.problems(snapshot)] == [
        ("nvidia", "SharedDeviceMissing")
    ]


def test_a_name_of_another_vendors_resource_is_not_taken_away() -> None:
    rows = ({"resource": "rdma/hca", "replicas": 2, "rename": GPU},)
    decide, snapshot = deciding(sharing=rows), node()
    assert [resource.vendor for resource in decide.resources(snapshot)] == ["nvidia"]
    assert [one.reason for _, one in decide.problems(snapshot)] == ["ResourceConflict"]


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"resource": GPU},
        {"resource": GPU, "replicas": 1},
        {"resource": GPU, "replicas": True},
        {"resource": GPU, "replicas": 10**6},
        {"resource": GPU, "replicas": 2, "rename": 5},
        {"resource": GPU, "replicas": 2, "rename": "koordinator.sh/gpu"},
        {"resource": GPU, "replicas": 2, "rename": "huawei.com/npu-core"},
        {"resource": GPU, "replicas": 2, "rename": "requests"},
        {"resource": "nvidia.com/gpu/x", "replicas": 2},
        {"resource": "nvidia.com/" + "g" * 64, "replicas": 2},
        {"resource": GPU, "replicas": 2, "devices": "some"},
        {"resource": GPU, "replicas": 2, "devices": []},
        {"resource": GPU, "replicas": 2, "devices": -1},
        {"resource": GPU, "replicas": 2, "device": 1},
    ],
)
def test_a_row_that_says_nothing_sensible_is_refused(row: dict[str, object]) -> None:
    with pytest.raises(BadConfig, match=r"device_plugin\.sharing"):
        deciding(sharing=(row,))


def test_one_resource_stands_in_one_row_only() -> None:
    row = {"resource": GPU, "replicas": 2}
    with pytest.raises(BadConfig, match="two rows"):
        deciding(sharing=(row, row))


def test_a_container_with_several_replicas_gets_each_card_once() -> None:
    rows = ({"name": GPU, "replicas": 4},)
    ids = (replica(1, 3), replica(0, 0), replica(1, 1))
    result = deciding(sharing=rows).allocate(GPU, ids, node(clustered=False))
    assert dict(result.edits.env) == {"NVIDIA_VISIBLE_DEVICES": f"{card(0)},{card(1)}"}


def test_more_than_one_replica_is_refused_where_that_is_wished() -> None:
    rows = ({"resource": GPU, "replicas": 4, "devices": 1},)
    decide = deciding(sharing=rows, fail_requests_greater_than_one=True)
    snapshot = node(clustered=False)
    with pytest.raises(
        AllocationError, match="maximum request size for shared resources is 1; found 2"
    ):
        decide.allocate(GPU, (replica(0, 1), replica(0, 0)), snapshot)
    assert decide.allocate(GPU, (replica(0, 1),), snapshot).edits.env
    assert decide.allocate(GPU, (card(1), card(2)), snapshot).edits.env
