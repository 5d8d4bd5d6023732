from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from msgspec.structs import replace

from agent.clock import ManualClock
from agent.model.device import DeviceNode, DevicePartition
from agent.model.grant.edits import ContainerEdits, NodeEdit
from agent.model.grant.granted import Grant, GrantedDevice
from agent.model.grant.host import CdiDevice, CdiSpec, HostMeans, RdmaFunction
from agent.model.grant.means import MeansView
from agent.model.grant.proof import Verdict
from agent.model.grant.refusal import GrantRefused, Refusal
from agent.model.inventory import Inventory
from agent.model.part import Part
from agent.model.runtime.adjustment import Adjustment
from agent.model.runtime.request import HookRequest, Stage
from agent.model.snapshot import NodeSnapshot, VendorState
from agent.proof.expected import cards_of, expected_of
from agent.proof.prover import Prover
from tests import factory
from tests.cgroups import CgroupHost
from tests.unit.proof.test_watching import BOX, HELD, ID, POD, snapshot

ENV = ContainerEdits(env=(("A", "1"),))


class Gives:
    """A hook that gives every container the same."""

    name, stages, required = "devices", frozenset((Stage.CREATE,)), True

    def __init__(self, answer: Adjustment | GrantRefused) -> None:
        self.answer = answer
        self.asked: list[HookRequest] = []

    def adjust(self, request: HookRequest, _: NodeSnapshot) -> Adjustment:
        self.asked.append(request)
        if isinstance(self.answer, GrantRefused):
            raise self.answer
        return self.answer


def gives(**fields: object) -> Gives:
    return Gives(Adjustment(**fields))  # type: ignore[arg-type]  # fields of the struct


def node(path: str, minor: int) -> DeviceNode:
    return DeviceNode(path=path, major=195, minor=minor)


def test_a_container_must_have_what_its_hook_would_give_it_now() -> None:
    hook = gives(edits=ENV)
    found = expected_of(hook, snapshot(), BOX, "main")
    assert (found.edits, found.problem, found.nothing) == (ENV, "", False)
    (asked,) = hook.asked
    assert asked.container is not None
    assert (asked.stage, asked.pod, asked.container.name) == (Stage.RECONCILE, BOX, "main")


def test_what_cannot_be_told_any_more_is_said_and_not_taken_for_nothing() -> None:
    refused = Gives(GrantRefused(Refusal.DEVICE_UNKNOWN, "gone"))
    failed = gives(failed="DeviceTaken: by another", reason="DeviceTaken")
    unnamed = gives(edits=ContainerEdits(cdi=("nvidia.com/gpu=0",)))
    problems = [expected_of(hook, snapshot(), BOX, "m") for hook in (refused, failed, unnamed)]
    assert [found.problem for found in problems] == [
        "DeviceUnknown: gone",
        "DeviceTaken: by another",
        "nobody describes the CDI name nvidia.com/gpu=0",
    ]
    assert not any(found.nothing for found in problems)
    assert expected_of(gives(), snapshot(), BOX, "m").nothing


def test_a_cdi_name_stands_for_the_nodes_of_its_spec() -> None:
    spec = CdiSpec(
        path="/etc/cdi/a.json",
        kind="nvidia.com/gpu",
        devices=(CdiDevice(name="0", nodes=("/dev/nvidia0", "/dev/gone")),),
    )
    means = HostMeans(nodes=(node("/dev/nvidia0", 0),), cdi=(spec,))
    now = snapshot(means=Part(MeansView(vendors={"nvidia": means})))
    found = expected_of(gives(edits=ContainerEdits(cdi=("nvidia.com/gpu=0",))), now, BOX, "m")
    assert found.edits.nodes == (
        NodeEdit(host_path="/dev/nvidia0", path="/dev/nvidia0", major=195, minor=0),
    )


def test_a_devices_own_nodes_tell_who_it_is_and_shared_ones_do_not() -> None:
    shared = node("/dev/ctl", 255)
    part = DevicePartition(uuid="MIG-1", profile="p", nodes=(node("/dev/cap", 21),))
    cards = (
        replace(factory.gpu(0).info, nodes=(node("/dev/nvidia0", 0), shared), partitions=(part,)),
        replace(factory.gpu(1).info, nodes=(node("/dev/nvidia1", 1), shared)),
    )
    virtual = RdmaFunction(address="0000:3b:00.1", verbs=(node("/dev/uverbs1", 9),))
    now = snapshot(
        vendors=(
            VendorState(vendor="nvidia", inventory=Part(Inventory(vendor="nvidia", devices=cards))),
            VendorState(vendor="asleep"),
        ),
        means=Part(MeansView(vendors={"rdma": HostMeans(functions=(virtual,))})),
    )
    assert cards_of(now) == {
        (195, 0): cards[0].key,
        (195, 21): "MIG-1",
        (195, 1): cards[1].key,
        (195, 9): "0000:3b:00.1",
    }


