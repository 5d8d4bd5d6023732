"""Real events of this machine's kernel, heard by the agent as a process."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.process.agent import Agent, running

CPU = Path("/sys/devices/system/cpu/cpu0/uevent")
NULL = Path("/sys/devices/virtual/mem/null/uevent")
NETLINK_KOBJECT_UEVENT = 15
FORGED = b"remove@/devices/x\0ACTION=remove\0DEVPATH=/devices/x\0SUBSYSTEM=pci\0SEQNUM=1\0"

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not os.access(CPU, os.W_OK), reason="only root may cause events"),
]


def counts(agent: Agent, family: str, label: str) -> dict[str, float]:
    _, text = agent.get("metrics")
    result = {f.name: f for f in text_string_to_metric_families(text)}.get(family)
    samples = [] if result is None else result.samples
    return {sample.labels[label]: sample.value for sample in samples}


def test_an_event_of_the_kernel_is_counted_and_the_host_is_read(tmp_path: Path) -> None:
    with running(tmp_path / "out", "--host", "/") as agent:
        agent.wait_until(
            lambda: counts(agent, "xpu_agent_host_looks", "cause").get("start") == 1, "a start"
        )
        NULL.write_text("change")
        CPU.write_text("change")
        agent.wait_until(
            lambda: "event" in counts(agent, "xpu_agent_host_looks", "cause"), "a look"
        )
        observations = counts(agent, "xpu_agent_uevents", "subsystem")
        assert observations["cpu"] >= 1
        assert observations["other"] >= 1
        assert agent.snapshot()["hotplug"]["state"] == "listening"
        assert agent.end() == 0


def test_ten_thousand_events_at_once_cause_at_most_one_read_a_second(tmp_path: Path) -> None:
    with running(tmp_path / "out", "--host", "/") as agent:
        agent.wait_until(
            lambda: counts(agent, "xpu_agent_host_looks", "cause").get("start") == 1, "a start"
        )
        began_s = time.monotonic()
        with CPU.open("w") as file:
            for _ in range(10_000):
                file.write("change")
                file.flush()
                file.seek(0)
        agent.wait_until(
            lambda: "event" in counts(agent, "xpu_agent_host_looks", "cause"), "a look"
        )
        looks = sum(counts(agent, "xpu_agent_host_looks", "cause").values())
        assert looks <= 2 + (time.monotonic() - began_s)
        agent.wait_until(lambda: agent.get("readyz") == (200, "ok\n"), "ready")
        assert agent.end() == 0


def test_a_forged_event_is_dropped_and_counted(tmp_path: Path) -> None:
    with running(tmp_path / "out", "--host", "/") as agent:
        agent.wait_until(
            lambda: counts(agent, "xpu_agent_host_looks", "cause").get("start") == 1, "a start"
        )
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_KOBJECT_UEVENT) as forger:
            forger.bind((0, 0))
            forger.sendto(FORGED, (0, 1))
        agent.wait_until(
            lambda: counts(agent, "xpu_agent_uevents_dropped", "reason").get("refused", 0) >= 1,
            "a count of what was dropped",
        )
        assert "pci" not in counts(agent, "xpu_agent_uevents", "subsystem")
        assert agent.end() == 0


def test_a_recorded_host_receives_no_events_of_this_machine(tmp_path: Path) -> None:
    host = tmp_path / "host/sys/bus/pci/devices"
    host.mkdir(parents=True)
    with running(tmp_path / "out", "--host", str(tmp_path / "host")) as agent:
        CPU.write_text("change")
        assert agent.snapshot()["hotplug"]["state"] == "off"
        assert counts(agent, "xpu_agent_uevents", "subsystem") == {}
        assert agent.end() == 0


def test_events_that_are_switched_off_are_not_listened_for(tmp_path: Path) -> None:
    with running(tmp_path / "out", "--host", "/", XPU_AGENT_DISCOVERY__HOTPLUG="false") as agent:
        assert agent.snapshot()["hotplug"]["state"] == "off"
        assert agent.end() == 0
