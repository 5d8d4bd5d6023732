"""Objects as a server has them, in few words."""

from __future__ import annotations

from typing import Any

from agent.kube.writer.decision import DecisionInputs
from agent.snapshot.publications import DesiredObject

DEVICE = "scheduling.koordinator.sh/v1alpha1"
NODE = "node-a"
UID = "uid-1"
NOW = DecisionInputs(node_uid=UID, now_s=1_767_323_045.0, takeover_s=300.0)


def owner(uid: str = UID) -> dict[str, object]:
    """Return the owner reference to the Node."""
    return {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid}


def body(devices: int = 1, **labels: str) -> dict[str, Any]:
    """Return a Device."""
    metadata = {"name": NODE, "labels": labels, "ownerReferences": [owner()]}
    cards = [{"type": "gpu", "minor": minor} for minor in range(devices)]
    return {
        "apiVersion": DEVICE,
        "kind": "Device",
        "metadata": metadata,
        "spec": {"devices": cards},
    }


def desired(content: dict[str, Any] | None = None, **changes: Any) -> DesiredObject:
    """Return the wish for a Device."""
    return DesiredObject(
        file_name="device.yaml",
        api_version=DEVICE,
        kind=changes.pop("kind", "Device"),
        name=NODE,
        body=body() if content is None else content,
        **changes,
    )


def entry(
    manager: str, fields: dict[str, object], time: str = "2026-01-02T03:04:05Z", **more: str
) -> dict[str, object]:
    """Return an entry of managedFields."""
    base: dict[str, object] = {"manager": manager, "operation": "Update", "time": time}
    return {**base, "fieldsV1": fields, **more}


def stored(content: dict[str, Any], *entries: dict[str, object]) -> dict[str, Any]:
    """Return an object as the server answers it."""
    metadata = {**content["metadata"], "uid": "object-uid", "resourceVersion": "7"}
    return {**content, "metadata": {**metadata, "managedFields": list(entries)}}
