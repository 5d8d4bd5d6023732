from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.snapshot.device import Health, HealthState
from plugins.vendors.nvidia.health.diagnosis import FILE_NAME, Diagnosis
from plugins.vendors.nvidia.health.xid import XidRules
from tests.unit.vendors_health.nvidia_scene import CARD, FINE, HEALTHY, Site


def test_causes_outlive_the_process_and_leave_the_file_when_they_leave(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.diagnosis.identify(CARD, "GPU-1")
    site.xid(48)
    site.check(energy_mj=500.0)
    site.diagnosis.note_log_position(77)
    site.diagnosis.save()
    site.diagnosis = site.opened()
    assert site.verdict == (HealthState.FAILED, "Xid48")
    assert site.diagnosis.read_to == 77
    site.check(energy_mj=10.0)  # lower than before the restart: it was reset in between
    assert site.verdict == HEALTHY
    site.diagnosis.save()
    assert json.loads((tmp_path / FILE_NAME).read_text())["cards"] == {}
    assert Diagnosis(XidRules(), lambda: site.now, str(tmp_path)).health(CARD) == Health()


def test_lines_of_the_past_are_not_counted_against_a_card_again(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.xid(119)
    site.diagnosis.note_log_position(500)
    site.diagnosis.save()
    assert site.opened().read_to == 500
    site.now = replace(site.now, boot_id="b")
    assert site.opened().read_to == -1  # another boot starts to count at zero


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"version":1,"cards":{"a":{"causes":3}}}'])
def test_a_damaged_file_is_renamed_and_reported(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(damage)
    site = Site(tmp_path)
    assert [p.reason for p in site.diagnosis.problems] == ["StateFileDamaged"]
    assert (tmp_path / f"{FILE_NAME}.bad").read_bytes() == damage
    site.xid(79)
    site.diagnosis.save()
    assert site.diagnosis.problems == ()


def test_a_person_can_clear_a_card(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert not site.diagnosis.clear(CARD)
    site.xid(79)
    assert site.diagnosis.clear(CARD)
    assert site.verdict == HEALTHY
    assert site.opened().health(CARD) == Health()


def test_what_goes_on_is_not_written_again_and_again(tmp_path: Path) -> None:
    site, file = Site(tmp_path), tmp_path / FILE_NAME
    site.check(remapped_rows=(0, 2, 0, 1))
    site.diagnosis.save()
    first, health = file.read_bytes(), site.diagnosis.health(CARD)
    for _ in range(60):
        site.pass_time(1)
        assert site.check(remapped_rows=(0, 2, 0, 1)) == ()
        site.diagnosis.save()
    assert file.read_bytes() == first
    site.pass_time(3600)
    site.check(remapped_rows=(0, 2, 0, 1))
    site.diagnosis.save()
    assert file.read_bytes() != first
    assert site.diagnosis.health(CARD) == health


def test_the_words_of_a_cause_that_goes_on_stay(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.check(faults={15: "nvmlDeviceGetName"})
    health = site.diagnosis.health(CARD)
    site.pass_time(10)
    site.check(faults={15: "nvmlDeviceGetUUID"})
    assert site.diagnosis.health(CARD) == health
    for recoveries in (0, 20, 40):
        site.diagnosis.check(CARD, FINE, {"recovery": float(recoveries)})
        site.pass_time(10)
    assert [c.message for c in site.diagnosis.conditions(CARD)] == [
        "NVLinks recovered 20 times within an hour"
    ]


def test_causes_that_could_not_be_written_are_when_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file in its place")
    site = Site(tmp_path / "state")
    site.xid(79)
    site.diagnosis.save()
    assert [p.reason for p in site.diagnosis.problems] == ["StateNotWritten"]
    (tmp_path / "state").unlink()
    site.diagnosis.save()
    assert site.diagnosis.problems == ()
    assert site.opened().health(CARD).reason == "Xid79"
