"""Every command as a process: what it prints, and its exit status."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tarfile
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from agent.deviceplugin.messages import API_VERSION
from agent.nri.session import SERVICE
from agent.workers.load import load_vendors
from tests.captures import SHARED, needs_shared
from tests.patience import PATIENCE_S
from tests.process.agent import (
    DEADLINE_S,
    EIGHT_CARDS,
    NO_DEVICES,
    PATIENT,
    ROOT,
    command,
    run_agent,
    running,
)

QEMU = SHARED / "captures" / "qemu" / "sysfs-4numa-8xh100-4rxe.tar.xz"
GPU_BUSES = ["23", "24", "53", "54", "83", "84", "b3", "b4"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("devices",),
        ("devices", "-o", "json"),
        ("topology",),
        ("topology", "-o", "matrix"),
        ("topology", "-o", "json"),
        ("topology", "-o", "svg"),
        ("render", "device"),
        ("render", "topology", "-o", "json"),
    ],
)
def test_two_answers_about_a_recorded_host_are_equal(arguments: tuple[str, ...]) -> None:
    first, second = (run_agent(*arguments, "--host", str(EIGHT_CARDS)) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout
    assert first.stdout == second.stdout


@needs_shared
def test_an_archive_without_vendor_answers_lists_the_cards_and_says_why_no_more() -> None:
    process = run_agent("devices", "-o", "json", "--host", str(QEMU))
    assert process.returncode == 0, process.stderr
    devices = json.loads(process.stdout)["devices"]
    cards = [d for d in devices if d["type"] == "gpu"]
    assert [d["bus_id"] for d in cards] == [f"0000:{bus}:00.0" for bus in GPU_BUSES]
    assert [d["numa_node"] for d in cards] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {d["health"]["reason"] for d in cards} == {"NoRecordedAnswers"}
    assert all(d["memory_bytes"] is None and d["uuid"] is None for d in cards)


def test_the_matrix_shows_links_between_cards_and_switches_to_nics() -> None:
    process = run_agent("topology", "-o", "json", "--host", str(EIGHT_CARDS))
    distances = json.loads(process.stdout)["distances"]
    cards = [f"0000:{bus}:00.0" for bus in GPU_BUSES]
    pairs = {distances[f"{a} {b}"] for a in cards for b in cards if a < b}
    assert pairs == {"NV18"}
    assert distances["0000:23:00.0 0000:25:00.0"] == "PIX"


def test_a_host_without_devices_says_so() -> None:
    process = run_agent("devices", "--host", str(NO_DEVICES))
    assert (process.returncode, process.stderr) == (0, "")
    assert "no accelerator and no RDMA device" in process.stdout


def test_this_machine_is_the_default_host() -> None:
    process = run_agent("snapshot")
    assert process.returncode == 0, process.stderr
    body = json.loads(process.stdout)
    assert body["node"]["source"] == "this machine"
    assert body["parts"]["cpus"]["value"]["usable"]
    assert body["parts"]["usage"]["value"]["node"]["cpu_cores"] is not None


@pytest.mark.parametrize("what", ["device", "nodemetric", "topology"])
def test_render_prints_one_object(what: str) -> None:
    process = run_agent("render", what, "--host", str(EIGHT_CARDS), "--node-name", "n1")
    assert process.returncode == 0, process.stderr
    assert yaml.safe_load(process.stdout)["metadata"]["name"] == "n1"


def test_a_pod_list_names_the_pods(tmp_path: Path) -> None:
    pods = {
        "kind": "PodList",
        "items": [
            {
                "metadata": {"name": "a", "namespace": "b", "uid": "u-1"},
                "spec": {"containers": [{"name": "c"}]},
                "status": {"qosClass": "Burstable", "phase": "Running"},
            }
        ],
    }
    file = tmp_path / "pods.json"
    file.write_text(json.dumps(pods))
    process = run_agent("snapshot", "--host", str(NO_DEVICES), "--pods", str(file))
    assert process.returncode == 0, process.stderr
    assert [p["name"] for p in json.loads(process.stdout)["parts"]["pods"]["value"]] == ["a"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("devices", "--host", "/nonexistent"), 3, "/nonexistent: no such folder or archive"),
        (("devices", "--host", "/etc"), 3, "no `sys`, `proc` or `host.txt`"),
        (("devices", "-o", "xml"), 2, "invalid choice: 'xml'"),
        (("devcies",), 2, "invalid choice: 'devcies'"),
        ((), 2, "the following arguments are required"),
        (("run", "--once"), 2, "add --standalone"),
        (("run", "--demo-host", str(NO_DEVICES)), 2, "--demo-host is for show"),
        (("run", "--kubeconfig", "/nonexistent"), 3, "/nonexistent is no file"),
        (("run", "--standalone", "--listen", "nowhere"), 2, "'nowhere' is not HOST:PORT"),
        (("render", "device", "--pods", "/nonexistent"), 2, "--pods /nonexistent"),
    ],
)
def test_wrong_use_is_one_line_and_a_status(
    arguments: tuple[str, ...], status: int, message: str
) -> None:
    process = run_agent(*arguments)
    assert process.returncode == status
    assert message in process.stderr
    assert len(process.stderr.strip().splitlines()) == 1
    assert process.stdout == ""


def test_an_unknown_setting_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("publish: {pcie_scop: switch}\n")
    process = run_agent("devices", "--config", str(file))
    assert process.returncode == 2
    assert "publish.pcie_scop: unknown key (did you mean 'pcie_scope'?)" in process.stderr
    checked = run_agent("config", "check", str(file))
    assert checked.returncode == 1
    assert "did you mean 'pcie_scope'?" in checked.stderr


def test_references_and_versions_print_in_every_form() -> None:
    for words in (("config", "reference"), ("config", "show"), ("metrics", "reference")):
        table = run_agent(*words)
        assert table.returncode == 0, table.stderr
        rows = json.loads(run_agent(*words, "-o", "json").stdout)
        assert len(next(iter(rows.values()))) == len(table.stdout.splitlines()) - 1
    versions = json.loads(run_agent("version", "-o", "json").stdout)["versions"]
    rows = {row["what"]: row["version"] for row in versions}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {re.split(r"[<>=;]", line)[0] for line in project["dependencies"]}
    assert required <= rows.keys()
    assert not {"pytest", "mypy"} & rows.keys()
    assert all(rows[name] == metadata.version(name) for name in required)
    assert {f"vendor {name}" for name in load_vendors()} <= rows.keys()
    assert rows["vendor nvidia"].startswith("plugins.vendors.nvidia.vendor of xpu-node-agent ")
    assert rows["NRI"] in SERVICE.split(".")
    assert rows["kubelet device plug-in"] == API_VERSION
    assert "xpu-agent" in run_agent("completion", "bash").stdout


def test_a_reader_that_leaves_early_is_no_error() -> None:
    shell = subprocess.run(
        f"set -o pipefail; {shlex.join(command('config', 'reference'))} | head -n 1",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
        check=False,
    )
    assert (shell.returncode, shell.stderr) == (0, "")


def test_every_command_explains_itself_with_examples() -> None:
    for name in ("run", "devices", "topology", "snapshot", "render", "record", "config"):
        process = run_agent(name, "--help")
        assert process.returncode == 0
        assert "examples:" in process.stdout
        assert "exit status:" in process.stdout


def test_a_recording_answers_as_the_host_it_was_made_of(tmp_path: Path) -> None:
    process = run_agent("record", str(tmp_path / "copy"), "--host", str(EIGHT_CARDS))
    assert process.returncode == 0, process.stderr
    assert "answers of nvidia" in process.stdout
    first, second = (
        run_agent("devices", "-o", "json", "--host", host)
        for host in (str(EIGHT_CARDS), str(tmp_path / "copy"))
    )
    assert first.stdout == second.stdout
    again = run_agent("record", str(tmp_path / "copy"), "--host", str(EIGHT_CARDS))
    assert again.returncode == 3
    assert "exists already" in again.stderr


@pytest.mark.parametrize(
    ("host", "status", "failed"),
    [
        ("a100-mig-4x", 0, set()),
        ("atlas-910b3x8", 1, {"device:0000:02:00.0"}),
        ("mlu370-x4-8", 0, set()),
        ("vm-no-devices", 0, set()),
    ],
)
def test_the_doctor_finds_the_fault_of_a_recorded_host_and_no_other(
    host: str, status: int, failed: set[str]
) -> None:
    folder = str(ROOT / "fixtures" / "hosts" / host)
    process = run_agent("doctor", *PATIENT, "-o", "json", "--host", folder)
    assert process.returncode == status, process.stderr
    rows = json.loads(process.stdout)["checks"]
    assert {row["id"] for row in rows if row["result"] == "fail"} == failed
    assert all(row["runbook"] for row in rows if row["id"] in failed)
    assert all(row["seen"] for row in rows)
    # a recording has no cluster, no processes and no clock: nothing is claimed about them
    unknown = {"api-server", "rights", "time", "other-agents", "state", "metrics"}
    assert {row["result"] for row in rows if row["group"] in unknown} == {"skip"}


def files_of(bundle: Path) -> dict[str, bytes]:
    """Return the files of a bundle by name."""
    with tarfile.open(bundle) as archive:
        return {
            member.name.partition("/")[2]: file.read()
            for member in archive
            if (file := archive.extractfile(member)) is not None
        }


def test_a_bundle_is_a_recording_with_metrics_and_objects(tmp_path: Path) -> None:
    bundle = tmp_path / "b.tar.gz"
    process = run_agent("doctor", *PATIENT, "--host", str(EIGHT_CARDS), "--bundle", str(bundle))
    assert process.returncode == 0, process.stderr
    files = files_of(bundle)
    assert b"xpu_device_memory_total_bytes" in files["metrics.txt"]
    rendered = run_agent("render", "device", "--host", str(EIGHT_CARDS)).stdout
    assert files["objects/device.yaml"].decode() == rendered
    assert {"objects/nodemetric.yaml", "objects/noderesourcetopology.yaml"} <= files.keys()
    assert json.loads(files["agent.json"]) is None
    first, second = (
        run_agent("devices", "-o", "json", "--host", host).stdout
        for host in (str(EIGHT_CARDS), str(bundle))
    )
    assert first == second


def test_a_bundle_of_a_running_agent_has_what_that_publishes(tmp_path: Path) -> None:
    bundle = tmp_path / "b.tar.gz"
    cards = tmp_path / "cards.yaml"
    cards.write_text("devices: [{uuid: FAKE-7f3a9c21-0000, minor: 0}]\n")
    scene = {"XPU_AGENT_DISCOVERY__FAKE__FILE": str(cards), "XPU_AGENT_NODE__NAME": "worker-17"}
    with running(tmp_path / "out", "--host", "/", **scene) as agent:
        path = agent.out / "device.yaml"
        agent.wait_until(
            lambda: path.exists() and "FAKE-7f3a9c21-0000" in path.read_text(), "the object"
        )
        agent.wait_until(lambda: agent.get("readyz") == (200, "ok\n"), "all that it starts")
        published = yaml.safe_load(path.read_text())
        own = {**scene, "XPU_AGENT_METRICS__LISTEN": agent.url.split("/")[2]}
        line = ("doctor", *PATIENT, "--bundle", str(bundle))
        process = run_agent(*line, timeout_s=DEADLINE_S, **own)
        # 1: this machine's own runtime or kubelet may be what the doctor calls a failure
        assert process.returncode in (0, 1), process.stderr
        files = files_of(bundle)
        run_agent(*line, "--pseudonymise", timeout_s=DEADLINE_S, **own)
        assert agent.end() == 0
    assert yaml.safe_load(files["objects/device.yaml"]) == published
    assert {"healthz.txt", "events.json", "audit.json", "metrics.txt"} <= files.keys()
    assert b"worker-17" in files["agent.json"]
    assert not [name for name, data in files_of(bundle).items() if b"worker-17" in data]


def test_pseudonyms_are_for_bundles() -> None:
    process = run_agent("doctor", "--pseudonymise", "--host", str(NO_DEVICES))
    assert process.returncode == 2
    assert "--bundle FILE" in process.stderr
