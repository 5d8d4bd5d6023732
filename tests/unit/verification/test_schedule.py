from __future__ import annotations

from types import MappingProxyType

import pytest
from msgspec.structs import replace

from agent.snapshot.allocation import (
    AllocatedDevice,
    AllocationView,
    DeviceAllocation,
    PodAllocation,
    VerificationStatus,
)
from agent.snapshot.cluster import ClusterView
from agent.snapshot.container import ContainerState, PodSandbox, RuntimeContainer, RuntimeView
from agent.snapshot.device_plugin import DevicePluginView, KubeletAllocation, PluginResource
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ContainerView, ResourceRequest
from agent.verification.inspector import ContainerLocation
from agent.verification.schedule import (
    LONGEST_S,
    MAX_CHECKS_PER_RUN,
    RECHECK_S,
    UNALLOCATED_S,
    VerificationSchedule,
    VerificationTarget,
    targets,
)
from agent.wire_formats.device_allocated import ANNOTATION
from tests import factory

POD = factory.pod(1)
UID = POD.uid
ID = POD.containers[0].id
BOX = PodSandbox(id="box", uid=UID, name="told", cgroup_parent="/elsewhere")
ALLOCATION = PodAllocation(
    uid=UID, grant=DeviceAllocation(devices=(AllocatedDevice(type="gpu", minor=0),))
)


def snapshot(
    grant: PodAllocation = ALLOCATION,
    state: ContainerState | None = ContainerState.RUNNING,
    missed_containers: dict[str, str] | None = None,
    **changes: object,
) -> NodeSnapshot:
    """One granted pod that the runtime told of, in a state."""
    container = RuntimeContainer(id=ID, sandbox_id="box", name="worker-0", state=state or HIDDEN)
    runtime = RuntimeView(
        sandboxes=MappingProxyType({"box": BOX}),
        containers=MappingProxyType({ID: container} if state else {}),
        missed=MappingProxyType(missed_containers or {}),
    )
    first = NodeSnapshot(
        node=NodeIdentity(name="n"),
        runtime=SnapshotPart(runtime),
        allocations=SnapshotPart(AllocationView(pods=MappingProxyType({UID: grant}))),
    )
    return replace(first, **changes)


HIDDEN = ContainerState.UNKNOWN


def test_a_container_is_searched_where_the_runtime_and_the_cgroups_have_it() -> None:
    (target,) = targets(snapshot(pods=SnapshotPart((POD,))))
    assert target.location.pod_cgroups == (POD.cgroup, "/elsewhere")
    assert (target.id, target.name, target.injection_path) == (ID, "worker-0", "nri")
    assert target.pod is BOX


def test_without_nri_the_containers_of_the_kubelets_list_are_verified() -> None:
    listed = replace(POD, containers=(replace(POD.containers[0], cgroup=f"{POD.cgroup}/{ID}"),))
    cluster = ClusterView(pods=(POD,))  # which knows no cgroups of containers
    (target,) = targets(snapshot(state=None, pods=SnapshotPart((listed,)), cluster=cluster))
    assert target.location == ContainerLocation(container_id=ID, pod_cgroups=(POD.cgroup,))
    assert (target.name, target.injection_path, target.pod.uid) == ("worker-0", "", UID)


@pytest.mark.parametrize(
    "container",
    [
        ContainerView(id=ID, name="", cgroup=f"{POD.cgroup}/{ID}"),  # a sandbox, for all we know
        ContainerView(id=ID, name="main"),  # does not run
    ],
)
def test_containers_that_do_not_run_are_not_verified(container: ContainerView) -> None:
    listed = replace(POD, containers=(container,))
    assert targets(snapshot(state=None, pods=SnapshotPart((listed,)))) == ()


@pytest.mark.parametrize(
    ("changed", "looked_at"),
    [
        (snapshot(), 1),
        (snapshot(state=ContainerState.CREATED), 1),
        (snapshot(state=ContainerState.STOPPED), 0),
        (snapshot(PodAllocation(uid=UID)), 0),
        (snapshot(replace(ALLOCATION, refusal="DeviceTaken")), 0),
        (snapshot(replace(ALLOCATION, uid="other")), 1),  # by the key, not by what it holds
        (replace(snapshot(), allocations=SnapshotPart(AllocationView())), 0),
    ],
)
def test_pods_with_a_valid_grant_are_verified_while_they_run(
    changed: NodeSnapshot, looked_at: int
) -> None:
    assert len(targets(changed)) == looked_at


