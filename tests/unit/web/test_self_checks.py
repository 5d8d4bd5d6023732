"""The agent's checks on itself: pure functions of the snapshot."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.runbook.self_checks import cluster_checks, container_checks, self_report
from agent.snapshot.cluster import (
    ANOTHER_MACHINE,
    ApiSessionStatus,
    ClusterServiceStatus,
    EventSinkState,
    KubeletStatus,
    PodResourcesProxyStatus,
    WatchPhase,
    WatchStatus,
    WritePermission,
)
from agent.snapshot.container import ContainerServiceStatus, NriStatistics, RuntimeView
from agent.snapshot.device_plugin import DevicePluginView, PluginResource
from agent.snapshot.inventory import Problem
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.self_check import LoopStatus, SelfCheck
from tests.unit.web.view import eight_cards

NODE = NodeSnapshot(node=NodeIdentity(name="n"))
CLUSTER = ClusterServiceStatus(
    session=ApiSessionStatus(reachable=False, last_error="refused", requests={("GET", "none"): 2}),
    watches=(
        WatchStatus(resource="nodeslos", phase=WatchPhase.ABSENT, last_error="404"),
        WatchStatus(resource="pods", phase=WatchPhase.ABSENT, last_error="404"),
    ),
    writers=(),
    events=EventSinkState(error="403"),
    kubelet=KubeletStatus(pods="hanging", detail="no answer"),
    proxy=PodResourcesProxyStatus(is_serving=True),
)
CONTAINERS = ContainerServiceStatus(
    nri=NriStatistics(),
    offer_problems=(("nvidia", Problem(reason="NoSlices", message="none fits")),),
    file_problems=("WritesStopped: cpu.max",),
    cdi_problem="",
)
RUNTIME = SnapshotPart(RuntimeView(state="refused", reason="TwoAgents", message="x"), 1.0)
SERVED = SnapshotPart(
    DevicePluginView(resources=(PluginResource(name="a/gpu", vendor="a", state="watched"),)), 1.0
)


def lines(checks: list[SelfCheck]) -> list[tuple[str, bool, str]]:
    return [(check.name, check.ok, check.message) for check in checks]


def test_each_part_of_the_cluster_service_is_checked_and_an_optional_kind_may_be_absent() -> None:
    checks = cluster_checks(replace(NODE, cluster_service=CLUSTER))
    assert lines(checks) == [
        ("node", True, "this machine's"),
        ("api-server", False, "refused; 2 requests, 0 streams"),
        ("watch:nodeslos", True, "absent, 0 objects, 0 events: 404"),
        ("watch:pods", False, "absent, 0 objects, 0 events: 404"),
        ("kubelet", False, "pods hanging, settings starting: no answer"),
        ("pod-resources-proxy", True, ""),
        ("events-at-api-server", False, "403"),
    ]
    assert not any(check.gates_ready for check in checks)


@pytest.mark.parametrize(("reason", "gates"), [(ANOTHER_MACHINE, True), ("NodeAbsent", False)])
def test_only_the_node_of_another_machine_makes_the_agent_unready(reason: str, gates: bool) -> None:
    permission = WritePermission(is_allowed=False, reason=reason, message="why")
    status = replace(CLUSTER, write_permission=permission)
    node = cluster_checks(replace(NODE, cluster_service=status))[0]
    assert (node.ok, node.message, node.gates_ready) == (False, "why", gates)


def test_each_way_into_containers_is_checked_and_none_gates_readiness() -> None:
    snapshot = replace(NODE, container_service=CONTAINERS, runtime=RUNTIME, served=SERVED)
    checks = container_checks(snapshot)
    assert lines(checks) == [
        ("runtime", False, "refused TwoAgents x"),
        ("kubelet:a/gpu", True, "watched"),
        ("offered:nvidia", False, "NoSlices: none fits"),
        ("pod-files", False, "WritesStopped: cpu.max"),
        ("cdi-files", True, ""),
    ]
    assert not any(check.gates_ready for check in checks)


def test_what_is_switched_off_has_no_check() -> None:
    off = replace(CLUSTER, events=None, kubelet=None, proxy=None, watches=())
    names = [check.name for check in cluster_checks(replace(NODE, cluster_service=off))]
    assert names == ["node", "api-server"]
    assert container_checks(replace(NODE, container_service=ContainerServiceStatus())) == []
    assert cluster_checks(NODE) == container_checks(NODE) == []


def test_the_report_holds_all_checks_in_order_and_a_late_loop_makes_the_agent_unready() -> None:
    loop = LoopStatus(name="collect", interval_s=1.0, last_success_s=50.0)
    snapshot = eight_cards(
        cluster_service=CLUSTER,
        container_service=ContainerServiceStatus(cdi_problem=""),
        loops=(loop,),
        checks=(SelfCheck(name="lock", ok=True),),
    )
    report = self_report(snapshot, 55.0)
    names = [check.name for check in report.checks]
    assert (names[0], names[-1]) == ("loop:collect", "cdi-files")
    assert names.index("part:cpus") < names.index("lock") < names.index("node")
    assert report.is_ready
    assert not self_report(snapshot, 61.0).is_ready
