from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fixtures.hosts.make_atlas import MACHINES, build
from tests.captures import SHARED, needs_shared
from tests.process.agent import ROOT, run_agent
from tests.stubs.dcmi.tape import record

HOSTS = ROOT / "fixtures" / "hosts"
PARTITIONS = "scheduling.koordinator.sh/gpu-partitions"
POLICY = "node.koordinator.sh/gpu-partition-policy"


def rendered(name: str) -> dict[str, Any]:
    """Return the Device object of a recorded host."""
    result = run_agent("render", "device", "--host", str(HOSTS / name), "--node-name", "atlas-01")
    document: dict[str, Any] = yaml.safe_load(result.stdout)
    return document


def worked_example() -> dict[str, Any]:
    text = (SHARED / "reference" / "crds-and-metrics.md").read_text()
    _, _, section = text.partition("### 21.2 ")
    document: dict[str, Any] = yaml.safe_load(section.partition("```yaml\n")[2].partition("```")[0])
    return document


@needs_shared
def test_the_recorded_host_is_published_as_the_worked_example() -> None:
    document, example = rendered("atlas-910b3x8"), worked_example()
    assert example["metadata"]["labels"].items() <= document["metadata"]["labels"].items()
    tables = [m["metadata"]["annotations"][PARTITIONS] for m in (document, example)]
    assert json.loads(tables[0]) == json.loads(tables[1])
    devices, expected_devices = document["spec"]["devices"], example["spec"]["devices"]
    assert len(devices) == len(expected_devices) == 8
    for one, other in zip(devices, expected_devices, strict=True):
        # the agent treats a die id of zeros as missing
        assert one["id"] == other["id"] or other["minor"] == 0
        for key in ("type", "minor", "health", "resources"):
            assert one[key] == other[key]
        for key in ("nodeID", "pcieID", "busID"):  # the agent adds the socket
            assert one["topology"][key] == other["topology"][key]
        (condition,), (expected,) = one["conditions"], other["conditions"]
        assert {**condition, "lastTransitionTime": ""} == {**expected, "lastTransitionTime": ""}


def test_a_super_node_is_published_with_its_pairs_and_its_policy() -> None:
    document = rendered("atlas-a3x16")
    table = json.loads(document["metadata"]["annotations"][PARTITIONS])
    assert [entry["minors"] for entry in table["2"]] == [[a, a + 1] for a in range(0, 16, 2)]
    assert {entry["gpuLinkType"] for entry in table["2"]} == {"SIO"}
    assert {size: len(rows) for size, rows in table.items()} == {
        "2": 8,
        "4": 28,
        "6": 56,
        "8": 70,
        "10": 56,
        "12": 28,
        "14": 8,
        "16": 1,
    }
    assert [entry["minors"] for entry in table["16"]] == [list(range(16))]
    assert [entry["minors"] for entry in table["4"]][:5] == [
        *([*range(at, at + 4)] for at in range(0, 16, 4)),
        [0, 1, 4, 5],
    ]
    assert document["metadata"]["labels"][POLICY] == "Honor"
    assert document["metadata"]["labels"]["node.koordinator.sh/gpu-model"] == "Ascend-910C"
    pod = json.loads(document["metadata"]["annotations"]["xpu-agent.io/super-pod"])
    assert (pod["superPodId"], len(pod["sdid"])) == (7, 16)


@pytest.mark.parametrize("name", ["atlas-910b3x8", "atlas-a3x16"])
def test_chips_are_listed_with_where_they_sit(name: str) -> None:
    machine = MACHINES[name.removeprefix("atlas-")]
    lines = run_agent("devices", "--host", str(HOSTS / name)).stdout.splitlines()
    rows = [line.split() for line in lines if line.startswith("NPU")]
    assert [words[1] for words in rows] == [str(n) for n in range(len(machine.buses))]
    assert [words[4] for words in rows] == [f"0000:{bus}:00.0" for bus in machine.buses]
    nodes = dict(machine.roots)
    homes = [str(nodes[f"{int(bus, 16) & 0xE0:02x}"]) for bus in machine.buses]
    assert [words[5] for words in rows] == homes


@pytest.mark.parametrize("name", ["atlas-910b3x8", "atlas-a3x16"])
def test_host_and_tape_are_what_their_makers_make(name: str) -> None:
    assert (HOSTS / name / "host.txt").read_text() == build(name.removeprefix("atlas-"))
    assert (HOSTS / name / "tapes/ascend.jsonl").read_bytes() == record(name)


@pytest.mark.parametrize("name", ["atlas-910b3x8", "atlas-a3x16"])
def test_their_metrics_are_of_what_the_chips_do(name: str) -> None:
    result = run_agent("render", "metrics", "--host", str(HOSTS / name))
    lines = [line for line in result.stdout.splitlines() if line.startswith("xpu_npu_utilization")]
    assert any('unit="aicore"' in line and not line.endswith(" 0") for line in lines)
    powers = [n for n in result.stdout.splitlines() if n.startswith("xpu_device_power_watts{")]
    assert len(powers) == 8  # the second dies report none


def test_a_recording_keeps_the_facts_of_the_chips_and_no_names(tmp_path: Path) -> None:
    out = tmp_path / "recorded"
    host = HOSTS / "atlas-a3x16"
    result = run_agent("record", "--host", str(host), "--pseudonymise", str(out))
    assert result.returncode == 0
    text = (out / "host.txt").read_text()
    assert all(f"davinci{n} @ 236:{n}" in text for n in range(16))
    assert "|Version=24.1.rc1" in text
    tape = (out / "tapes/ascend.jsonl").read_text()
    dies = re.findall(r'"uuid":"([0-9A-F-]{44})"', tape.splitlines()[1])
    assert len(set(dies)) == 16
    assert not [die for die in dies if die.startswith("A3000000")]
