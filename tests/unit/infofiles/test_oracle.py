"""What a real koordlet made of device-info files, and what we make of the same files."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from agent.devices.joiner import build_device_view
from agent.host.files import LiveHostFiles
from agent.objects.device import PARTITION_POLICY_LABEL, PARTITIONS_ANNOTATION, DevicePublisher
from agent.snapshot.cpu import CpuTopology, NumaTopology
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciTree
from agent.wire_formats.device_info import DIRECTORY
from plugins.vendors.infofiles.session import InfofilesSession
from plugins.vendors.infofiles.settings import InfofilesSettings
from tests.captures import SHARED, needs_shared
from tests.factory import BOOT_S

pytestmark = needs_shared
LABELS = (
    "node.koordinator.sh/gpu-vendor",
    "node.koordinator.sh/gpu-model",
    PARTITION_POLICY_LABEL,
)
# where koordlet's answer loses the object, a device or the truth; ours is asserted below by name
TRAPS = (
    "blank in code: object refused",
    "bad minor",
    "same minor twice",
    "no topology",
    "model with blank",
)


def cases() -> list[dict[str, Any]]:
    path = SHARED / "oracle" / "device-info-to-device.json"
    return list(json.loads(path.read_text())) if path.is_file() else []


def render(session: InfofilesSession) -> dict[str, Any]:
    view = build_device_view([session.discover()], PciTree(), CpuTopology(), NumaTopology())
    node = NodeIdentity(name="n", boot_time_s=BOOT_S)
    snapshot = NodeSnapshot(node=node, devices=SnapshotPart(view, 1.0))
    (desired,) = DevicePublisher().render(snapshot, 0.0)
    return json.loads(json.dumps(desired.body))  # type: ignore[no-any-return]  # JSON is untyped


@functools.lru_cache(maxsize=1)
def agent_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Feed all cases in the order in which koordlet got them: some keep what was there before."""
    directory = folder / DIRECTORY.lstrip("/")
    directory.mkdir(parents=True)
    session = InfofilesSession(LiveHostFiles(str(folder)), InfofilesSettings())
    answers = {}
    for case in cases():
        for old in directory.iterdir():
            old.unlink()
        for name, content in case["files"].items():
            text = content if isinstance(content, str) else json.dumps(content)
            (directory / name).write_text(text)
        answers[case["id"]] = render(session)
    return answers


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return agent_results(tmp_path_factory.mktemp("host"))


def comparable(spec: dict[str, Any], like: dict[str, Any]) -> list[dict[str, Any]]:
    """Blank out times; a condition where upstream has none is an addition."""
    upstream = {d["id"]: d for d in like.get("devices", [])}
    result = []
    for entry in spec.get("devices", []):
        records = {key: value for key, value in entry.items() if key != "conditions"}
        if "conditions" in upstream.get(entry["id"], {}):
            records["conditions"] = [
                {**c, "lastTransitionTime": "T"} for c in entry.get("conditions", [])
            ]
        result.append(records)
    return result


@pytest.mark.parametrize(
    "case", [c for c in cases() if c["id"] not in TRAPS], ids=lambda case: str(case["id"])
)
def test_our_device_equals_koordlets(
    case: dict[str, Any], answers: dict[str, dict[str, Any]]
) -> None:
    body, expected = answers[case["id"]], case["device"]
    assert comparable(body["spec"], expected["spec"]) == expected["spec"].get("devices", [])
    metadata = body["metadata"]
    assert {k: v for k, v in metadata["labels"].items() if k in LABELS} == expected["labels"]
    assert metadata["annotations"].get(PARTITIONS_ANNOTATION) == expected["annotations"].get(
        PARTITIONS_ANNOTATION
    )


def test_every_case_is_either_equal_or_a_named_trap() -> None:
    assert set(TRAPS) <= {case["id"] for case in cases()}
    assert len(cases()) - len(TRAPS) >= 10


def test_trap_a_blank_in_a_code_costs_koordlet_the_object_and_us_nothing(
    answers: dict[str, dict[str, Any]],
) -> None:
    devices = answers["blank in code: object refused"]["spec"]["devices"]
    assert [(d["id"], d["health"]) for d in devices] == [("huawei-0", True), ("huawei-1", False)]
    (condition,) = devices[1]["conditions"]
    assert (condition["reason"], condition["message"]) == ("ChipError", "Chip Fault (chip error)")


def test_trap_a_model_with_a_blank_is_made_a_label(answers: dict[str, dict[str, Any]]) -> None:
    body = answers["model with blank"]
    assert body["metadata"]["labels"]["node.koordinator.sh/gpu-model"] == "C-500-OAM"
    assert [d["id"] for d in body["spec"]["devices"]] == ["metax-0"]


def test_trap_a_number_that_cannot_be_read_is_not_zero(
    answers: dict[str, dict[str, Any]],
) -> None:
    assert answers["bad minor"]["spec"] == {}


def test_trap_one_number_is_published_once(answers: dict[str, dict[str, Any]]) -> None:
    devices = answers["same minor twice"]["spec"]["devices"]
    assert [(d["id"], d["minor"]) for d in devices] == [("huawei-0", 0)]


def test_trap_a_device_without_topology_says_that_nothing_is_known(
    answers: dict[str, dict[str, Any]],
) -> None:
    body = answers["no topology"]
    (device,) = body["spec"]["devices"]
    assert device["topology"] == {"socketID": -1, "nodeID": -1, "pcieID": ""}
    expected = next(c["device"] for c in cases() if c["id"] == "no topology")
    assert [{**expected["spec"]["devices"][0], "topology": device["topology"]}] == comparable(
        body["spec"], expected["spec"]
    )
    labels = body["metadata"]["labels"]
    assert {k: v for k, v in labels.items() if k in LABELS} == expected["labels"]
