"""`xpu-agent restore --all-nodes`: the pods of the DaemonSet restore their nodes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.command_line import ExitStatus
from tests.apiserver import ApiServer
from tests.apiserver.access import AGENT
from tests.process.agent import DEADLINE_S, ROOT, command
from tests.process.citizen import surroundings
from tests.unit.daemonset.charts import render
from tests.unit.daemonset.manifests import DAEMONSET, built, the
from tests.unit.daemonset.rights import Right, verbs_used

NAME, NAMESPACE = "xpu-agent", "xpu-agent"
TARGET = f"{NAMESPACE}/{NAME}"
RENDERED = the(built(DAEMONSET / "base"), "DaemonSet")
LABELS = RENDERED["spec"]["selector"]["matchLabels"]


@contextmanager
def restoring(api: ApiServer, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command("restore", "--all-nodes", TARGET, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **surroundings(api, folder)},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=DEADLINE_S)


def stored(api: ApiServer) -> dict[str, Any]:
    body = api.get("DaemonSet", NAME, NAMESPACE)
    assert body is not None
    return body


def is_restoring(api: ApiServer) -> bool:
    return "initContainers" in stored(api)["spec"]["template"]["spec"]


def report(api: ApiServer, nodes: int, ready: int) -> None:
    """Write the status as the controller of DaemonSets does."""
    body = stored(api)
    body["status"] = {
        "observedGeneration": body["metadata"]["generation"],
        "desiredNumberScheduled": nodes,
        "updatedNumberScheduled": nodes,
        "numberReady": ready,
    }
    api.put(body)


def pod(node: str, *, ready: bool, message: str = "") -> dict[str, Any]:
    terminated = {"terminated": {"exitCode": 1, "message": message}}
    states = [{"name": "restore", "state": {}, "lastState": terminated}] if message else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{node}", "namespace": NAMESPACE, "labels": LABELS},
        "spec": {"nodeName": node, "containers": [{"name": "agent"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "initContainerStatuses": states,
        },
    }


@pytest.mark.parametrize("options", [(), ("--purge",)])
def test_it_ends_when_every_node_is_restored(tmp_path: Path, options: tuple[str, ...]) -> None:
    with ApiServer(objects=(RENDERED,)) as api, restoring(api, tmp_path, *options) as process:
        api.wait_until(lambda: is_restoring(api), timeout_s=DEADLINE_S)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("the controller of DaemonSets has not seen")
        report(api, nodes=2, ready=1)
        assert process.stdout.readline() == "1 of 2 nodes are restored\n"
        report(api, nodes=2, ready=2)
        assert process.stdout.readline() == "2 of 2 nodes are restored\n"
        assert process.wait(DEADLINE_S) == ExitStatus.OK
        spec = stored(api)["spec"]
    pod_spec, before = spec["template"]["spec"], RENDERED["spec"]["template"]["spec"]
    (restore,), (agent,) = pod_spec["initContainers"], pod_spec["containers"]
    assert restore["args"] == ["restore", *options]
    assert agent["args"] == ["restore", *options, "--stay"]
    for key in ("env", "volumeMounts", "securityContext", "image", "resources"):
        assert restore[key] == agent[key] == before["containers"][0][key]
    assert "ports" not in agent
    assert "livenessProbe" not in agent
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "100%"}
    assert pod_spec["volumes"] == before["volumes"]


def test_nodes_that_are_not_restored_are_named_and_the_charts_role_is_enough(
    tmp_path: Path,
) -> None:
    why = "cpu.cfs_quota_us 1000: foreign: another program has written it"
    pods = (pod("node-a", ready=True), pod("node-b", ready=False, message=f"2 lines\n{why}\n"))
    objects = (RENDERED, *pods, pod("node-c", ready=False))
    with (
        ApiServer(objects=objects) as api,
        restoring(api, tmp_path, "--timeout-s", "0.1") as process,
    ):
        output, errors = process.communicate(timeout=DEADLINE_S)
        used = verbs_used(api.requests(), AGENT)
    (role,) = (item for item in render() if item["kind"] == "Role")
    assert used == {
        Right(group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert process.returncode == ExitStatus.PROBLEM_FOUND, errors
    assert output.splitlines()[-2:] == [
        f"not restored: node-b: {why}",
        "not restored: node-c: its pod has not started",
    ]


def test_a_daemon_set_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with ApiServer() as api, restoring(api, tmp_path) as process:
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == ExitStatus.CANNOT
    assert errors.count("\n") == 1
    assert "daemonsets" in errors


def test_a_name_without_a_namespace_and_mixed_options_are_wrong_use(tmp_path: Path) -> None:
    with ApiServer() as api:
        for options in (("xpu-agent",), (TARGET, "--force"), (TARGET, "--stay"), ("a/b/c",)):
            outcome = subprocess.run(
                command("restore", "--all-nodes", *options),
                capture_output=True,
                text=True,
                cwd=ROOT,
                env={**os.environ, **surroundings(api, tmp_path)},
                timeout=DEADLINE_S,
                check=False,
            )
            assert outcome.returncode == ExitStatus.WRONG_USE
            assert "NAMESPACE/NAME" in outcome.stderr
        assert api.requests() == []
