from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from msgspec.structs import replace

from agent.clock import ManualClock
from agent.snapshot.allocation import (
    AllocatedDevice,
    AllocationView,
    ContainerVerification,
    DeviceAllocation,
    PodAllocation,
    VerificationStatus,
)
from agent.snapshot.cluster import ClusterView
from agent.snapshot.container import Adjustment
from agent.snapshot.device import DeviceNode, VendorDevice
from agent.snapshot.device_plugin import DevicePluginView, KubeletAllocation, PluginResource
from agent.snapshot.edits import ContainerEdits
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.verification.inspector import UNITS_LOADED
from agent.verification.schedule import IsExempt, exempt_none
from agent.verification.verifier import ALLOCATION_LATE, Verifier
from agent.wire_formats.device_allocated import ANNOTATION
from tests import factory
from tests.cgroups import CgroupHost
from tests.unit.verification.test_expectation import (
    FixedHook,
    fixed_hook,
    inventory,
    node,
    with_allocation,
)
from tests.unit.verification.test_schedule import ID, POD, snapshot

ENV = ContainerEdits(env=(("A", "1"),))


class Node:
    """A host with one container in files, and who looks at it."""

    def __init__(self, folder: Path, hook: FixedHook) -> None:
        self.host, self.clock = CgroupHost(folder), ManualClock()
        self.verifier = Verifier(self.host.files, hook, self.clock, proc=str(folder / "proc"))

    def begin(self, environ: bytes) -> None:
        self.host.write(f"/sys/fs/cgroup{POD.cgroup}/{ID}/cgroup.procs", "9\n")
        self.host.write("/proc/9/stat", "9 (sh) S " + "0 " * 18 + "100 0\n")
        self.host.path("/proc/9/environ").write_bytes(environ)


def test_a_container_is_unknown_until_it_has_started_and_then_verified(tmp_path: Path) -> None:
    there = Node(tmp_path, fixed_hook(edits=ENV))
    now = snapshot(pods=SnapshotPart((POD,)))
    first = there.verifier.run_once(now).containers[ID]
    assert (first.verdict, first.details) == (
        VerificationStatus.UNKNOWN,
        ("it has no cgroup (yet)",),
    )
    there.begin(b"PATH=/bin\0A=1\0")
    there.clock.advance(1)
    second = there.verifier.run_once(now).containers[ID]
    assert (second.verdict, second.details) == (VerificationStatus.VERIFIED, ())
    assert (second.pod, second.container, second.way) == ("told", "worker-0", "nri")
    assert second.looked_s == there.clock.wall()


def test_the_edits_of_a_container_in_creation_are_computed_again_once_it_has_a_process(
    tmp_path: Path,
) -> None:
    hook = fixed_hook(edits=ENV)
    there = Node(tmp_path, hook)
    now = snapshot(pods=SnapshotPart((POD,)))
    for _ in range(3):
        assert there.verifier.run_once(now).containers[ID].verdict is VerificationStatus.UNKNOWN
        there.clock.advance(9)
    assert len(hook.requests) == 1
    there.begin(b"A=1\0")
    assert there.verifier.run_once(now).containers[ID].verdict is VerificationStatus.VERIFIED
    assert len(hook.requests) == 2


def test_between_checks_a_verdict_is_kept_and_it_ends_with_its_container(tmp_path: Path) -> None:
    there = Node(tmp_path, fixed_hook(edits=ENV))
    there.begin(b"PATH=/bin\0")
    now = snapshot(pods=SnapshotPart((POD,)))
    there.verifier.run_once(now)
    there.clock.advance(1)
    first = there.verifier.run_once(now)
    assert first.containers[ID].verdict is VerificationStatus.MISSING
    assert first.containers[ID].details == ("the variable A is not set",)
    there.clock.advance(49)
    assert there.verifier.run_once(now) == first
    there.begin(b"PATH=/bin\0A=1\0")
    there.clock.advance(1)
    assert there.verifier.run_once(now).containers[ID].verdict is VerificationStatus.VERIFIED
    assert there.verifier.run_once(snapshot(state=None)).containers == {}


