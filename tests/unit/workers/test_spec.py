from __future__ import annotations

import os

import pytest

from agent.workers.process import WorkerSpec
from plugins.vendors.fake.vendor import FakeSettings
from plugins.vendors.nvidia.settings import NvidiaSettings


def test_the_worker_gets_its_vendor_host_and_tape() -> None:
    arguments = WorkerSpec(vendor="x", host_spec="/h", tape="/t").arguments()
    assert arguments[arguments.index("--vendor") :] == (
        *("--vendor", "x", "--parent", str(os.getpid())),
        *("--host", "/h", "--tape", "/t"),
    )


def test_settings_do_not_show_on_the_command_line() -> None:
    arguments = WorkerSpec(vendor="x", settings=FakeSettings(file="hush")).arguments()
    assert not any("hush" in argument for argument in arguments)


def test_library_folders_go_first_on_the_linkers_path(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = WorkerSpec(vendor="x", settings=NvidiaSettings(library_dirs=("/a", "/b")))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/inherited")
    assert spec.environment()["LD_LIBRARY_PATH"] == "/a:/b:/inherited"
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert spec.environment()["LD_LIBRARY_PATH"] == "/a:/b"


def test_the_agents_environment_stays_with_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hush")
    monkeypatch.setenv("LD_PRELOAD", "/tmp/x.so")
    environment = WorkerSpec(vendor="x").environment()
    assert not {"SOME_TOKEN", "LD_PRELOAD"} & environment.keys()
