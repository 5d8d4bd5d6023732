"""The emulator answers as the kernel did; over FUSE with the errno of real system calls."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.resctrl.emulator import Resctrl
from tests.resctrl.fuse import mounted, unavailable_reason
from tests.resctrl.machine import Machine
from tests.resctrl.session import RECORDED, answers

REASON = unavailable_reason()
pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(REASON), reason=f"no emulator: {REASON}")]


def test_the_emulator_answers_every_step_of_the_session_as_the_kernel(tmp_path: Path) -> None:
    with mounted(Resctrl(), tmp_path) as mount:
        assert answers(str(mount)) == RECORDED.read_text().splitlines()


def test_with_code_and_data_apart_there_are_two_lines_and_half_the_groups(tmp_path: Path) -> None:
    with mounted(Resctrl(Machine(cdp=True)), tmp_path) as mount:
        expected = "    MB:0=100;1=100\nL3DATA:0=7ff;1=7ff\nL3CODE:0=7ff;1=7ff\n"
        assert (mount / "schemata").read_text() == expected
        assert sorted(os.listdir(mount / "info")) == [
            "L3CODE", "L3DATA", "L3_MON", "MB", "last_cmd_status",
        ]  # fmt: skip
        assert (mount / "info/L3CODE/num_closids").read_text() == "8\n"


def test_a_read_only_mount_refuses_changes(tmp_path: Path) -> None:
    with mounted(Resctrl(), tmp_path, read_only=True) as mount, pytest.raises(OSError, match="30"):
        (mount / "BE").mkdir()


def test_an_open_file_of_a_removed_group_is_no_device_any_more(tmp_path: Path) -> None:
    with mounted(Resctrl(), tmp_path) as mount:
        (mount / "BE").mkdir()
        descriptor = os.open(mount / "BE" / "schemata", os.O_RDONLY)
        try:
            (mount / "BE").rmdir()
            (mount / "BE").mkdir()
            with pytest.raises(OSError, match="19"):
                os.pread(descriptor, 100, 0)
        finally:
            os.close(descriptor)
