"""What is wrong on a node, from its snapshot alone."""

from __future__ import annotations

from msgspec.structs import replace

from agent.runbook.entry import RunbookEntry
from agent.runbook.problem import Problem, Severity, SubjectKind
from agent.runbook.problems import MAX_PROBLEMS, find_problems
from agent.runbook.runbook import Runbook
from agent.snapshot.allocation import (
    AllocationView,
    ContainerVerification,
    PodAllocation,
    VerificationCause,
    VerificationStatus,
    VerificationView,
)
from agent.snapshot.cluster import (
    ApiSessionStatus,
    ClusterServiceStatus,
    KubeletStatus,
    WatchPhase,
    WatchStatus,
    WritePermission,
)
from agent.snapshot.container import ContainerServiceStatus, NriStatistics, RuntimeView
from agent.snapshot.device import Device, DeviceCondition, DevicePartition, Health, HealthState
from agent.snapshot.device_plugin import DevicePluginView, PluginResource
from agent.snapshot.inventory import Inventory
from agent.snapshot.inventory import Problem as VendorProblem
from agent.snapshot.node import NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.publications import PublisherStatus, WriterPhase, WriterState
from agent.snapshot.self_check import EnforcementView, FileCondition, LoopStatus, SelfCheck
from agent.snapshot.usage import CollectorStatus, UsageSample
from agent.workers.abilities import build_runbook
from agent.workers.load import load_vendors
from tests import factory

NOW_S, WALL_S = factory.NOW_S, factory.BOOT_S + factory.NOW_S
RUNBOOK = build_runbook(load_vendors())
XID = Health(state=HealthState.FAILED, reason="Xid79", message="it fell off", since_s=WALL_S - 60)


def node(*devices: Device, **parts: object) -> NodeSnapshot:
    """Return a node with these cards of NVIDIA, and nothing else wrong."""
    infos = tuple(device.info for device in devices)
    inventory: SnapshotPart[Inventory | None] = SnapshotPart(
        Inventory(vendor="nvidia", devices=infos), NOW_S
    )
    vendor = VendorState(vendor="nvidia", state="ready", inventory=inventory)
    now = factory.snapshot(devices, ())
    read = {
        name: replace(getattr(now, name), taken_s=NOW_S, error="")
        for name in ("cpus", "numa", "pci", "devices")
    }
    return replace(now, **{"vendors": (vendor,), **read, **parts})


def problems(now: NodeSnapshot) -> tuple[Problem, ...]:
    return find_problems(now, RUNBOOK.find, NOW_S, WALL_S)


def only(now: NodeSnapshot) -> Problem:
    (problem,) = problems(now)
    return problem


def test_a_well_node_has_no_problem() -> None:
    assert problems(node(factory.gpu(0), factory.gpu(1))) == ()


def test_a_failed_card_is_critical_and_has_cause_remedy_action_and_time() -> None:
    problem = only(node(factory.gpu(0), factory.gpu(1, health=XID)))
    assert problem.kind is SubjectKind.DEVICE
    assert (problem.subject, problem.name) == (factory.gpu(1).key, "GPU 1")
    assert (problem.severity, problem.reason) == (Severity.CRITICAL, "Xid79")
    assert (problem.message, problem.since_s) == ("it fell off", WALL_S - 60)
    assert (problem.action, problem.category) == ("reboot", "pcie")
    assert problem.anchor == "nvidia-xid79"
    assert problem.remedy.startswith("reboot the node")


def test_a_card_on_probation_is_out_of_service_and_a_suspect_one_is_not() -> None:
    now = node(
        factory.gpu(0, health=replace(XID, state=HealthState.PROBING)),
        factory.gpu(1, health=replace(XID, state=HealthState.SUSPECT)),
        factory.gpu(2, health=Health(reason="DriverStalled", certain=False)),
    )
    assert [one.severity for one in problems(now)] == [
        Severity.CRITICAL,
        Severity.WARNING,
        Severity.WARNING,
    ]


def test_a_warning_of_a_card_is_listed_and_a_card_cut_into_slices_is_none() -> None:
    conditions = (
        DeviceCondition(type="Degraded", status=True, reason="RowRemapPending", message="a row"),
        DeviceCondition(type="Schedulable", status=False, reason="MIGEnabled"),
    )
    problem = only(node(factory.gpu(0, conditions=conditions)))
    assert (problem.severity, problem.reason) == (Severity.WARNING, "RowRemapPending")
    assert problem.action == "reset"


def test_a_failed_slice_is_listed_unless_its_card_failed() -> None:
    part = DevicePartition(uuid="MIG-1", profile="1g.10gb", health=XID)
    problem = only(node(factory.gpu(0, partitions=(part,))))
    assert (problem.kind, problem.subject) == (SubjectKind.SLICE, "MIG-1")
    problem = only(node(factory.gpu(0, health=XID, partitions=(part,))))
    assert problem.kind is SubjectKind.DEVICE


