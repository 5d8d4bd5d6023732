"""What is remembered between checks changes no answer, whichever parts of the snapshot change."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.allocation.check import check_allocations, pod_allocation
from agent.allocation.index import AllocationIndex
from agent.snapshot.container import ContainerState, PodSandbox
from agent.snapshot.device import Device
from agent.snapshot.device_plugin import DevicePluginView, KubeletAllocation
from agent.snapshot.node import DeviceView, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from tests.unit.allocation.made import GPUS, NICS, box, container, pod, snapshot
from tests.unit.allocation.test_overlap import texts

Step = Callable[[NodeSnapshot], NodeSnapshot]

IDS = ("GPU-of-another-node", *(gpu.info.uuid or "" for gpu in GPUS))
PHASES = ("Pending", "Running", "Failed")
indexes = st.integers(0, 4)

pods = st.lists(
    st.builds(
        lambda index, annotation, phase: pod(index, annotation, phase=phase),
        indexes,
        texts | st.none(),
        st.sampled_from(PHASES),
    ),
    max_size=4,
    unique_by=lambda one: one.uid,
)
boxes = st.lists(
    st.builds(
        lambda index, annotation, number, stopped: box(
            pod(index, annotation), id=f"box-{number}", stopped=stopped
        ),
        indexes,
        texts | st.none(),
        indexes,
        st.booleans(),
    ),
    max_size=4,
    unique_by=lambda one: one.id,
)


kubelet_allocations = st.builds(
    lambda index, id_: KubeletAllocation(pod_uid=pod(index).uid, resource="r/r", ids=(id_,)),
    indexes,
    st.sampled_from(IDS),
)


def with_pods(listed: list[PodView], is_listed: bool) -> Step:
    return lambda now: replace(
        now, cluster=replace(now.cluster, pods=tuple(listed), has_pod_list=is_listed)
    )


def with_boxes(listed: list[PodSandbox]) -> Step:
    sandboxes = {one.id: one for one in listed}
    return lambda now: replace(
        now, runtime=SnapshotPart(replace(now.runtime.value, sandboxes=sandboxes), 1.0)
    )


def with_containers(states: list[ContainerState]) -> Step:
    def step(now: NodeSnapshot) -> NodeSnapshot:
        runtime = now.runtime.value
        created = zip(map(container, runtime.sandboxes.values()), states, strict=False)
        containers = {one.id: replace(one, state=state) for one, state in created}
        return replace(now, runtime=SnapshotPart(replace(runtime, containers=containers), 1.0))

    return step


def with_devices(there: tuple[Device, ...]) -> Step:
    return lambda now: replace(now, devices=SnapshotPart(DeviceView(devices=there), 1.0))


def with_assignments(assignments: list[KubeletAllocation]) -> Step:
    return lambda now: replace(
        now, served=SnapshotPart(DevicePluginView(held=tuple(assignments)), 1.0)
    )


def checked(now: NodeSnapshot) -> NodeSnapshot:
    return replace(now, allocations=SnapshotPart(check_allocations(now), 1.0))


steps_drawn = st.one_of(
    st.builds(with_pods, pods, st.booleans()),
    st.builds(with_boxes, boxes),
    st.builds(with_containers, st.lists(st.sampled_from(ContainerState), max_size=4)),
    st.builds(with_devices, st.sampled_from(((*GPUS, *NICS), GPUS[:2], ()))),
    st.builds(with_assignments, st.lists(kubelet_allocations, max_size=3)),
    st.just(checked),
)


@given(steps=st.lists(steps_drawn, min_size=1, max_size=8), position=indexes, annotation=texts)
def test_answers_equal_those_without_an_index(
    steps: list[Step], position: int, annotation: str
) -> None:
    rig, now, asks = AllocationIndex(), snapshot(), box(pod(position, annotation))
    earlier: list[NodeSnapshot] = []
    for step in steps:
        now = step(now)
        for one in (now, *earlier[-1:]):  # another thread may still have the one before
            assert pod_allocation(one, asks, rig) == pod_allocation(one, asks)
            assert check_allocations(one, rig) == check_allocations(one)
            for sandbox in one.runtime.value.sandboxes.values():
                assert pod_allocation(one, sandbox, rig) == pod_allocation(one, sandbox)
        earlier.append(now)
