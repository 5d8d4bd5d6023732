"""One container created for a pod, through the hook, with a host that has what there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from agent.config.containers import HookSettings
from agent.hooks.devices import DevicesHook
from agent.model.cluster.facts import ClusterFacts
from agent.model.device import Device, VendorDevice
from agent.model.grant.container import Container
from agent.model.grant.host import HostMeans
from agent.model.grant.means import MeansView
from agent.model.grant.merge import merged
from agent.model.part import Part
from agent.model.pod import PodView
from agent.model.runtime.adjustment import Adjustment
from agent.model.runtime.request import HookRequest, Stage
from agent.model.runtime.seen import RuntimeView, SandboxSeen
from agent.model.snapshot import NodeSnapshot
from agent.probe.vendors import load_vendor
from tests.unit.grants.made import pod, snapshot

VENDORS = {name: load_vendor(name) for name in ("nvidia", "ascend", "cambricon", "rdma")}
OLD = RuntimeView(state="synchronized", runtime="containerd", version="1.7.24")


def device(info: VendorDevice) -> Device:
    """A described device that takes pods."""
    share = (("koordinator.sh/gpu-core", "100"), ("koordinator.sh/gpu-memory-ratio", "100"))
    amounts = (("koordinator.sh/rdma", "100"),) if info.kind.wire_type == "rdma" else share
    known = info.resources or (*amounts, ("koordinator.sh/gpu-memory", "80Gi"))
    return Device(info=replace(info, resources=known))


def created(
    annotation: str | None,
    means: Mapping[str, HostMeans],
    devices: Iterable[Device],
    *,
    container: Container | None = None,
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
    sandbox = SandboxSeen(
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
        cluster=ClusterFacts(clustered=listed is not None, pods=now.cluster.pods),
        means=Part(MeansView(vendors=dict(means)), 1.0),
        runtime=Part(runtime, 1.0),
    )
    hook = DevicesHook(VENDORS, hooks or HookSettings(), own_uid="own")
    request = HookRequest(
        stage=Stage.CREATE, pod=sandbox, container=container or Container(name="worker")
    )
    first = hook.adjust(request, before(now))
    assert hook.adjust(request, before(now)) == first  # what is remembered changes nothing
    assert merged((first.edits,)) == first.edits  # each thing once, in order: nobody mends it
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
