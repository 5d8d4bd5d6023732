from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from agent.recording.host_source import open_host
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.vendor import DeviceVendor
from agent.workers.lifecycle import DEFAULT_TIMING, WorkerTiming
from agent.workers.query import late_state, query_vendors
from agent.workers.tape import TapeWriter, parse_tape
from plugins.vendors.fake.vendor import FakeSettings, FakeVendor
from plugins.vendors.template.vendor import TemplateVendor

WAVE = {"mean": 50, "swing": 50, "period_s": 0.5}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    device = tmp_path / "host/sys/bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0xfffe\n")
    return tmp_path / "host"


def _survey(
    host: Path,
    file: Path | None = None,
    timing: WorkerTiming = DEFAULT_TIMING,
    tapes: dict[str, TapeWriter] | None = None,
    samples: int = 1,
    forced: tuple[str, ...] = (),
    within_s: float | None = None,
) -> tuple[VendorState, ...]:
    vendors: list[DeviceVendor] = [TemplateVendor(), FakeVendor()]
    settings = {"fake": FakeSettings(file=str(file) if file else "")}
    opened = open_host(str(host))
    return asyncio.run(
        query_vendors(
            vendors,
            opened,
            settings,
            samples=samples,
            timing=replace(timing, sample_every_s=0.0),
            forced=forced,
            tapes=tapes,
            within_s=within_s,
        )
    )


def _scene(folder: Path, **more: object) -> Path:
    file = folder / "fake.yaml"
    file.write_text(yaml.safe_dump({"devices": [{"uuid": "F", "core_percent": WAVE}], **more}))
    return file


def _tape(host: Path, vendor: str, version: str) -> None:
    data = bytearray()
    TapeWriter(vendor, data.extend).write_inventory(
        Inventory(vendor=vendor, driver_version=version), 0.1
    )
    (host / "tapes").mkdir(exist_ok=True)
    (host / f"tapes/{vendor}.jsonl").write_bytes(data)


def test_a_vendor_that_cannot_be_loaded_is_its_own_reason(host: Path) -> None:
    (template,) = _survey(host)  # it is not among those that are shipped
    assert (template.state, template.reason) == ("stalled", "BadConfig")
    assert template.inventory.value is not None
    assert [device.key for device in template.inventory.value.devices] == ["0000:3b:00.0"]


def test_a_vendor_without_devices_here_is_not_queried(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    assert _survey(tmp_path) == ()


def test_a_forced_vendor_is_queried_without_a_detected_device(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    (fake,) = _survey(tmp_path, None, forced=("fake",))
    assert (fake.vendor, fake.reason) == ("fake", "BadConfig")  # no file: its own reason


def test_a_tape_answers_for_its_vendor(host: Path) -> None:
    _tape(host, "template", "7")
    _tape(host, "fake", "8")
    states = _survey(host)
    versions = [s.inventory.value.driver_version for s in states if s.inventory.value]
    assert [state.vendor for state in states] == ["fake", "template"]
    assert versions == ["8", "7"]
    assert [state.samples.error.split(": ")[1] for state in states] == ["NotSupported"] * 2
    assert {state.state for state in states} == {"ready"}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"in": "discover", "do": "exit"}, "Closed"),
        ({"in": "discover", "do": "hang"}, "Late"),
        ({"in": "discover", "do": "garbage"}, "Garbage"),
        ({"in": "open", "do": "raise"}, "UnexpectedError"),
    ],
)
def test_a_dead_vendor_says_why_and_the_others_answer(
    host: Path, fault: dict[str, str], reason: str
) -> None:
    late = WorkerTiming(discover_deadline_s=0.5) if reason == "Late" else DEFAULT_TIMING
    _tape(host, "template", "7")
    fake, template = _survey(host, _scene(host, misbehave=[fault]), late)
    assert (fake.state, fake.reason) == ("stalled", reason)
    assert fake.inventory.value is not None
    assert [device.key for device in fake.inventory.value.devices] == ["fake"]
    assert reason in fake.inventory.error
    assert template.state == "ready"


@pytest.mark.parametrize("step", ["open", "discover"])
def test_all_steps_of_a_query_together_have_a_deadline(host: Path, step: str) -> None:
    scene = _scene(host, misbehave=[{"in": step, "do": "deaf"}])
    fake, _ = _survey(host, scene, within_s=0.5)
    assert (fake.state, fake.reason, fake.message) == ("stalled", "Late", "no answer within 0.5 s")
    assert fake.inventory.value is not None


def test_a_vendor_whose_samples_alone_are_late_keeps_its_inventory() -> None:
    inventory: SnapshotPart[Inventory | None] = SnapshotPart(Inventory(vendor="fake"), 1.0)
    ready = VendorState(vendor="fake", state="ready", inventory=inventory)
    late = late_state(ready, 3.0)
    assert (late.state, late.inventory) == ("ready", inventory)
    assert late.samples.error == "no answer within 3 s"


def test_settings_that_a_vendor_refuses_are_its_reason(host: Path) -> None:
    fake, _ = _survey(host, host / "absent.yaml")
    assert (fake.reason, "absent.yaml" in fake.message) == ("BadConfig", True)


def test_a_survey_can_be_recorded_and_played_back(host: Path) -> None:
    data = bytearray()
    recorded, _ = _survey(
        host, _scene(host), tapes={"fake": TapeWriter("fake", data.extend)}, samples=3
    )
    tape = parse_tape(bytes(data), "fake")
    assert len(tape.samples) == 3
    assert tape.samples[-1] == recorded.samples.value
    assert tape.inventories == (recorded.inventory.value,)
