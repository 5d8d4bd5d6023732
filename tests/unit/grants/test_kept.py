"""What is remembered between checks changes no answer, whichever parts of the snapshot change."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.grants.check import check_grants, grant_of
from agent.grants.kept import Kept
from agent.model.device import Device
from agent.model.part import Part
from agent.model.pod import PodView
from agent.model.runtime.seen import ContainerState, SandboxSeen
from agent.model.runtime.served import Held, ServedView
from agent.model.snapshot import DeviceView, NodeSnapshot
from tests.unit.grants.made import GPUS, NICS, box, container, pod, snapshot
from tests.unit.grants.test_overlap import texts

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


held = st.builds(
    lambda index, id_: Held(pod_uid=pod(index).uid, resource="r/r", ids=(id_,)),
    indexes,
    st.sampled_from(IDS),
)


def with_pods(listed: list[PodView], known: bool) -> Step:
    return lambda now: replace(
        now, cluster=replace(now.cluster, pods=tuple(listed), pods_known=known)
    )


def with_boxes(listed: list[SandboxSeen]) -> Step:
    sandboxes = {one.id: one for one in listed}
    return lambda now: replace(
        now, runtime=Part(replace(now.runtime.value, sandboxes=sandboxes), 1.0)
    )


def with_containers(states: list[ContainerState]) -> Step:
    def step(now: NodeSnapshot) -> NodeSnapshot:
        runtime = now.runtime.value
        made = zip(map(container, runtime.sandboxes.values()), states, strict=False)
        containers = {one.id: replace(one, state=state) for one, state in made}
        return replace(now, runtime=Part(replace(runtime, containers=containers), 1.0))

    return step


def with_devices(there: tuple[Device, ...]) -> Step:
    return lambda now: replace(now, devices=Part(DeviceView(devices=there), 1.0))


def with_held(given: list[Held]) -> Step:
    return lambda now: replace(now, served=Part(ServedView(held=tuple(given)), 1.0))


def checked(now: NodeSnapshot) -> NodeSnapshot:
    return replace(now, grants=Part(check_grants(now), 1.0))


steps_drawn = st.one_of(
    st.builds(with_pods, pods, st.booleans()),
    st.builds(with_boxes, boxes),
    st.builds(with_containers, st.lists(st.sampled_from(ContainerState), max_size=4)),
    st.builds(with_devices, st.sampled_from(((*GPUS, *NICS), GPUS[:2], ()))),
    st.builds(with_held, st.lists(held, max_size=3)),
    st.just(checked),
)


@given(steps=st.lists(steps_drawn, min_size=1, max_size=8), asked=indexes, annotation=texts)
def test_answers_are_those_of_who_remembers_nothing(
    steps: list[Step], asked: int, annotation: str
) -> None:
    kept, now, asks = Kept(), snapshot(), box(pod(asked, annotation))
    earlier: list[NodeSnapshot] = []
    for step in steps:
        now = step(now)
        for one in (now, *earlier[-1:]):  # another thread may still have the one before
            assert grant_of(one, asks, kept) == grant_of(one, asks)
            assert check_grants(one, kept) == check_grants(one)
            for sandbox in one.runtime.value.sandboxes.values():
                assert grant_of(one, sandbox, kept) == grant_of(one, sandbox)
        earlier.append(now)
