"""The agent's checks on itself, as alerts read them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from agent.metrics.exposition import MetricsRenderer
from agent.snapshot.cluster import (
    ANOTHER_MACHINE,
    ApiSessionStatus,
    ClusterServiceStatus,
    WritePermission,
)
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.self_check import LoopStatus, SelfCheck
from tests.factory import NOW_S, snapshot

LOOP = LoopStatus(name="usage", interval_s=1.0, last_success_s=NOW_S)
LOCK = SelfCheck(name="lock", ok=False, message="another file", gates_ready=False)
OTHER = WritePermission(is_allowed=False, reason=ANOTHER_MACHINE, message="not this machine")


def read_node() -> NodeSnapshot:
    """A node of which every part has been read."""
    node = replace(snapshot(()), loops=(LOOP,))
    parts = {name: getattr(node, name) for name in ("cpus", "numa", "pci", "devices")}
    return replace(node, **{name: replace(part, taken_s=NOW_S) for name, part in parts.items()})


def values(node: NodeSnapshot, name: str) -> dict[str, float]:
    """Return the values of a family by its own label."""
    page = MetricsRenderer({}).render(node, NOW_S).decode()
    return {
        "".join(text for key, text in sample.labels.items() if key != "node"): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name
    }


def clustered(permission: WritePermission) -> NodeSnapshot:
    status = ClusterServiceStatus(
        session=ApiSessionStatus(),
        watches=(),
        writers=(),
        events=None,
        kubelet=None,
        write_permission=permission,
    )
    return replace(read_node(), cluster_service=status)


def test_each_check_is_a_series_that_is_0_while_it_fails() -> None:
    node = replace(read_node(), checks=(LOCK,))
    checks = values(node, "xpu_agent_self_check")
    assert (checks["lock"], checks["loop:usage"]) == (0, 1)


@pytest.mark.parametrize(("gates_ready", "ready"), [(False, True), (True, False)])
def test_the_agent_is_ready_as_the_probe_answers(gates_ready: bool, ready: bool) -> None:
    node = replace(read_node(), checks=(replace(LOCK, gates_ready=gates_ready),))
    assert values(read_node(), "xpu_agent_ready") == {"": 1}
    assert values(node, "xpu_agent_ready") == {"": int(ready)}


def test_a_command_that_reads_the_host_once_has_no_checks() -> None:
    page = MetricsRenderer({}).render(snapshot(()), NOW_S)
    assert b"xpu_agent_ready" not in page
    assert b"xpu_agent_self_check" not in page


def test_a_node_of_another_machine_is_told_with_its_reason() -> None:
    name = "xpu_agent_node_writes_allowed"
    assert values(clustered(OTHER), name) == {ANOTHER_MACHINE: 0}
    assert values(clustered(WritePermission(is_allowed=True)), name) == {"": 1}
    assert values(snapshot(()), name) == {}
