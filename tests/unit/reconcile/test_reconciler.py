from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from agent.snapshot.container import (
    Adjustment,
    HookRequest,
    HookStage,
    LinuxResources,
    PodSandbox,
    RuntimeContainer,
    RuntimeView,
)
from agent.snapshot.edits import ContainerEdits, ContainerNote
from agent.snapshot.part import SnapshotPart
from agent.snapshot.self_check import FileCondition
from tests.realgroups import UID, RealGroups, needs_v1, real_groups
from tests.unit.reconcile.scene import ONE, SANDBOX, CannedHook, Scene

pytestmark = [needs_v1, pytest.mark.root]


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    with real_groups() as created:
        yield created


def cpus(text: str) -> Adjustment:
    return Adjustment(resources=LinuxResources(cpus=text))


def quota(quota_us: int) -> Adjustment:
    return Adjustment(resources=LinuxResources(quota_us=quota_us, period_us=100000))


def test_files_of_pod_container_and_sandbox_become_what_the_hooks_say(groups: RealGroups) -> None:
    hook = CannedHook()
    hook.answers = {None: quota(50000), "app": cpus("1"), "": cpus("0")}
    scene = Scene(groups, hook)
    report = scene.cycle()
    assert (report.pods, report.written, report.unwritten) == (1, 3, 0)
    assert groups.get(scene.pod, "cpu.cfs_quota_us") == "50000"
    assert groups.get(scene.container, "cpuset.cpus") == "1"
    assert groups.get(scene.sandbox, "cpuset.cpus") == "0"


def test_a_sandbox_is_given_cpus_and_nothing_else(groups: RealGroups) -> None:
    hook = CannedHook()
    hook.answers = {"": Adjustment(resources=LinuxResources(cpus="0", shares=2, memory_bytes=4096))}
    assert Scene(groups, hook).cycle().written == 1


def test_a_second_cycle_calls_no_hook_and_writes_nothing(groups: RealGroups) -> None:
    hook = CannedHook()
    hook.answers = {"app": cpus("1")}
    scene = Scene(groups, hook)
    scene.cycle()
    count = len(hook.requests)
    report = scene.cycle()
    assert (report.files, report.written, len(hook.requests)) == (1, 0, count)


def test_a_value_that_another_program_changed_is_restored_within_a_cycle(
    groups: RealGroups,
) -> None:
    hook = CannedHook()
    hook.answers = {"app": cpus("1")}
    scene = Scene(groups, hook)
    scene.cycle()
    groups.put(scene.container, "cpuset.cpus", "0-1")
    assert scene.cycle().written == 1
    assert groups.get(scene.container, "cpuset.cpus") == "1"


def test_a_fight_over_a_file_is_a_condition(groups: RealGroups) -> None:
    hook = CannedHook()
    hook.answers = {"app": cpus("1")}
    scene = Scene(groups, hook)
    scene.cycle()
    for _ in range(3):
        groups.put(scene.container, "cpuset.cpus", "0-1")
        report = scene.cycle()
    assert [condition.reason for condition in report.conditions] == ["ForeignWriter"]


def test_a_fight_over_more_and_more_files_is_reported_once(groups: RealGroups) -> None:
    hook = CannedHook()
    hook.answers = {"app": cpus("1"), "": cpus("1")}
    scene = Scene(groups, hook)
    scene.cycle()
    conditions: list[FileCondition] = []
    for seconds in range(12):
        groups.put(scene.sandbox, "cpuset.cpus", "0-1")
        if seconds > 3:
            groups.put(scene.container, "cpuset.cpus", "0-1")
        conditions += scene.cycle().conditions
    assert len(conditions) == 10
    assert len(set(conditions)) == 1
    assert scene.sandbox in conditions[0].message


def test_hooks_are_called_with_the_present_labels(groups: RealGroups) -> None:
    hook = CannedHook()
    scene = Scene(groups, hook)
    old = PodSandbox(id=SANDBOX, uid=UID, name="pod", annotations=(("a", "old"),))
    now = scene.view(annotations=(("a", "new"),), labels=(("l", "x"),))
    scene.renew(
        pods=SnapshotPart((now,), 1.0),
        runtime=SnapshotPart(RuntimeView(sandboxes={SANDBOX: old}), 1.0),
    )
    scene.cycle()
    pod = hook.requests[0].pod
    assert (pod.id, pod.annotation("a"), pod.label("l")) == (SANDBOX, "new", "x")
    assert pod.cgroup_parent == scene.pod
    assert {request.stage for request in hook.requests} == {HookStage.RECONCILE}


def test_an_unlisted_pod_is_left_alone(groups: RealGroups) -> None:
    hook = CannedHook()
    hook.answers = {None: quota(50000)}
    scene = Scene(groups, hook)
    scene.renew(pods=SnapshotPart((scene.view(name="", namespace=""),), 1.0))
    assert scene.cycle().pods == 0
    assert hook.requests == []


def test_the_runtime_alone_is_enough_to_know_a_pod(groups: RealGroups) -> None:
    hook = CannedHook()
    hook.answers = {"app": cpus("1")}
    scene = Scene(groups, hook)
    bare = tuple(replace(container, name="") for container in scene.view().containers)
    runtime = RuntimeView(
        sandboxes={SANDBOX: PodSandbox(id=SANDBOX, uid=UID, name="pod")},
        containers={ONE: RuntimeContainer(id=ONE, sandbox_id=SANDBOX, name="app")},
    )
    scene.renew(
        pods=SnapshotPart((scene.view(name="", containers=bare),), 1.0),
        runtime=SnapshotPart(runtime, 1.0),
    )
    assert scene.cycle().written == 1


