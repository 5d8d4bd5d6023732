"""Snapshots with devices, pods that claim them, and sandboxes of those pods."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from agent.snapshot.allocation import PodAllocation
from agent.snapshot.cluster import ClusterView
from agent.snapshot.container import ContainerState, PodSandbox, RuntimeContainer, RuntimeView
from agent.snapshot.device import Device, VendorDevice
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import DeviceView, NodeIdentity, NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView, RequestedAmounts
from agent.wire_formats.device_allocated import ANNOTATION
from agent.wire_formats.quantities import parse_quantity
from tests import factory

NODE = "node-a"
CORE, MEMORY, RATIO = "gpu-core", "gpu-memory", "gpu-memory-ratio"
GPUS = tuple(factory.gpu(index) for index in range(4))
NICS = (factory.nic(0, vfs=4), factory.nic(1))
HALF = {"ratio": "50", "core": "50", "memory": "40779Mi"}
WHOLE = {"ratio": "100", "core": "100", "memory": "81559Mi"}
NAMES = {
    "core": "koordinator.sh/gpu-core",
    "memory": "koordinator.sh/gpu-memory",
    "ratio": "koordinator.sh/gpu-memory-ratio",
    "rdma": "koordinator.sh/rdma",
    "npu": "huawei.com/npu-core",
    "shared": "koordinator.sh/gpu.shared",
}


def entry(
    device: Device | str | int,
    amounts: Mapping[str, str | int] | None = None,
    *,
    vfs: Sequence[str] = (),
    template: str = "",
) -> dict[str, object]:
    """One entry of the annotation; a number is a minor without an id."""
    entry_json: dict[str, object] = {"resources": {NAMES[k]: v for k, v in (amounts or {}).items()}}
    if isinstance(device, Device):
        entry_json |= {"minor": device.info.minor, "id": device.info.uuid}
    else:
        entry_json |= {"minor": device} if isinstance(device, int) else {"minor": 0, "id": device}
    extension: dict[str, object] = {}
    if vfs:
        extension["vfs"] = [{"busID": address} for address in vfs]
    if template:
        extension["gpuSharedResourceTemplate"] = template
    return entry_json | ({"extension": extension} if extension else {})


def text(*entries: dict[str, object], kind: str = "gpu") -> str:
    return json.dumps({kind: list(entries)})


def requests_for(annotation: str | None) -> RequestedAmounts:
    """Return what a pod requests for which a scheduler can have written this annotation.

    Of an annotation that no scheduler writes: nothing.
    """
    try:
        entries = [
            (kind, one)
            for kind, allocated in json.loads(annotation or "{}").items()
            for one in allocated
        ]
        amounts: Counter[str] = Counter()
        for kind, one in entries:
            whole = {NAMES["rdma"] if kind == "rdma" else NAMES["ratio"]: 100}
            for name, value in (one.get("resources") or whole).items():
                quantity = parse_quantity(str(value))
                amounts[name] += quantity.value if quantity is not None else 0
            amounts[NAMES["shared"]] += kind == "gpu"
    except (ValueError, TypeError, AttributeError):
        return ()
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))


def pod(index: int, annotation: str | None = None, **changes: object) -> PodView:
    """A pod that is bound here and has not begun; of two the one with the smaller index is older.

    It requests what its annotation grants, as any pod's object at the API server shows.
    `changes` are fields of the view.
    """
    notes = () if annotation is None else ((ANNOTATION, annotation),)
    created = factory.pod(
        index,
        containers=0,
        node_name=NODE,
        phase="Pending",
        annotations=notes,
        wants=requests_for(annotation),
        created=f"2026-01-02T03:04:{index % 60:02d}Z",
    )
    return replace(created, **changes)


def box(of: PodView, annotation: str | None = None, **changes: object) -> PodSandbox:
    """The sandbox of a pod, created with the annotation that the pod has unless another is said."""
    written = of.annotation(ANNOTATION) if annotation is None else annotation
    pod_sandbox = PodSandbox(
        id=f"box-{of.uid}",
        uid=of.uid,
        name=of.name,
        namespace=of.namespace,
        labels=of.labels,
        annotations=() if written is None else ((ANNOTATION, written),),
    )
    return replace(pod_sandbox, **changes)


def container(of: PodSandbox, state: ContainerState = ContainerState.RUNNING) -> RuntimeContainer:
    return RuntimeContainer(id=f"c-{of.id}", sandbox_id=of.id, name="worker", state=state)


def snapshot(
    pods: Iterable[PodView] = (),
    boxes: Iterable[PodSandbox] = (),
    containers: Iterable[RuntimeContainer] = (),
    devices: Iterable[Device] = (*GPUS, *NICS),
    awaited: tuple[str, ...] = (),
) -> NodeSnapshot:
    """Everything that grants are checked against."""
    there, listed = tuple(devices), tuple(pods)
    runtime = RuntimeView(
        state="synchronized",
        runtime="containerd",
        version="1.7.24",
        nri_version=(0, 6, 1),
        sandboxes={one.id: one for one in boxes},
        containers={one.id: one for one in containers},
    )
    owned: dict[str, list[VendorDevice]] = {}
    for one in there:
        owned.setdefault(plugin_of(one.info), []).append(one.info)
    return NodeSnapshot(
        node=NodeIdentity(name=NODE),
        devices=SnapshotPart(DeviceView(devices=there, awaited=awaited), 1.0),
        vendors=tuple(
            VendorState(
                vendor=name,
                state="ready",
                inventory=SnapshotPart(Inventory(vendor=name, devices=tuple(owned[name])), 1.0),
            )
            for name in sorted(owned)
        ),
        cluster=ClusterView(is_clustered=True, has_pod_list=bool(listed), pods=listed),
        runtime=SnapshotPart(runtime, 1.0),
    )


def without_cluster(now: NodeSnapshot) -> NodeSnapshot:
    """The same node of an agent in standalone mode: nobody lists pods."""
    return replace(now, cluster=ClusterView())


def plugin_of(device: VendorDevice) -> str:
    """Name the vendor's plug-in that shows a device."""
    plugins = {"nvidia": "nvidia", "huawei": "ascend", "cambricon": "cambricon", "mlx5": "rdma"}
    return plugins[device.vendor]


def verdict(grant: PodAllocation | None) -> str:
    """Say how a grant went, in one word: the reason of a refusal, `held`, or `none`."""
    return "none" if grant is None else grant.refusal or "held"
