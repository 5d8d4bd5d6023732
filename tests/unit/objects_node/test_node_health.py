"""The examples of docs/node-health.md select exactly the nodes that they should."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from agent.app.composition import create_inputs
from agent.app.oneshot import inspect_host
from agent.clock import SYSTEM_CLOCK
from agent.config.sources import decode_settings
from agent.objects.fault_conditions import CONDITION_TYPES, FAULT_TYPES, REPAIR_REQUIRED
from agent.objects.node import NodeConditionPublisher
from agent.recording.host_source import open_host
from tests import clustered
from tests.unit.daemonset.cel import evaluate

Tree = Any
ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "docs" / "node-health"
HOSTS = ROOT / "fixtures" / "hosts"
DOCUMENT = (ROOT / "docs" / "node-health.md").read_text()
CARDS = "qemu-4numa-8xh100"
# of NVSentinel's health events
ACTIONS = {"NONE", "COMPONENT_RESET", "CONTACT_SUPPORT", "RUN_FIELDDIAG", "RESTART_VM",
           "RESTART_BM", "REPLACE_VM", "RUN_DCGMEUD", "UNKNOWN"}  # fmt: skip


def example(name: str) -> Tree:
    return yaml.safe_load((EXAMPLES / name).read_text())


def policies(name: str) -> list[Tree]:
    listed: list[Tree] = example(name)["kubernetes-object-monitor"]["policies"]
    return listed


def sick_host(folder: Path, reason: str) -> Path:
    """Return a copy of the recorded cards of which the third reports a fault."""
    host = folder / "sick"
    shutil.copytree(HOSTS / CARDS, host)
    tape = host / "tapes" / "nvidia.jsonl"
    lines = [json.loads(line) for line in tape.read_text().splitlines()]
    for line in lines:
        if line.get("method") == "discover":
            health = line["answer"]["devices"][2]["health"]
            health |= {"state": "failed", "reason": reason, "message": "broken", "since_s": 5e8}
        for sample in line["answer"] if line.get("method") == "sample" else ():
            sample["health"] = None
    tape.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return host


def published(host: Path) -> Tree:
    """Return the Node as a controller gets it: our conditions beside the kubelet's."""
    inputs = create_inputs(
        decode_settings({"node": {"name": clustered.NAME}}), open_host(str(host)), SYSTEM_CLOCK
    )
    inspect_host(inputs)
    now = inputs.store.put(cluster=clustered.snapshot().cluster)
    (desired,) = NodeConditionPublisher(runbook=inputs.runbook).render(now, 6e8)
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    conditions = [ready, *desired.body["status"]["conditions"]]  # type: ignore[index]
    node = {"metadata": {"name": clustered.NAME}, "status": {"conditions": conditions}}
    return json.loads(json.dumps(node))


def matching(name: str, node: Tree) -> set[str]:
    return {
        policy["name"].removeprefix("xpu-agent-")
        for policy in policies(name)
        if evaluate(policy["predicate"]["expression"], {"resource": node})
    }


@pytest.mark.parametrize("name", ["nvsentinel-observe.yaml", "nvsentinel-act.yaml"])
@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("Xid95", {"repair-reset", "fault-memory"}),
        ("Xid79", {"repair-reboot", "fault-pcie"}),
        ("SRAMThreshold", {"repair-replace", "fault-memory"}),
        ("Flapping", {"fault-processor"}),
    ],
)
def test_the_predicates_select_a_recorded_sick_host_by_its_fault_and_action(
    name: str, reason: str, expected: set[str], tmp_path: Path
) -> None:
    assert matching(name, published(sick_host(tmp_path, reason))) == expected


def test_the_predicates_select_a_recorded_host_with_a_broken_chip_and_no_healthy_one() -> None:
    broken = matching("nvsentinel-act.yaml", published(HOSTS / "atlas-910b3x8"))
    assert {"fault-processor"} < broken
    healthy = published(HOSTS / "a100-mig-4x")
    assert matching("nvsentinel-act.yaml", healthy) == set()
    silent = json.loads(json.dumps(healthy))
    for condition in silent["status"]["conditions"]:
        if condition["type"] in FAULT_TYPES:
            condition |= {"status": "Unknown", "reason": "DriverStalled"}
    assert matching("nvsentinel-act.yaml", silent) == set()