def test_a_card_of_a_virtual_machine_asks_for_nothing() -> None:
    health = Health(state=HealthState.SUSPECT, reason="BoundToVFIO", message="of a machine")
    problem = only(node(factory.gpu(0, managed=False, health=health)))
    assert (problem.severity, problem.action) == (Severity.INFO, "none")


def test_a_reason_without_an_entry_is_listed_with_a_general_remedy() -> None:
    health = Health(state=HealthState.FAILED, reason="OddlyBroken", message="who knows")
    problem = only(node(factory.gpu(0, health=health)))
    assert (problem.reason, problem.anchor, problem.action) == ("OddlyBroken", "unlisted", "look")
    assert "xpu-agent devices" in problem.remedy


def test_a_runbook_of_a_vendor_that_fails_costs_its_entries_only() -> None:
    class Broken:
        def entries(self) -> tuple[RunbookEntry, ...]:
            return ()

        def find(self, reason: str, message: str, /) -> RunbookEntry | None:
            raise RuntimeError(reason + message)

    health = Health(state=HealthState.FAILED, reason="DriverMissing", message="no module")
    now = node(factory.gpu(0, health=health))
    (problem,) = find_problems(now, Runbook({"nvidia": Broken()}).find, NOW_S, WALL_S)
    assert problem.anchor == "drivermissing"


def test_a_worker_that_hangs_is_critical_one_that_starts_is_nothing() -> None:
    late = VendorState(vendor="nvidia", state="stalled", reason="Late", message="no answer")
    problem = only(replace(node(), vendors=(late,)))
    assert (problem.kind, problem.subject) == (SubjectKind.VENDOR, "nvidia")
    assert (problem.severity, problem.reason) == (Severity.CRITICAL, "Late")
    assert problems(replace(node(), vendors=(VendorState(vendor="nvidia"),))) == ()


def test_a_worker_is_a_problem_since_its_last_answer() -> None:
    late = VendorState(
        vendor="nvidia",
        state="stalled",
        inventory=SnapshotPart(None, NOW_S - 300),
        samples=SnapshotPart((), NOW_S - 20, "no answer"),
    )
    assert only(replace(node(), vendors=(late,))).since_s == WALL_S - 20
    silent = replace(late, inventory=SnapshotPart(None), samples=SnapshotPart(()))
    assert only(replace(node(), vendors=(silent,))).since_s is None


def test_a_part_of_the_host_is_a_problem_since_it_was_last_read() -> None:
    now = node()
    unread = replace(now, pci=SnapshotPart(now.pci.value, NOW_S - 70, "EIO"))
    problem = only(unread)
    assert (problem.subject, problem.reason) == ("part:pci", "HostPartUnread")
    assert problem.since_s == WALL_S - 70


def test_a_problem_of_a_vendor_has_the_entry_of_that_vendor() -> None:
    now = node()
    view = replace(
        now.devices.value,
        problems=(
            ("nvidia", VendorProblem(reason="FabricManagerDown", message="card 0")),
            ("host", VendorProblem(reason="UeventsUnavailable", message="no socket")),
        ),
    )
    found = problems(replace(now, devices=SnapshotPart(view, NOW_S)))
    assert [(one.kind, one.anchor) for one in found] == [
        (SubjectKind.VENDOR, "nvidia-fabricmanagerdown"),
        (SubjectKind.HOST, "ueventsunavailable"),
    ]


def test_a_loop_that_fails_is_critical_since_its_last_good_run() -> None:
    loop = LoopStatus(
        name="usage", interval_s=1.0, failures=3, last_error="EIO", last_success_s=NOW_S - 100
    )
    problem = only(node(loops=(loop,)))
    assert (problem.severity, problem.reason) == (Severity.CRITICAL, "LoopFailing")
    assert (problem.subject, problem.since_s) == ("loop:usage", WALL_S - 100)
    assert "EIO" in problem.message


def test_a_check_that_failed_is_as_bad_as_it_counts_for_being_ready() -> None:
    checks = (
        SelfCheck(name="lock", ok=False, message="gone", reason="LockLost"),
        SelfCheck(name="health-state", ok=False, gates_ready=False, reason="HealthNotStored"),
        SelfCheck(name="event-loop", ok=True),
    )
    found = problems(node(checks=checks))
    assert [(one.severity, one.reason) for one in found] == [
        (Severity.CRITICAL, "LockLost"),
        (Severity.WARNING, "HealthNotStored"),
    ]


def test_an_object_that_is_not_written_standalone_is_critical() -> None:
    status = PublisherStatus(name="device", success=False, error="ENOSPC", last_success_s=WALL_S)
    problem = only(node(publishers=(status,)))
    assert (problem.kind, problem.reason) == (SubjectKind.OBJECT, "ObjectNotWritten")


def clustered_status(**parts: object) -> ClusterServiceStatus:
    status = ClusterServiceStatus(session=ApiSessionStatus(), watches=(), writers=(), events=None,
                                  kubelet=None)  # fmt: skip
    return replace(status, **parts)


