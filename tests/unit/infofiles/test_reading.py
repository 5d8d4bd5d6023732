"""A folder of files that others write, at their own times and with their own faults."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.errors import BadConfig, NotSupported
from agent.recording.tree import ErrorEntry, TreeBuilder
from agent.snapshot.device import DeviceKind, HealthState
from agent.snapshot.inventory import DeviceGroup
from agent.snapshot.vendor import SessionContext
from agent.wire_formats.device_info import DIRECTORY, OWN_FILE
from plugins.vendors.infofiles import session as reading
from plugins.vendors.infofiles.session import InfofilesSession
from plugins.vendors.infofiles.settings import InfofilesSettings
from plugins.vendors.infofiles.vendor import InfofilesVendor
from tests.unit.infofiles.made import Folder, entry
from tests.vendors import open_session


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_files_of_several_writers_are_one_inventory(folder: Folder) -> None:
    folder.put("b", entry("1"))
    folder.put("a", entry("0"), entry("2"))
    (folder.path / "folder").mkdir()
    os.mknod(folder.path / "socket", stat.S_IFSOCK | 0o600)
    (folder.path / ".ic-device.tmp").write_text("[{")
    assert [d.minor for d in folder.session.discover().devices] == [0, 2, 1]


def test_a_file_of_our_own_is_not_read_back(folder: Folder) -> None:
    folder.put(OWN_FILE, entry())
    assert folder.session.discover().devices == ()
    assert folder.session.events(0.0) == ()


def test_no_folder_and_an_empty_one_are_no_devices(tmp_path: Path) -> None:
    session = InfofilesSession(TreeBuilder().build(), InfofilesSettings())
    assert session.discover().devices == ()
    assert session.discover().problems == ()
    assert Folder(tmp_path).session.discover().devices == ()


@pytest.mark.parametrize("text", ["[{", "{}", "3", '"x"', "\0", "[" * 100_000])
def test_an_undecodable_file_keeps_its_last_content_and_is_reported(
    folder: Folder, text: str
) -> None:
    folder.put("ic-device", entry())
    good = folder.session.discover()
    (folder.path / "ic-device").write_text(text)
    bad = folder.session.discover()
    assert bad.devices == good.devices
    assert [p.reason for p in bad.problems] == ["DeviceInfoUnreadable"]
    assert "ic-device" in bad.problems[0].message
    folder.put("ic-device", entry("1"))
    assert [d.minor for d in folder.session.discover().devices] == [1]


def test_a_file_that_is_too_large_is_not_decoded(folder: Folder) -> None:
    folder.put("ic-device", entry())
    good = folder.session.discover()
    (folder.path / "ic-device").write_bytes(b"[" + b" " * reading.MAX_BYTES + b"]")
    assert folder.session.discover().devices == good.devices


def test_a_file_that_cannot_be_read_leaves_what_was_known() -> None:
    builder = TreeBuilder()
    builder.put(f"{DIRECTORY}/ic-device", b"[]")
    files = builder.build()
    session = InfofilesSession(files, InfofilesSettings())
    assert session.discover().problems == ()
    builder = TreeBuilder()
    builder.put(f"{DIRECTORY}/ic-device", ErrorEntry(5))
    session._host = builder.build()
    assert [p.reason for p in session.discover().problems] == ["DeviceInfoUnreadable"]


def test_a_change_is_an_event_once_it_is_there(folder: Folder) -> None:
    folder.session.discover()
    assert folder.session.events(0.0) == ()
    folder.put("ic-device", entry())
    assert [e.reason for e in folder.session.events(0.0)] == ["DeviceInfoChanged"]
    folder.session.discover()
    assert folder.session.events(0.0) == ()
    (folder.path / "ic-device").unlink()
    assert folder.session.events(0.0)


def test_a_recording_has_no_events() -> None:
    session = InfofilesSession(
        TreeBuilder().build(), InfofilesSettings(), SessionContext(is_replay=True)
    )
    with pytest.raises(NotSupported):
        session.events(0.0)
    with pytest.raises(NotSupported):
        session.sample()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"vendor": "huawei"}, {"kind": DeviceKind.NPU}, id="a maker's kind"),
        pytest.param({"minor": 3}, {"minor": 3}, id="a number that is one"),
        pytest.param({"uuid": 7}, {"uuid": None}, id="an id that is no text"),
        pytest.param({"model": "a\tb\u0000"}, {"model": "a b"}, id="control characters"),
        pytest.param(
            {"topology": {"busID": "0000:C1:00.0"}}, {"bus_id": "0000:c1:00.0"}, id="upper case"
        ),
        pytest.param({"topology": {"busID": "0:c:d.1"}}, {"bus_id": "0000:0c:0d.1"}, id="unpadded"),
        pytest.param({"topology": {"busID": "c1:00.0"}}, {"bus_id": None}, id="no domain"),
        pytest.param({"topology": []}, {"bus_id": None}, id="topology of another type"),
        pytest.param({"status": None}, {"health": "DeviceHealthy"}, id="no status"),
        pytest.param({"status": {}}, {"health": "Unknown"}, id="a status that says nothing"),
    ],
)
def test_an_entry_is_taken_as_far_as_it_is_understood(
    folder: Folder, changes: Mapping[str, Any], expected: Mapping[str, object]
) -> None:
    folder.put("ic-device", {**entry(), **changes})
    (device,) = folder.session.discover().devices
    shown = {**msgspec.structs.asdict(device), "health": device.health.reason}
    result = {name: shown[name] for name in expected}
    assert result == expected


@pytest.mark.parametrize("minor", ["x", "", "-1", None, "1.0", "٣", "9999999999", True])
def test_an_entry_without_a_number_is_left_out_and_the_others_stay(
    folder: Folder, minor: object
) -> None:
    folder.put("ic-device", entry(minor, uuid="bad"), entry("1"))
    result = folder.session.discover()
    assert [d.minor for d in result.devices] == [1]
    assert [p.reason for p in result.problems] == ["DeviceInfoLeftOut"]


def test_a_device_that_is_described_twice_counts_once(folder: Folder) -> None:
    folder.put("a", entry("0"))
    folder.put("b", entry("0", uuid="other"))
    result = folder.session.discover()
    assert [d.uuid for d in result.devices] == ["GPU-0"]
    assert "described twice" in result.problems[0].message


@pytest.mark.parametrize("memory", ["0", "-5Gi", "much", ""])
def test_memory_that_cannot_be_is_not_published(folder: Folder, memory: str) -> None:
    folder.put("ic-device", entry(resources={"gpu-memory": memory, "gpu-core": "100"}))
    result = folder.session.discover()
    assert dict(result.devices[0].resources) == {
        "koordinator.sh/gpu-core": "100",
        "koordinator.sh/gpu-memory-ratio": "100",
    }
    assert result.devices[0].memory_bytes is None
    assert "MemoryUnknown" in {p.reason for p in result.problems}


def test_links_are_partitions_and_those_with_strangers_are_none(folder: Folder) -> None:
    def linked(minor: str, *peers: str) -> dict[str, Any]:
        links = [{"peerMinor": p, "type": "MetaXLink"} for p in peers]
        bus_id = f"0000:1{minor}:00.0"
        return entry(minor, topology={"busID": bus_id, "p2pLinks": links, "nodeID": "0"})

    folder.put(
        "ic-device",
        linked("0", "1", "1,2,3", "7", "x", ""),
        linked("1", "0", " 0, 2,3"),
        linked("2"),
        linked("3"),
    )
    result = folder.session.discover()
    assert result.groups == (
        DeviceGroup(keys=("0000:10:00.0", "0000:11:00.0"), link_type="MetaXLink"),
        DeviceGroup(keys=tuple(f"0000:1{n}:00.0" for n in range(4)), link_type="MetaXLink"),
    )
    assert result.group_policy == "Prefer"


def test_bad_health_is_reported_with_its_code(folder: Folder) -> None:
    status = {"healthy": False, "errCode": "ECC error", "errMessage": "two bits"}
    folder.put("ic-device", entry(status=status))
    health = folder.session.discover().devices[0].health
    assert (health.state, health.reason, health.message) == (
        HealthState.FAILED,
        "ECCError",
        "two bits (ECC error)",
    )


def test_there_is_an_end_to_what_is_read(folder: Folder) -> None:
    for number in range(reading.MAX_FILES + 5):
        folder.put(f"f{number:03}", entry(str(number), topology={}))
    assert len(folder.session.discover().devices) == reading.MAX_FILES


def test_the_folder_must_be_a_plain_path() -> None:
    InfofilesSettings(directory="/run/x").check()
    for folder in ("run/x", "/run/../etc"):
        with pytest.raises(BadConfig, match=r"discovery\.infofiles\.directory"):
            InfofilesSettings(directory=folder).check()


def test_a_recording_is_read_where_it_holds_the_folder() -> None:
    builder = TreeBuilder()
    builder.put("/run/infos/a", b'[{"minor": "4", "vendor": "acme", "uuid": "u"}]')
    vendor = InfofilesVendor()
    session = open_session(vendor, builder.build(), {"directory": "/run/infos/", "replay": True})
    assert [d.uuid for d in session.discover().devices] == ["u"]
