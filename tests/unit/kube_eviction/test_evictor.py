"""Evictions at a strict API server: what each answer means."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.clock import SystemClock
from agent.kube.endpoint import InClusterTarget
from agent.kube.eviction import NO_PERMISSION_S, PodEvictor
from agent.kube.session import open_session
from agent.snapshot.cluster import WritePermission
from agent.snapshot.pod import EvictionOutcome, EvictionRequest, EvictionResult, PodRef
from tests.apiserver import ApiServer, Fault
from tests.apiserver.rbac import Rule, read_roles
from tests.patience import PATIENCE_S

DAEMONSET = Path(__file__).parents[3] / "daemonset"
COMPONENT = DAEMONSET / "components" / "evictions" / "rbac.yaml"


class Permission:
    """Says whether the Node is this machine."""

    def __init__(self, is_allowed: bool = True) -> None:
        self.is_allowed = is_allowed

    def write_permission(self) -> WritePermission:
        return WritePermission(is_allowed=self.is_allowed, message="another machine's Node")


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(nodes=("node-a",), roles=COMPONENT) as api:
        yield api


def put_pod(api: ApiServer, name: str = "p") -> str:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {"nodeName": "node-a", "containers": [{"name": "main"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    return str(api.put(body)["metadata"]["uid"])


def put_budget(api: ApiServer, name: str, app: str, allowed: int) -> None:
    api.put(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": app}}},
            "status": {"observedGeneration": 1, "disruptionsAllowed": allowed},
        }
    )


def evict(
    api: ApiServer,
    uid: str,
    name: str = "p",
    permission: Permission | None = None,
    deadline_s: float = PATIENCE_S,
) -> EvictionResult:
    async def run() -> EvictionResult:
        folder = str(api.serviceaccount_dir)
        session = await open_session(InClusterTarget(url=api.url, folder=folder), SystemClock(), {})
        pod = PodRef(namespace="default", name=name, uid=uid)
        request = EvictionRequest(pod=pod, feature="BEMemoryEvict")
        try:
            evictor = PodEvictor(session, permission or Permission(), deadline_s)
            return await evictor.evict(request)
        finally:
            await session.close()

    return asyncio.run(run())


def is_terminating(api: ApiServer, name: str = "p") -> bool:
    body: Any = api.get("pod", name, "default")
    return "deletionTimestamp" in body["metadata"]


def test_the_component_s_role_is_enough_to_evict_a_pod(server: ApiServer) -> None:
    result = evict(server, put_pod(server))
    assert result.outcome is EvictionOutcome.EVICTED, result.message
    assert is_terminating(server)
    (request,) = server.requests(verb="create")
    assert request.resource_path == "pods/eviction"
    assert request.body["apiVersion"] == "policy/v1"
    assert "gracePeriodSeconds" not in request.body["deleteOptions"]


@pytest.mark.parametrize("name", ["p", "p" * 63])
def test_without_the_component_the_pod_stays(server: ApiServer, name: str) -> None:
    server.revoke()
    for rule in read_roles(DAEMONSET / "base" / "rbac.yaml"):
        server.grant(rule)
    result = evict(server, put_pod(server, name), name)
    assert result.outcome is EvictionOutcome.REFUSED
    assert "is forbidden" in result.message
    assert result.retry_after_s == NO_PERMISSION_S
    assert not is_terminating(server, name)


def test_a_webhook_that_denies_one_pod_says_nothing_of_the_others(server: ApiServer) -> None:
    uid = put_pod(server)
    message = 'admission webhook "w" denied the request: it is forbidden'
    server.faults.add(Fault(subresource="eviction", status=403, message=message))
    result = evict(server, uid)
    assert (result.outcome, result.retry_after_s) == (EvictionOutcome.REFUSED, None)


def test_another_pod_of_that_name_stays(server: ApiServer) -> None:
    put_pod(server)
    assert evict(server, "uid-of-the-old-one").outcome is EvictionOutcome.GONE
    assert not is_terminating(server)


def test_a_pod_that_has_ended_is_gone(server: ApiServer) -> None:
    assert evict(server, "u", "ended").outcome is EvictionOutcome.GONE


def test_a_budget_blocks_the_eviction(server: ApiServer) -> None:
    uid = put_pod(server)
    put_budget(server, "b", "p", 0)
    result = evict(server, uid)
    assert result.outcome is EvictionOutcome.BLOCKED
    assert not is_terminating(server)


def test_several_budgets_of_a_pod_block_the_eviction(server: ApiServer) -> None:
    uid = put_pod(server)
    put_budget(server, "b", "p", 5)
    put_budget(server, "c", "p", 5)
    result = evict(server, uid)
    assert result.outcome is EvictionOutcome.BLOCKED
    assert "more than one PodDisruptionBudget" in result.message


def test_a_429_of_a_busy_server_is_no_budget(server: ApiServer) -> None:
    uid = put_pod(server)
    server.faults.add(Fault(subresource="eviction", status=429, retry_after_s=3.0))
    result = evict(server, uid)
    assert (result.outcome, result.retry_after_s) == (EvictionOutcome.THROTTLED, 3.0)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(subresource="eviction", status=503),
        Fault(subresource="eviction", reset=True, times=0),
        Fault(subresource="eviction", lose_answer=True),
        Fault(subresource="eviction", status=500),
        Fault(subresource="eviction", hang=True, times=0),
    ],
)
def test_without_a_certain_answer_the_outcome_is_unknown(server: ApiServer, fault: Fault) -> None:
    uid = put_pod(server)
    server.faults.add(fault)
    deadline_s = 0.5 if fault.hang else PATIENCE_S
    assert evict(server, uid, deadline_s=deadline_s).outcome is EvictionOutcome.UNKNOWN
    assert is_terminating(server) is fault.lose_answer


def test_a_request_whose_answer_was_lost_is_not_repeated(server: ApiServer) -> None:
    uid = put_pod(server)
    server.faults.add(Fault(subresource="eviction", lose_answer=True, times=0))
    evict(server, uid)
    assert len(server.requests(subresource="eviction")) == 1


def test_while_the_node_is_another_machine_nothing_is_requested(server: ApiServer) -> None:
    result = evict(server, put_pod(server), permission=Permission(False))
    assert result.outcome is EvictionOutcome.REFUSED
    assert (result.message, result.retry_after_s) == ("another machine's Node", NO_PERMISSION_S)
    assert not server.requests(subresource="eviction")


def test_the_right_to_delete_pods_is_not_used(server: ApiServer) -> None:
    server.grant(Rule(api_groups=("",), resources=("pods",), verbs=("delete",)))
    uid = put_pod(server)
    put_budget(server, "b", "p", 0)
    evict(server, uid)
    assert not server.requests(verb="delete")
