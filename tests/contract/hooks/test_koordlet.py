"""What a real koordlet wrote on a real kernel, against what our hooks say of the same pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import pytest
from msgspec.structs import replace

from agent.containers.dispatch import ON, adjust
from agent.containers.hooks import node_hooks
from agent.slo.overlay import overlay_spec
from agent.snapshot.container import (
    Adjustment,
    ContainerSpec,
    HookRequest,
    HookStage,
    LinuxResources,
    PodSandbox,
)
from agent.snapshot.host_devices import HostDevicesView, KernelFeatures
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ContainerView, KubeQos, PodView
from agent.snapshot.slo import NodeSloView
from agent.wire_formats.extended_resource_spec import EXTENDED_SPEC
from agent.wire_formats.quantities import parse_amount
from tests.captures import needs_shared
from tests.clustered import machine, snapshot
from tests.contract.koordlet_files import FOLDERS, RUNS, initial, record, recorded_pods, run_of

UNLIMITED_V1 = 0x7FFFFFFFFFFFF000
FILES = ("cpu.cfs_quota_us", "cpu.shares", "cpuset.cpus", "memory.limit_in_bytes")
HOOKS = node_hooks(reads_kubelet=True)
# annotations that mean nothing in this list of pods, and who leaves them unused
REFUSED = {"badjson": "BadAnnotation"}

pytestmark = needs_shared
Value = int | str


def pods() -> tuple[PodView, ...]:
    views = recorded_pods()
    return tuple(replace(view, containers=tuple(map(running, view.containers))) for view in views)


def running(one: ContainerView) -> ContainerView:
    return replace(one, cgroup=f"/kubepods/{one.id}")


def requested_limits(name: str, container: str | None) -> LinuxResources:
    """The quota of the pod's object: of a container, or of all together."""
    raw = msgspec.convert(record()["pods"], list[dict[str, dict[str, object]]])
    result = next(one for one in raw if one["metadata"]["name"] == name)
    limits: list[object] = []
    for one in msgspec.convert(result["spec"]["containers"], list[dict[str, object]]):
        if container in (None, one["name"]):
            limits.append(
                msgspec.convert(one["resources"], dict[str, dict[str, str]])["limits"].get("cpu")
            )
    milli = [parse_amount(limit) for limit in limits if isinstance(limit, str)]
    if len(milli) < len(limits) or not milli:
        return LinuxResources(quota_us=-1)
    return LinuxResources(quota_us=int(sum(one * 100000 for one in milli if one is not None)))


def sandbox(view: PodView) -> PodSandbox:
    return PodSandbox(
        id=f"sandbox-{view.name}",
        uid=view.uid,
        name=view.name,
        namespace=view.namespace,
        labels=view.labels,
        annotations=view.annotations,
        cgroup_parent=f"/kubepods/{FOLDERS[view.qos]}pod{view.uid}",
    )


def without_batch_annotation(view: PodView) -> PodView:
    """Return the pod of a cluster without Koordinator's webhook."""
    kept = (pair for pair in view.annotations if pair[0] != EXTENDED_SPEC)
    return replace(view, annotations=tuple(kept))


def node(spec: object, views: tuple[PodView, ...]) -> NodeSnapshot:
    """The two CPUs, the kernel and the NodeSLO of one run."""
    entries = snapshot(machine(sockets=1, cores=2, threads=1), pods=views)
    slo = NodeSloView(found=True, slo=overlay_spec(spec).slo)
    return replace(
        entries,
        cluster=replace(entries.cluster, slo=SnapshotPart(slo, 1.0), pods=views),
        host_devices=SnapshotPart(HostDevicesView(kernel=KernelFeatures(cgroup_version=1)), 1.0),
    )


def answers(
    spec: object, views: tuple[PodView, ...] = ()
) -> Iterator[tuple[PodView, str, Adjustment]]:
    """Yield each cgroup's adjustment, of pods and containers."""
    views = views or pods()
    now, modes = node(spec, views), {hook.name: ON for hook in HOOKS}
    for view in views:
        for name in (None, *(container.name for container in view.containers)):
            request = HookRequest(
                stage=HookStage.RECONCILE,
                pod=sandbox(view),
                container=None if name is None else ContainerSpec(name=name, pod_uid=view.uid),
                resources=requested_limits(view.name, name),
            )
            result = adjust(HOOKS, request, now, modes, lambda: 0.0)
            assert not result.failures
            yield view, view.name if name is None else f"{view.name}/{name}", result.adjustment


def file_values(adjustment: Adjustment) -> Mapping[str, Value | None]:
    """The values of files, as version 1 shows them."""
    resources = adjustment.resources
    memory = UNLIMITED_V1 if resources.memory_bytes == -1 else resources.memory_bytes
    return dict(
        zip(FILES, (resources.quota_us, resources.shares, resources.cpus, memory), strict=True)
    )


@pytest.mark.parametrize("name", RUNS)
def test_every_file_is_as_koordlet_left_it(name: str) -> None:
    """Left out by rule: the CPUs of best-effort groups, which its suppression loop sets by load."""
    run = run_of(name)
    differing, compared = [], 0
    for view, group, adjustment in answers(run.nodeslo):
        for file, value in file_values(adjustment).items():
            if file == "cpuset.cpus" and view.qos is KubeQos.BEST_EFFORT:
                assert value is None  # nor is it ours to say
                continue
            theirs = run.after(group, file)
            compared += 1
            if theirs != (initial()[group][file] if value is None else str(value)):
                differing.append((group, file, theirs, value))
    assert not differing
    assert compared == 121  # 33 groups of four files, without 11 sets of best-effort CPUs


@pytest.mark.parametrize("name", RUNS)
def test_every_file_that_koordlet_changed_is_changed_by_a_hook(name: str) -> None:
    changed = run_of(name).changed
    output = {
        group: file_values(adjustment) for _, group, adjustment in answers(run_of(name).nodeslo)
    }
    best_effort = {view.name for view in pods() if view.qos is KubeQos.BEST_EFFORT}
    for group, files in changed.items():
        if group in output:
            own = set(files) & set(FILES)
            own -= {"cpuset.cpus"} if group.partition("/")[0] in best_effort else set()
            assert all(output[group][file] is not None for file in own), group


@pytest.mark.parametrize("name", RUNS)
def test_batch_pods_have_the_same_files_with_and_without_their_annotation(name: str) -> None:
    spec = run_of(name).nodeslo
    plain = tuple(map(without_batch_annotation, pods()))
    assert plain != pods()
    output = [
        {group: file_values(adjustment) for _, group, adjustment in answers(spec, views)}
        for views in (pods(), plain)
    ]
    assert output[0] == output[1]


def test_meaningless_annotations_are_reported_and_change_nothing() -> None:
    for view, _, adjustment in answers({}):
        reasons = {note.reason for note in adjustment.edits.notes}
        assert reasons == ({REFUSED[view.name]} if view.name in REFUSED else set())
        if view.name in REFUSED:
            assert adjustment.resources == LinuxResources()


def test_a_kernel_without_group_identity_is_left_alone() -> None:
    assert all(one.bvt_warp_ns is None for _, _, one in answers(run_of("qos classes").nodeslo))
