"""Inputs of checks for tests: those of a node that is well, and changes of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from agent.config.containers import NriSettings
from agent.config.settings import Settings
from agent.doctor.check import CheckInputs, CheckResult, CheckStatus, RuntimeProcess
from agent.doctor.facts import ApiFacts, ApiReply
from agent.doctor.host_checks import PRESSURE
from agent.doctor.node_report import node_report
from agent.doctor.rights import EXCESS_RIGHTS, KUBELET_PROXY, needed_rights
from agent.snapshot.node import NodeSnapshot
from tests import factory

SOCKET = NriSettings().socket
CONTAINERD = RuntimeProcess(name="containerd", pid=7, memlock_bytes=65536, is_memlock_known=True)
NODE = "node-a"
NOW_S = 1_767_323_045.0  # 2026-01-02T03:04:05Z
MACHINE_ID = "0123456789abcdef0123456789abcdef"


def node() -> NodeSnapshot:
    """Return a node with a GPU and a NIC that are well."""
    return factory.snapshot((factory.gpu(0), factory.nic(0)), ())


def facts(snapshot: NodeSnapshot | None = None, **changes: object) -> CheckInputs:
    """Return what a look at a healthy live node finds, but for `changes`."""
    checks = snapshot or node()
    well = CheckInputs(
        settings=Settings(),
        snapshot=checks,
        node=node_report(checks),
        is_live=True,
        is_root=True,
        agent=agent_with(
            "runtime", {"state": "synchronized", "runtime": "containerd", "version": "2.1.0"}
        ),
        runtimes=(replace(CONTAINERD, memlock_bytes=None),),
        paths=frozenset({SOCKET}),
        cgroup_version=2,
        cgroup_driver="systemd",
        protobuf="upb",
        texts={PRESSURE: "some avg10=0.00"},
        device_runtimes=("nvidia", "ascend"),
    )
    return replace(well, **changes)


def agent_with(part: str, value: Mapping[str, object]) -> dict[str, object]:
    """Return the running agent's snapshot with one part about containers."""
    return {"containers": {part: {"value": value}}}


def cluster_with(part: str, value: object, age_s: float | None = 5.0) -> dict[str, object]:
    """Return the running agent's snapshot with one part about the cluster."""
    return {"cluster": {part: {"age_s": age_s, "error": None, "value": value}}}


def of(check_results: tuple[CheckResult, ...], check: str) -> CheckResult:
    """Return the finding of one check."""
    (one,) = [check_result for check_result in check_results if check_result.id == check]
    return one


def statuses(results: tuple[CheckResult, ...], check: str) -> set[CheckStatus]:
    """Return the statuses of all findings of one check."""
    return {one.status for one in results if one.id.split(":")[0] == check}


def resources(*names: str) -> ApiReply:
    """Return the list of resources of one version."""
    return ApiReply(body={"resources": [{"name": name} for name in names]})


def managed(*managers: tuple[str, str]) -> ApiReply:
    """Return an object with these field managers, each with its subresource."""
    entries = [{"manager": name, "subresource": part} for name, part in managers]
    return ApiReply(body={"metadata": {"managedFields": entries}})


def answers(body: object) -> ApiReply:
    return ApiReply(body=body)


def allowed(*, value: bool = True) -> ApiReply:
    return ApiReply(body={"status": {"allowed": value}})


def node_object(**status: Any) -> ApiReply:
    """Return the list with this machine's Node."""
    body = {
        "spec": status.pop("spec", {}),
        "status": {
            "nodeInfo": {"machineID": MACHINE_ID, "bootID": "b"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {
                "koordinator.sh/gpu-core": "100",
                "koordinator.sh/gpu-memory": "1",
                "koordinator.sh/gpu-memory-ratio": "100",
                "koordinator.sh/rdma": "100",
            },
            **status,
        },
    }
    return ApiReply(body={"items": [body]})


def metric_object(age_s: float) -> ApiReply:
    """Return a NodeMetric that was reported so long ago."""
    then = dt.datetime.fromtimestamp(NOW_S - age_s, dt.UTC)
    return ApiReply(
        body={
            "metadata": {"managedFields": [{"manager": "xpu-agent", "subresource": "status"}]},
            "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}},
            "status": {"updateTime": then.strftime("%Y-%m-%dT%H:%M:%SZ")},
        }
    )


def api(settings: Settings | None = None, **changes: object) -> ApiFacts:
    """Return what a healthy API server answers, but for `changes`: replies by name, or facts."""
    own = ("xpu-agent", "")
    rights = {f"right {right}": allowed() for right in needed_rights(settings or Settings())}
    rights |= {f"right {right}": allowed(value=False) for right in (*EXCESS_RIGHTS, KUBELET_PROXY)}
    replies: dict[str, ApiReply] = {
        "version": answers({"gitVersion": "v1.34.1"}),
        "node": node_object(),
        "scheduling.koordinator.sh/v1alpha1": resources("devices"),
        "slo.koordinator.sh/v1alpha1": resources("nodemetrics", "nodemetrics/status", "nodeslos"),
        "topology.node.k8s.io/v1alpha1": resources("noderesourcetopologies"),
        "topology.node.k8s.io/v1alpha2": refused(404),
        "Device": managed(own, ("koord-manager", "")),
        "NodeMetric": metric_object(30),
        "NodeResourceTopology": managed(own, ("kubectl-edit", "")),
        "agent-pods": pods_of_agent(0),
        **rights,
    }
    other = {}
    for name, value in changes.items():
        if isinstance(value, ApiReply):
            replies[name] = value
        else:
            other[name] = value
    well = ApiFacts(
        target="https://10.0.0.1:443",
        node_name=NODE,
        namespace="xpu-agent",
        wall_s=NOW_S,
        clock_skew_s=0.0,
        replies=replies,
    )
    return replace(well, **other)


def pods_of_agent(restarts: int, cause: str = "") -> ApiReply:
    """Return the list of the agent's pods on the node."""
    state = {"terminated": {"reason": cause}} if cause else {}
    row = {"restartCount": restarts, "lastState": state}
    pod = {"metadata": {"name": "xpu-agent-x"}, "status": {"containerStatuses": [row]}}
    return ApiReply(body={"items": [pod]})


def refused(code: int, problem: str = "no") -> ApiReply:
    return ApiReply(code=code, problem=problem)