def beside(**changes: object) -> NodeSnapshot:
    """A pod with a grant whose containers nobody lists, and the pod of `snapshot` without one."""
    other = PodAllocation(uid="other", grant=ALLOCATION.grant)
    allocations = SnapshotPart(AllocationView(pods=MappingProxyType({"other": other})))
    return replace(snapshot(), allocations=allocations, **changes)


def test_pods_without_a_grant_are_verified_if_another_pod_has_one() -> None:
    (plain,) = targets(beside())
    assert (plain.id, plain.is_allocated, plain.is_late) == (ID, False, False)
    assert targets(beside(), lambda pod: pod.uid == UID) == ()
    refused = replace(ALLOCATION, refusal="DeviceTaken")
    assert targets(snapshot(refused)) == ()


def test_pods_with_devices_of_the_agents_plug_in_are_verified_on_a_node_without_grants() -> None:
    assignment = (KubeletAllocation(pod_uid=UID, resource="a.com/b", ids=("1",)),)
    for name, looked_at in (("a.com/b", [(True, "kubelet")]), ("another", [])):
        served = DevicePluginView(
            resources=(PluginResource(name=name, vendor="v"),), held=assignment
        )
        now = replace(
            snapshot(), allocations=SnapshotPart(AllocationView()), served=SnapshotPart(served)
        )
        assert [
            (one.is_assigned, one.injection_path) for one in targets(now, lambda _: True)
        ] == looked_at


def snapshot_of_late_pod(phase: str = "Running", *annotations: tuple[str, str]) -> NodeSnapshot:
    pod = replace(POD, phase=phase, annotations=annotations, node_name="n")
    nothing = SnapshotPart(AllocationView())
    return replace(snapshot(), allocations=nothing, cluster=ClusterView(pods=(pod,)))


def test_a_sandbox_whose_pod_got_its_grant_later_is_verified() -> None:
    late = snapshot_of_late_pod("Running", (ANNOTATION, '{"gpu":[{"minor":0}]}'))
    (target,) = targets(late, lambda _: True)
    assert (target.id, target.is_late, target.is_allocated) == (ID, True, False)
    assert targets(snapshot_of_late_pod()) == ()
    assert targets(snapshot_of_late_pod("Failed", (ANNOTATION, "{}"))) == ()
    # the sandbox was made with the annotation: what became of that is another matter
    box = replace(BOX, annotations=((ANNOTATION, "{}"),))
    runtime = replace(late.runtime.value, sandboxes=MappingProxyType({"box": box}))
    assert targets(replace(late, runtime=SnapshotPart(runtime))) == ()
    assert targets(replace(late, allocations=snapshot().allocations))[0].is_late is False


def test_a_container_that_requests_a_device_plug_ins_resource_got_it_by_the_kubelet() -> None:
    asks = (ResourceRequest(container="worker-0", resource="nvidia.com/gpu", count=1),)
    running = replace(POD.containers[0], cgroup=f"{POD.cgroup}/{ID}")
    pods = SnapshotPart((replace(POD, containers=(running,), asks=asks),))
    assert targets(snapshot(state=None, pods=pods))[0].injection_path == "kubelet"
    assert (
        targets(snapshot(missed_containers={ID: "BudgetExceeded"}, pods=pods))[0].injection_path
        == "kubelet"
    )
    assert targets(snapshot(pods=pods))[0].injection_path == "nri"


def test_a_container_that_started_without_its_hooks_was_not_injected_by_the_agent() -> None:
    assert targets(snapshot(missed_containers={ID: "BudgetExceeded"}))[0].injection_path == ""


def target(number: int) -> VerificationTarget:
    where = ContainerLocation(container_id=f"{number}", pod_cgroups=())
    return VerificationTarget(location=where, pod=BOX, name="main", injection_path="nri")


def test_a_starting_container_is_verified_again_soon_and_less_and_less_often() -> None:
    schedule, one, now_s, waits = VerificationSchedule(), target(1), 0.0, []
    for _ in range(12):
        assert schedule.due([one], now_s) == [one]
        schedule.set_next(one, VerificationStatus.UNKNOWN, now_s)
        then_s = now_s
        while not schedule.due([one], now_s):
            now_s += 1
        waits.append(now_s - then_s)
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, *[LONGEST_S] * 3]


