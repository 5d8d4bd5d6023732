"""Whatever stands in a file: no crash, and never a Device that an API server would refuse."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from agent.devices.joiner import build_device_view
from agent.objects.device import DevicePublisher
from agent.recording.tree import TreeBuilder
from agent.snapshot.cpu import CpuTopology, NumaTopology
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciTree
from agent.wire_formats.device_info import DIRECTORY
from agent.workers import protocol
from plugins.vendors.infofiles.session import InfofilesSession
from plugins.vendors.infofiles.settings import InfofilesSettings
from tests.captures import needs_shared
from tests.schemas import check

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
texts = st.text(max_size=20) | st.sampled_from(["0", "1", "huawei", "0000:3b:00.0", "64Gi", "-1"])
entries = st.fixed_dictionaries(
    {"minor": st.integers(0, 4).map(str) | junk},
    optional={
        "vendor": texts | junk,
        "model": texts | junk,
        "uuid": texts | junk,
        "resources": st.dictionaries(texts, texts | junk, max_size=3) | junk,
        "topology": st.fixed_dictionaries(
            {},
            optional={
                "p2pLinks": st.lists(
                    st.fixed_dictionaries({"peerMinor": texts, "type": texts}), max_size=3
                )
                | junk,
                "mustHonorPartition": st.booleans() | junk,
                "nodeID": texts | junk,
                "pcieID": texts | junk,
                "busID": texts | junk,
            },
        )
        | junk,
        "status": st.fixed_dictionaries(
            {}, optional={"healthy": st.booleans(), "errCode": texts, "errMessage": texts}
        )
        | junk,
    },
)


def session_of(data: bytes) -> InfofilesSession:
    builder = TreeBuilder()
    builder.put(f"{DIRECTORY}/ic-device", data)
    return InfofilesSession(builder.build(), InfofilesSettings())


@needs_shared
@given(st.lists(entries | junk, max_size=5))
def test_any_entries_make_an_object_that_the_schema_takes(found: list[object]) -> None:
    inventory = session_of(json.dumps(found).encode()).discover()
    reply = protocol.DiscoverReply(1, inventory)
    assert protocol.decode_reply("x", protocol.encode_message(reply)) == reply
    assert len({device.key for device in inventory.devices}) == len(inventory.devices)
    view = build_device_view([inventory], PciTree(), CpuTopology(), NumaTopology())
    snapshot = NodeSnapshot(node=NodeIdentity(name="n"), devices=SnapshotPart(view, 1.0))
    (desired,) = DevicePublisher().render(snapshot, 0.0)
    check("scheduling.koordinator.sh_devices.yaml", json.loads(json.dumps(desired.body)))


@given(st.binary(max_size=200))
def test_any_bytes_are_an_inventory(data: bytes) -> None:
    assert session_of(data).discover().vendor == "infofiles"
