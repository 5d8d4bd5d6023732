"""Labels of the Node: what its accelerators are, for selectors of pods."""

from __future__ import annotations

import msgspec

from agent.model.cluster.bare import all_told
from agent.model.device import Device, DeviceKind
from agent.model.snapshot import NodeSnapshot
from agent.publish.base import Desired
from agent.publish.device import DRIVER_LABEL, MODEL_LABEL, VENDOR_LABEL, labels, select
from agent.publish.wire import sanitise
from agent.publish.wire.owner import node_uid

CLIQUE_LABEL = "nvidia.com/gpu.clique"  # cards of several nodes that one NVLink fabric joins
_CLIQUE = "clique"  # the fact of a card


class NodeLabelsPublisher(msgspec.Struct, frozen=True):
    """Publishes vendor, model, driver and NVLink domain of the accelerators as Koordinator does.

    Koordinator's manager copies the first three from the Device object; a cluster without it has
    them from here.
    """

    interval_s: float = 3.0
    name: str = "node_labels"

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[Desired, ...]:  # noqa: ARG002 - see Publisher
        """Return the Node with our labels; nothing outside a cluster, or while it is uncertain."""
        view = snapshot.devices
        if not _writable(snapshot) or view.taken_s is None or view.value.awaited:
            return ()
        published = select(view.value.devices).published
        cards = tuple(device for device in published if device.info.kind is not DeviceKind.RDMA)
        if not cards and not all_told(snapshot):
            return ()
        name = snapshot.node.name
        metadata = {"name": name, "labels": labels(snapshot, published) | _clique(cards)}
        return (
            Desired(
                file_name="node-labels.yaml",
                api_version="v1",
                kind="Node",
                name=name,
                body={"apiVersion": "v1", "kind": "Node", "metadata": metadata},
                owned_labels=(VENDOR_LABEL, MODEL_LABEL, DRIVER_LABEL, CLIQUE_LABEL),
            ),
        )


def _writable(snapshot: NodeSnapshot) -> bool:
    return snapshot.cluster.clustered and bool(node_uid(snapshot))


def _clique(cards: tuple[Device, ...]) -> dict[str, str]:
    """Return the domain that all cards with a fabric are in; nothing if they disagree."""
    found = {clique for card in cards if (clique := dict(card.info.facts).get(_CLIQUE))}
    value = sanitise.label_value(found.pop()) if len(found) == 1 else ""
    return {CLIQUE_LABEL: value} if value else {}
