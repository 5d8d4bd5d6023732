"""Our accelerators as a device-info file: what koordlet makes of it is our Device object."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.app.composition import create_inputs
from agent.app.publishing import FolderPublishSink, device_runners
from agent.clock import ManualClock
from agent.config.sources import decode_settings
from agent.devices.joiner import build_device_view
from agent.errors import PublishError
from agent.objects.device import PARTITIONS_ANNOTATION, DevicePublisher
from agent.objects.device_info_file import (
    DeviceInfoFilePublisher,
    DeviceInfoFileSink,
    device_entries,
    encode_entries,
)
from agent.recording.host_source import open_host
from agent.snapshot.cpu import CpuTopology, NumaTopology
from agent.snapshot.device import Device, DeviceKind, Health, HealthState, Placement
from agent.snapshot.inventory import DeviceGroup, Inventory
from agent.snapshot.node import DeviceView, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciTree
from agent.wire_formats.device_info import OWN_FILE, SOURCE_FILE_FACT
from plugins.vendors.infofiles.file_format import decode_array
from plugins.vendors.infofiles.inventory import inventory_of
from tests.captures import needs_shared
from tests.factory import gpu, nic, snapshot
from tests.patience import PATIENCE_S
from tests.unit.infofiles.koordlet import koordlet_device
from tests.unit.infofiles.test_oracle import TRAPS, cases, comparable

PAIR = DeviceGroup(keys=("0000:1b:00.0", "0000:43:00.0"), link_type="NVLink")
FOUR = DeviceGroup(keys=tuple(gpu(n).key for n in range(4)), link_type="NVLink")
FAILED = Health(state=HealthState.FAILED, reason="Xid79", message="fell off the bus")


def picture(*devices: Device, groups: tuple[DeviceGroup, ...] = (), **view: Any) -> NodeSnapshot:
    base = snapshot(devices)
    return replace(
        base, devices=SnapshotPart(DeviceView(devices=devices, groups=groups, **view), 1.0)
    )


def our_device(snap: NodeSnapshot) -> dict[str, Any]:
    (desired,) = DevicePublisher().render(snap, 0.0)
    return json.loads(json.dumps(desired.body))  # type: ignore[no-any-return]  # JSON is untyped


def written(snap: NodeSnapshot) -> list[dict[str, Any]]:
    loads = json.loads(encode_entries(device_entries(snap)))
    assert isinstance(loads, list)
    return loads


def plain_cases() -> list[dict[str, Any]]:
    return [
        case
        for case in cases()
        if case["id"] not in TRAPS and not case["id"].startswith("unreadable")
    ]


@needs_shared
@pytest.mark.parametrize("case", plain_cases(), ids=lambda case: str(case["id"]))
def test_the_rules_that_we_hold_for_koordlets_are_koordlets(case: dict[str, Any]) -> None:
    result = koordlet_device([entry for file in case["files"].values() for entry in file])
    assert result == case["device"]


SOCKETLESS = tuple(
    replace(card, place=replace(card.place, socket=-1)) for card in map(gpu, range(4))
)


@pytest.mark.parametrize(
    "snap",
    [
        pytest.param(picture(*SOCKETLESS, groups=(PAIR, FOUR), group_policy="Honor"), id="table"),
        pytest.param(picture(*SOCKETLESS, group_policy="Prefer"), id="policy without a table"),
        pytest.param(picture(*SOCKETLESS), id="no policy"),
        pytest.param(
            picture(replace(SOCKETLESS[1], info=replace(SOCKETLESS[1].info, health=FAILED))),
            id="a failed card",
        ),
        pytest.param(picture(replace(SOCKETLESS[0], place=Placement())), id="a place not known"),
        pytest.param(picture(), id="no card"),
    ],
)
def test_koordlets_view_of_our_file_is_our_device(snap: NodeSnapshot) -> None:
    theirs, own_values = koordlet_device(written(snap)), our_device(snap)
    expected = [
        {k: v for k, v in d.items() if k != "moduleID"} for d in theirs["spec"].get("devices", [])
    ]
    assert comparable(own_values["spec"], theirs["spec"]) == expected
    labels = dict(own_values["metadata"]["labels"])
    labels.pop("node.koordinator.sh/gpu-driver-version", None)  # the format has no member for it
    assert labels == theirs["labels"]
    assert own_values["metadata"]["annotations"].get(PARTITIONS_ANNOTATION) == theirs[
        "annotations"
    ].get(PARTITIONS_ANNOTATION)


@needs_shared
@pytest.mark.parametrize("case", plain_cases(), ids=lambda case: str(case["id"]))
def test_files_devices_files_is_a_circle(case: dict[str, Any]) -> None:
    def read(*files: list[object]) -> Inventory:
        inventory = inventory_of([("f", file) for file in files])
        devices = tuple(sorted(inventory.devices, key=lambda d: d.minor or 0))
        return replace(inventory, devices=devices)

    first = read(*case["files"].values())
    own_values = tuple(
        replace(d, facts=tuple((n, v) for n, v in d.facts if n != SOURCE_FILE_FACT))
        for d in first.devices
    )
    view = build_device_view(
        [replace(first, devices=own_values)], PciTree(), CpuTopology(), NumaTopology()
    )
    snap = replace(snapshot(()), devices=SnapshotPart(view, 1.0))
    second = read(decode_array(encode_entries(device_entries(snap))))
    assert second == first


def test_the_file_has_the_format_of_koord_device_daemon() -> None:
    npu = replace(
        gpu(0),
        info=replace(
            gpu(0).info,
            kind=DeviceKind.NPU,
            vendor="huawei",
            model="Ascend-910B3",
            uuid="00000000-00000000-00000000-00000000-00000000",
            resources=(
                ("koordinator.sh/gpu-memory", "64Gi"),
                ("koordinator.sh/gpu-memory-ratio", "100"),
                ("huawei.com/npu-core", "20"),
                ("huawei.com/npu-dvpp", "100"),
                ("huawei.com/npu-cpu", "7"),
            ),
        ),
        place=Placement(numa_node=6),
        pcie_scope_id="pci0000:c0",
    )
    snap = picture(npu, gpu(1), groups=(PAIR,), group_policy="Prefer")
    text = encode_entries(device_entries(snap)).decode()
    assert text.startswith(
        """[
  {
    "vendor": "huawei",
    "model": "Ascend-910B3",
    "uuid": "00000000-00000000-00000000-00000000-00000000",
    "minor": "0",
    "resources": {
      "huawei.com/npu-core": "20",
      "huawei.com/npu-cpu": "7",
      "huawei.com/npu-dvpp": "100",
      "koordinator.sh/gpu-memory": "64Gi"
    },
    "topology": {
      "p2pLinks": [
        {
          "peerMinor": "1",
          "type": "NVLink"
        }
      ],
      "mustHonorPartition": false,
      "socketID": "-1",
      "nodeID": "6",
      "pcieID": "pci0000:c0",
      "busID": "0000:1b:00.0"
    },
    "status": {
      "healthy": true
    }
  },
"""
    )


def test_numbers_are_in_their_own_order_and_not_in_that_of_text() -> None:
    cards = [
        replace(gpu(0), info=replace(gpu(0).info, minor=n, uuid=f"GPU-{n}")) for n in (10, 2, 1)
    ]
    assert [entry["minor"] for entry in written(picture(*cards))] == ["1", "2", "10"]


def test_only_what_koordlet_may_grant_and_does_not_read_elsewhere_is_written() -> None:
    reports = replace(gpu(1), info=replace(gpu(1).info, facts=((SOURCE_FILE_FACT, "ic-device"),)))
    sliced = replace(gpu(2), info=replace(gpu(2).info, resources=()))
    strange = replace(gpu(3), info=replace(gpu(3).info, managed=False))
    snap = picture(gpu(0), reports, sliced, strange, nic(0), groups=(PAIR,), group_policy="Prefer")
    (entry,) = written(snap)
    assert (entry["minor"], entry["topology"]["p2pLinks"]) == ("0", [])


def test_nothing_is_written_before_every_vendor_has_answered() -> None:
    snap = picture(gpu(0), awaited=("nvidia",))
    assert DeviceInfoFilePublisher().render(snap, 0.0) == ()
    assert DeviceInfoFilePublisher().render(NodeSnapshot(node=snap.node), 0.0) == ()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "infos"


def test_the_file_is_replaced_when_it_says_something_new_and_only_then(folder: Path) -> None:
    applier = DeviceInfoFileSink(str(folder))
    desired = DeviceInfoFilePublisher().render(picture(gpu(0)), 0.0)
    assert applier.apply(desired).written == (OWN_FILE,)
    path = folder / OWN_FILE
    before = path.stat()
    assert (before.st_mode & 0o777, json.loads(path.read_bytes())[0]["minor"]) == (0o644, "0")
    assert DeviceInfoFileSink(str(folder)).apply(desired).unchanged == (OWN_FILE,)
    assert path.stat().st_ino == before.st_ino
    assert applier.apply(DeviceInfoFilePublisher().render(picture(), 0.0)).written == (OWN_FILE,)
    assert path.read_bytes() == b"[]"
    assert os.listdir(folder) == [OWN_FILE]
    assert os.listdir(folder.parent) == ["infos"]


def test_what_a_killed_agent_left_is_in_nobodys_way(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder.parent / f".infos.{OWN_FILE}.tmp").write_text("[{")
    desired = DeviceInfoFilePublisher().render(picture(gpu(0)), 0.0)
    DeviceInfoFileSink(str(folder)).apply(desired)
    assert os.listdir(folder.parent) == ["infos"]


def test_half_a_file_in_the_folder_goes_although_nothing_is_to_be_written(folder: Path) -> None:
    desired = DeviceInfoFilePublisher().render(picture(gpu(0)), 0.0)
    DeviceInfoFileSink(str(folder)).apply(desired)
    (folder / f".{OWN_FILE}.tmp").write_text("[{")  # koordlet would keep its old devices for ever
    assert DeviceInfoFileSink(str(folder)).apply(desired).unchanged == (OWN_FILE,)
    assert os.listdir(folder) == [OWN_FILE]


def test_an_impossible_folder_is_reported_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    applier = DeviceInfoFileSink(str(tmp_path / "file" / "infos"))
    with pytest.raises(PublishError, match=r"publish\.device_info_directory"):
        applier.apply(DeviceInfoFilePublisher().render(picture(gpu(0)), 0.0))


@pytest.mark.parametrize("wanted", [True, False])
def test_the_daemon_keeps_the_file_where_a_setting_says_so(tmp_path: Path, wanted: bool) -> None:
    publish = {"device_info_files": wanted, "device_info_directory": str(tmp_path / "infos")}
    settings = decode_settings({"publish": publish})
    inputs = create_inputs(settings, open_host(None), ManualClock(), vendors={})
    inputs.store.change(lambda _: picture(gpu(0)))
    folder = FolderPublishSink(str(tmp_path / "out"), inputs.store, inputs.clock)
    for run in device_runners(settings, inputs.store, inputs.clock, folder):
        run.run_once()
        assert run.flush(PATIENCE_S)
    assert (tmp_path / "infos" / OWN_FILE).is_file() is wanted
