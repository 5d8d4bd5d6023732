from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.model.device import Health, HealthState
from plugins.faults.nvidia.diagnosis import FILE_NAME, Diagnosis
from plugins.faults.nvidia.xid import XidRules
from tests.unit.faults.nvidia_site import CARD, HEALTHY, Site


def test_causes_outlive_the_process_and_leave_the_file_when_they_leave(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.diagnosis.met(CARD, "GPU-1")
    site.xid(48)
    site.look(energy_mj=500.0)
    site.diagnosis.read(77)
    site.diagnosis.save()
    site.diagnosis = site.opened()
    assert site.verdict == (HealthState.FAILED, "Xid48")
    assert site.diagnosis.read_to == 77
    site.look(energy_mj=10.0)  # lower than before the restart: it was reset in between
    assert site.verdict == HEALTHY
    site.diagnosis.save()
    assert json.loads((tmp_path / FILE_NAME).read_text())["cards"] == {}
    assert Diagnosis(XidRules(), lambda: site.now, str(tmp_path)).health(CARD) == Health()


def test_lines_of_the_past_are_not_counted_against_a_card_again(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.xid(119)
    site.diagnosis.read(500)
    site.diagnosis.save()
    assert site.opened().read_to == 500
    site.now = replace(site.now, boot_id="b")
    assert site.opened().read_to == -1  # another boot begins to count anew


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"version":1,"cards":{"a":{"causes":3}}}'])
def test_a_damaged_file_is_put_aside_and_told(tmp_path: Path, damage: bytes) -> None:
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
