"""The busy node of `bench.node.busy_node` in a cluster: its 250 pods are known there too."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.cluster.control import Control
from bench.cluster.watch_pods import JsonObject, pod
from bench.cluster.write_server import Served, api_server
from bench.containers.messages import MINOR
from bench.node.busy_node import CARDS, DEADLINE_S, RunningAgent, busy_node, running_agent
from bench.usage.cgroup_trees import CONTAINERS, PODS
from tests.apiserver.admin import node as node_object

NODE = "node-a"
SHARED_MINORS = tuple(minor for minor in range(CARDS) if minor != MINOR)
SHARE_PERCENT = "2"  # of a card, for each pod: all pods of the node fit


def known_pod(index: int, version: int = 0) -> JsonObject:
    """Return the pod of one cgroup; what the agent reads of it differs with each version."""
    body = pod(index, version)
    metadata, status = body["metadata"], body["status"]
    assert isinstance(metadata, dict)
    assert isinstance(status, dict)
    del metadata["resourceVersion"]
    metadata["uid"] = f"{index:08x}-0000-4000-8000-000000000000"
    metadata["labels"]["version"] = str(version)
    amounts = {f"koordinator.sh/{name}": SHARE_PERCENT for name in ("gpu-core", "gpu-memory-ratio")}
    entry = {"minor": SHARED_MINORS[index % len(SHARED_MINORS)], "resources": amounts}
    metadata["annotations"]["scheduling.koordinator.sh/device-allocated"] = json.dumps(
        {"gpu": [entry]}
    )
    spec = body["spec"]
    assert isinstance(spec, dict)
    spec["containers"][0]["resources"]["limits"] |= amounts  # as a pod that is granted this has
    for number, container in enumerate(status["containerStatuses"]):
        container["containerID"] = f"containerd://{index * CONTAINERS + number:064x}"
    return {"apiVersion": "v1", "kind": "Pod", **body}


@contextmanager
def busy_citizen(**surroundings: str) -> Iterator[tuple[RunningAgent, Control]]:
    """Run the agent, the API server and a kubelet; `surroundings` are the agent's."""
    with (
        busy_node() as node,
        api_server(NODE) as served,
        tempfile.TemporaryDirectory(prefix="xpu-bench-") as folder,
    ):
        control = Control(served)
        pods = [known_pod(index) for index in range(PODS)]
        for body in pods:
            control.put(body)
        control.put(_node_metric())
        with _kubelet(served, pods, Path(folder)) as port:
            control.put(_node(port))
            own = {**control.environment(NODE, Path(folder)), **surroundings}
            with running_agent(node, **own) as agent:
                yield agent, control


@contextmanager
def _kubelet(served: Served, pods: list[JsonObject], folder: Path) -> Iterator[int]:
    file = folder / "pods.json"
    file.write_bytes(msgspec.json.encode(pods))
    module = [sys.executable, "-m", "bench.cluster.beside.kubelet"]
    command = [*module, f"{served.account}/token", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def _node(kubelet_port: int) -> JsonObject:
    body: JsonObject = node_object(NODE)
    status = body["status"]
    assert isinstance(status, dict)
    status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": kubelet_port}}
    status["nodeInfo"]["bootID"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return body


def _node_metric() -> JsonObject:
    """Return what the manager of the cluster makes for each node."""
    policy = {"aggregateDurationSeconds": 300, "reportIntervalSeconds": 60}
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeMetric",
        "metadata": {"name": NODE},
        "spec": {"metricCollectPolicy": policy},
    }