def test_a_pod_that_has_ended_is_left_alone(groups: RealGroups) -> None:
    hook = CannedHook()
    hook.answers = {None: quota(50000)}
    scene = Scene(groups, hook)
    scene.renew(pods=SnapshotPart((scene.view(phase="Succeeded"),), 1.0))
    assert scene.cycle().pods == 0


def test_containers_in_a_virtual_machine_have_no_files_but_the_sandbox_has(
    groups: RealGroups,
) -> None:
    hook = CannedHook()
    hook.answers = {"app": cpus("1"), "": cpus("0")}
    scene = Scene(groups, hook)
    sandbox = PodSandbox(id=SANDBOX, uid=UID, name="pod", runtime_handler="kata-qemu")
    scene.renew(runtime=SnapshotPart(RuntimeView(sandboxes={SANDBOX: sandbox}), 1.0))
    assert scene.cycle().written == 1
    assert groups.get(scene.container, "cpuset.cpus") == "0-1"


def test_in_plan_mode_the_value_is_reported_once_and_nothing_is_written(groups: RealGroups) -> None:
    hook = CannedHook()
    hook.answers = {"app": cpus("1")}
    scene = Scene(groups, hook, modes={"cpuset": "plan"})
    assert [scene.cycle().planned for _ in range(2)] == [1, 1]
    assert groups.get(scene.container, "cpuset.cpus") == "0-1"
    (audit,) = scene.reconciler.audits
    assert (audit.planned, audit.old, audit.new) == (True, "0-1", "1")


def test_each_change_is_recorded_with_owner_reason_and_both_values(groups: RealGroups) -> None:
    hook = CannedHook()
    hook.answers = {"app": cpus("1")}
    scene = Scene(groups, hook)
    scene.cycle()
    (audit,) = scene.reconciler.audits
    assert (audit.owner, audit.reason, audit.message) == (
        "cpuset",
        "runtime-hooks",
        "set container cpuset to 1",
    )
    assert (audit.old, audit.new, audit.errno) == ("0-1", "1", 0)
    assert audit.path == f"/sys/fs/cgroup/cpuset{scene.container}/cpuset.cpus"


def test_an_empty_set_of_cpus_is_never_written(groups: RealGroups) -> None:
    hook = CannedHook()
    hook.answers = {"app": cpus("")}
    assert Scene(groups, hook).cycle().files == 0


def test_a_value_that_no_kernel_takes_is_a_note_and_the_others_are_written(
    groups: RealGroups,
) -> None:
    hook = CannedHook()
    hook.answers = {None: quota(667), "app": cpus("1")}
    report = Scene(groups, hook).cycle()
    assert report.written == 1
    assert [note.note.reason for note in report.notes] == ["ValueOutOfRange"]


def test_a_change_that_needs_a_new_container_is_reported_once(groups: RealGroups) -> None:
    hook = CannedHook("devices")
    hook.answers = {"app": Adjustment(edits=ContainerEdits(env=(("A", "b"),)))}
    scene = Scene(groups, hook)
    notes = [note.note for _ in range(2) for note in scene.cycle().notes]
    assert notes == [
        ContainerNote(
            reason="ChangeNeedsNewContainer",
            message="container app: environment come at its creation only",
        )
    ]


def test_a_hook_with_a_bug_is_named_and_the_others_go_on(groups: RealGroups) -> None:
    class Broken(CannedHook):
        def adjust(self, request: HookRequest, snapshot: object) -> Adjustment:  # noqa: ARG002 - as its Protocol
            raise RuntimeError("oops")

    hook = CannedHook()
    hook.answers = {"app": cpus("1")}
    scene = Scene(groups, Broken("broken"), hook)
    first, second = scene.cycle(), scene.cycle()
    assert first.written == 1
    assert first.failed_hooks == (("broken", "RuntimeError: oops"),)
    assert second.failed_hooks == ()


def test_a_pods_own_files_are_written_before_its_sandbox_runs(groups: RealGroups) -> None:
    hook = CannedHook("batch_resources")
    hook.answers = {None: quota(50000)}
    scene = Scene(groups, hook)
    request = HookRequest(
        stage=HookStage.RUN_POD, pod=PodSandbox(id=SANDBOX, uid=UID, cgroup_parent=scene.pod)
    )
    report = scene.reconciler.apply_pod(request, scene.snapshot, groups.layout)
    assert (report.written, report.unwritten) == (1, 0)
    assert groups.get(scene.pod, "cpu.cfs_quota_us") == "50000"
    assert [entry.owner for entry in scene.ledger.entries.values()] == ["batch_resources"]


@pytest.mark.parametrize("parent", ["", "/", "/kubepods/besteffort", "/kubepods/../podx"])
def test_a_parent_that_is_no_pods_is_reported_and_nothing_is_written(
    groups: RealGroups, parent: str
) -> None:
    hook = CannedHook("batch_resources")
    hook.answers = {None: quota(50000)}
    scene = Scene(groups, hook)
    request = HookRequest(
        stage=HookStage.RUN_POD, pod=PodSandbox(id=SANDBOX, uid=UID, cgroup_parent=parent)
    )
    report = scene.reconciler.apply_pod(request, scene.snapshot, groups.layout)
    assert (report.written, [n.note.reason for n in report.notes]) == (0, ["BadCgroupPath"])
