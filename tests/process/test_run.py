"""`xpu-agent run --standalone` from start to end, as a user meets it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests import schemas
from tests.captures import needs_shared
from tests.process.agent import (
    DEADLINE_S,
    EIGHT_CARDS,
    NO_DEVICES,
    ROOT,
    Agent,
    command,
    run_agent,
    running,
)

CRDS = {
    "device.yaml": "scheduling.koordinator.sh_devices.yaml",
    "nodemetric.yaml": "slo.koordinator.sh_nodemetrics.yaml",
}
OBJECTS = ("device.yaml", "nodemetric.yaml", "noderesourcetopology.yaml")


def families(agent: Agent) -> dict[str, list[tuple[dict[str, str], float]]]:
    _, text = agent.get("metrics")
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(text)
    }


def test_the_eight_card_host_is_served_whole_and_stops_in_order(tmp_path: Path) -> None:
    with running(tmp_path / "out", "--host", str(EIGHT_CARDS)) as agent:
        assert agent.lines[0].startswith("Recorded host qemu-4numa-8xh100, as asked.")
        agent.wait_until(
            lambda: all((agent.out / name).exists() for name in OBJECTS), "all objects"
        )
        agent.wait_until(lambda: agent.get("readyz") == (200, "ok\n"), "ready")
        result = families(agent)
        healthy = [v for labels, v in result["xpu_device_healthy"] if labels["vendor"] == "nvidia"]
        assert healthy == [1.0] * 8
        assert result["process_open_fds"][0][1] > 3
        measured = {labels["vendor"] for labels, _ in result["xpu_agent_worker_threads"]}
        assert measured == {v["vendor"] for v in agent.snapshot()["vendors"] if v["pid"]}
        beats = "xpu_agent_event_loop_lateness_seconds"
        agent.wait_until(lambda: families(agent)[beats][-2][1] > 5, "the event loop goes on")
        status, page = agent.get("")
        assert status == 200
        assert "Recorded host qemu-4numa-8xh100" in page
        workers = [vendor["pid"] for vendor in agent.snapshot()["vendors"]]
        assert agent.end() == 0
    for pid in workers:
        assert not Path(f"/proc/{pid}").exists()


@needs_shared
@pytest.mark.parametrize("name", CRDS)
def test_written_objects_pass_the_schemas_of_a_cluster(tmp_path: Path, name: str) -> None:
    process = run_agent(
        *("run", "--standalone", "--once", "--host", str(EIGHT_CARDS)),
        *("--out", str(tmp_path)),
    )
    assert process.returncode == 0, process.stderr
    schemas.check(CRDS[name], yaml.safe_load((tmp_path / name).read_text()))


def test_a_host_without_devices_is_ready_and_publishes_its_topology(tmp_path: Path) -> None:
    with running(tmp_path / "out", "--host", str(NO_DEVICES)) as agent:
        agent.wait_until(lambda: agent.get("readyz")[0] == 200, "ready")
        published = agent.out / "noderesourcetopology.yaml"
        agent.wait_until(published.exists, "the topology")
        topology = yaml.safe_load(published.read_text())
        assert topology["zones"]
        assert agent.snapshot()["parts"]["devices"]["value"]["devices"] == []


def test_a_worker_that_is_killed_is_replaced_and_the_others_go_on(tmp_path: Path) -> None:
    with running(tmp_path / "out", "--host", str(EIGHT_CARDS)) as agent:
        before = agent.vendor("nvidia")
        rdma = agent.vendor("rdma")["pid"]
        os.kill(before["pid"], signal.SIGKILL)
        agent.wait_until(lambda: agent.vendor("nvidia")["restarts"] >= 1, "a restart")
        agent.wait_until(lambda: agent.vendor("nvidia")["state"] == "ready", "its answer")
        assert agent.vendor("nvidia")["pid"] != before["pid"]
        assert agent.vendor("rdma")["pid"] == rdma
        devices = agent.snapshot()["parts"]["devices"]["value"]["devices"]
        assert len(devices) == 12
        agent.wait_until((agent.out / "events.jsonl").exists, "events")
        agent.wait_until(
            lambda: "VendorWorkerRestarting" in (agent.out / "events.jsonl").read_text(),
            "an event about the worker",
        )


def test_an_output_folder_that_cannot_be_written_is_reported_and_survived(tmp_path: Path) -> None:
    blocked = tmp_path / "out"
    blocked.write_text("a file where the folder should be")
    with running(blocked, "--host", str(EIGHT_CARDS)) as agent:
        refusal = f"[-] publisher:device {blocked}"
        agent.wait_until(lambda: agent.check("publisher:device").startswith(refusal), "a refusal")
        assert agent.get("readyz")[0] == 503
        assert agent.get("livez") == (200, "ok\n")
        assert families(agent)["xpu_device_healthy"]
        blocked.unlink()
        agent.wait_until(lambda: agent.get("readyz")[0] == 200, "recovery")
        assert agent.end() == 0
    text = (tmp_path / "stderr.log").read_text()
    assert text.count('"publish_failed"') <= 3  # once for each publisher


def test_an_address_in_use_is_one_line_and_status_3(tmp_path: Path) -> None:
    with running(tmp_path / "out", "--host", str(NO_DEVICES)) as agent:
        address = agent.url.removeprefix("http://").rstrip("/")
        process = run_agent(
            *("run", "--standalone", "--host", str(NO_DEVICES)),
            *("--out", str(tmp_path / "second"), "--listen", address),
        )
    assert process.returncode == 3
    last = process.stderr.strip().splitlines()[-1]
    assert last.startswith(f"xpu-agent: cannot listen on {address}: Address already in use")


def test_fake_devices_come_from_a_file(tmp_path: Path) -> None:
    cards = tmp_path / "cards.yaml"
    cards.write_text("devices:\n- {uuid: fake-0, minor: 0, memory_bytes: 1073741824}\n")
    with running(
        tmp_path / "out", "--host", str(NO_DEVICES), XPU_AGENT_DISCOVERY__FAKE__FILE=str(cards)
    ) as agent:

        def published() -> list[str]:
            path = agent.out / "device.yaml"
            device = yaml.safe_load(path.read_text()) if path.exists() else {"spec": {}}
            return [item["id"] for item in device["spec"].get("devices", [])]

        # the agent serves before its vendors have answered if they take long
        agent.wait_until(lambda: published() == ["fake-0"], "the device")


def test_the_demonstration_host_is_shown_only_where_nothing_real_is(tmp_path: Path) -> None:
    cards = tmp_path / "cards.yaml"
    cards.write_text("devices:\n- {uuid: fake-0, minor: 0, memory_bytes: 1073741824}\n")
    arguments = ("run", "--standalone", "--once", "--demo-host", str(EIGHT_CARDS))
    real = run_agent(
        *arguments, "--out", str(tmp_path / "a"), XPU_AGENT_DISCOVERY__FAKE__FILE=str(cards)
    )
    assert real.stdout.startswith("This machine.")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_at_any_moment_of_the_start_ends_the_agent_without_a_trace(
    tmp_path: Path, number: signal.Signals
) -> None:
    for step in range(8):
        process = subprocess.Popen(
            command(
                *("run", "--standalone", "--host", str(EIGHT_CARDS), "--listen", "127.0.0.1:0"),
                *("--out", str(tmp_path / str(step))),
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Recorded host")
        time.sleep(step * 0.06)  # spread over the start; each moment must do
        process.send_signal(number)
        _, output = process.communicate(timeout=DEADLINE_S)
        assert process.returncode in (0, -number)
        assert "Traceback" not in output


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_a_serving_agent_ends_in_order_at_other_signals_too(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running(tmp_path / "out", "--host", str(EIGHT_CARDS)) as agent:
        agent.process.send_signal(number)
        assert agent.process.wait(DEADLINE_S) == 0
