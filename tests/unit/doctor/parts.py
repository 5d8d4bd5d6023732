"""Parts of snapshots and of agents' answers, for the states of nodes in tests."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from agent.config.containers import (
    DevicePluginSettings,
)
from agent.config.settings import Settings
from agent.doctor.check import CheckInputs
from agent.doctor.facts import (
    FolderFacts,
)
from agent.doctor.node_report import node_report
from agent.slo.status import build_slo_view
from agent.snapshot.cpu import NumaNode, NumaTopology
from agent.snapshot.host_devices import (
    CdiDevice,
    CdiSpec,
    HostDevices,
    HostDevicesView,
    KernelFeatures,
)
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import GpuDirectCheck, GpuDirectPair, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciFunction, PciTree, TopologyFile
from agent.snapshot.slo import NodeSloView
from agent.wire_formats.snapshot_json import to_json_data
from tests import factory
from tests.unit.doctor.inputs import (
    agent_with,
    cluster_with,
    facts,
    node,
)

NO_FEATURES = KernelFeatures()


def snapshot_with(**parts: object) -> CheckInputs:
    return facts(replace(node(), **parts))


def placed(**place: object) -> NodeSnapshot:
    """Return a node whose card has another place."""
    card = factory.gpu(0)
    device = replace(card, place=replace(card.place, **place))
    return factory.snapshot((device, factory.nic(0)), ())


def numa(*nodes: NumaNode) -> dict[str, object]:
    return {"numa": SnapshotPart(NumaTopology(nodes=nodes), 0.0)}


def memory_node(number: int, pages: int = 0, memory_bytes: int = 1 << 34) -> NumaNode:
    return NumaNode(
        id=number,
        cpus=frozenset({number}),
        memory_bytes=memory_bytes,
        hugepages=((2 << 20, pages),),
    )


def pairs(*checks: GpuDirectCheck, level: str = "PIX") -> CheckInputs:
    """Return a node with one pair of a GPU and a NIC."""
    one = node()
    pair = GpuDirectPair(gpu="g", nic="n", level=level, verdict="slow", checks=checks)
    view = replace(one.devices.value, direct=(pair,))
    return facts(replace(one, devices=SnapshotPart(view, 0.0)))


def ports(*readable: bool) -> CheckInputs:
    """Return a node whose card is below ports with a readable configuration, or without."""
    path = ("pci0000:15", *(f"0000:1{number}:00.0" for number, _ in enumerate(readable)), "x")
    functions = {
        address: PciFunction(address=address, port_type=5 if is_readable else None)
        for address, is_readable in zip(path[1:-1], readable, strict=True)
    }
    one = placed(path=path)
    nics = tuple(d for d in one.devices.value.devices if d.info.bus_id == factory.gpu(0).key)
    view = replace(one.devices.value, devices=nics)
    tree = SnapshotPart(PciTree(functions=functions), 0.0)
    return facts(replace(one, pci=tree, devices=SnapshotPart(view, 0.0)))


def topology_file(**changes: object) -> CheckInputs:
    file = replace(TopologyFile(label="t.xml", places={}), **changes)
    return snapshot_with(topology_file=SnapshotPart(file, 0.0))


def host_devices(kernel: KernelFeatures = NO_FEATURES, **changes: Any) -> NodeSnapshot:
    problems = changes.pop("problems", ())
    view = HostDevicesView(
        vendors={"nvidia": HostDevices(**changes)}, kernel=kernel, problems=problems
    )
    return replace(node(), host_devices=SnapshotPart(view, 0.0))


def spec(path: str) -> CdiSpec:
    return CdiSpec(path=path, kind="nvidia.com/gpu", devices=(CdiDevice(name="0"),))


def slo(spec_: dict[str, Any]) -> dict[str, object]:
    """Return the running agent's snapshot with a NodeSLO."""
    view = build_slo_view({"metadata": {}, "spec": spec_}, NodeSloView())
    return cluster_with("slo", to_json_data(view))


def enforcing(**part: object) -> dict[str, object]:
    rows = [{"name": "cpu_burst", "mode": "on", "state": "active", "message": "", "values": 0}]
    view = {"strategies": rows, "is_frozen": False, "brake": "", "conditions": [], **part}
    return {"agent": agent_with("enforcement", view)}


def health(**changes: object) -> NodeSnapshot:
    card = factory.gpu(0)
    info = replace(card.info, **changes)
    one = factory.snapshot((replace(card, info=info), factory.nic(0)), ())
    inventory = SnapshotPart(Inventory(vendor="nvidia", devices=(info,)), 0.0)
    return replace(one, vendors=tuple(replace(own, inventory=inventory) for own in one.vendors))


def vendors_with(**changes: object) -> NodeSnapshot:
    one = node()
    return replace(one, vendors=tuple(replace(state_, **changes) for state_ in one.vendors))


def compared(now: NodeSnapshot) -> CheckInputs:
    return facts(node(), discovery=node_report(now))


def collectors(*problems: dict[str, str]) -> dict[str, object]:
    row = {"name": "usage", "success": True, "duration_s": 0.1, "problems": list(problems)}
    return {"agent": {"parts": {"usage": {"value": {"collectors": [row]}}}}}


def kubelet(**changes: object) -> dict[str, object]:
    settings = {"topology_policy": "best-effort", "cpu_manager_policy": "none", **changes}
    return cluster_with("kubelet", settings)


def serving(**changes: Any) -> Settings:
    return Settings(device_plugin=DevicePluginSettings(vendors=("nvidia",), **changes))


def folders(folder: FolderFacts, name: str = "node.state_dir") -> dict[str, object]:
    return {"folders": {name: folder}}


def check_of_pair(name: str, verdict: str = "slow") -> GpuDirectCheck:
    return GpuDirectCheck(name=name, verdict=verdict, detail=f"0000:15:01.0: {name}")
