"""What a start loads, and a start with something in it that hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.process.agent import NO_DEVICES, running

HEAVY = ("aiohttp", "google", "grpc", "kubernetes", "prometheus_client", "psutil", "pynvml")


def test_no_heavy_library_is_loaded_before_the_first_device() -> None:
    code = (
        "import sys, agent.cli.run, agent.app.application\n"
        "print(*{name.split('.')[0] for name in sys.modules}, 'agent.usage' in sys.modules)"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert set(outcome.stdout.split()) & {*HEAVY, "True"} == set()


def test_a_vendor_that_does_not_answer_keeps_nobody_from_being_served(tmp_path: Path) -> None:
    cards = tmp_path / "cards.yaml"
    cards.write_text("devices:\n- {uuid: g0, minor: 0}\nmisbehave:\n- {in: discover, do: hang}\n")
    environment = {
        "XPU_AGENT_DISCOVERY__FAKE__FILE": str(cards),
        "XPU_AGENT_DISCOVERY__DISCOVER_DEADLINE_S": "600",
    }
    with running(tmp_path / "out", "--host", str(NO_DEVICES), **environment) as agent:
        assert agent.get("livez") == (200, "ok\n")
        agent.wait_until(lambda: agent.get("readyz")[0] == 200, "ready")
        assert agent.vendor("fake")["state"] == "starting"
        assert (agent.out / "noderesourcetopology.yaml").exists()
        assert not (agent.out / "device.yaml").exists()
        assert agent.end() == 0


def test_hardware_that_comes_later_is_found_without_a_restart(tmp_path: Path) -> None:
    function = tmp_path / "host/sys/bus/pci/devices/0000:3b:00.0"
    function.mkdir(parents=True)
    environment = {"XPU_AGENT_DISCOVERY__HOST_INTERVAL_S": "5"}
    with running(tmp_path / "out", "--host", str(tmp_path / "host"), **environment) as agent:
        assert agent.snapshot()["vendors"] == []
        assert "loop:vendors first due in" in agent.get("healthz?verbose")[1]
        (function / "vendor").write_text("0x10de\n")
        (function / "class").write_text("0x030200\n")
        agent.wait_until(lambda: agent.snapshot()["vendors"] != [], "a worker")
        agent.wait_until(lambda: agent.vendor("nvidia")["state"] == "ready", "its answer")
        assert agent.end() == 0
