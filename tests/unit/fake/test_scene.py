from __future__ import annotations

from pathlib import Path

import pytest

from agent.clock import ManualClock
from agent.errors import BadConfig
from agent.snapshot.device import DeviceKind, DevicePort, Health, HealthState
from agent.snapshot.inventory import MetricValue, ProcessSample
from plugins.vendors.fake import __doc__ as description
from plugins.vendors.fake import answers
from plugins.vendors.fake.misbehaviour import __doc__ as faults
from plugins.vendors.fake.scene import parse_scene
from plugins.vendors.fake.session import MAX_FILE, FakeSession, read_scene

WHEN = ((9, "B"), (5, "A"), (0, "Z"))


def _file(folder: Path, text: str) -> str:
    file = folder / "fake.yaml"
    file.write_text(text)
    return str(file)


def test_the_documented_example_is_understood(tmp_path: Path) -> None:
    example = (description or "").partition("\n\n")[2].rpartition("\n\n")[0]
    scene = read_scene(_file(tmp_path, example))
    (device,) = answers.build_inventory(scene).devices
    assert (device.key, device.uuid, device.minor) == ("0000:3b:00.0", "FAKE-0", 0)
    assert device.health == Health(
        state=HealthState.FAILED, reason="FakeFault", message="broken on purpose"
    )
    (sample,) = answers.build_samples(scene, 15.0)
    assert sample.core_percent == pytest.approx(90)
    assert sample.memory_used_bytes == 85899345920 * 15 // 600
    assert sample.readings == (MetricValue(family="xpu_fake_temperature_celsius", value=55.0),)
    assert sample.processes == (ProcessSample(pid=4711, memory_bytes=1 << 30, core_percent=12.0),)


def test_an_empty_file_describes_no_devices(tmp_path: Path) -> None:
    assert answers.build_inventory(read_scene(_file(tmp_path, ""))).devices == ()


def test_what_is_left_out_is_absent_and_not_zero() -> None:
    scene = parse_scene({"devices": [{"uuid": "F"}]}, "f")
    (device,) = answers.build_inventory(scene).devices
    assert (device.memory_bytes, device.minor, device.model) == (None, None, None)
    (sample,) = answers.build_samples(scene, 0.0)
    assert (sample.core_percent, sample.memory_used_bytes, sample.processes) == (None, None, None)
    assert sample.readings == ()


def test_ports_and_kinds_are_those_of_the_model() -> None:
    device = {"kind": "rdma", "bus_id": "0000:3b:00.0", "ports": [{"number": 1, "state": 4}]}
    (result,) = answers.build_inventory(parse_scene({"devices": [device]}, "f")).devices
    assert result.kind is DeviceKind.RDMA
    assert result.ports == (DevicePort(number=1, state=4),)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ([], "Expected `object`"),
        ({"device": []}, "unknown field `device`"),
        ({"devices": [{"uuid": "F", "colour": 1}]}, "unknown field `colour`"),
        ({"devices": [{}]}, "needs a bus_id or a uuid"),
        ({"devices": [{"bus_id": "3b"}]}, "PCI address"),
        ({"devices": [{"bus_id": "0000:3B:00.0"}]}, "write 0000:3b:00.0"),
        ({"devices": [{"uuid": "F"}, {"uuid": "F"}]}, "two devices are called F"),
        ({"devices": [{"uuid": "F", "minor": "0"}]}, r"devices\[0\].minor|devices\[...\].minor"),
        ({"devices": [{"uuid": "F", "core_percent": {"mean": 1}}]}, "core_percent|swing"),
        ({"misbehave": [{"in": "sample", "do": "dance"}]}, "Invalid enum value 'dance'"),
    ],
)
def test_a_mistake_is_named(data: object, match: str) -> None:
    with pytest.raises(BadConfig, match=match) as caught:
        parse_scene(data, "my.yaml")
    assert str(caught.value).startswith("my.yaml: ")


@pytest.mark.parametrize(
    "text", ["devices: [", "!!python/object/apply:os.system [id]", "a: &a [*a]", "x" * MAX_FILE * 2]
)
def test_a_hostile_file_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadConfig, match=r"fake\.yaml"):
        read_scene(_file(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="absent: No such file"):
        read_scene(str(tmp_path / "absent"))


def test_an_edit_shows_at_the_next_discovery(tmp_path: Path) -> None:
    session = FakeSession(_file(tmp_path, "{driver_version: '1'}"))
    _file(tmp_path, "{driver_version: '2'}")
    assert session.discover().driver_version == "2"


def test_events_are_returned_once_when_they_are_due(tmp_path: Path) -> None:
    clock = ManualClock()
    events = [f"{{at_s: {at_s}, key: a, reason: {reason}}}" for at_s, reason in WHEN]
    session = FakeSession(_file(tmp_path, f"events: [{', '.join(events)}]"), clock)
    reports = []
    for _ in range(4):
        reports.append([event.reason for event in session.events(0.0)])
        clock.advance(5.0)
    assert reports == [["Z"], ["A"], ["B"], []]


def test_every_kind_of_misbehaviour_is_described() -> None:
    for line in (faults or "").split("\n\n")[1].splitlines():
        parse_scene({"misbehave": [{"in": "open", "do": line.split()[0]}]}, "f")