def test_the_api_server_the_watches_and_the_kubelet_are_listed_while_they_fail() -> None:
    status = clustered_status(
        session=ApiSessionStatus(
            reachable=False, last_error="refused", last_answer_s=NOW_S - 9, clock_skew_s=-120.0
        ),
        watches=(
            WatchStatus(resource="pods", phase=WatchPhase.FORBIDDEN, last_error="403"),
            WatchStatus(resource="nodeslos", phase=WatchPhase.ABSENT, last_error="404"),
        ),
        kubelet=KubeletStatus(pods="hanging", detail="no answer", since_s=NOW_S - 5),
        write_permission=WritePermission(
            is_allowed=False, reason="NodeOfAnotherMachine", message="boot id differs"
        ),
    )
    found = {one.reason: one for one in problems(node(cluster_service=status))}
    assert set(found) == {
        "NodeOfAnotherMachine",
        "ApiServerUnreachable",
        "ClockSkew",
        "WatchForbidden",
        "KubeletHanging",
    }
    assert found["NodeOfAnotherMachine"].severity is Severity.CRITICAL
    assert found["ApiServerUnreachable"].since_s == WALL_S - 9
    assert found["KubeletHanging"].since_s == WALL_S - 5


def test_the_state_of_a_writer_is_its_reason() -> None:
    writers = tuple(
        WriterState(kind="Device", name=phase.value, publisher="device", phase=phase, error="why")
        for phase in WriterPhase
    )
    found = problems(node(cluster_service=clustered_status(writers=writers)))
    assert {one.reason for one in found} == {
        "WriteConflict",
        "WriteForbidden",
        "WriteRefused",
        "ResourceMissing",
        "ObjectNotWritten",
    }


def test_a_runtime_that_does_not_ask_is_critical_and_one_of_a_starting_agent_a_warning() -> None:
    service = ContainerServiceStatus(nri=NriStatistics())
    away = RuntimeView(state="waiting", reason="NoSocket", message="not there", turned_s=WALL_S)
    problem = only(node(container_service=service, runtime=SnapshotPart(away, NOW_S)))
    assert (problem.severity, problem.reason) == (Severity.CRITICAL, "NoSocket")
    starting = replace(away, reason="Starting")
    problem = only(node(container_service=service, runtime=SnapshotPart(starting, NOW_S)))
    assert problem.severity is Severity.WARNING


def test_a_resource_the_kubelet_does_not_watch_is_listed_with_its_reason() -> None:
    served = DevicePluginView(
        resources=(
            PluginResource(name="nvidia.com/gpu", vendor="nvidia", state="conflict",
                           reason="AnotherPlugin", message="nvidia.sock"),
            PluginResource(name="huawei.com/npu", vendor="ascend", state="watched"),
        )
    )  # fmt: skip
    problem = only(node(served=SnapshotPart(served, NOW_S)))
    assert (problem.kind, problem.subject) == (SubjectKind.RESOURCE, "nvidia.com/gpu")
    assert problem.anchor == "anotherplugin"


def test_a_refused_allocation_and_a_container_without_its_device_are_listed() -> None:
    refused = PodAllocation(
        uid="u", namespace="team", name="job", refusal="DeviceTaken", message="GPU 1"
    )
    missing = ContainerVerification(
        container_id="c",
        container="main",
        namespace="team",
        pod="job",
        verdict=VerificationStatus.MISSING,
        details=("/dev/nvidia1",),
        causes=(VerificationCause.DEVICE_DENIED,),
    )
    found = problems(
        node(
            allocations=SnapshotPart(AllocationView(pods={"u": refused}), NOW_S),
            verification=SnapshotPart(VerificationView(containers={"c": missing}), NOW_S),
        )
    )
    assert [(one.subject, one.reason) for one in found] == [
        ("team/job/main", "DeviceDenied"),
        ("team/job", "DeviceTaken"),
    ]


def test_conditions_of_files_and_absent_values_of_collectors_are_listed() -> None:
    view = EnforcementView(
        conditions=(FileCondition(reason="LedgerNotWritable", message="ENOSPC"),), turned_s=WALL_S
    )
    absent = VendorProblem(reason="NoHardwareCounters", message="a virtual machine")
    usage = UsageSample(collectors=(CollectorStatus(name="cycles", problems=(absent,)),))
    found = problems(node(enforcement=SnapshotPart(view, NOW_S), usage=SnapshotPart(usage, NOW_S)))
    assert [(one.kind, one.severity) for one in found] == [
        (SubjectKind.FILES, Severity.WARNING),
        (SubjectKind.COLLECTOR, Severity.INFO),
    ]


def test_the_worst_problem_is_first_and_the_list_is_bounded() -> None:
    pods = {
        str(n): PodAllocation(uid=str(n), name=f"pod-{n}", refusal="DeviceTaken")
        for n in range(2 * MAX_PROBLEMS)
    }
    checks = (SelfCheck(name="lock", ok=False, reason="LockLost"),)
    found = problems(
        node(allocations=SnapshotPart(AllocationView(pods=pods), NOW_S), checks=checks)
    )
    assert len(found) == MAX_PROBLEMS
    assert found[0].reason == "LockLost"
