"""Pods as an API server lists them: two containers with probes and variables, who manages what."""

from __future__ import annotations

import json

MANAGED_FIELDS = 100  # entries of one manager; a real pod's managers have as many
VARIABLES = 15

JsonObject = dict[str, object]


def pod(index: int, version: int) -> JsonObject:
    """Return one running pod of 8 KiB of JSON; its version goes up with `version`."""
    name = f"train-{index}"
    containers = [_container(name, letter) for letter in "ab"]
    statuses = [_status(index, letter) for letter in "ab"]
    return {
        "metadata": {
            "name": name,
            "namespace": "team-a",
            "uid": f"6f6f0000-0000-4000-8000-{index:012d}",
            "resourceVersion": str(version * 1000 + index),
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "labels": {f"app.kubernetes.io/label-{i}": f"value-{i}" for i in range(8)},
            "annotations": {
                "scheduling.koordinator.sh/device-allocated": json.dumps(
                    {"gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-core": "100"}}]}
                ),
                **{f"example.com/annotation-{i}": "x" * 60 for i in range(5)},
            },
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name}],
            "managedFields": [_manager(i) for i in ("kube-controller-manager", "kubelet")],
        },
        "spec": {
            "nodeName": "node-a",
            "priority": 9500,
            "schedulerName": "koord-scheduler",
            "containers": containers,
            "tolerations": [{"key": f"t{i}", "operator": "Exists"} for i in range(3)],
            "volumes": [{"name": "token", "projected": {"defaultMode": 420, "sources": []}}],
        },
        "status": {
            "phase": "Running",
            "qosClass": "Burstable",
            "podIP": "192.0.2.7",
            "conditions": [
                {"type": kind, "status": "True", "lastProbeTime": None}
                for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "containerStatuses": statuses,
        },
    }


def page(pods: int, version: int) -> bytes:
    """Return a list of pods on one page."""
    items = [pod(index, version) for index in range(pods)]
    metadata = {"resourceVersion": str(version * 1000 + 999)}
    return _json({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items})


def event(index: int, version: int) -> bytes:
    """Return the line that tells of a changed pod."""
    return _json({"type": "MODIFIED", "object": pod(index, version)})


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _container(pod_name: str, name: str) -> JsonObject:
    amounts = {"cpu": "500m", "memory": "1Gi"}
    return {
        "name": name,
        "image": f"registry.example.com/team-a/{pod_name}:{name}",
        "resources": {"requests": amounts, "limits": {"cpu": "1", "memory": "2Gi"}},
        "env": [{"name": f"VARIABLE_{i}", "value": f"value-{i}"} for i in range(VARIABLES)],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "timeoutSeconds": 1},
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets", "readOnly": True}],
        "securityContext": {"allowPrivilegeEscalation": False},
    }


def _status(index: int, name: str) -> JsonObject:
    return {
        "name": name,
        "ready": True,
        "restartCount": 0,
        "started": True,
        "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}},
        "imageID": "registry.example.com/team-a@sha256:" + "a" * 64,
        "containerID": f"containerd://{index:08x}{ord(name):056x}",
    }


def _manager(name: str) -> JsonObject:
    fields: JsonObject = {f"f:field-{i}": {} for i in range(MANAGED_FIELDS)}
    return {"manager": name, "operation": "Update", "fieldsV1": {"f:status": fields}}
