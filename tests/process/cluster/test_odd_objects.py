"""Objects that are not what they should be: they cost themselves, and the agent goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver import ApiServer, Fault
from tests.process.agent import EIGHT_CARDS, Agent
from tests.process.citizen import NODE, ROLES, citizen

Object = dict[str, Any]
SLO = "slo.koordinator.sh/v1alpha1"
NO_KUBELET = {"XPU_AGENT_KUBELET__ENABLED": "false"}
MEGABYTES = 1_500_000


def slo(**spec: object) -> Object:
    return {"apiVersion": SLO, "kind": "NodeSLO", "metadata": {"name": NODE}, "spec": spec}


def metric(**policy: object) -> Object:
    return {
        "apiVersion": SLO,
        "kind": "NodeMetric",
        "metadata": {"name": NODE},
        "spec": {"metricCollectPolicy": policy},
    }


def pod(name: str, **more: object) -> Object:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "i"}]},
    }
    return {**body, **more}


def holds(agent: Agent, name: str, *words: str) -> Callable[[], bool]:
    return lambda: all(word in agent.check(name) for word in words)


def thresholds(agent: Agent) -> Any:
    return agent.snapshot()["cluster"]["slo"]["value"]


def malformed(agent: Agent, resource: str) -> float:
    (line,) = (
        line
        for line in agent.get("metrics")[1].splitlines()
        if line.startswith("xpu_agent_watch_malformed_total{") and f'"{resource}"' in line
    )
    return float(line.split()[-1])


def serves(api: ApiServer, agent: Agent) -> None:
    """Expect what the agent is there for."""
    agent.wait_until(lambda: api.get("Device", NODE) is not None, "a Device")
    agent.wait_until(lambda: api.get("NodeResourceTopology", NODE) is not None, "a topology")
    agent.wait_until(lambda: "status" in (api.get("NodeMetric", NODE) or {}), "a report")
    assert agent.get("readyz") == (200, "ok\n")


def test_wrong_types_nulls_and_unknown_fields_everywhere_cost_themselves_only(
    tmp_path: Path,
) -> None:
    with ApiServer(nodes=(NODE,), roles=ROLES) as api:
        own = api.get("Node", NODE)
        assert own is not None
        own["metadata"]["annotations"] = {"node.koordinator.sh/reservation": '{"reservedCPUs":7}'}
        own["metadata"]["labels"] = None
        own["spec"] = {"taints": "none", "more": [{}]}
        own["status"].update(allocatable=None, conditions=[None], addresses=None, news=1)
        api.put(own, checked=False)
        # a spec of wrong types would have the server refuse its status, too
        api.put({**metric(reportIntervalSeconds=None), "news": {}}, checked=False)
        api.put(slo(resourceUsedThresholdWithBE={"enable": "yes"}, news=[1]), checked=False)
        api.put(pod("typed", spec={"nodeName": NODE, "containers": {}}), checked=False)
        api.put(pod("null", status={"containerStatuses": None}, news=[None]), checked=False)
        with citizen(api, tmp_path, "--host", str(EIGHT_CARDS), **NO_KUBELET) as agent:
            serves(api, agent)
            agent.wait_until(lambda: malformed(agent, "pods") == 1, "the bad pod is counted")
            agent.wait_until(holds(agent, "watch:pods", "1 objects"), "the other one is known")
            assert thresholds(agent)["refused"]
            api.put(slo(resourceUsedThresholdWithBE={"enable": True}))
            agent.wait_until(lambda: not thresholds(agent)["refused"], "a good one is taken")
            assert agent.end() == 0


def test_objects_of_a_megabyte_and_a_half_are_read_and_written(tmp_path: Path) -> None:
    filled = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": NODE, "labels": {"a.person/s": "own"}},
        "status": {"allocations": [{"type": "x" * MEGABYTES}]},
    }
    with ApiServer(nodes=(NODE,), objects=(metric(),), roles=ROLES) as api:
        api.put(filled, manager="somebody", checked=False)
        api.put(slo(extensions={"big": "x" * MEGABYTES}), checked=False)
        api.put(pod("big", status={"message": "x" * MEGABYTES}), checked=False)
        own = api.get("Node", NODE)
        assert own is not None
        own["status"]["images"] = [{"names": ["x" * MEGABYTES]}]
        api.put(own, checked=False)
        with citizen(api, tmp_path, "--host", str(EIGHT_CARDS), **NO_KUBELET) as agent:
            serves(api, agent)
            agent.wait_until(holds(agent, "publisher:device", "idle", "1 written"), "the Device")
            for watched in ("nodes", "pods", "nodeslos"):
                agent.wait_until(holds(agent, f"watch:{watched}", "1 objects"), watched)
            assert agent.end() == 0
        stored = api.get("Device", NODE)
        assert stored is not None
        assert len(stored["spec"]["devices"]) == 8
        assert stored["status"] == filled["status"]
        assert stored["metadata"]["labels"]["a.person/s"] == "own"


@pytest.mark.parametrize("status", [413, 422])
def test_a_refused_object_is_reported_once_and_the_others_are_written(
    tmp_path: Path, status: int
) -> None:
    cause = {"field": "spec.devices[0].minor", "message": "must be another"}
    refusal = Fault(verb="patch", resource="devices", status=status, causes=(cause,), times=0)
    with ApiServer(nodes=(NODE,), objects=(metric(),), roles=ROLES) as api:
        api.faults.add(refusal)
        with citizen(api, tmp_path, "--host", str(EIGHT_CARDS), **NO_KUBELET) as agent:
            agent.wait_until(holds(agent, "publisher:device", "refused"), "it is said")
            assert agent.check("publisher:device").startswith("[-]")
            assert "spec.devices[0].minor" in agent.check("publisher:device")
            agent.wait_until(lambda: "WriteRefused" in reasons(api), "an event")
            agent.wait_until(lambda: "status" in (api.get("NodeMetric", NODE) or {}), "a report")
            assert api.get("NodeResourceTopology", NODE) is not None
            assert len(api.requests(verb="patch", resource="devices")) == 1
            assert agent.get("readyz") == (200, "ok\n")
            assert agent.end() == 0
    assert [reason for reason in reasons(api) if reason == "WriteRefused"] == ["WriteRefused"]


def reasons(api: ApiServer) -> list[str]:
    return [event["reason"] for event in api.list("events")]


def test_crds_that_are_installed_later_are_found_and_what_is_theirs_is_written(
    tmp_path: Path,
) -> None:
    later = ("nodemetrics", "nodeslos")
    with ApiServer(nodes=(NODE,), roles=ROLES) as api:
        for plural in later:
            api.remove_crd(plural)
        with citizen(api, tmp_path, "--host", str(EIGHT_CARDS), **NO_KUBELET) as agent:
            agent.wait_until(lambda: api.get("Device", NODE) is not None, "a Device")
            agent.wait_until(holds(agent, "watch:nodemetrics", "absent"), "it is said")
            assert agent.get("readyz") == (200, "ok\n")
            for plural in later:
                api.add_crd(plural)
            api.put(metric(), manager="koord-manager")
            api.put(slo(resourceUsedThresholdWithBE={"enable": True}))
            agent.wait_until(lambda: "status" in (api.get("NodeMetric", NODE) or {}), "a report")
            agent.wait_until(holds(agent, "watch:nodeslos", "1 objects"), "the NodeSLO")
            assert agent.end() == 0
