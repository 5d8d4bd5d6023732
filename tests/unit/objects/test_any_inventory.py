"""Whatever vendors say, alone or together: the objects are valid, and nothing crashes."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from agent.devices.joiner import build_device_view
from agent.metrics.exposition import MetricsRenderer
from agent.objects.device import DevicePublisher
from agent.snapshot.cpu import CpuTopology, NumaTopology
from agent.snapshot.device import DeviceKind, VendorDevice
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import NodeIdentity, NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciTree
from agent.web.device_json import devices_json
from agent.wire_formats.device_object import select_devices
from agent.wire_formats.snapshot_json import encode_json, snapshot_json
from tests.factory import BOOT_S, NOW_S
from tests.hostile import inventories
from tests.schemas import CRDS, check

CRD = "scheduling.koordinator.sh_devices.yaml"
needs_crds = pytest.mark.skipif(not CRDS.is_dir(), reason="CRDs are not beside the checkout")
any_two = given(inventories("nvidia"), inventories("huawei"))
few = settings(max_examples=40)  # making inventories takes longer than looking at them


def card(**changes: object) -> VendorDevice:
    vendor_device = VendorDevice(
        kind=DeviceKind.GPU,
        vendor="nvidia",
        bus_id="0000:01:00.0",
        uuid="GPU-same",
        minor=0,
        resources=(("koordinator.sh/gpu-memory", "81559Mi"),),
    )
    return replace(vendor_device, **changes)


def snap(*inventory: Inventory) -> NodeSnapshot:
    """Join inventories on a host whose sysfs knows none of their functions."""
    view = build_device_view(inventory, PciTree(), CpuTopology(), NumaTopology())
    vendors = tuple(
        VendorState(vendor=item.vendor, state="ready", inventory=SnapshotPart(item, NOW_S))
        for item in inventory
    )
    return NodeSnapshot(
        node=NodeIdentity(name="node-1", boot_time_s=BOOT_S),
        vendors=vendors,
        devices=SnapshotPart(view, NOW_S),
    )


def device_object(*inventory: Inventory) -> dict[str, Any]:
    (desired,) = DevicePublisher().render(snap(*inventory), 0.0)
    text = json.dumps(desired.body, allow_nan=False)
    text.encode()  # no lone surrogate is left
    return json.loads(text)  # type: ignore[no-any-return]  # JSON is untyped


def listed(*inventory: Inventory) -> list[dict[str, Any]]:
    return list(device_object(*inventory)["spec"].get("devices", []))


@needs_crds
@any_two
def test_any_inventories_give_an_object_that_its_schema_takes(
    first: Inventory, second: Inventory
) -> None:
    check(CRD, device_object(first, second))


@few
@any_two
@example(
    Inventory(vendor="nvidia", devices=(card(), card(bus_id="0000:02:00.0", minor=1))),
    Inventory(vendor="huawei", devices=(card(bus_id="0000:03:00.0"),)),
)
def test_no_id_and_no_number_stands_for_two_devices(first: Inventory, second: Inventory) -> None:
    devices = listed(first, second)
    numbers = Counter((device["type"], device["minor"]) for device in devices)
    assert all(times == 1 for times in numbers.values())
    ids = Counter((device["type"], device["id"]) for device in devices if device.get("id"))
    assert all(times == 1 for times in ids.values())


@few
@any_two
@example(
    Inventory(vendor="nvidia", devices=(card(resources=(("koordinator.sh/gpu-memory", "0Mi"),)),)),
    Inventory(vendor="huawei"),
)
@example(
    Inventory(vendor="nvidia", devices=(card(resources=(("koordinator.sh/gpu-core", "-100"),)),)),
    Inventory(vendor="huawei"),
)
def test_nothing_is_granted_of_which_there_is_none(first: Inventory, second: Inventory) -> None:
    for device in listed(first, second):
        for name, amount in device.get("resources", {}).items():
            assert not amount.startswith("-")
            if name == "koordinator.sh/gpu-memory":  # the scheduler divides by it
                assert any(digit in amount for digit in "123456789")


@few
@any_two
def test_the_table_of_partitions_names_published_cards_only(
    first: Inventory, second: Inventory
) -> None:
    body = device_object(first, second)
    text = body["metadata"]["annotations"].get("scheduling.koordinator.sh/gpu-partitions")
    published = {d["minor"] for d in body["spec"].get("devices", []) if d["type"] == "gpu"}
    for size, rows in json.loads(text or "{}").items():
        for row in rows:
            assert len(row["minors"]) == len(set(row["minors"])) == int(size)
            assert set(row["minors"]) <= published


@few
@any_two
def test_every_annotation_is_bounded_json(first: Inventory, second: Inventory) -> None:
    for text in device_object(first, second)["metadata"]["annotations"].values():
        assert len(text.encode()) <= 64 * 1024
        json.loads(text)


@few
@any_two
def test_each_device_is_published_or_left_out_with_a_reason(
    first: Inventory, second: Inventory
) -> None:
    devices = snap(first, second).devices.value.devices
    selection = select_devices(devices)
    assert len(selection.published) + len(selection.omissions) == len(devices)
    assert all(reason.isalnum() for _, reason in selection.omissions)


@few
@any_two
def test_the_order_of_vendors_changes_nothing(first: Inventory, second: Inventory) -> None:
    assert device_object(first, second)["spec"] == device_object(second, first)["spec"]


@few
@any_two
def test_all_other_views_of_it_are_rendered(first: Inventory, second: Inventory) -> None:
    picture = snap(first, second)
    encode_json(snapshot_json(picture, NOW_S))
    encode_json(devices_json(picture.devices.value))
    page = MetricsRenderer({}, aliases=("hami", "hami_legacy")).render(picture, NOW_S)
    list(text_string_to_metric_families(page.decode()))
