from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from agent.cli.bundle import write_bundle
from agent.config.settings import MetricsSettings, Settings
from agent.doctor.inputs import fetch_agent_snapshot, read_inputs
from agent.host.files import LiveHostFiles
from agent.snapshot.device import Health, HealthState
from agent.wire_formats.snapshot_json import encode_json, snapshot_json
from tests import factory
from tests.unit.doctor.inputs import node

LIMITS = "Limit                     Soft Limit           Hard Limit           Units\n{}\n"
LOCKED = "Max locked memory         {}             {}             bytes"


@pytest.mark.parametrize(
    ("limit", "known", "bytes_"),
    [("65536", True, 65536), ("unlimited", True, None), ("odd", False, None)],
)
def test_the_runtime_is_found_with_its_limit_and_whether_nri_is_off(
    limit: str, known: bool, bytes_: int | None, tmp_path: Path
) -> None:
    for pid, comm in (("1", "systemd"), ("77", "containerd"), ("x", "containerd")):
        folder = tmp_path / "proc" / pid
        folder.mkdir(parents=True)
        (folder / "comm").write_text(f"{comm}\n")
        (folder / "limits").write_text(LIMITS.format(LOCKED.format(limit, limit)))
    (tmp_path / "etc/containerd").mkdir(parents=True)
    config = '[plugins."io.containerd.nri.v1.nri"]\ndisable = true\n'
    (tmp_path / "etc/containerd/config.toml").write_text(config)
    host = LiveHostFiles(str(tmp_path))
    inputs = read_inputs(Settings(), node(), host, live=True, own=host)
    (runtime,) = inputs.runtimes
    assert (runtime.name, runtime.pid, runtime.is_nri_disabled) == ("containerd", 77, True)
    assert (runtime.is_memlock_known, runtime.memlock_bytes) == (known, bytes_)


@pytest.mark.parametrize("config", ["", "plugins = 3", "[plugins]\nx = 1", "= =", "\0"])
def test_settings_that_say_nothing_of_nri_say_nothing(config: str, tmp_path: Path) -> None:
    (tmp_path / "proc/9").mkdir(parents=True)
    (tmp_path / "proc/9/comm").write_text("containerd")
    (tmp_path / "etc/containerd").mkdir(parents=True)
    (tmp_path / "etc/containerd/config.toml").write_text(config)
    host = LiveHostFiles(str(tmp_path))
    inputs = read_inputs(Settings(), node(), host, live=True, own=host)
    assert inputs.runtimes[0].is_nri_disabled is None


def test_cgroups_and_the_socket_are_read_where_the_agent_finds_them(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "proc").mkdir(parents=True)
    (own / "proc/mounts").write_text("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    (own / "sys/fs/cgroup/kubepods").mkdir(parents=True)
    (own / "var/run/nri").mkdir(parents=True)
    (own / "var/run/nri/nri.sock").touch()
    host = LiveHostFiles(str(tmp_path / "host"))
    inputs = read_inputs(Settings(), node(), host, live=True, own=LiveHostFiles(str(own)))
    assert (inputs.cgroup_version, inputs.cgroup_driver) == (2, "cgroupfs")
    assert inputs.paths == {"/var/run/nri/nri.sock"}


def test_a_kubelet_whose_groups_are_not_found_is_named_with_what_shows_it(tmp_path: Path) -> None:
    (tmp_path / "proc/812").mkdir(parents=True)
    (tmp_path / "proc/mounts").write_text("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    (tmp_path / "sys/fs/cgroup/a/b").mkdir(parents=True)
    host = LiveHostFiles(str(tmp_path))
    assert read_inputs(Settings(), node(), host, live=True, own=host).kubelet == ""
    (tmp_path / "var/lib/kubelet/pods/8f1c").mkdir(parents=True)
    inputs = read_inputs(Settings(), node(), host, live=True, own=host)
    assert (inputs.kubelet, inputs.cgroup_driver) == ("/var/lib/kubelet/pods has pods", None)
    (tmp_path / "proc/812/comm").write_text("kubelet\n")
    (tmp_path / "proc/812/cmdline").write_text("/usr/bin/kubelet\0--cgroup-root=/a/b\0")
    inputs = read_inputs(Settings(), node(), host, live=True, own=host)
    assert inputs.kubelet == "the kubelet runs as process 812 with the cgroup root '/a/b'"
    assert inputs.cgroup_driver is None
    (tmp_path / "sys/fs/cgroup/a/b/kubepods").mkdir()
    assert read_inputs(Settings(), node(), host, live=True, own=host).cgroup_driver == "cgroupfs"
    assert read_inputs(Settings(), node(), host, live=False, own=host).kubelet == ""


def test_an_unknown_cgroup_driver_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/mounts").write_text("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    host = LiveHostFiles(str(tmp_path))
    inputs = read_inputs(Settings(), node(), host, live=True, own=host)
    assert (inputs.cgroup_version, inputs.cgroup_driver) == (2, None)


class _Handler(BaseHTTPRequestHandler):
    body = b"{}"
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "body", "there"),
    [(200, b'{"a": 1}', True), (200, b"[]", False), (200, b"{", False), (503, b"", False)],
)
def test_the_running_agent_is_queried_and_nonsense_is_no_answer(
    status: int, body: bytes, there: bool
) -> None:
    handler = type("Handler", (_Handler,), {"body": body, "status": status})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        listen = f"0.0.0.0:{server.server_port}"
        result, why = fetch_agent_snapshot(Settings(metrics=MetricsSettings(listen=listen)))
        thread.join()
    assert (result is not None) is there
    assert bool(why) is not there


