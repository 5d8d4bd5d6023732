"""Where the kubelet is asked: by the settings first, then as its Node says."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from agent.clock import ManualClock
from agent.config.cluster import KubeletSettings
from agent.kube.errors import Unreachable
from agent.kubelet.client import KubeletClient, kubelet_url
from agent.snapshot.cluster import ClusterView, NodeView
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore
from agent.snapshot.part import SnapshotPart
from tests.fault.anonymous import Anonymous

NODE = NodeView(
    name="n",
    uid="u",
    addresses=(
        ("InternalIP", "10.0.0.7"),
        ("InternalIP", "fd00::7"),
        ("ExternalIP", "2001:db8::7"),
        ("Hostname", "node-a.example"),
    ),
    kubelet_port=10350,
)


@pytest.mark.parametrize(
    ("settings", "node", "url"),
    [
        ({}, NODE, "https://10.0.0.7:10350"),
        ({"address_type": "ExternalIP"}, NODE, "https://[2001:db8::7]:10350"),
        ({"address_type": "Hostname"}, NODE, "https://node-a.example:10350"),
        ({"port": 1250}, NODE, "https://10.0.0.7:1250"),
        ({"read_only_port": 10255}, NODE, "http://10.0.0.7:10255"),
        ({"address": "::1"}, NODE, "https://[::1]:10350"),
        ({"address": "127.0.0.1"}, None, "https://127.0.0.1:10250"),
        ({}, None, None),
        ({}, msgspec.structs.replace(NODE, kubelet_port=None), "https://10.0.0.7:10250"),
        ({"address_type": "ExternalIP"}, msgspec.structs.replace(NODE, addresses=()), None),
    ],
)
def test_urls(settings: dict[str, object], node: NodeView | None, url: str | None) -> None:
    assert kubelet_url(msgspec.convert(settings, KubeletSettings), node) == url


@pytest.mark.parametrize(
    "address", ["", "a@b", "host/path", "h:1", "fe80::1%eth0", "a b", "-", "x" * 300, "h?q", "h#f"]
)
def test_an_address_that_could_lead_a_token_elsewhere_is_none(address: str) -> None:
    node = msgspec.structs.replace(NODE, addresses=(("InternalIP", address),))
    assert kubelet_url(KubeletSettings(), node) is None


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (None, "its address is not known, for the Node is not; see kubelet.address"),
        (NodeView(name="n", uid="u"), "the Node has no address of type InternalIP; see"),
    ],
)
def test_the_reason_why_the_kubelet_cannot_be_reached_is_reported(
    node: NodeView | None, words: str
) -> None:
    async def scenario() -> None:
        credentials, clock = Anonymous(), ManualClock()
        store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))
        store.put(cluster=ClusterView(node=SnapshotPart(node)))
        client = KubeletClient(KubeletSettings(), credentials, store, clock)
        with pytest.raises(Unreachable, match=words):
            await client.pods()

    asyncio.run(scenario())
