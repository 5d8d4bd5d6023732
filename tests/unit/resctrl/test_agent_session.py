"""The agent does on the emulator what it did on a kernel, line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.resctrl.agent_session import CGROUPS, MOUNT, RECORDED, answers
from tests.resctrl.emulator import Resctrl
from tests.resctrl.fuse import mounted, unavailable_reason
from tests.resctrl.host import MOUNT_TABLE, POINT

REASON = unavailable_reason()
pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(REASON), reason=f"no emulator: {REASON}")]


def test_the_agent_prints_the_same_on_the_emulator_and_on_a_kernel(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / MOUNT).mkdir(parents=True)
    table = root / MOUNT_TABLE.strip("/")
    table.parent.mkdir(parents=True)
    table.write_text(f"40 24 0:36 / {POINT} rw,relatime shared:9 - resctrl resctrl rw\n")

    def place(cgroup: str, process: int) -> None:
        folder = root / CGROUPS.strip("/") / cgroup.strip("/")
        folder.mkdir(parents=True)
        (folder / "cgroup.threads").write_text(f"{process}\n")

    with mounted(Resctrl(), root / MOUNT):
        printed = answers(root, tmp_path / "ledger.log", place)
    assert printed == RECORDED.read_text().splitlines()
