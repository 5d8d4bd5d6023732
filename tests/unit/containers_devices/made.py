"""One container created for a pod, through the hook, with a host that has what there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from agent.config.containers import HookSettings
from agent.containers.devices import DevicesHook
from agent.snapshot.cluster import ClusterView
from agent.snapshot.container import (
    Adjustment,
    ContainerSpec,
    HookRequest,
    HookStage,
    PodSandbox,
    RuntimeView,
)
from agent.snapshot.device import Device, VendorDevice
from agent.snapshot.edits import merge_edits
from agent.snapshot.host_devices import HostDevices, HostDevicesView
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from agent.workers.load import load_vendor
from tests.unit.allocation.made import pod, snapshot

VENDORS = {name: load_vendor(name) for name in ("nvidia", "ascend", "cambricon", "rdma")}
OLD = RuntimeView(state="synchronized", runtime="containerd", version="1.7.24")


def device(info: VendorDevice) -> Device:
    """A described device that takes pods."""
    share = (("koordinator.sh/gpu-core", "100"), ("koordinator.sh/gpu-memory-ratio", "100"))
    amounts = (("koordinator.sh/rdma", "100"),) if info.kind.wire_type == "rdma" else share
    entries = info.resources or (*amounts, ("koordinator.sh/gpu-memory", "80Gi"))
    return Device(info=replace(info, resources=entries))


def created(
    annotation: str | None,
    means: Mapping[str, HostDevices],
    devices: Iterable[Device],
    *,
    container: ContainerSpec | None = None,
    view: PodView | None = None,
    box: Mapping[str, object] | None = None,
    hooks: HookSettings | None = None,
    runtime: RuntimeView = OLD,
    before: Callable[[NodeSnapshot], NodeSnapshot] = lambda now: now,
) -> Adjustment:
    """Return what the hook answers for a container of a pod with this annotation.

    `box` are fields of the pod's sandbox. A pod that was granted something is listed by the
    cluster; for any other pod there is a cluster only with `view`.
    """
    one = view or pod(1, annotation)
    listed = one if annotation is not None else view
    sandbox = PodSandbox(
        id="box-1",
        uid=one.uid,
        name=one.name,
        namespace=one.namespace,
        labels=one.labels,
        annotations=one.annotations,
    )
    sandbox = replace(sandbox, **(box or {}))
    now = snapshot([listed] if listed else [], [], devices=tuple(devices))
    now = replace(
        now,
        cluster=ClusterView(is_clustered=listed is not None, pods=now.cluster.pods),
        host_devices=SnapshotPart(HostDevicesView(vendors=dict(means)), 1.0),
        runtime=SnapshotPart(runtime, 1.0),
    )
    hook = DevicesHook(VENDORS, hooks or HookSettings(), own_uid="own")
    request = HookRequest(
        stage=HookStage.CREATE, pod=sandbox, container=container or ContainerSpec(name="worker")
    )
    first = hook.adjust(request, before(now))
    assert hook.adjust(request, before(now)) == first  # what is remembered changes nothing
    assert merge_edits((first.edits,)) == first.edits  # each thing once, in order: nobody mends it
    return first


def env(answer: Adjustment) -> dict[str, str]:
    """Return the variables of a container that may start."""
    assert not answer.failed, answer.failed
    return dict(answer.edits.env)


def nodes(answer: Adjustment) -> list[str]:
    """Return the paths of the nodes in a container that may start."""
    assert not answer.failed, answer.failed
    return [node.path for node in answer.edits.nodes]


def mounts(answer: Adjustment) -> list[str]:
    """Return the mounts' places in a container that may start."""
    assert not answer.failed, answer.failed
    return [mount.path for mount in answer.edits.mounts]


def reasons(answer: Adjustment) -> Sequence[str]:
    """Return the reasons of what is told."""
    return [note.reason for note in answer.edits.notes]