def test_edits_that_a_later_agent_adds_are_not_expected_of_a_complete_container(
    tmp_path: Path,
) -> None:
    hook = fixed_hook(edits=ENV)
    there = Node(tmp_path, hook)
    there.begin(b"PATH=/bin\0A=1\0")
    now = snapshot(pods=SnapshotPart((POD,)))
    assert there.verifier.run_once(now).containers[ID].verdict is VerificationStatus.VERIFIED
    for later in (ContainerEdits(env=(("A", "1"), ("NEW", "2"))), ContainerEdits()):
        hook.answer = Adjustment(edits=later)
        there.clock.advance(60)
        assert there.verifier.run_once(now).containers[ID].verdict is VerificationStatus.VERIFIED
    there.begin(b"PATH=/bin\0")
    there.clock.advance(60)
    assert there.verifier.run_once(now).containers[ID].verdict is VerificationStatus.VERIFIED
    there.clock.advance(1)
    assert there.verifier.run_once(now).containers[ID].verdict is VerificationStatus.MISSING


def test_a_grant_that_gives_nothing_to_be_found_is_not_in_the_view(tmp_path: Path) -> None:
    there = Node(tmp_path, fixed_hook())
    assert there.verifier.run_once(snapshot()).containers == {}


def test_a_host_without_cgroups_gives_no_facts(tmp_path: Path) -> None:
    there = Node(tmp_path, fixed_hook(edits=ENV))
    there.host.write("/proc/mounts", "")
    (tmp_path / "sys").rename(tmp_path / "gone")
    verification = there.verifier.run_once(snapshot()).containers[ID]
    assert (verification.verdict, verification.details) == (
        VerificationStatus.UNKNOWN,
        ("this host has no cgroups",),
    )


def test_verdicts_are_frozen_for_readers_on_other_threads(tmp_path: Path) -> None:
    there = Node(tmp_path, fixed_hook(edits=ENV))
    view = there.verifier.run_once(snapshot())
    assert isinstance(view.containers, MappingProxyType)
    there.verifier.run_once(snapshot(state=None))
    assert ID in view.containers


ALLOCATION = AllocatedDevice(type="gpu", minor=0)
CARDS = (
    replace(factory.gpu(0).info, nodes=(node("/dev/nvidia0", 0),)),
    replace(factory.gpu(1).info, nodes=(node("/dev/nvidia1", 1),)),
)
INVENTORY = inventory(*CARDS)
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")


class CardHost(Node):
    """A host with one container that has nodes of its own and rules of the kernel."""

    def __init__(self, folder: Path, exempt: IsExempt = exempt_none) -> None:
        super().__init__(folder, fixed_hook())
        self.points = "/sys/fs/cgroup/memory", "/sys/fs/cgroup/devices"
        self.folder = folder
        self.host.write(
            "/proc/mounts", "".join(f"cgroup {p} cgroup rw,{p[15:]} 0 0\n" for p in self.points)
        )
        self.verifier = Verifier(
            self.host.files,
            self.verifier._hook,
            self.clock,
            proc=str(folder / "proc"),
            exempt=exempt,
        )
        for point in self.points:
            self.host.write(f"{point}{POD.cgroup}/{ID}/cgroup.procs", "9\n")
        self.host.write("/proc/9/stat", "9 (sh) S " + "0 " * 18 + "100 0\n")
        self.host.write("/proc/9/environ", "PATH=/bin")
        self.host.write(
            "/proc/9/mountinfo",
            "20 1 254:0 / / rw - ext4 /dev/vda rw\n21 20 0:5 / /dev rw - tmpfs tmpfs rw\n",
        )
        (folder / "proc/9/root/dev").mkdir(parents=True)
        self.rules("c 195:0 rw\n")

    def rules(self, text: str) -> None:
        self.host.write(f"{self.points[1]}{POD.cgroup}/{ID}/devices.list", text)

    def show(self, minor: int) -> None:
        path = self.folder / f"proc/9/root/dev/nvidia{minor}"
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(195, minor))

    def verify(self, now: NodeSnapshot) -> Mapping[str, ContainerVerification]:
        """Look, and a second later look again, as a wrong verdict needs."""
        self.verify_once(now)
        self.clock.advance(1)
        return self.verify_once(now)

    def verify_once(self, now: NodeSnapshot) -> Mapping[str, ContainerVerification]:
        return self.verifier.run_once(replace(now, pods=SnapshotPart((POD,)))).containers


