"""The extender with its scores by load, at a strict API server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import yaml

from agent.clock import rfc3339
from tests.apiserver import ApiServer
from tests.apiserver.access import AGENT
from tests.apiserver.rbac import read_roles
from tests.process.test_scheduler import CLUSTER, MANIFESTS, names, put_pod, replica
from tests.unit.daemonset.rights import compare, verbs_granted, verbs_used

COMPONENT = MANIFESTS.parent / "scheduler-components" / "load-scores"
BUSY = "node(s) cpu usage exceed threshold"


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
    roles = tmp_path / "rbac.yaml"
    texts = [(folder / "rbac.yaml").read_text() for folder in (MANIFESTS, COMPONENT)]
    roles.write_text("\n---\n".join(texts))
    with ApiServer(roles=roles) as api:
        for file in ("nodes.yaml", "devices.yaml"):
            for document in yaml.safe_load_all((CLUSTER / file).read_text()):
                api.put(document)
        api.put({"kind": "Namespace", "metadata": {"name": "kube-system"}})
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
    missing, _ = compare(used, verbs_granted(read_roles(roles)))
    assert missing == ()
