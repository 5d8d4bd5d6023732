"""By which way an allocation gets into the container."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.snapshot.allocation import AllocationRefused
from agent.snapshot.device import DeviceNode
from agent.snapshot.host_devices import CdiDevice, CdiSpec, HostDevices, HostDevicesView
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from plugins.vendors.ascend.settings import AscendSettings
from tests.unit.deviceplugin.made import (
    GPU,
    allocation_of,
    card,
    deciding,
    device,
    means,
    node,
    npu,
    waiting,
)
from tests.unit.deviceplugin.requests import VISIBLE, names, visible


@pytest.mark.parametrize(
    ("injection", "handler", "env", "nodes"),
    [
        ("auto", "nvidia", True, False),
        ("auto", "runc", False, True),
        ("env", "runc", True, False),
        ("nodes", "nvidia", False, True),
    ],
)
def test_the_setting_decides_the_way(injection: str, handler: str, env: bool, nodes: bool) -> None:
    snapshot = node(clustered=False, handler=handler)
    edits = deciding(injection=injection).allocate(GPU, (card(2),), snapshot).edits
    assert (VISIBLE in dict(edits.env)) is env
    assert ("/dev/nvidia2" in [one.path for one in edits.nodes]) is nodes


def test_cdi_names_go_both_ways_that_runtimes_read() -> None:
    spec = CdiSpec(
        path="/etc/cdi/nvidia.yaml",
        kind="nvidia.com/gpu",
        devices=tuple(CdiDevice(name=card(i)) for i in range(8)),
    )
    host = replace(means()["nvidia"], cdi=(spec,))
    snapshot = replace(
        node(clustered=False),
        host_devices=SnapshotPart(HostDevicesView(vendors={"nvidia": host}), 1.0),
    )
    result = deciding(injection="cdi").allocate(GPU, (card(1), card(0)), snapshot)
    listed = (f"nvidia.com/gpu={card(0)}", f"nvidia.com/gpu={card(1)}")
    assert result.edits.cdi == listed
    assert result.annotations == (("cdi.k8s.io/xpu-agent_nvidia.com-gpu", ",".join(listed)),)
    with pytest.raises(AllocationRefused, match="CDINameMissing"):
        deciding(injection="cdi").allocate(GPU, (card(1),), node(clustered=False))


def test_limits_of_a_share_are_the_hooks_while_nri_is_in_force() -> None:
    labels = (("koordinator.sh/gpu-isolation-provider", "HAMi-core"),)
    pod = waiting(1, labels=labels)
    assert visible(node(pod, grants={0: allocation_of(card(6))}, in_force=True), 0) == names(6)
    with pytest.raises(AllocationRefused, match="IncompleteGrant"):
        visible(node(pod, grants={0: allocation_of(card(6))}), 0)


SPEC = CdiSpec(
    path="/etc/cdi/nvidia.yaml",
    kind="nvidia.com/gpu",
    devices=tuple(CdiDevice(name=card(i), nodes=(f"/dev/nvidia{i}",)) for i in range(4)),
)


def with_spec(snapshot: NodeSnapshot) -> NodeSnapshot:
    view = snapshot.host_devices.value
    host = replace(view.vendors["nvidia"], cdi=(SPEC,))
    return replace(
        snapshot, host_devices=SnapshotPart(replace(view, vendors={"nvidia": host}), 1.0)
    )


def test_by_default_the_vendors_cdi_name_comes_beside_the_bare_nodes() -> None:
    """A runtime that takes CDI names adds the driver's libraries; another one has the nodes."""
    bare = deciding().allocate(GPU, (card(1),), node(clustered=False, handler="")).edits
    result = deciding().allocate(GPU, (card(1),), with_spec(node(clustered=False, handler="")))
    assert bare.cdi == ()
    assert [note.reason for note in bare.notes] == ["NoDriverInjection"]
    assert result.edits == replace(bare, cdi=(f"nvidia.com/gpu={card(1)}",), notes=())
    assert result.annotations == (
        ("cdi.k8s.io/xpu-agent_nvidia.com-gpu", f"nvidia.com/gpu={card(1)}"),
    )


@pytest.mark.parametrize("in_force", [False, True])
def test_a_grant_is_answered_by_the_vendors_cdi_name_too(in_force: bool) -> None:
    pod = waiting(0)
    snapshot = with_spec(
        node(pod, grants={0: allocation_of(card(2))}, handler="", in_force=in_force)
    )
    edits = deciding().allocate(GPU, (card(0),), snapshot).edits
    assert edits.cdi == (f"nvidia.com/gpu={card(2)}",)
    assert "/dev/nvidia2" in [one.path for one in edits.nodes]


@pytest.mark.parametrize("injection", ["nodes", "env", "auto"])
def test_no_cdi_name_comes_where_the_setting_or_the_makers_runtime_brings_the_driver(
    injection: str,
) -> None:
    handler = "nvidia" if injection == "auto" else ""
    snapshot = with_spec(node(clustered=False, handler=handler))
    assert deciding(injection=injection).allocate(GPU, (card(1),), snapshot).edits.cdi == ()


def test_a_name_that_the_vendor_refuses_leaves_the_bare_nodes() -> None:
    """`ascend.injection: cdi` needs a file of CDI names; today's answer needs none."""
    devices = (device(npu(0)),)
    nodes = tuple(
        DeviceNode(path=path, major=240, minor=minor)
        for path, minor in (("/dev/davinci0", 0), ("/dev/davinci_manager", 1))
    )
    host = HostDevices(nodes=nodes, settings=AscendSettings(injection="cdi"))
    base = node(devices=devices, clustered=False)
    snapshot = replace(
        base, host_devices=SnapshotPart(HostDevicesView(vendors={"ascend": host}), 1.0)
    )
    edits = deciding().allocate("huawei.com/Ascend910", ("Ascend910-0",), snapshot).edits
    assert edits.cdi == ()
    assert [one.path for one in edits.nodes] == ["/dev/davinci0", "/dev/davinci_manager"]
