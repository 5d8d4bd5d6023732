"""The Node as the owner of the agent's objects, which are deleted with it."""

from __future__ import annotations

from agent.snapshot.node import NodeSnapshot
from agent.snapshot.publications import Json


def node_uid(snapshot: NodeSnapshot) -> str:
    """Return the Node's uid; empty while it is unknown, or after the Node was deleted."""
    if not snapshot.cluster.is_clustered:
        return snapshot.node.uid
    node = snapshot.cluster.node.value
    return node.uid if node is not None else ""


def is_node_unknown(snapshot: NodeSnapshot) -> bool:
    """Return whether the owner is not known yet.

    An object without an owner would outlive its Node. An object of a deleted Node would be
    collected at once.
    """
    return snapshot.cluster.is_clustered and not node_uid(snapshot)


def owner_metadata(snapshot: NodeSnapshot) -> Json:
    """Return the part of the metadata that names the owner; nothing without a Node.

    The object does not block the Node's deletion. That would matter for foreground deletion only,
    and with `OwnerReferencesPermissionEnforcement` it needs the permission to write
    `nodes/finalizers`.
    """
    uid = node_uid(snapshot)
    if not uid:
        return {}
    owner = {"apiVersion": "v1", "kind": "Node", "name": snapshot.node.name, "uid": uid}
    return {"ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": False}]}
