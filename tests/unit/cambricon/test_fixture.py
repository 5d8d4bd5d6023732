from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fixtures.hosts.invent_mlu370 import build
from tests.captures import SHARED, needs_shared
from tests.process.agent import ROOT, run_agent
from tests.stubs.cndev.tape import record

HOST = ROOT / "fixtures" / "hosts" / "mlu370-x4-8"
PLACE = ("nodeID", "pcieID", "busID")  # the agent adds the socket


@pytest.fixture(scope="module")
def rendered() -> dict[str, Any]:
    """Return the Device object of the recorded host."""
    result = run_agent("render", "device", "--host", str(HOST), "--node-name", "mlu370-01")
    document: dict[str, Any] = yaml.safe_load(result.stdout)
    return document


def _worked_example() -> dict[str, Any]:
    text = (SHARED / "reference" / "crds-and-metrics.md").read_text()
    _, _, section = text.partition("### 21.3 ")
    document: dict[str, Any] = yaml.safe_load(section.partition("```yaml\n")[2].partition("```")[0])
    return document


@needs_shared
def test_the_recorded_host_is_published_as_the_worked_example(rendered: dict[str, Any]) -> None:
    example = _worked_example()
    labels = example["metadata"]["labels"]
    assert labels.items() <= rendered["metadata"]["labels"].items()
    devices, expected_devices = rendered["spec"]["devices"], example["spec"]["devices"]
    assert len(devices) == len(expected_devices) == 8
    for one, other in zip(devices, expected_devices, strict=True):
        for key in ("type", "id", "minor", "health", "resources"):
            assert one[key] == other[key]
        assert {k: one["topology"][k] for k in PLACE} == {k: other["topology"][k] for k in PLACE}
        for condition, expected in zip(one["conditions"], other["conditions"], strict=True):
            assert {**condition, "lastTransitionTime": ""} == {**expected, "lastTransitionTime": ""}


def test_cards_without_links_have_no_partition_table(rendered: dict[str, Any]) -> None:
    assert not [key for key in rendered["metadata"]["annotations"] if "partition" in key]


def test_the_cards_are_listed_with_where_they_sit() -> None:
    lines = run_agent("devices", "--host", str(HOST)).stdout.splitlines()[1:]
    assert [line.split()[:4] for line in lines] == [
        ["MLU", str(minor), "cambricon", "MLU370-X4"] for minor in range(8)
    ]
    assert all("healthy" in line for line in lines)


def test_host_and_tape_are_what_their_makers_make() -> None:
    assert build() == (HOST / "host.txt").read_text()
    assert record() == Path(HOST / "tapes" / "cambricon.jsonl").read_bytes()