@root_only
def test_a_card_is_verified_by_its_own_node_and_a_lost_rule_is_noticed_at_the_next_run(
    tmp_path: Path,
) -> None:
    there, now = CardHost(tmp_path), with_allocation(snapshot(devices=INVENTORY), ALLOCATION)
    there.show(0)
    assert there.verify(now)[ID].verdict is VerificationStatus.VERIFIED
    there.rules("c 1:3 rwm\n")
    assert there.verify(now)[ID].details == (f"{CARDS[0].key}: the device cgroup denies rw",)
    there.rules("c 195:0 rw\n")
    assert there.verify(now)[ID].verdict is VerificationStatus.VERIFIED


@root_only
def test_a_problem_of_only_one_check_is_never_reported(tmp_path: Path) -> None:
    there, now = CardHost(tmp_path), with_allocation(snapshot(devices=INVENTORY), ALLOCATION)
    first = there.verify_once(now)[ID]  # the runtime has not made the node yet
    assert first.verdict is VerificationStatus.UNKNOWN
    assert first.details == (f"{CARDS[0].key} is not there: no node is c 195:0",)
    there.show(0)
    assert there.verify_once(now)[ID] == first  # it is looked at again a second later
    there.clock.advance(1)
    assert there.verify_once(now)[ID].verdict is VerificationStatus.VERIFIED
    there.rules("")  # systemd empties the list, then fills it
    assert there.verify_once(now)[ID].verdict is VerificationStatus.VERIFIED
    there.rules("c 195:0 rw\n")
    there.clock.advance(1)
    assert there.verify_once(now)[ID].verdict is VerificationStatus.VERIFIED
    there.rules("")
    assert there.verify_once(now)[ID].verdict is VerificationStatus.VERIFIED
    there.clock.advance(1)
    assert there.verify_once(now)[ID].verdict is VerificationStatus.MISSING
    there.rules("c 195:0 rw\n")
    assert there.verify_once(now)[ID].verdict is VerificationStatus.VERIFIED


@root_only
@pytest.mark.parametrize("what", ["runtime", "systemd"])
def test_after_a_reload_all_containers_with_a_grant_are_verified_again(
    tmp_path: Path, what: str
) -> None:
    there, now = CardHost(tmp_path), with_allocation(snapshot(devices=INVENTORY), ALLOCATION)
    there.show(0)
    assert there.verify(now)[ID].verdict is VerificationStatus.VERIFIED
    (tmp_path / "proc/9/root/dev/nvidia0").unlink()
    assert there.verify(now)[ID].verdict is VerificationStatus.VERIFIED  # it is not due
    if what == "runtime":
        now = replace(now, runtime=SnapshotPart(replace(now.runtime.value, turned_s=5.0)))
    else:
        there.host.write(UNITS_LOADED, "")
    assert there.verify(now)[ID].verdict is VerificationStatus.MISSING


@root_only
def test_another_card_that_got_the_number_of_the_granted_one_is_excess(tmp_path: Path) -> None:
    there, now = CardHost(tmp_path), with_allocation(snapshot(devices=INVENTORY), ALLOCATION)
    there.show(0)
    assert there.verify(now)[ID].verdict is VerificationStatus.VERIFIED
    other = replace(factory.gpu(2).info, nodes=CARDS[0].nodes)  # hot-plugged in its place
    there.clock.advance(60)
    verification = there.verify(replace(now, devices=inventory(other)))[ID]
    assert (verification.verdict, verification.details) == (
        VerificationStatus.EXCESS,
        (f"/dev/nvidia0 shows {other.key}, which was not granted",),
    )


