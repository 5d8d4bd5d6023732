from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.clock import ManualClock
from agent.reconcile.managed_pods import ManagedPods
from agent.reconcile.pod_scan import BUDGET_S, MIN_PODS, PodScan
from agent.reconcile.reports import ANSWER_LATE, ReportHistory
from agent.snapshot.allocation import AllocationView, PodAllocation
from agent.snapshot.container import (
    NO_ADJUSTMENT,
    NO_RESOURCES,
    Adjustment,
    HookRequest,
    LinuxResources,
    PodSandbox,
    RuntimeView,
)
from agent.snapshot.host_devices import HostDevicesView, KernelFeatures
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ContainerView, KubeQos, PodView
from agent.wire_formats.resource_status import RESOURCE_STATUS
from tests.unit.reconcile.scene import CannedHook

IDS = [f"{number:064x}" for number in range(4)]


def uid(number: int) -> str:
    return f"7712555c-ce62-454a-9e18-{number:012x}"


def pod(number: int, *containers: ContainerView) -> PodView:
    return PodView(
        uid=uid(number),
        qos=KubeQos.BURSTABLE,
        name=f"pod{number}",
        namespace="default",
        cgroup=f"/kubepods/burstable/pod{uid(number)}",
        containers=containers,
    )


def running(pod_number: int, index: int, name: str = "") -> ContainerView:
    cgroup = f"/kubepods/burstable/pod{uid(pod_number)}/{IDS[index]}"
    return ContainerView(id=IDS[index], name=name, cgroup=cgroup)


def snapshot(*pods: PodView, **changes: object) -> NodeSnapshot:
    node_snapshot = NodeSnapshot(node=NodeIdentity(name="node"), pods=SnapshotPart(pods, 1.0))
    return replace(node_snapshot, **changes)


