"""The template's example of a reading: known, or absent, and never a wrong number."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.recording.directory import DirectoryFiles
from plugins.vendors.template.session import read_temperature

BUS_ID = "0000:03:00.0"


def host_with(folder: Path, **sensors: str) -> DirectoryFiles:
    for name, text in sensors.items():
        path = folder / f"sys/bus/pci/devices/{BUS_ID}/hwmon/{name}/temp1_input"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return DirectoryFiles(folder)


def test_thousandths_of_a_degree_are_degrees(tmp_path: Path) -> None:
    assert read_temperature(host_with(tmp_path, hwmon2="45500\n"), BUS_ID) == 45.5


def test_a_function_without_a_sensor_has_no_temperature(tmp_path: Path) -> None:
    assert read_temperature(host_with(tmp_path), BUS_ID) is None


@pytest.mark.parametrize("text", ["", "hot", "4294967295", "-273000", "0x2d"])
def test_what_no_chip_can_have_is_absent(tmp_path: Path, text: str) -> None:
    assert read_temperature(host_with(tmp_path, hwmon2=text), BUS_ID) is None


def test_the_next_sensor_is_read_where_the_first_one_says_nothing(tmp_path: Path) -> None:
    host = host_with(tmp_path, hwmon2="broken", hwmon3="30000")
    assert read_temperature(host, BUS_ID) == 30.0