@root_only
def test_nodes_that_got_new_numbers_are_missed_in_a_container_that_has_the_old_ones(
    tmp_path: Path,
) -> None:
    there, now = CardHost(tmp_path), with_allocation(snapshot(devices=INVENTORY), ALLOCATION)
    there.show(0)
    assert there.verify(now)[ID].verdict is VerificationStatus.VERIFIED
    moved = replace(CARDS[0], nodes=(DeviceNode(path="/dev/nvidia0", major=240, minor=0),))
    there.clock.advance(60)
    verification = there.verify(replace(now, devices=inventory(moved)))[ID]
    assert verification.details == (f"{moved.key} is not there: no node is c 240:0",)
    there.clock.advance(60)
    without_nodes = replace(CARDS[0], nodes=())  # nobody can say: what was true stays so
    assert (
        there.verify(replace(now, devices=inventory(without_nodes)))[ID].verdict
        is VerificationStatus.VERIFIED
    )


def of_another(now: NodeSnapshot, *assignment: KubeletAllocation) -> NodeSnapshot:
    """Card 0 is granted to a pod that is not looked at; the pod here has no grant."""
    owner = PodAllocation(
        uid="o", namespace="a", name="owner", grant=DeviceAllocation(devices=(ALLOCATION,))
    )
    allocations = SnapshotPart(AllocationView(pods=MappingProxyType({"o": owner})))
    return replace(
        now, allocations=allocations, served=SnapshotPart(DevicePluginView(held=assignment))
    )


@root_only
def test_a_pod_without_a_grant_that_has_a_granted_card_is_reported_and_no_other(
    tmp_path: Path,
) -> None:
    there, now = CardHost(tmp_path), of_another(snapshot(devices=INVENTORY))
    there.rules("c 195:* rw\n")
    there.show(1)  # which nobody was granted
    verification = there.verify(now)[ID]
    assert (verification.verdict, verification.pod) == (VerificationStatus.EXCESS, "told")
    assert verification.details == (
        f"{CARDS[0].key} of a/owner may be opened, which was not granted",
    )
    there.rules("c 195:1 rw\n")
    there.clock.advance(60)
    assert there.verify(now) == {}


@root_only
@pytest.mark.parametrize("why", ["exempt", "privileged"])
def test_a_pod_without_a_grant_that_may_have_any_card_is_left_alone(
    tmp_path: Path, why: str
) -> None:
    there = CardHost(tmp_path, exempt=lambda _: why == "exempt")
    there.rules("a *:* rwm\n" if why == "privileged" else "c 195:0 rw\n")
    there.show(0)
    assert there.verify(of_another(snapshot(devices=INVENTORY))) == {}


@root_only
def test_a_granted_card_is_excess_also_where_the_kubelet_accounts_it_to_the_pod(
    tmp_path: Path,
) -> None:
    there = CardHost(tmp_path)
    there.show(0)
    assignment = KubeletAllocation(
        pod_uid=POD.uid, resource="nvidia.com/gpu", ids=(CARDS[0].uuid or "",)
    )
    verification = there.verify(of_another(snapshot(devices=INVENTORY), assignment))
    assert verification[ID].verdict is VerificationStatus.EXCESS


@root_only
@pytest.mark.parametrize(
    ("kind", "verdict"), [("rdma", VerificationStatus.VERIFIED), ("gpu", VerificationStatus.EXCESS)]
)
def test_beside_a_grant_the_kubelet_gives_devices_of_other_types(
    tmp_path: Path, kind: str, verdict: VerificationStatus
) -> None:
    there = CardHost(tmp_path)
    there.show(0)
    there.show(1)
    other = factory.nic(0).info if kind == "rdma" else CARDS[1]
    other = replace(other, nodes=CARDS[1].nodes)
    assignment = KubeletAllocation(pod_uid=POD.uid, resource="a.com/b", ids=(other.uuid or "",))
    now = snapshot(
        devices=inventory(CARDS[0], other),
        served=SnapshotPart(DevicePluginView(held=(assignment,))),
    )
    assert there.verify(with_allocation(now, ALLOCATION))[ID].verdict is verdict


def assigned(*cards: VendorDevice, container: str = "worker-0", state: str = "watched") -> object:
    """The kubelet has assigned cards to the pod; the resource is served by the agent."""
    ids = tuple(card.uuid or "" for card in cards)
    assignment = KubeletAllocation(
        pod_uid=POD.uid, resource="nvidia.com/gpu", ids=ids, container=container
    )
    served = PluginResource(name="nvidia.com/gpu", vendor="nvidia", state=state)
    return SnapshotPart(DevicePluginView(resources=(served,), held=(assignment,)))