@pytest.mark.parametrize("name", ["nvsentinel-observe.yaml", "nvsentinel-act.yaml"])
def test_a_policy_does_not_have_the_name_of_a_condition_that_the_agent_owns(name: str) -> None:
    """NVSentinel sets a condition with the policy's name as its type."""
    names = [policy["name"] for policy in policies(name)]
    assert len(set(names)) == len(names)
    assert not set(names) & FAULT_TYPES
    assert {one["healthEvent"]["recommendedAction"] for one in policies(name)} <= ACTIONS


def test_the_first_stage_changes_no_node_and_the_second_acts_on_repairs_alone() -> None:
    assert example("nvsentinel-observe.yaml")["global"]["dryRun"] is True
    for policy in policies("nvsentinel-observe.yaml"):
        event = policy["healthEvent"]
        assert event["isFatal"] is False
        assert event["quarantineOverrides"] == event["drainOverrides"] == {"skip": True}
    act = {one["name"]: one["healthEvent"] for one in policies("nvsentinel-act.yaml")}
    assert {name for name, event in act.items() if event["isFatal"]} == {
        "xpu-agent-repair-reset",
        "xpu-agent-repair-reboot",
        "xpu-agent-repair-replace",
    }
    assert "dryRun" not in example("nvsentinel-act.yaml")["global"]


def test_both_stages_watch_every_class_of_faults() -> None:
    for name in ("nvsentinel-observe.yaml", "nvsentinel-act.yaml"):
        text = " ".join(one["predicate"]["expression"] for one in policies(name))
        assert all(f'"{kind}"' in text for kind in (*CONDITION_TYPES.values(), REPAIR_REQUIRED))


def selects(conditions: list[Tree], node: Tree) -> bool:
    """Return whether one of these pairs of type and status is a condition of the node."""
    present = {(one["type"], one["status"]) for one in node["status"]["conditions"]}
    return any((one["type"], one["status"]) in present for one in conditions)


def readers() -> Iterator[tuple[str, list[Tree]]]:
    for stage in ("observe", "act"):
        check = example(f"node-healthcheck-{stage}.yaml")
        yield f"node-healthcheck-{stage}", check["spec"]["unhealthyConditions"]
        container = example(f"draino-{stage}.yaml")["spec"]["template"]["spec"]["containers"][0]
        pairs = [re.fullmatch(r"(\w+)=(\w+),\d+[smh]", one) for one in container["command"]]
        yield (
            f"draino-{stage}",
            [{"type": pair[1], "status": pair[2]} for pair in pairs if pair is not None],
        )


def test_readers_of_type_and_status_select_nodes_that_need_a_repair_only(tmp_path: Path) -> None:
    sick, healthy = published(sick_host(tmp_path, "Xid79")), published(HOSTS / "a100-mig-4x")
    for name, conditions in readers():
        assert conditions, name
        assert selects(conditions, sick), name
        assert not selects(conditions, healthy), name


def test_the_first_stage_of_the_readers_of_conditions_acts_on_nothing() -> None:
    assert example("node-healthcheck-observe.yaml")["spec"]["pauseRequests"]
    assert "pauseRequests" not in example("node-healthcheck-act.yaml")["spec"]
    dry, act = (
        example(f"draino-{stage}.yaml")["spec"]["template"]["spec"]["containers"][0]["command"]
        for stage in ("observe", "act")
    )
    assert "--dry-run" in dry
    assert "--dry-run" not in act


def test_the_document_names_every_condition_and_every_example() -> None:
    for kind in FAULT_TYPES:
        assert f"`{kind}`" in DOCUMENT
    for path in EXAMPLES.iterdir():
        assert f"node-health/{path.name}" in DOCUMENT


def test_the_example_of_a_message_is_one_that_is_published(tmp_path: Path) -> None:
    node = published(sick_host(tmp_path, "Xid95"))
    repair = next(one for one in node["status"]["conditions"] if one["type"] == REPAIR_REQUIRED)
    pattern = re.compile(
        r"action=(?P<action>[a-z-]+); out of service: (?P<count>\d+); (?P<devices>.+)"
    )
    match = pattern.fullmatch(repair["message"])
    assert match is not None
    assert (match["action"], match["count"]) == ("drain-and-reset", "1")
    assert pattern.search(DOCUMENT), "the document shows a message of this form"


def test_a_snapshot_without_devices_keeps_the_live_conditions() -> None:
    now = replace(clustered.snapshot())
    assert NodeConditionPublisher().render(now, 6e8) == ()
