"""Facts about a machine that only checks use: read from real files, locks and the real kernel."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from agent.cgroup.layout import CgroupLayout, detect_layout
from agent.cgroup.ledger import LedgerEntry, LedgerLine, encode_line
from agent.config.settings import Settings
from agent.doctor.facts import ContainerRequest
from agent.doctor.host_facts import (
    clock_facts,
    container_requests,
    folder_facts,
    is_file_locked,
    ledger_facts,
    process_names,
    state_problems,
    vendor_facts,
)
from agent.doctor.inputs import parse_self_checks, read_inputs, sum_of_series
from agent.host.files import LiveHostFiles
from agent.recording.tree import DeviceNodeEntry, TreeFiles
from agent.snapshot.node import NodeIdentity, NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciFunction, PciTree
from agent.workers.load import load_vendors
from tests.realgroups import UID as POD_UID
from tests.realgroups import needs_v1, real_groups
from tests.unit.doctor.inputs import node

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
CONTAINER = "ab" * 32
UID = "6f6f0000-0000-4000-8000-000000000001"
TOP = "/sys/fs/cgroup/kubepods/burstable"


def line(number: int, version: int = 1) -> bytes:
    entry = LedgerEntry(
        hierarchy="cpu", path="/kubepods", inode=1, key="cpu.max", owner="o", original=str(number)
    )
    return encode_line(LedgerLine(v=version, boot="b", seq=number, op="set", entry=entry))


def test_a_ledger_is_read_with_its_damaged_and_newer_lines(tmp_path: Path) -> None:
    path = tmp_path / "ledger.log"
    assert ledger_facts(str(path)) is None
    path.write_bytes(line(1) + b"garbage\n" + line(2) + line(3))
    facts = ledger_facts(str(path))
    assert facts is not None
    assert (facts.lines, facts.damaged, facts.newer) == (4, 1, 0)
    # the last line of an agent that was killed, or that writes now
    path.write_bytes(line(1) + line(2) + line(3)[:20])
    facts = ledger_facts(str(path))
    assert facts is not None
    assert (facts.lines, facts.damaged) == (2, 0)
    (tmp_path / "ledger.log.bad").touch()
    again = ledger_facts(str(path))
    assert again is not None
    assert again.is_put_aside
    path.unlink()
    path.mkdir()
    folder = ledger_facts(str(path))
    assert folder is not None
    assert "regular file" in folder.problem


def test_damaged_and_newer_files_of_the_state_are_told_apart(tmp_path: Path) -> None:
    for name, text in {
        "health.json": json.dumps({"version": 1}),
        "evictions.json": json.dumps({"version": 7}),
        "prediction.json": '{"version": 1, "cut',
        "list.json": "[]",
        ".hidden.json": "x",
        "audit.jsonl": "x",
    }.items():
        (tmp_path / name).write_text(text)
    problems = state_problems(str(tmp_path))
    assert problems["health.json"] == ""
    assert "version 7 is newer" in problems["evictions.json"]
    assert "damaged" in problems["prediction.json"]
    assert "damaged" in problems["list.json"]
    assert problems.keys() == {"health.json", "evictions.json", "prediction.json", "list.json"}


def test_a_lock_is_seen_while_a_process_has_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with path.open() as file:
        before = is_file_locked(str(path))
        if before is None:
            pytest.skip("this kernel shows no /proc/locks")
        fcntl.flock(file, fcntl.LOCK_EX)
        assert (before, is_file_locked(str(path))) == (False, True)
    assert is_file_locked(str(path)) is False


def test_a_folder_is_described_with_its_room(tmp_path: Path) -> None:
    facts = folder_facts(str(tmp_path))
    assert (facts.exists, facts.is_writable, facts.is_read_only) == (True, True, False)
    assert facts.free_bytes is not None
    assert facts.total_bytes is not None
    assert 0 <= facts.free_bytes <= facts.total_bytes
    assert not folder_facts(str(tmp_path / "absent")).exists


def test_the_kernels_clock_is_asked_and_not_set() -> None:
    facts = clock_facts()
    assert facts is not None
    assert facts.max_error_s >= 0


def test_processes_of_others_are_visible_only_beside_the_kernels_threads(tmp_path: Path) -> None:
    def process(pid: int, name: str) -> None:
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "comm").write_text(f"{name}\n")

    host = LiveHostFiles(str(tmp_path))
    process(1, "xpu-agent")
    process(2, "python")
    assert process_names(host) is None
    (tmp_path / "proc/2/comm").write_text("kthreadd\n")
    process(30, "koordlet")
    process(4, "koordlet")
    assert process_names(host) == {"xpu-agent": 1, "kthreadd": 2, "koordlet": 4}


def host_with(environment: bytes) -> TreeFiles:
    folder = f"{TOP}/pod{UID}/{CONTAINER}"
    return TreeFiles.from_entries(
        {
            "/proc/mounts": b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
            f"{folder}/cgroup.procs": b"41\n42\n",
            "/proc/41/environ": environment,
        }
    )


@pytest.mark.parametrize(
    ("environment", "value"),
    [
        (b"PATH=/bin\0NVIDIA_VISIBLE_DEVICES=all\0DB_PASSWORD=hunter2\0", "all"),
        (b"NVIDIA_VISIBLE_DEVICES=0,1", "0,1"),
        (b"NVIDIA_VISIBLE_DEVICES=void\0", None),
        (b"NVIDIA_VISIBLE_DEVICES=\0", None),
        (b"X_NVIDIA_VISIBLE_DEVICES=all\0", None),
        (b"", None),
    ],
)
def test_containers_that_request_devices_by_a_variable_are_found_and_nothing_else_is_kept(
    environment: bytes, value: str | None
) -> None:
    host = host_with(environment)
    found = container_requests(host, detect_layout(host), frozenset({VARIABLE}))
    expected = [
        ContainerRequest(pod_uid=UID, container_id=CONTAINER, variable=VARIABLE, value=one)
        for one in (value,)
        if one is not None
    ]
    assert found is not None
    assert list(found) == expected
    assert "hunter2" not in repr(found)


def test_environments_that_cannot_be_read_are_unknown_and_not_fine() -> None:
    host = host_with(b"x")
    layout = detect_layout(host)
    entries = {
        "/proc/mounts": b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
        f"{TOP}/pod{UID}/{CONTAINER}/cgroup.procs": b"41\n",
    }
    hidden = TreeFiles.from_entries(entries)
    assert container_requests(hidden, layout, frozenset({VARIABLE})) is None
    assert container_requests(host, None, frozenset({VARIABLE})) is None
    empty = CgroupLayout(version=2, driver="cgroupfs", mounts=(), unified=None)
    assert container_requests(host, empty, frozenset({VARIABLE})) is None


@needs_v1
def test_on_a_real_kernel_a_containers_process_shows_what_its_image_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "all")
    with real_groups() as groups:
        groups.sleeper(groups.container(groups.pod(), 0xAB))
        found = container_requests(LiveHostFiles(), groups.layout, frozenset({VARIABLE}))
    assert found is not None
    assert [(one.pod_uid, one.variable, one.value) for one in found] == [(POD_UID, VARIABLE, "all")]


def driver_host(**more: bytes) -> TreeFiles:
    """Return a host with NVIDIA's module of one version, and a library of another."""
    return TreeFiles.from_entries(
        {
            "/sys/module/nvidia/version": b"550.54.15\n",
            "/usr/lib64/libnvidia-ml.so.535.104.05": b"",
            "/usr/lib64/libnvidia-ml.so.1": b"",
            "/usr/lib64/libcuda.so.535.104.05": b"",
            "/dev/nvidiactl": DeviceNodeEntry(195, 255),
            **more,
        }
    )


