"""Options of the extender: resources of Nodes, scores by load. At a strict API server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.clock import rfc3339
from tests.apiserver import ApiServer, Fault
from tests.apiserver.access import AGENT
from tests.apiserver.rbac import read_roles
from tests.process.test_scheduler import CLUSTER, MANIFESTS, names, put_pod, replica
from tests.unit.daemonset.rights import compare, verbs_granted, verbs_used

COMPONENTS = MANIFESTS.parent / "scheduler-components"
BUSY = "node(s) cpu usage exceed threshold"
OPTION = "publish_node_resources: true\n"
CORE = "koordinator.sh/gpu-core"


@contextmanager
def cluster(folder: Path, component: str = "node-resources") -> Iterator[ApiServer]:
    """Serve the nodes and devices of the fixture to an account with the component's rights."""
    roles = folder / "rbac.yaml"
    texts = [(part / "rbac.yaml").read_text() for part in (MANIFESTS, COMPONENTS / component)]
    roles.write_text("\n---\n".join(texts))
    with ApiServer(roles=roles) as api:
        for file in ("nodes.yaml", "devices.yaml"):
            for document in yaml.safe_load_all((CLUSTER / file).read_text()):
                api.put(document)
        api.put({"kind": "Namespace", "metadata": {"name": "kube-system"}})
        yield api


def allocatable(api: ApiServer, name: str) -> dict[str, Any]:
    node = api.get("node", name)
    assert node is not None
    return dict(node["status"]["allocatable"])


def writes(api: ApiServer) -> int:
    return len(api.requests(verb="patch", resource="nodes"))


def set_health(api: ApiServer, name: str, minors: tuple[int, ...], *, health: bool) -> None:
    device = api.get("device", name)
    assert device is not None
    for one in device["spec"]["devices"]:
        if one["type"] == "gpu" and one["minor"] in minors:
            one["health"] = health
    api.put(device)


def test_nodes_have_the_sums_of_healthy_devices_until_the_object_is_deleted(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path) as api:
        with replica(api, tmp_path, service="xpu-scheduler", more=OPTION) as one:
            one.wait_ready()
            api.wait_until(lambda: allocatable(api, "h100-0").get(CORE) == "800")
            assert allocatable(api, "h100-0")["koordinator.sh/gpu"] == "800"
            node = api.get("node", "h100-0")
            assert node is not None
            assert node["status"]["capacity"][CORE] == "800"
            assert node["metadata"]["labels"]["node.koordinator.sh/gpu-vendor"] == "nvidia"

            set_health(api, "h100-0", (0,), health=False)
            api.wait_until(lambda: allocatable(api, "h100-0").get(CORE) == "700")
            before = writes(api)
            api.delete("device", "h100-0")
            api.wait_until(lambda: CORE not in allocatable(api, "h100-0"))
            assert "koordinator.sh/rdma" not in allocatable(api, "h100-0")
            assert allocatable(api, "h100-0")["cpu"]
            assert writes(api) == before + 1
        used = verbs_used(api.requests(), AGENT)
    missing, _ = compare(used, verbs_granted(read_roles(tmp_path / "rbac.yaml")))
    assert missing == ()


@pytest.mark.slow  # after a pause of ten seconds
def test_a_refused_write_is_tried_again(tmp_path: Path) -> None:
    with cluster(tmp_path) as api:
        fault = api.faults.add(Fault(verb="patch", resource="nodes", status=500, times=1))
        with replica(api, tmp_path, service="xpu-scheduler", more=OPTION) as one:
            one.wait_ready()
            names = ("h100-0", "a100-0", "a100-1")
            api.wait_until(lambda: all(CORE in allocatable(api, name) for name in names))
        assert api.faults.hits(fault) == 1


def test_nothing_is_written_without_the_option(tmp_path: Path) -> None:
    with cluster(tmp_path) as api:
        with replica(api, tmp_path, service="xpu-scheduler") as one:
            one.wait_ready()
        assert writes(api) == 0


def put_metric(api: ApiServer, node: str, cpu: str) -> None:
    usage = {"resources": {"cpu": cpu, "memory": "1Gi"}}
    status = {"updateTime": rfc3339(time.time()), "nodeMetric": {"nodeUsage": usage}}
    api.put(
        {
            "apiVersion": "slo.koordinator.sh/v1alpha1",
            "kind": "NodeMetric",
            "metadata": {"name": node},
            "spec": {},
            "status": status,
        }
    )


def test_a_busy_node_is_refused_until_its_metric_says_otherwise(tmp_path: Path) -> None:
    with cluster(tmp_path, "load-scores") as api:
        put_metric(api, "h100-0", "1000")
        options = "load_score: {enabled: true}\nfit_plus: {enabled: true}\n"
        with replica(api, tmp_path, service="xpu-scheduler", more=options) as one:
            one.wait_ready()
            pod = put_pod(api, "p", 1)
            arguments = {"Pod": pod, "Nodes": None, "NodeNames": names(api)}

            def refusal() -> Any:
                return one.call("POST", "/filter", arguments)[1]["FailedNodes"].get("h100-0")

            api.wait_until(lambda: refusal() == BUSY)
            put_metric(api, "h100-0", "1")
            api.wait_until(lambda: refusal() is None)
            scores = one.call("POST", "/prioritize", arguments)[1]
            by_name = {entry["Host"]: entry["Score"] for entry in scores}
            assert by_name["h100-0"] > by_name["a100-0"]  # which has no NodeMetric
        used = verbs_used(api.requests(), AGENT)
    missing, _ = compare(used, verbs_granted(read_roles(tmp_path / "rbac.yaml")))
    assert missing == ()
