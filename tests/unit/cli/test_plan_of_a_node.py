"""The plan of a recorded node with pods of two classes, by all strategies that the agent has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.cli.parser import build_parser
from agent.cli.plan import plan
from agent.config.containers import EnforceStrategiesSettings
from tests.cgroups import CgroupHost, container_id

ROOT = "/sys/fs/cgroup/kubepods"
SLO: dict[str, Any] = {
    "kind": "NodeSLO",
    "metadata": {"name": "node"},
    "spec": {
        "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 60},
        "cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": 200},
        "resourceQOSStrategy": {
            "lsClass": {
                "memoryQOS": {"enable": True, "minLimitPercent": 100, "throttlingPercent": 80}
            },
            "beClass": {"resctrlQOS": {"enable": True, "catRangeEndPercent": 30}},
        },
        "systemStrategy": {"watermarkScaleFactor": 200},
    },
}
FILES = {
    "cpu.max": "max 100000",
    "cpu.max.burst": "0",
    "cpu.weight": "100",
    "cpu.idle": "0",
    "cpuset.cpus": "",
    "cpuset.cpus.effective": "0-7",
    "memory.max": "max",
    "memory.min": "0",
    "memory.low": "0",
    "memory.high": "max",
    "memory.current": "1000000",
    "cgroup.procs": "",
}


class RecordedNode:
    """Eight CPUs, a latency-sensitive pod with a limit of two cores, and a best-effort pod."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = CgroupHost(folder / "host")
        self._cpus()
        for group in ("", "/burstable", "/besteffort"):
            self._files(group)
        pods = [
            self._pod(1, "burstable", "LS", {"cpu": "2", "memory": "1Gi"}),
            self._pod(2, "besteffort", "BE", {"kubernetes.io/batch-cpu": "500"}),
        ]
        (folder / "slo.yaml").write_text(yaml.safe_dump(SLO))
        podlist = {"apiVersion": "v1", "kind": "PodList", "items": pods}
        (folder / "pods.json").write_text(json.dumps(podlist))

    def planned(self, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
        """Return exit status and JSON of a plan."""
        options = (
            *("plan", "--host", str(self.host.root), "-o", "json"),
            *("--slo", str(self.folder / "slo.yaml"), "--pods", str(self.folder / "pods.json")),
        )
        status = plan(build_parser().parse_args(options))
        return status, json.loads(capsys.readouterr().out)

    def _cpus(self) -> None:
        base = "/sys/devices/system"
        for number in range(8):
            topology = f"{base}/cpu/cpu{number}/topology"
            self.host.write(f"{topology}/core_cpus", f"{3 << (number // 2 * 2):x}\n")
            self.host.write(f"{topology}/package_cpus", "ff\n")
            self.host.write(f"{topology}/physical_package_id", "0\n")
        self.host.write(f"{base}/cpu/online", "0-7\n")
        self.host.write(f"{base}/node/online", "0\n")
        self.host.write(f"{base}/node/node0/cpumap", "ff\n")
        self.host.write(f"{base}/node/node0/meminfo", "Node 0 MemTotal: 1000000 kB\n")
        self.host.write(f"{base}/node/node0/distance", "10\n")

    def _files(self, group: str, **changes: str) -> None:
        for name, text in {**FILES, **changes}.items():
            self.host.write(f"{ROOT}{group}/{name}", f"{text}\n")

    def _pod(self, number: int, tier: str, qos: str, limits: dict[str, str]) -> dict[str, Any]:
        uid = f"11111111-2222-3333-4444-{number:012d}"
        quota = {"cpu.max": "200000 100000"} if "cpu" in limits else {}
        for group in (f"/{tier}/pod{uid}", f"/{tier}/pod{uid}/{container_id(number)}"):
            self.host.group(group, cpu_ns=10**9)
            self._files(group, **quota)
        identity = {"name": f"pod-{number}", "namespace": "default", "uid": uid}
        container = {"name": "main", "resources": {"limits": limits, "requests": limits}}
        running = {"name": "main", "containerID": f"containerd://{container_id(number)}"}
        return {
            "metadata": {**identity, "labels": {"koordinator.sh/qosClass": qos}},
            "spec": {"containers": [container]},
            "status": {"phase": "Running", "containerStatuses": [running]},
        }


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedNode:
    for name in EnforceStrategiesSettings.__struct_fields__:
        monkeypatch.setenv(f"XPU_AGENT_ENFORCE__STRATEGIES__{name.upper()}", "on")
    return RecordedNode(tmp_path)


def test_every_strategy_says_what_it_would_do_or_why_it_does_nothing(
    node: RecordedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    status, shown = node.planned(capsys)
    strategies = {strategy["strategy"]: strategy for strategy in shown["strategies"]}
    states = {name: one["state"] for name, one in strategies.items()}
    assert states["cpu_burst"] == states["memory_qos"] == "active"
    assert states["block_io"] == "idle"
    assert states["cpu_suppression"] == "waiting", "usage stands still on a recording"
    assert states["kernel_settings"] == states["resctrl"] == "unsupported"
    assert "/proc/sys/vm/watermark_scale_factor" in strategies["kernel_settings"]["why"]
    assert status == 1, "the kernel cannot do all that is asked for"


def test_each_change_names_the_field_that_requests_it(
    node: RecordedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    _, shown = node.planned(capsys)
    changes = {(row["owner"], row["path"].rpartition("/")[2]): row for row in shown["changes"]}
    burst = changes["cpu_burst", "cpu.max.burst"]
    assert (burst["current"], burst["desired"]) == ("0", "200000"), "never above the quota"
    assert burst["source"].startswith("NodeSLO spec.cpuBurstStrategy")
    high = changes["memory_qos", "memory.high"]
    assert high["current"] == "max"
    assert high["source"].startswith("NodeSLO spec.resourceQOSStrategy")
    assert all(row["source"] or row["message"] for row in shown["changes"])


def test_of_a_kernel_with_resctrl_groups_and_their_schemata_are_planned(
    node: RecordedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    host, point = node.host, "/sys/fs/resctrl"
    mounts = host.path("/proc/mounts").read_text()
    line = f"36 25 0:31 / {point} rw,relatime - resctrl resctrl rw\n"
    host.write("/proc/self/mountinfo", line)
    host.write("/proc/mounts", f"{mounts}resctrl {point} resctrl rw 0 0\n")
    host.write(f"{point}/schemata", "    L3:0=7ff\n")
    for name, text in (("cbm_mask", "7ff"), ("min_cbm_bits", "1"), ("num_closids", "16")):
        host.write(f"{point}/info/L3/{name}", f"{text}\n")
    _, shown = node.planned(capsys)
    rows = [
        (row["action"], row["path"], row["desired"])
        for row in shown["changes"]
        if row["owner"] == "resctrl"
    ]
    assert rows == [
        ("make", f"{point}/BE", "make"),
        ("write", f"{point}/BE/schemata", "L3:0=f"),
    ]
