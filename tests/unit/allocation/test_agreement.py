"""One pod is answered as a check of all answers it, whoever else holds or claims the same cards."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.allocation.check import check_allocations, current_allocations, pod_allocation
from agent.snapshot.allocation import AllocationView
from agent.snapshot.container import ContainerState, PodSandbox, RuntimeContainer
from agent.snapshot.device_plugin import DevicePluginView, KubeletAllocation
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from tests.unit.allocation.made import (
    GPUS,
    HALF,
    NICS,
    WHOLE,
    box,
    container,
    entry,
    pod,
    snapshot,
    text,
    verdict,
)

TEXTS = (
    *(text(entry(GPUS[index], amounts)) for index in (0, 1) for amounts in (WHOLE, HALF)),
    text(entry(GPUS[0], WHOLE), entry(GPUS[1], HALF)),
    text(entry(NICS[0], {"rdma": 100}), kind="rdma"),
    text(entry("GPU-of-no-node")),
    "{}",
    "no JSON",
    None,
)
WANTS = (None, None, (("koordinator.sh/gpu", 200), ("koordinator.sh/rdma", 100)), ())
STATES = (ContainerState.RUNNING, ContainerState.STOPPED, ContainerState.UNKNOWN)


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False))
def test_one_pod_is_answered_as_a_check_of_all_does(draw: Random) -> None:
    pods: list[PodView] = []
    boxes: list[PodSandbox] = []
    inside: list[RuntimeContainer] = []
    assignments: list[KubeletAllocation] = []
    for index in range(draw.randint(2, 5)):
        phase = draw.choice(("Pending", "Pending", "Running"))
        one = pod(index, draw.choice(TEXTS), phase=phase, wants=draw.choice(WANTS))
        pods.append(one)
        if draw.random() < 0.7:
            boxes.append(box(one))
            inside += [container(boxes[-1], draw.choice(STATES))] * draw.randint(0, 1)
        if draw.random() < 0.4:
            ids = (str(draw.choice(GPUS[:2]).info.uuid),)
            assignments.append(
                KubeletAllocation(pod_uid=one.uid, resource="vendor.example/thing", ids=ids)
            )
    now = replace(
        snapshot(pods, boxes, inside),
        served=SnapshotPart(DevicePluginView(held=tuple(assignments)), 1.0),
    )
    view = check_allocations(now)
    after = replace(now, allocations=SnapshotPart(view, 2.0))
    assert check_allocations(after) == view
    for asks in boxes:
        assert verdict(pod_allocation(after, asks)) == verdict(view.pods.get(asks.uid))
    position = draw.randint(0, len(pods) - 1)
    uids = {one.uid for one in pods[:position]}
    listed = [one for one in boxes if one.uid in uids]
    ran = [one for one in inside if one.sandbox_id in {each.id for each in listed}]
    behind = check_allocations(snapshot(pods[:position], listed, ran))
    early = replace(now, allocations=SnapshotPart(behind, 2.0))
    for asks in boxes:  # with a check that is behind it may refuse, and never give what is held
        if verdict(pod_allocation(early, asks)) == "held":
            assert verdict(view.pods.get(asks.uid)) == "held"
    now_held = current_allocations(early).held
    for key, holders in now_held.items():
        assert {uid for uid in holders if uid not in uids} <= set(view.held.get(key, ()))
    assert current_allocations(after) is view


def test_what_changed_since_the_last_check_is_in_the_view_of_now() -> None:
    """A claim that came, and a pod that was freed."""
    old, new = (pod(index, text(entry(GPUS[0], WHOLE))) for index in (1, 2))
    other = pod(3, text(entry(GPUS[1], WHOLE)))
    view = check_allocations(snapshot([old, other]))
    assert view.held == {GPUS[0].key: (old.uid,), GPUS[1].key: (other.uid,)}

    def now(*pods: PodView, deleted: tuple[str, ...] = ()) -> AllocationView:
        current = snapshot(pods)
        cluster = replace(current.cluster, deleted_pods=frozenset(deleted))
        return current_allocations(
            replace(current, cluster=cluster, allocations=SnapshotPart(view, 1.0))
        )

    refused = now(old, new, other)
    assert verdict(refused.pods[new.uid]) == "DeviceTaken"
    assert refused.held == view.held
    for freed in (
        now(new, other, deleted=(old.uid,)),
        now(replace(old, phase="Failed"), new, other),
    ):
        assert verdict(freed.pods[new.uid]) == "held"
        assert old.uid not in freed.pods
        assert freed.held == {GPUS[0].key: (new.uid,), GPUS[1].key: (other.uid,)}
    without_old = now(other, deleted=(old.uid,))
    assert without_old.held == {GPUS[1].key: (other.uid,)}
