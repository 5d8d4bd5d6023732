"""What one sandbox was granted as of now: the same as a check of all pods says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.allocation.check import check_allocations, pod_allocation
from agent.snapshot.allocation import PodAllocation
from agent.snapshot.container import ContainerState, PodSandbox, sandbox_from_pod
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from tests.unit.allocation.made import (
    GPUS,
    HALF,
    WHOLE,
    box,
    container,
    entry,
    pod,
    snapshot,
    text,
    verdict,
)
from tests.unit.allocation.test_overlap import texts

CLAIM, SHARE = text(entry(GPUS[0], WHOLE)), text(entry(GPUS[0], HALF))


def checked(now: NodeSnapshot) -> NodeSnapshot:
    return replace(now, allocations=SnapshotPart(check_allocations(now), 1.0))


def test_a_pod_without_the_annotation_was_granted_nothing() -> None:
    assert pod_allocation(snapshot(), box(pod(1))) is None


def test_a_pod_that_came_since_the_last_check_is_answered_by_its_sandbox() -> None:
    one = pod(1, CLAIM)
    sandbox = box(one)
    allocation = pod_allocation(
        replace(snapshot([one]), allocations=checked(snapshot()).allocations), sandbox
    )
    assert allocation is not None
    assert [device.id for device in allocation.grant.devices] == [GPUS[0].info.uuid]
    assert (allocation.uid, allocation.name) == (sandbox.uid, sandbox.name)


def test_the_first_holder_is_looked_up_among_the_pods_of_the_last_check() -> None:
    old, new = pod(1, CLAIM, phase="Running"), pod(2, CLAIM)
    view = checked(snapshot([old])).allocations
    now = replace(snapshot([old, new]), allocations=view)
    assert verdict(pod_allocation(now, box(new))) == "DeviceTaken"


def test_an_annotation_that_changed_in_the_list_since_the_last_check_is_checked_with_others() -> (
    None
):
    old, new = pod(1, CLAIM, phase="Running"), pod(2, text(entry(GPUS[1], WHOLE)))
    view = checked(snapshot([old, new])).allocations
    now = replace(snapshot([old, new]), allocations=view)
    assert verdict(pod_allocation(now, sandbox_from_pod(new))) == "held"
    changed = pod(2, CLAIM)
    since = replace(snapshot([old, changed]), allocations=view)
    assert verdict(pod_allocation(since, sandbox_from_pod(changed))) == "DeviceTaken"


def test_and_of_those_that_came_since_the_last_check() -> None:
    empty = checked(snapshot())
    old, new = pod(1, CLAIM), pod(2, CLAIM)
    since = replace(snapshot([old, new]), allocations=empty.allocations)
    assert verdict(pod_allocation(since, box(new))) == "DeviceTaken"
    rival = box(pod(3, CLAIM))
    running = replace(snapshot([new], [rival], [container(rival)]), allocations=empty.allocations)
    assert verdict(pod_allocation(running, box(new))) == "DeviceTaken"


def test_a_container_in_creation_does_not_put_its_pod_before_the_holder() -> None:
    young, old = pod(2, CLAIM), pod(1, CLAIM)  # by age and by uid, who asks would be first
    has, asks = box(young), box(old)
    created = container(asks, ContainerState.UNKNOWN)
    for state in (ContainerState.CREATED, ContainerState.RUNNING):
        now = checked(snapshot([young, old], [has, asks], [container(has, state), created]))
        assert verdict(pod_allocation(now, asks)) == "DeviceTaken"


def test_a_rival_that_ended_since_the_last_check_holds_nothing_any_more() -> None:
    view, new = checked(snapshot([pod(1, CLAIM)])).allocations, pod(2, CLAIM)
    ended = replace(snapshot([pod(1, CLAIM, phase="Failed"), new]), allocations=view)
    assert verdict(pod_allocation(ended, box(new))) == "held"
    without_rival = replace(snapshot([new]), allocations=view)
    assert verdict(pod_allocation(without_rival, box(new))) == "held"


def test_a_pod_with_a_grant_newer_than_the_last_check_keeps_its_card() -> None:
    late, older = pod(2, CLAIM), pod(1, CLAIM)
    view = checked(snapshot([late], [box(late)])).allocations
    assert verdict(view.value.pods[late.uid]) == "held"
    both = snapshot([late, older], [box(late), box(older)], [container(box(older))])
    now = replace(both, allocations=view)
    assert verdict(pod_allocation(now, box(older))) == "held"
    assert verdict(pod_allocation(now, box(late))) == "DeviceTaken"


def test_a_second_container_of_a_pod_that_runs_gets_what_the_first_has() -> None:
    one = pod(1, CLAIM, phase="Running")
    sandbox = box(one)
    now = checked(snapshot([one], [sandbox], [container(sandbox)]))
    assert pod_allocation(now, sandbox) == now.allocations.value.pods[one.uid]


def test_without_a_check_so_far_all_pods_count() -> None:
    old, new = pod(1, SHARE), pod(2, CLAIM)
    assert verdict(pod_allocation(snapshot([old, new]), box(new))) == "DeviceTaken"


@given(
    made=st.lists(
        st.tuples(texts, st.sampled_from(("Pending", "Running")), st.booleans()), max_size=6
    ),
    position=st.integers(0, 5),
    since=st.integers(0, 6),
)
def test_it_says_what_a_check_of_all_pods_says(
    made: list[tuple[str, str, bool]], position: int, since: int
) -> None:
    """However many pods came since the last check, and whether the sandbox is known or not."""
    pods: list[PodView] = []
    boxes: list[PodSandbox] = []
    for index, (annotation, phase, row) in enumerate(made):
        pods.append(pod(index, annotation, phase=phase))
        if row:
            boxes.append(box(pods[-1]))
    if position >= len(pods):
        return
    now = snapshot(pods, boxes)
    before = checked(snapshot(pods[: len(pods) - since], boxes)).allocations
    uid = pods[position].uid
    desired: PodAllocation | None = check_allocations(now).pods.get(uid)
    allocation = pod_allocation(replace(now, allocations=before), box(pods[position]))
    # who was refused at that check is not heard again: it was given nothing since
    refused = any(one.refusal for one in before.value.pods.values())
    assert allocation == desired or (verdict(allocation) == "held" and refused)
