"""What `xpu-agent restore` does where it must not believe what it sees."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import msgspec
import pytest

from agent.cgroup.layout import CgroupLayout, LayoutLocator
from agent.cgroup.ledger import LEDGER_FILE, SYSCTL_HIERARCHY, ChangeLedger, LedgerEntry
from agent.cli.restore import CgroupsNotVisible
from agent.cli.restore import restore as command
from agent.host.files import LiveHostFiles
from agent.host.kernel import read_identity
from tests.realgroups import needs_v1, real_groups


def recorded(folder: Path, hierarchy: str = "cpu") -> ChangeLedger:
    ledger = ChangeLedger(str(folder / LEDGER_FILE), read_identity(LiveHostFiles(), "", "").boot_id)
    ledger.load()
    ledger.set(
        LedgerEntry(
            hierarchy=hierarchy,
            path="/kubepods/podx",
            inode=7,
            key="cpu.shares",
            owner="batch_resources",
            original="1024",
            own_values=("2",),
        )
    )
    ledger.flush()
    return ledger


UNSEEN = [None, CgroupLayout(version=2, driver="systemd", mounts=(), unified="/sys/fs/cgroup")]


@pytest.fixture
def arguments(tmp_path: Path) -> argparse.Namespace:
    config = tmp_path / "config.yaml"
    folders = {name: str(tmp_path / name) for name in ("state", "run", "cdi", "kubelet")}
    for folder in folders.values():
        Path(folder).mkdir()
    settings = {
        "node": {"state_dir": folders["state"], "run_dir": folders["run"]},
        "cdi": {"dir": folders["cdi"]},
        "kubelet": {"root_dir": folders["kubelet"]},
    }
    config.write_text(json.dumps(settings))
    return argparse.Namespace(
        config=str(config), dry_run=False, force=False, stay=False, all_nodes=None
    )


@pytest.mark.parametrize("layout", UNSEEN)
def test_groups_that_are_not_visible_here_are_not_taken_for_removed(
    arguments: argparse.Namespace,
    tmp_path: Path,
    layout: CgroupLayout | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = recorded(tmp_path / "state")
    monkeypatch.setattr(LayoutLocator, "refresh", lambda *_: layout)
    for arguments.dry_run in (True, False):
        with pytest.raises(CgroupsNotVisible, match="mount the node's /sys/fs/cgroup"):
            command(arguments)
    again = ChangeLedger(ledger.path, read_identity(LiveHostFiles(), "", "").boot_id)
    again.load()
    assert again.entries == ledger.entries
    arguments.force = True
    assert command(arguments) == 0
    assert not (tmp_path / "state" / LEDGER_FILE).exists()


def test_switches_of_the_kernel_need_no_groups(
    arguments: argparse.Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path / "state", SYSCTL_HIERARCHY)  # of a path that is no switch: refused, and kept
    monkeypatch.setattr(LayoutLocator, "refresh", lambda *_: None)
    assert command(arguments) == 1
    assert (tmp_path / "state" / LEDGER_FILE).exists()


@needs_v1
@pytest.mark.root
def test_a_dry_run_says_what_it_would_write_and_writes_nothing(
    arguments: argparse.Namespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with real_groups() as groups:
        pod = groups.pod()
        groups.put(pod, "cpu.shares", "2")
        monkeypatch.setattr(LayoutLocator, "refresh", lambda *_: groups.layout)
        ledger = recorded(tmp_path / "state")
        (entry,) = ledger.entries.values()
        ledger.drop(entry, "gone")
        inode = groups.path("cpu", pod).stat().st_ino
        ledger.set(msgspec.structs.replace(entry, path=pod, inode=inode))
        ledger.flush()
        arguments.dry_run = True
        assert command(arguments) == 0
        assert "cpu.shares 2 → 1024" in capsys.readouterr().out
        assert groups.get(pod, "cpu.shares") == "2"
        arguments.dry_run = False
        assert command(arguments) == 0
        assert groups.get(pod, "cpu.shares") == "1024"


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_damaged_ledger_is_bad_news_also_where_nothing_of_it_is_left(
    arguments: argparse.Namespace,
    tmp_path: Path,
    dry_run: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "state" / LEDGER_FILE
    path.write_bytes(b"not a line\nnor this\n")
    arguments.dry_run = dry_run
    assert command(arguments) == 1
    out = capsys.readouterr().out
    assert f"{path}: damaged" in out
    assert "nothing was recorded" not in out