def test_module_library_nodes_and_switches_of_a_vendor_are_read() -> None:
    switch = PciFunction(address="0000:05:00.0", vendor_id=0x10DE, class_code=0x068000)
    snapshot = NodeSnapshot(
        node=NodeIdentity(name="n"),
        vendors=(VendorState(vendor="nvidia"), VendorState(vendor="unknown")),
        pci=SnapshotPart(PciTree(functions={switch.address: switch}), 0.0),
    )
    facts = vendor_facts(snapshot, driver_host(), load_vendors(), Settings())
    assert facts.keys() == {"nvidia"}
    nvidia = facts["nvidia"]
    assert nvidia.module_version == "550.54.15"
    assert nvidia.libraries == ("/usr/lib64/libnvidia-ml.so.535.104.05",)
    assert nvidia.nodes == {"/dev/nvidiactl"}
    assert "10de:0680" in nvidia.functions
    assert "nvidia" in nvidia.socket_prefixes[0]


def test_the_version_of_a_module_without_a_file_of_its_own_is_that_of_its_banner() -> None:
    banner = b"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 2023\n"
    host = TreeFiles.from_entries({"/proc/driver/nvidia/version": banner})
    snapshot = NodeSnapshot(node=NodeIdentity(name="n"), vendors=(VendorState(vendor="nvidia"),))
    facts = vendor_facts(snapshot, host, load_vendors(), Settings())
    assert facts["nvidia"].module_version == "535.104.05"


def test_the_agents_checks_on_itself_are_parsed_and_other_lines_ignored() -> None:
    page = b"[+] loop:usage last good 0.5 s ago\n[-] api-server timeout: x\n[+] lock\nnot ready\n"
    assert parse_self_checks(page) == {
        "loop:usage": (True, "last good 0.5 s ago"),
        "api-server": (False, "timeout: x"),
        "lock": (True, ""),
    }
    assert parse_self_checks(None) is None


def test_series_that_were_left_out_are_added_up() -> None:
    name = "xpu_agent_metrics_cut_series"
    page = f'{name}{{family="a"}} 3\n{name}{{family="b"}} 4\n{name}_other 9\n'.encode()
    assert sum_of_series(page, name) == 7
    assert sum_of_series(b"", name) == 0
    assert sum_of_series(None, name) is None


def test_a_live_look_reads_the_files_that_checks_need(tmp_path: Path) -> None:
    (tmp_path / "proc/pressure").mkdir(parents=True)
    (tmp_path / "proc/cmdline").write_text("quiet psi=0\n")
    (tmp_path / "proc/pressure/memory").write_text("some avg10=0.00\n")
    plugins = tmp_path / "var/lib/kubelet/device-plugins"
    plugins.mkdir(parents=True)
    for name in ("kubelet.sock", "nvidia-gpu.sock", "kubelet_internal_checkpoint"):
        (plugins / name).touch()
    host = LiveHostFiles(str(tmp_path))
    inputs = read_inputs(Settings(), node(), host, live=True, own=host)
    assert inputs.texts["/proc/cmdline"] == "quiet psi=0"
    assert "/proc/pressure/memory" in inputs.texts
    assert inputs.plugin_sockets == ("kubelet.sock", "nvidia-gpu.sock")
    assert inputs.folders["node.run_dir"].path == Settings().node.run_dir
    assert "node.state_dir" not in inputs.folders
    recorded = read_inputs(Settings(), node(), host, live=False, own=host)
    assert (recorded.clock, recorded.folders, recorded.plugin_sockets) == (None, {}, None)