class SlowHook(CannedHook):
    """Takes its time, which is the clock's."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        self.clock.advance(BUDGET_S / 2)
        return super().adjust(request, snapshot)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def survey_of(hook: CannedHook, clock: ManualClock) -> PodScan:
    return PodScan((hook,), {hook.name: "on"}, clock)


def refresh(survey: PodScan, now: NodeSnapshot) -> frozenset[str]:
    return survey.refresh(now, 2, lambda *_: NO_RESOURCES)


def requested_pods(hook: CannedHook) -> list[str]:
    names = [request.pod.name for request in hook.requests]
    hook.requests.clear()
    return list(dict.fromkeys(names))


def test_new_pods_are_processed_at_once_however_many(clock: ManualClock) -> None:
    hook = SlowHook(clock)
    survey = survey_of(hook, clock)
    refresh(survey, snapshot(*map(pod, range(30))))
    assert len(requested_pods(hook)) == 30
    assert (survey.backlog, survey.is_changed) == (0, True)


def test_a_pod_that_comes_costs_no_question_about_others_unless_it_holds_cpus(
    clock: ManualClock,
) -> None:
    hook = CannedHook()
    survey = survey_of(hook, clock)
    refresh(survey, snapshot(pod(1)))
    requested_pods(hook)
    refresh(survey, snapshot(pod(1), pod(2)))
    assert requested_pods(hook) == ["pod2"]
    pinned = replace(pod(3), annotations=((RESOURCE_STATUS, '{"cpuset":"1"}'),))
    refresh(survey, snapshot(pod(1), pod(2), pinned))
    assert requested_pods(hook) == ["pod3", "pod1", "pod2"]


def test_a_pod_of_the_runtime_is_computed_again_when_its_requests_arrive(
    clock: ManualClock,
) -> None:
    hook = CannedHook()
    survey, listed = survey_of(hook, clock), pod(1)
    sandbox = PodSandbox(
        id=IDS[0],
        uid=listed.uid,
        name=listed.name,
        namespace="default",
        cgroup_parent=listed.cgroup,
    )
    runtime = SnapshotPart(RuntimeView(sandboxes={IDS[0]: sandbox}), 1.0)
    refresh(survey, snapshot(replace(listed, name="", namespace=""), runtime=runtime))
    assert requested_pods(hook) == ["pod1"]
    refresh(survey, snapshot(listed, runtime=runtime))
    assert requested_pods(hook) == ["pod1"]
    refresh(survey, snapshot(replace(listed), runtime=runtime))
    assert requested_pods(hook) == []


def test_a_change_of_the_node_is_taken_to_all_pods_a_few_in_each_cycle(
    clock: ManualClock,
) -> None:
    hook = SlowHook(clock)
    survey, pods = survey_of(hook, clock), tuple(map(pod, range(30)))
    refresh(survey, snapshot(*pods))
    requested_pods(hook)
    later = snapshot(
        *pods, host_devices=SnapshotPart(HostDevicesView(kernel=KernelFeatures(core_switch=1)), 2.0)
    )
    rounds: list[list[str]] = []
    while not rounds or survey.backlog:
        refresh(survey, later)
        rounds.append(requested_pods(hook))
    assert {len(names) for names in rounds} <= {MIN_PODS, 30 % MIN_PODS}
    assert sorted(name for names in rounds for name in names) == sorted(p.name for p in pods)
    assert not survey.is_changed


def test_a_marked_pod_comes_first_and_is_named(clock: ManualClock) -> None:
    hook = CannedHook()
    survey, now = survey_of(hook, clock), snapshot(*map(pod, range(3)))
    refresh(survey, now)
    requested_pods(hook)
    assert refresh(survey, now) == frozenset()
    survey.prioritize(uid(2))
    assert refresh(survey, now) == {uid(2)}
    assert requested_pods(hook) == ["pod2"]


def test_a_pod_that_went_is_forgotten(clock: ManualClock) -> None:
    hook = CannedHook()
    hook.answers = {None: Adjustment(resources=LinuxResources(quota_us=-1))}
    survey = survey_of(hook, clock)
    refresh(survey, snapshot(pod(1), pod(2)))
    refresh(survey, snapshot(pod(2)))
    assert [one.managed_pod.pod.name for one in survey.desired.values()] == ["pod2"]


def test_the_sandbox_is_the_one_the_runtime_named() -> None:
    view = pod(1, running(1, 0), running(1, 1, "app"), running(1, 2))
    sandbox = PodSandbox(id=IDS[2], uid=uid(1))
    runtime = SnapshotPart(RuntimeView(sandboxes={IDS[2]: sandbox}), 1.0)
    (place,) = ManagedPods().list(snapshot(view, runtime=runtime))
    assert [(container.id, container.name) for container in place.containers] == [
        (IDS[2], ""),
        (IDS[1], "app"),
    ]


def test_of_several_that_may_be_the_sandbox_none_is_taken() -> None:
    (place,) = ManagedPods().list(
        snapshot(pod(1, running(1, 0), running(1, 1, "app"), running(1, 2)))
    )
    assert [container.name for container in place.containers] == ["app"]


def test_the_only_one_that_is_nobody_else_is_the_sandbox() -> None:
    (place,) = ManagedPods().list(snapshot(pod(1, running(1, 0), running(1, 1, "app"))))
    assert [container.name for container in place.containers] == ["", "app"]


def test_before_a_container_is_reported_none_is_the_sandbox() -> None:
    (place,) = ManagedPods().list(snapshot(pod(1, running(1, 0))))
    assert place.containers == ()


def test_a_stopped_sandbox_is_not_used() -> None:
    sandbox = PodSandbox(id=IDS[0], uid=uid(1), stopped=True)
    runtime = SnapshotPart(RuntimeView(sandboxes={IDS[0]: sandbox}), 1.0)
    unnamed = replace(pod(1, running(1, 0)), name="", namespace="")
    assert ManagedPods().list(snapshot(unnamed, runtime=runtime)) == ()


def test_a_late_answer_is_reported_for_pods_with_granted_devices(clock: ManualClock) -> None:
    hook = CannedHook()
    hook.answers = {None: NO_ADJUSTMENT}
    survey = survey_of(hook, clock)
    allocations = AllocationView(pods={uid(1): PodAllocation(uid=uid(1))})
    now = snapshot(pod(1), pod(2), allocations=SnapshotPart(allocations, 1.0))
    refresh(survey, now)
    telling, both = ReportHistory(), {uid(1), uid(2)}
    notes = telling.late_notes(now, survey.desired.values(), both)
    assert [(note.name, note.note.reason) for note in notes] == [("pod1", ANSWER_LATE)]
    assert telling.late_notes(now, survey.desired.values(), both) == ()


def test_a_pod_that_ends_before_its_turn_is_not_processed(clock: ManualClock) -> None:
    hook = SlowHook(clock)
    survey, pods = survey_of(hook, clock), tuple(map(pod, range(30)))
    refresh(survey, snapshot(*pods))
    requested_pods(hook)
    host_devices = SnapshotPart(HostDevicesView(kernel=KernelFeatures(core_switch=1)), 2.0)
    refresh(survey, snapshot(*pods, host_devices=host_devices))
    first = requested_pods(hook)
    remaining_pods = tuple(one for one in pods if one.name in first[:2])
    for _ in range(3):
        refresh(survey, snapshot(*remaining_pods, host_devices=host_devices))
    assert survey.backlog == 0
    assert set(requested_pods(hook)) <= {remaining_pod.name for remaining_pod in remaining_pods}
