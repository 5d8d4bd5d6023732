"""What `xpu-agent restore` does where it must not believe what it sees."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from agent.cgroup.layout import CgroupLayout, LayoutLocator
from agent.cgroup.ledger import LEDGER_FILE, SYSCTL_HIERARCHY, ChangeLedger, LedgerEntry
from agent.cli.restore import CgroupsNotVisible
from agent.cli.restore import restore as command
from agent.host.files import LiveHostFiles
from agent.host.kernel import read_identity
from tests.patience import PATIENCE_S
from tests.realgroups import needs_v1, real_groups

ROOT = Path(__file__).parents[3]
EARLIER_STATE = ROOT / "fixtures/nodes/earlier-agent/state"
EARLIER_BOOT = "0b0b0000-0000-4000-8000-000000000001"


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
        config=str(config), dry_run=False, force=False, purge=False, stay=False, all_nodes=None
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


def put_state(folder: Path, boot_id: str) -> list[str]:
    """Put every file of an earlier agent into the state folder; return their names."""
    for path in EARLIER_STATE.iterdir():
        text = path.read_text().replace(EARLIER_BOOT, boot_id)
        (folder / path.name).write_text(text)
    (folder / LEDGER_FILE).unlink()  # its groups are not on this machine
    for name in ("audit.jsonl", "audit.jsonl.1", "evictions.json", "prediction.json"):
        (folder / name).write_text("{}")
    (folder / "health.json.bad").write_text("damaged")
    (folder / ".rdma.json.tmp").write_text("half")
    return sorted(path.name for path in folder.iterdir())


def test_a_purge_removes_the_agents_files_and_no_others(
    arguments: argparse.Namespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, run = tmp_path / "state", tmp_path / "run"
    put_state(state, "0b0b0000-0000-4000-8000-00000000000f")  # slices of another boot are gone
    for name in ("nri.lock", "calls-nvidia", "calls-infofiles", "admin.sock"):
        (run / name).write_text("")
    (state / "notes.txt").write_text("of a person")
    (tmp_path / "cdi/vendor.json").write_text("{}")
    arguments.purge = True
    assert command(arguments) == 0
    assert [path.name for path in state.iterdir()] == ["notes.txt"]
    assert not run.exists()
    assert (tmp_path / "cdi/vendor.json").exists()
    assert f"{state}/health.json: removed" in capsys.readouterr().out
    (state / "notes.txt").unlink()
    assert command(arguments) == 0  # once more, as a pod that is started again
    assert not state.exists()


def test_a_restore_without_a_purge_keeps_the_state(
    arguments: argparse.Namespace, tmp_path: Path
) -> None:
    names = put_state(tmp_path / "state", EARLIER_BOOT)
    assert command(arguments) == 0
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == names


def test_a_purge_keeps_the_list_of_slices_that_exist(
    arguments: argparse.Namespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = put_state(tmp_path / "state", read_identity(LiveHostFiles(), "", "").boot_id)
    arguments.purge = True
    assert command(arguments) == 1
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == names
    output = capsys.readouterr().out
    assert "ascend-vnpus.json: 2 slices of ascend" in output
    assert "smlu-owned.json: 2 slices of cambricon" in output
    for name in ("ascend-vnpus.json", "smlu-owned.json"):
        (tmp_path / "state" / name).write_text("damaged")
    assert command(arguments) == 1
    for name in ("ascend-vnpus.json", "smlu-owned.json"):
        (tmp_path / "state" / name).write_text("[]")
    assert command(arguments) == 0


def test_a_purge_keeps_the_original_values_that_were_not_put_back(
    arguments: argparse.Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path / "state", SYSCTL_HIERARCHY)
    monkeypatch.setattr(LayoutLocator, "refresh", lambda *_: None)
    arguments.purge = True
    assert command(arguments) == 1
    assert (tmp_path / "state" / LEDGER_FILE).exists()


def test_a_restore_that_stays_ends_when_it_is_asked_to(
    arguments: argparse.Namespace, tmp_path: Path
) -> None:
    code = "import sys; from agent.cli.main import main; sys.exit(main())"
    options = ("restore", "--purge", "--stay", "--config", arguments.config)
    process = subprocess.Popen(
        [sys.executable, "-c", code, *options], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    assert lines == ["nothing was recorded\n", f"{tmp_path}/run/lock: removed\n"]
    while (tmp_path / "run").exists():  # it is removed after the line is printed
        assert process.poll() is None
    process.terminate()
    assert process.wait(PATIENCE_S) == 0


def test_a_restore_removes_the_file_that_koordlet_reads(
    arguments: argparse.Namespace, tmp_path: Path
) -> None:
    folder = tmp_path / "infos"
    folder.mkdir()
    for name in ("xpu-agent", "another-vendor"):
        (folder / name).write_text("[]")
    settings = json.loads(Path(arguments.config).read_text())
    settings["publish"] = {"device_info_directory": str(folder)}
    Path(arguments.config).write_text(json.dumps(settings))
    assert command(arguments) == 0
    assert [path.name for path in folder.iterdir()] == ["another-vendor"]


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
