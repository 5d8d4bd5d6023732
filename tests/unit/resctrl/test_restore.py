"""Groups are removed from the ledger alone, on a mounted file system."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import RESCTRL_HIERARCHY, RESCTRL_KEY, ChangeLedger, LedgerEntry
from agent.cgroup.restore import restore_all
from agent.host.files import LiveHostFiles
from tests.resctrl.emulator import Resctrl
from tests.resctrl.fuse import mounted, unavailable_reason

REASON = unavailable_reason()
pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(REASON), reason=f"no emulator: {REASON}")]

LAYOUT = CgroupLayout(version=2, driver="", mounts=(), unified=None)
MONITOR = "BE/mon_groups/xpu-00000000-0000-0000-0000-000000000001"


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "resctrl"
    folder.mkdir()
    with mounted(Resctrl(), folder) as point:
        yield point


def ledger_of(tmp_path: Path, mount: Path, *paths: str) -> ChangeLedger:
    ledger = ChangeLedger(str(tmp_path / "ledger.log"), "boot")
    ledger.load()
    for path in paths:
        ledger.set(entry(mount / path, (mount / path).stat().st_ino))
    ledger.flush()
    return ledger


def entry(path: Path, inode: int) -> LedgerEntry:
    return LedgerEntry(
        hierarchy=RESCTRL_HIERARCHY,
        path=str(path),
        inode=inode,
        key=RESCTRL_KEY,
        owner="resctrl",
        original="absent",
        own_values=("present",),
    )


def undo(ledger: ChangeLedger, *, dry_run: bool = False) -> dict[str, str]:
    results = restore_all(ledger, LAYOUT, LiveHostFiles(), monotonic=lambda: 0.0, dry_run=dry_run)
    return {Path(result.entry.path).name: result.state for result in results}


def test_groups_are_removed_and_their_tasks_return_to_the_root_group(
    tmp_path: Path, mount: Path
) -> None:
    for path in ("BE", MONITOR, "foreign"):
        (mount / path).mkdir()
    child = subprocess.Popen(["sleep", "60"])
    try:
        (mount / "BE" / "tasks").write_text(f"{child.pid}\n")
        ledger = ledger_of(tmp_path, mount, "BE", MONITOR)
        assert undo(ledger, dry_run=True) == {"BE": "planned", Path(MONITOR).name: "planned"}
        assert (mount / MONITOR).exists()
        assert undo(ledger) == {"BE": "restored", Path(MONITOR).name: "restored"}
        assert str(child.pid) in (mount / "tasks").read_text().split()
    finally:
        child.kill()
        child.wait()
    assert not (mount / "BE").exists()
    assert (mount / "foreign").exists()
    assert not Path(str(ledger.path)).exists()


def test_a_group_that_another_program_made_again_stays(tmp_path: Path, mount: Path) -> None:
    (mount / "BE").mkdir()
    ledger = ledger_of(tmp_path, mount, "BE")
    (mount / "BE").rmdir()
    (mount / "BE").mkdir()
    assert undo(ledger) == {"BE": "gone"}
    assert (mount / "BE").exists()


def test_a_group_that_was_being_made_when_the_agent_ended_is_removed(
    tmp_path: Path, mount: Path
) -> None:
    (mount / "BE").mkdir()
    ledger = ledger_of(tmp_path, mount)
    ledger.set(entry(mount / "BE", 0))
    ledger.set(entry(mount / "LS", 0))
    ledger.flush()
    assert undo(ledger) == {"BE": "restored", "LS": "gone"}


def test_a_folder_that_is_no_group_is_never_removed(tmp_path: Path, mount: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    ledger = ledger_of(tmp_path, mount)
    ledger.set(entry(folder, 0))
    assert undo(ledger) == {"plain": "gone"}
    assert folder.exists()


def test_a_read_only_file_system_is_reported(tmp_path: Path) -> None:
    resctrl = Resctrl()
    resctrl.make("BE")
    folder = tmp_path / "resctrl"
    folder.mkdir()
    with mounted(resctrl, folder, read_only=True) as mount:
        ledger = ledger_of(tmp_path, mount, "BE")
        assert undo(ledger) == {"BE": "refused"}
    assert ledger.entries