@pytest.mark.parametrize(
    ("change", "used", "believed", "words"),
    [
        ({}, True, True, ""),
        ({"vendors": 3}, True, False, "another form"),
        ({"node": {"source": "a recording"}}, False, False, "another machine: a recording"),
    ],
)
def test_the_agents_snapshot_is_the_truth_if_it_is_of_this_machine(
    change: dict[str, object], used: bool, believed: bool, words: str, tmp_path: Path
) -> None:
    entries = factory.gpu(0, health=Health(state=HealthState.PROBING, reason="Xid95", message="m"))
    running = factory.snapshot((entries, factory.nic(0)), ())
    body = encode_json({**snapshot_json(running, 0.0), **change})
    handler = type("Handler", (_Handler,), {"body": body})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        settings = Settings(metrics=MetricsSettings(listen=f"127.0.0.1:{server.server_port}"))
        host = LiveHostFiles(str(tmp_path))
        answer = fetch_agent_snapshot(settings)
        inputs = read_inputs(settings, node(), host, live=True, own=host, answer=answer)
        thread.join()
    assert (inputs.agent is not None) is used
    assert (inputs.discovery is not None) is believed
    assert inputs.node.devices[entries.key].health.is_in_service is not believed
    assert words in inputs.agent_problem
    assert bool(words) is bool(inputs.agent_problem)


def test_the_state_of_a_workers_process_is_read_if_it_is_visible(tmp_path: Path) -> None:
    worker = subprocess.Popen(["sleep", "600"])
    try:
        os.kill(worker.pid, signal.SIGSTOP)
        os.waitpid(worker.pid, os.WUNTRACED)
        running = snapshot_json(node(), 0.0)
        running["vendors"] = [
            {"vendor": "here", "pid": worker.pid},
            {"vendor": "ended", "pid": 2**22 + 1},
            {"vendor": "none", "pid": None},
        ]
        host = LiveHostFiles(str(tmp_path))
        inputs = read_inputs(Settings(), node(), host, live=True, own=host, answer=(running, ""))
    finally:
        worker.kill()
        worker.wait()
    assert inputs.process_states == {worker.pid: "stopped"}


def test_without_an_agent_the_address_without_an_answer_is_reported() -> None:
    result, why = fetch_agent_snapshot(Settings(metrics=MetricsSettings(listen="127.0.0.1:1")))
    assert result is None
    assert "127.0.0.1:1" in why


def test_a_bundle_holds_all_files_and_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    write_bundle(str(path), {"checks.json": b"{}", "agent.json": json.dumps(None).encode()}, 5.0)
    with tarfile.open(path) as archive:
        names = archive.getnames()
    assert names == ["xpu-agent-doctor/checks.json", "xpu-agent-doctor/agent.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_bundle_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="ink"):
        write_bundle(str(tmp_path / "link"), {}, 0.0)
    assert not (tmp_path / "target").exists()


def test_an_invalid_address_is_reported_and_not_queried() -> None:
    result, why = fetch_agent_snapshot(Settings(metrics=MetricsSettings(listen="localhost")))
    assert result is None
    assert why == "metrics.listen: 'localhost' is not HOST:PORT, as 127.0.0.1:9316 is"
