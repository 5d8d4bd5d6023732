"""The Node as the owner of the agent's objects, which are deleted with it."""

from __future__ import annotations

from agent.snapshot.node import NodeSnapshot
from agent.snapshot.publications import Json


def node_uid(snapshot: NodeSnapshot) -> str:
    """Return the Node's uid; empty while it is not known, or once the Node was deleted."""
    if not snapshot.cluster.is_clustered:
        return snapshot.node.uid
    node = snapshot.cluster.node.value
    return node.uid if node is not None else ""


def is_node_unknown(snapshot: NodeSnapshot) -> bool:
    """Say whether the owner is still to come.

    An object without one would outlive its Node, and one of a Node that is gone would be
    collected at once, or name a machine that nobody has.
    """
    return snapshot.cluster.is_clustered and not node_uid(snapshot)


def owner_metadata(snapshot: NodeSnapshot) -> Json:
    """Return the part of the metadata that names the owner; nothing without a Node.

    It does not block the Node's deletion: that is for foreground deletion only, which nobody
    waits for here, and where `OwnerReferencesPermissionEnforcement` is on it asks for the right
    to write `nodes/finalizers`.
    """
    uid = node_uid(snapshot)
    if not uid:
        return {}
    owner = {"apiVersion": "v1", "kind": "Node", "name": snapshot.node.name, "uid": uid}
    return {"ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": False}]}