@root_only
@pytest.mark.parametrize(
    ("minor", "verdict", "details"),
    [
        (0, VerificationStatus.VERIFIED, ()),
        (1, VerificationStatus.MISSING, (f"{CARDS[0].key} is not there: no node is c 195:0",)),
    ],
)
def test_a_card_that_the_kubelet_assigned_is_searched_by_its_own_node(
    tmp_path: Path, minor: int, verdict: VerificationStatus, details: tuple[str, ...]
) -> None:
    there = CardHost(tmp_path, exempt=lambda _: True)  # of no meaning: it has devices
    there.show(minor)
    now = snapshot(devices=INVENTORY, served=assigned(CARDS[0]))
    verification = there.verify(replace(now, allocations=SnapshotPart(AllocationView())))[ID]
    assert (verification.verdict, verification.details, verification.way) == (
        verdict,
        details,
        "kubelet",
    )


@root_only
def test_the_card_of_another_pod_in_the_place_of_the_assigned_one_is_excess(
    tmp_path: Path,
) -> None:
    there = CardHost(tmp_path)
    there.rules("c 195:* rw\n")
    there.show(0)
    now = replace(of_another(snapshot(devices=INVENTORY)), served=assigned(CARDS[1]))
    verification = there.verify(now)[ID]
    assert verification.verdict is VerificationStatus.EXCESS
    assert verification.details == (
        f"/dev/nvidia0 shows {CARDS[0].key} of a/owner, which was not granted",
        f"{CARDS[1].key} is not there: no node is c 195:1",
    )


@root_only
@pytest.mark.parametrize(("container", "state"), [("other", "watched"), ("worker-0", "conflict")])
def test_a_container_that_got_nothing_by_our_plug_in_is_not_judged_by_the_kubelets_account(
    tmp_path: Path, container: str, state: str
) -> None:
    there = CardHost(tmp_path)
    now = snapshot(devices=INVENTORY, served=assigned(CARDS[0], container=container, state=state))
    assert there.verify(replace(now, allocations=SnapshotPart(AllocationView()))) == {}


def test_a_grant_that_came_after_the_sandbox_is_reported(tmp_path: Path) -> None:
    there = Node(tmp_path, fixed_hook())
    pod = replace(POD, annotations=((ANNOTATION, '{"gpu":[{"minor":0}]}'),))
    now = replace(
        snapshot(cluster=ClusterView(pods=(pod,))), allocations=SnapshotPart(AllocationView())
    )
    there.verifier.run_once(now)
    there.clock.advance(1)
    verification = there.verifier.run_once(now).containers[ID]
    assert (verification.verdict, verification.details) == (
        VerificationStatus.MISSING,
        (ALLOCATION_LATE,),
    )


@root_only
@pytest.mark.parametrize(
    ("minor", "verdict"),
    [
        (0, VerificationStatus.EXCESS),
        (1, VerificationStatus.VERIFIED),
        (None, VerificationStatus.MISSING),
    ],
)
def test_a_pod_whose_card_was_exchanged_must_have_the_one_that_it_was_given(
    tmp_path: Path, minor: int | None, verdict: VerificationStatus
) -> None:
    """The kubelet accounts card 0, which another pod was granted."""
    there = CardHost(tmp_path)
    there.rules("" if minor is None else f"c 195:{minor} rw\n")
    if minor is not None:
        there.show(minor)
    accounted, assigned_id = (card.uuid or "" for card in CARDS)
    assignment = KubeletAllocation(
        pod_uid=POD.uid,
        resource="nvidia.com/gpu",
        ids=(accounted,),
        container="worker-0",
        exchanges=((accounted, assigned_id),),
    )
    own_plugin_resource = PluginResource(name="nvidia.com/gpu", vendor="nvidia", state="watched")
    now = of_another(snapshot(devices=INVENTORY))
    now = replace(
        now,
        served=SnapshotPart(DevicePluginView(resources=(own_plugin_resource,), held=(assignment,))),
    )
    assert there.verify(now)[ID].verdict is verdict