@pytest.mark.parametrize(
    ("verdict", "again_s"),
    [
        (VerificationStatus.VERIFIED, 50),
        (VerificationStatus.MISSING, 50),
        (VerificationStatus.EXCESS, 50),
    ],
)
def test_a_verified_container_is_verified_again_within_a_minute(
    verdict: VerificationStatus, again_s: int
) -> None:
    schedule, one = VerificationSchedule(), target(1)
    assert schedule.due([one], 5.0) == [one]
    schedule.set_next(one, verdict, 5.0)
    assert schedule.due([one], 5.0 + again_s - 1) == []
    assert schedule.due([one], 5.0 + again_s) == [one]


def test_a_full_node_is_verified_a_few_containers_at_a_time_in_turns() -> None:
    schedule, here = (
        VerificationSchedule(),
        [target(number) for number in range(3 * MAX_CHECKS_PER_RUN)],
    )
    verified_ids: set[str] = set()
    for run in range(3):
        due = schedule.due(here, run)
        assert len(due) == MAX_CHECKS_PER_RUN
        for one in due:
            schedule.set_next(one, VerificationStatus.VERIFIED, run)
        verified_ids.update(one.id for one in due)
    assert len(verified_ids) == len(here)


def test_a_container_without_a_grant_is_verified_less_often_and_after_those_with_one() -> None:
    schedule, plain, other = (
        VerificationSchedule(),
        replace(target(1), is_allocated=False),
        target(2),
    )
    assert schedule.due([plain, other], 0.0) == [other, plain]
    for one in (plain, other):
        schedule.set_next(one, VerificationStatus.VERIFIED, 0.0)
    assert schedule.due([plain, other], UNALLOCATED_S - 1) == [other]
    assert schedule.due([plain, other], UNALLOCATED_S) == [other, plain]
    schedule.set_next(plain, VerificationStatus.EXCESS, UNALLOCATED_S)
    assert schedule.due([plain], UNALLOCATED_S + RECHECK_S[VerificationStatus.EXCESS]) == [plain]


@pytest.mark.parametrize("change", ["is_allocated", "is_assigned", "is_late"])
@pytest.mark.parametrize("verdict", [VerificationStatus.VERIFIED, VerificationStatus.UNKNOWN])
def test_one_whose_devices_become_known_after_its_first_check_is_due_at_once(
    change: str, verdict: VerificationStatus
) -> None:
    schedule, plain = VerificationSchedule(), replace(target(1), is_allocated=False)
    schedule.due([plain], 0.0)
    schedule.set_next(plain, verdict, 0.0)
    one = replace(plain, **{change: True})
    assert schedule.due([one], 0.25) == [one]
    schedule.set_next(one, VerificationStatus.VERIFIED, 0.25)
    assert schedule.due([one], 0.5) == []


def test_a_first_wrong_verdict_after_the_devices_became_known_is_confirmed_a_second_later() -> None:
    schedule, plain = VerificationSchedule(), replace(target(1), is_allocated=False)
    schedule.due([plain], 0.0)
    schedule.set_next(plain, VerificationStatus.VERIFIED, 0.0)
    one = target(1)
    assert schedule.due([one], 5.0) == [one]
    schedule.recheck_soon(one, 5.0)
    assert schedule.due([one], 5.5) == []
    assert schedule.due([one], 6.0) == [one]


def test_one_whose_device_rules_may_have_changed_is_due_at_once() -> None:
    schedule, one, other = VerificationSchedule(), target(1), target(2)
    for container in schedule.due([one, other], 0.0):
        schedule.set_next(container, VerificationStatus.VERIFIED, 0.0)
    schedule.make_due([one.id, "unknown"], 1.0)
    assert schedule.due([one, other], 1.0) == [one]


def test_a_removed_container_is_forgotten_and_verified_again_when_it_is_back() -> None:
    schedule, one = VerificationSchedule(), target(1)
    schedule.due([one], 0.0)
    schedule.set_next(one, VerificationStatus.VERIFIED, 0.0)
    assert schedule.due([], 1.0) == []
    assert schedule.due([one], 2.0) == [one]