def test_what_was_granted_has_nodes_of_its_own_however_it_is_shown() -> None:
    part = DevicePartition(uuid="MIG-1", profile="p", nodes=(node("/dev/cap", 21),))
    card = replace(factory.gpu(0).info, nodes=(node("/dev/nvidia0", 0),), partitions=(part,))
    nic = replace(factory.nic(0, vfs=2).info, nodes=(node("/dev/uverbs0", 8),))
    verbs = tuple(
        RdmaFunction(address=address, verbs=(node(f"/dev/uverbs{minor}", minor),))
        for minor, address in ((8, nic.bus_id or ""), (9, "0000:18:00.1"), (10, "0000:18:00.2"))
    )
    vendors = (
        VendorState(vendor="nvidia", inventory=Part(Inventory(vendor="nvidia", devices=(card,)))),
        VendorState(vendor="rdma", inventory=Part(Inventory(vendor="rdma", devices=(nic,)))),
    )
    means = Part(MeansView(vendors={"rdma": HostMeans(functions=verbs)}))

    def own(*devices: GrantedDevice) -> set[int]:
        held = replace(HELD, grant=Grant(devices=devices))
        now = snapshot(held, vendors=vendors, means=means)
        return {minor for _, minor in expected_of(gives(edits=ENV), now, BOX, "m").own}

    assert own(GrantedDevice(type="gpu", minor=0)) == {0}
    assert own(GrantedDevice(type="gpu", id="MIG-1")) == {0, 21}
    assert own(GrantedDevice(type="rdma", id=nic.bus_id or "")) == {8}
    assert own(GrantedDevice(type="rdma", id=nic.bus_id or "", vfs=("0000:18:00.1",))) == {9}


class Node:
    """A host with one container in files, and who looks at it."""

    def __init__(self, folder: Path, hook: Gives) -> None:
        self.host, self.clock = CgroupHost(folder), ManualClock()
        self.prover = Prover(self.host.files, hook, self.clock, proc=str(folder / "proc"))

    def begin(self, environ: bytes) -> None:
        self.host.write(f"/sys/fs/cgroup{POD.cgroup}/{ID}/cgroup.procs", "9\n")
        self.host.write("/proc/9/stat", "9 (sh) S " + "0 " * 18 + "100 0\n")
        self.host.path("/proc/9/environ").write_bytes(environ)


def test_a_container_is_unknown_until_it_has_started_and_then_verified(tmp_path: Path) -> None:
    there = Node(tmp_path, gives(edits=ENV))
    now = snapshot(pods=Part((POD,)))
    first = there.prover.run_once(now).containers[ID]
    assert (first.verdict, first.details) == (Verdict.UNKNOWN, ("it has no cgroup (yet)",))
    there.begin(b"PATH=/bin\0A=1\0")
    there.clock.advance(1)
    second = there.prover.run_once(now).containers[ID]
    assert (second.verdict, second.details) == (Verdict.VERIFIED, ())
    assert (second.pod, second.container, second.way) == ("told", "worker-0", "nri")
    assert second.looked_s == there.clock.wall()


def test_between_looks_a_proof_is_kept_and_it_goes_with_its_container(tmp_path: Path) -> None:
    there = Node(tmp_path, gives(edits=ENV))
    there.begin(b"PATH=/bin\0")
    now = snapshot(pods=Part((POD,)))
    first = there.prover.run_once(now)
    assert first.containers[ID].verdict is Verdict.MISSING
    assert first.containers[ID].details == ("the variable A is not set",)
    there.clock.advance(59)
    assert there.prover.run_once(now) == first
    there.begin(b"PATH=/bin\0A=1\0")
    there.clock.advance(1)
    assert there.prover.run_once(now).containers[ID].verdict is Verdict.VERIFIED
    assert there.prover.run_once(snapshot(state=None)).containers == {}


def test_what_the_hook_gives_later_is_not_asked_of_a_container_that_had_everything(
    tmp_path: Path,
) -> None:
    hook = gives(edits=ENV)
    there = Node(tmp_path, hook)
    there.begin(b"PATH=/bin\0A=1\0")
    now = snapshot(pods=Part((POD,)))
    assert there.prover.run_once(now).containers[ID].verdict is Verdict.VERIFIED
    for later in (ContainerEdits(env=(("A", "1"), ("NEW", "2"))), ContainerEdits()):
        hook.answer = Adjustment(edits=later)
        there.clock.advance(600)
        assert there.prover.run_once(now).containers[ID].verdict is Verdict.VERIFIED
    there.begin(b"PATH=/bin\0")
    there.clock.advance(600)
    assert there.prover.run_once(now).containers[ID].verdict is Verdict.MISSING


def test_a_grant_that_gives_nothing_to_be_found_is_not_in_the_view(tmp_path: Path) -> None:
    there = Node(tmp_path, gives())
    assert there.prover.run_once(snapshot()).containers == {}


def test_a_host_without_cgroups_tells_nothing(tmp_path: Path) -> None:
    there = Node(tmp_path, gives(edits=ENV))
    there.host.write("/proc/mounts", "")
    (tmp_path / "sys").rename(tmp_path / "gone")
    found = there.prover.run_once(snapshot()).containers[ID]
    assert (found.verdict, found.details) == (Verdict.UNKNOWN, ("this host has no cgroups",))


def test_proofs_are_frozen_for_who_reads_them_on_other_threads(tmp_path: Path) -> None:
    there = Node(tmp_path, gives(edits=ENV))
    view = there.prover.run_once(snapshot())
    assert isinstance(view.containers, MappingProxyType)
    there.prover.run_once(snapshot(state=None))
    assert ID in view.containers
