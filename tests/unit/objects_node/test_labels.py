"""Labels of the Node."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agent.objects.device import DRIVER_LABEL, MODEL_LABEL, VENDOR_LABEL
from agent.objects.node import CLIQUE_LABEL, NodeLabelsPublisher
from agent.snapshot.device import Device
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import DeviceView, NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciTree
from tests import clustered
from tests.factory import gpu, nic

Tree = Any
CLIQUE = "3a1d4dd5-1e5b-4c0f-8a3b-0d5f5a7e9c11.7"


def snapshot_with(*devices: Device, state: str = "ready") -> NodeSnapshot:
    inventory = Inventory(vendor="nvidia", driver_version="570.124.06")
    return replace(
        clustered.snapshot(),
        vendors=(
            VendorState(vendor="nvidia", state=state, inventory=SnapshotPart(inventory, 1.0)),
        ),
        pci=SnapshotPart(PciTree(), 1.0),
        devices=SnapshotPart(DeviceView(devices=devices), 1.0),
    )


def labels(now: NodeSnapshot) -> Tree:
    (desired,) = NodeLabelsPublisher().render(now, 0.0)
    assert (desired.kind, desired.status_only) == ("Node", False)
    body: Tree = desired.body
    assert set(body) == {"apiVersion", "kind", "metadata"}
    assert set(body["metadata"]) == {"name", "labels"}
    assert body["metadata"]["labels"].keys() <= {
        VENDOR_LABEL,
        MODEL_LABEL,
        DRIVER_LABEL,
        CLIQUE_LABEL,
    }
    return body["metadata"]["labels"]


def test_they_are_those_that_koordinators_manager_would_copy() -> None:
    assert labels(snapshot_with(gpu(0), gpu(1), nic(0))) == {
        "node.koordinator.sh/gpu-vendor": "nvidia",
        "node.koordinator.sh/gpu-model": "H100-80GB-HBM3",
        "node.koordinator.sh/gpu-driver-version": "570.124.06",
    }


@pytest.mark.parametrize(
    ("cliques", "label"),
    [
        ((CLIQUE, CLIQUE), CLIQUE),
        ((CLIQUE, ""), CLIQUE),
        ((CLIQUE, CLIQUE[:-1] + "8"), None),
        (("", ""), None),
        (("no label: /", "no label: /"), "no-label"),
    ],
)
def test_the_nvlink_domain_is_published_if_all_cards_agree(
    cliques: tuple[str, str], label: str | None
) -> None:
    cards = [gpu(n, facts=(("clique", value),) if value else ()) for n, value in enumerate(cliques)]
    assert labels(snapshot_with(*cards)).get("nvidia.com/gpu.clique") == label


def test_a_node_that_certainly_has_no_accelerator_loses_them() -> None:
    assert labels(snapshot_with()) == labels(snapshot_with(nic(0))) == {}


def test_they_stay_while_nobody_can_tell() -> None:
    publisher = NodeLabelsPublisher()
    assert publisher.render(snapshot_with(state="stalled"), 0.0) == ()
    assert (
        publisher.render(replace(snapshot_with(gpu(0)), devices=SnapshotPart(DeviceView())), 0.0)
        == ()
    )


def test_there_are_none_outside_a_cluster_or_before_the_node_is_known() -> None:
    now = snapshot_with(gpu(0))
    alone = replace(now, cluster=replace(now.cluster, is_clustered=False))
    unknown = replace(now, cluster=replace(now.cluster, node=SnapshotPart(None)))
    assert NodeLabelsPublisher().render(alone, 0.0) == ()
    assert NodeLabelsPublisher().render(unknown, 0.0) == ()
