"""kubectl, as a person uses it, and the official Python client, against the server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from ssl import create_default_context
from typing import Any

import pytest

from tests.apiserver import ApiServer
from tests.patience import PATIENCE_S
from tests.unit.apiserver.client import device, event, metric, pod

ROOT = Path(__file__).resolve().parents[3]
KUBECTL = Path(sys.executable).parent / "kubectl"
TIMEOUT_S = PATIENCE_S

needs_kubectl = pytest.mark.skipif(not KUBECTL.exists(), reason="no kubectl beside this Python")


class Kubectl:
    """kubectl with a kubeconfig and a cache of its own."""

    def __init__(self, kubeconfig: Path, cache: Path) -> None:
        self._lead = [str(KUBECTL), "--kubeconfig", str(kubeconfig), "--cache-dir", str(cache)]

    def __call__(self, *words: str, stdin: object = None) -> str:
        text = None if stdin is None else json.dumps(stdin)
        outcome = subprocess.run(
            [*self._lead, *words],
            check=False,
            input=text,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert outcome.returncode == 0, outcome.stderr
        return outcome.stdout

    def refused(self, *words: str, stdin: object = None) -> str:
        outcome = subprocess.run(
            [*self._lead, *words],
            check=False,
            input=json.dumps(stdin),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert outcome.returncode != 0
        return outcome.stderr

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*self._lead, *words], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def kubectl(api: ApiServer, tmp_path: Path) -> Kubectl:
    return Kubectl(api.kubeconfig, tmp_path)


@needs_kubectl
def test_kubectl_gets_everything_in_one_line(api: ApiServer, kubectl: Kubectl) -> None:
    api.put(device())
    api.put(metric())
    api.put(pod("p"))
    everything = "devices,nodemetrics,nodeslos,noderesourcetopologies,nodes,pods,events"
    table = kubectl("get", everything, "-A")
    assert "device.scheduling.koordinator.sh/node-a" in table
    nodes = ["NAME", "STATUS", "AGE", "VERSION", "node-a", "Ready"]
    assert kubectl("get", "nodes").split()[:6] == nodes
    api.put(event())
    assert "Warning   DeviceLost   node/node-a   card 3" in kubectl("get", "events")
    api.delete("events", "node-a.1", "default")
    document = json.loads(kubectl("get", everything, "-A", "-o", "json"))
    assert [item["kind"] for item in document["items"]] == ["Device", "NodeMetric", "Node", "Pod"]
    assert "kind: Device" in kubectl("get", "device", "node-a", "-o", "yaml")


@needs_kubectl
def test_kubectl_applies_and_gets_conflicts(api: ApiServer, kubectl: Kubectl) -> None:
    body = device(labels={"a": "b"})
    assert "serverside-applied" in kubectl("apply", "--server-side", "-f", "-", stdin=body)
    api.apply(device(count=2), manager="xpu-agent", force=True)
    refusal = kubectl.refused("apply", "--server-side", "-f", "-", stdin=body)
    assert 'conflict with "xpu-agent": .spec.devices' in refusal
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=body)
    assert len((api.get("devices", "node-a") or {})["spec"]["devices"]) == 1
    body["spec"]["devices"][0]["minor"] = "x"
    assert "expected numeric" in kubectl.refused("apply", "--server-side", "-f", "-", stdin=body)


@needs_kubectl
def test_kubectl_patches_labels_creates_and_deletes(api: ApiServer, kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=metric())
    patch = {"status": {"updateTime": "2026-01-02T03:04:05Z"}}
    words = ("patch", "nodemetric", "node-a", "--subresource=status", "--type=merge")
    kubectl(*words, "-p", json.dumps(patch))
    assert (api.get("nodemetrics", "node-a") or {})["status"] == patch["status"]
    kubectl("label", "node", "node-a", "a=b")
    assert (api.get("nodes", "node-a") or {})["metadata"]["labels"]["a"] == "b"
    condition = {"status": {"conditions": [{"type": "Extra", "status": "True"}]}}
    kubectl("patch", "node", "node-a", "--subresource=status", "-p", json.dumps(condition))
    types = [item["type"] for item in (api.get("nodes", "node-a") or {})["status"]["conditions"]]
    assert types == ["Ready", "Extra"]
    kubectl("delete", "nodemetric", "node-a")
    assert api.get("nodemetrics", "node-a") is None


@needs_kubectl
def test_kubectl_watches(api: ApiServer, kubectl: Kubectl) -> None:
    with kubectl.start("get", "devices", "-w", "-o", "name") as process:
        api.wait_until(api.watches, TIMEOUT_S)
        api.put(device())
        assert process.stdout is not None
        assert process.stdout.readline() == "device.scheduling.koordinator.sh/node-a\n"
        process.terminate()


@pytest.fixture
def command(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    objects = tmp_path / "objects.yaml"
    objects.write_text(json.dumps(device()) + "\n---\n" + json.dumps(metric()))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.apiserver", "--dir", tmp_path / "d", "--objects", objects],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0


def test_the_command_serves_and_is_steered_from_outside(
    command: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert command.stdout is not None
    addresses = dict(command.stdout.readline().strip().split(": ", 1) for _ in range(3))
    context = create_default_context(cafile=str(tmp_path / "d" / "ca.crt"))

    def control(method: str, what: str, body: object = None) -> Any:
        payload = None if body is None else json.dumps(body).encode()
        url = f"{addresses['url']}/_control/{what}"
        request = urllib.request.Request(url, payload, method=method)
        with urllib.request.urlopen(request, context=context, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    assert control("POST", "put", device("node-b"))["metadata"]["name"] == "node-b"
    control("POST", "faults", {"resource": "devices", "status": 503})
    assert control("GET", "watches") == []
    url = f"{addresses['url']}/apis/scheduling.koordinator.sh/v1alpha1/devices"
    token = (tmp_path / "d" / "serviceaccount" / "token").read_text()
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(request, context=context, timeout=PATIENCE_S)
    with urllib.request.urlopen(request, context=context, timeout=PATIENCE_S) as answer:
        assert len(json.load(answer)["items"]) == 2
    assert [entry["status"] for entry in control("GET", "requests")] == [503, 200]
    assert Path(addresses["kubeconfig"]).is_file()


def test_the_python_client_lists_applies_and_watches(api: ApiServer) -> None:
    kubernetes = pytest.importorskip("kubernetes")
    config: Any = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(api.agent_kubeconfig), client_configuration=config)
    with kubernetes.client.ApiClient(config) as connection:
        core = kubernetes.client.CoreV1Api(connection)
        assert [item.metadata.name for item in core.list_node().items] == ["node-a"]
        api.put(pod("p"))
        assert core.list_pod_for_all_namespaces().items[0].spec.node_name == "node-a"
        custom = kubernetes.client.CustomObjectsApi(connection)
        where = ("scheduling.koordinator.sh", "v1alpha1", "devices")
        custom.patch_cluster_custom_object(
            *where,
            "node-a",
            device(),
            field_manager="xpu-agent",
            force=True,
            _content_type="application/apply-patch+yaml",
        )
        watch = kubernetes.watch.Watch()
        stream = watch.stream(custom.list_cluster_custom_object, *where, timeout_seconds=5)
        event = next(iter(stream))
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "node-a")
        watch.stop()
