"""Accounts that differ: whatever comes and ends, no card is ever given to two pods."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.deviceplugin.allocator import Allocator
from agent.deviceplugin.pod_devices import ALIGNED_POLICIES, DeviceAccounting
from agent.deviceplugin.resources import AllocationError
from agent.snapshot.cluster import KubeletView
from agent.snapshot.device import Device, DevicePartition, Health, HealthState
from agent.snapshot.device_plugin import KubeletAllocation
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from tests import factory
from tests.unit.deviceplugin.made import GPU, allocation_of, card, deciding, device, node, waiting

CARDS = 4
DEVICES = tuple(map(factory.gpu, range(CARDS)))
IDS = tuple(map(card, range(CARDS)))


class Node:
    """A kubelet that chooses at random, a scheduler that grants free cards, and our decisions."""

    def __init__(self, seed: int) -> None:
        self.decide = deciding()
        self.chance = random.Random(seed)
        self.grants: dict[str, int] = {}  # card by pod
        self.held: dict[str, KubeletAllocation] = {}
        self.pods: dict[str, PodView] = {}
        self.number = 0

    def snapshot(self) -> NodeSnapshot:
        pods = tuple(self.pods.values())
        grants = {
            i: allocation_of(card(self.grants[pod.uid]))
            for i, pod in enumerate(pods)
            if pod.uid in self.grants
        }
        entries = tuple(self.held.values())
        return node(*pods, devices=DEVICES, grants=grants, kubelet_allocations=entries, handler="")

    def in_truth(self) -> list[int]:
        """The cards that pods have, one entry for each pod that has it."""
        plain = (entries for uid, entries in self.held.items() if uid not in self.grants)
        ids = [name for entries in plain for name in entries.device_ids]
        return sorted([*map(IDS.index, ids), *self.grants.values()])

    def free(self) -> list[str]:
        """The ids that the kubelet would choose from now."""
        (listed,) = (
            resource for resource in self.decide.resources(self.snapshot()) if resource.name == GPU
        )
        used = {name for entries in self.held.values() for name in entries.ids}
        return [one.id for one in listed.devices if one.healthy and one.id not in used]

    def create(self, count: int) -> PodView:
        self.number += 1
        created = waiting(self.number, count) if count else factory.pod(self.number, 0)
        self.pods[created.uid] = created
        return created

    def grant(self, *, asks: bool) -> None:
        """Grant a card that is free in truth, and have the kubelet account any, if it is asked."""
        spare = [n for n in range(CARDS) if n not in self.in_truth()]
        if not spare:
            return
        pod = self.create(1 if asks else 0)
        self.grants[pod.uid] = self.chance.choice(spare)
        if not asks:
            return
        free = self.free()
        assert free, "a granted pod found no id, and could not be admitted"
        self.held[pod.uid] = KubeletAllocation(
            pod_uid=pod.uid, resource=GPU, ids=(self.chance.choice(free),), container="main"
        )

    def admit(self, count: int) -> None:
        """Admit a pod without a grant, as the kubelet does: with any ids that it holds for free."""
        free = self.free()
        if len(free) < count:
            return
        pod = self.create(count)
        ids = tuple(sorted(self.chance.sample(free, count)))
        result = self.decide.allocate(GPU, ids, self.snapshot(), last=True)
        self.held[pod.uid] = KubeletAllocation(
            pod_uid=pod.uid, resource=GPU, ids=ids, container="main", exchanges=result.exchanges
        )

    def end(self, number: int) -> None:
        if self.pods:
            uid = sorted(self.pods)[number % len(self.pods)]
            for table in (self.pods, self.grants, self.held):
                table.pop(uid, None)


STEPS = st.one_of(
    st.tuples(st.just("grant"), st.booleans()),
    st.tuples(st.just("admit"), st.integers(1, 3)),
    st.tuples(st.just("end"), st.integers(0, 9)),
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.lists(STEPS, max_size=14))
def test_no_card_is_given_twice_and_no_pod_with_a_listed_id_is_refused(
    seed: int, steps: list[tuple[str, int]]
) -> None:
    one = Node(seed)
    for what, value in steps:
        if what == "grant":
            one.grant(asks=bool(value))
        elif what == "admit":
            one.admit(value)
        else:
            one.end(value)
        truth = one.in_truth()
        assert len(set(truth)) == len(truth), truth


def owner_and_plain(
    devices: tuple[Device, ...], *, resource: str, mine: str, accounted: str
) -> tuple[Allocator, NodeSnapshot]:
    """A pod that was granted `mine` and is accounted `accounted`, and one that waits."""
    owner = waiting(1, resource=resource)
    kubelet_allocations = (
        KubeletAllocation(pod_uid=owner.uid, resource=resource, ids=(accounted,), container="main"),
    )
    snapshot = node(
        owner,
        waiting(2, resource=resource),
        devices=devices,
        grants={0: allocation_of(mine)},
        kubelet_allocations=kubelet_allocations,
        handler="",
    )
    return deciding(), snapshot


def test_slices_are_exchanged_for_slices_of_the_same_resource() -> None:
    parts = tuple(DevicePartition(uuid=f"MIG-{i}", profile="1g.10gb", instance=i) for i in range(3))
    labels = (("xpu-agent.io/mig", "true"),)
    cut = device(replace(factory.gpu(0).info, labels=labels, resources=(), partitions=parts))
    resource = "nvidia.com/mig-1g.10gb"
    decide, snapshot = owner_and_plain((cut,), resource=resource, mine="MIG-2", accounted="MIG-0")
    (listed,) = (one for one in decide.resources(snapshot) if one.name == resource)
    assert not listed.withdrawn_ids
    offered = decide._resource_table(snapshot).units_by_resource
    accounts = DeviceAccounting(offered[resource], offered, snapshot, ("MIG-2",))
    units = [offered[resource].units["MIG-2"]]
    assert accounts.exchange_units(units) == {"MIG-2": "MIG-0"}


def test_one_replica_of_a_granted_card_is_exchanged_and_the_others_are_withdrawn() -> None:
    decide = deciding(sharing=({"resource": GPU, "replicas": 2},))
    owner = waiting(1)
    kubelet_allocations = (
        KubeletAllocation(
            pod_uid=owner.uid, resource=GPU, ids=(f"{card(0)}::0",), container="main"
        ),
    )
    snapshot = node(
        owner,
        waiting(2),
        devices=DEVICES,
        grants={0: allocation_of(card(2))},
        kubelet_allocations=kubelet_allocations,
        handler="",
    )
    (listed,) = (resource for resource in decide.resources(snapshot) if resource.name == GPU)
    assert listed.withdrawn_ids == (f"{card(2)}::0",)
    result = decide.allocate(GPU, (f"{card(2)}::1",), snapshot, last=True)
    assert result.exchanges == ((f"{card(2)}::1", f"{card(0)}::0"),)


def test_a_card_of_the_same_memory_node_is_the_first_to_be_exchanged() -> None:
    devices = tuple(map(factory.gpu, range(8)))
    owners = [waiting(n) for n in (1, 2, 3)]
    accounted = (0, 4, 5)  # what the kubelet holds for used, and nobody has
    entries = tuple(
        KubeletAllocation(pod_uid=owner.uid, resource=GPU, ids=(card(n),), container="main")
        for owner, n in zip(owners, accounted, strict=True)
    )
    grants = {i: allocation_of(card(n)) for i, n in enumerate((1, 6, 7))}
    now = node(
        *owners, waiting(4), devices=devices, grants=grants, kubelet_allocations=entries, handler=""
    )
    decide = deciding()
    assert decide.allocate(GPU, (card(6),), now).exchanges == ((card(6), card(4)),)
    assert decide.allocate(GPU, (card(1),), now).exchanges == ((card(1), card(0)),)
    aligned = replace(
        now,
        cluster=replace(
            now.cluster, kubelet=SnapshotPart(KubeletView(topology_policy="single-numa-node"), 1.0)
        ),
    )
    two = replace(aligned, cluster=replace(aligned.cluster, pods=(*owners, waiting(4, 2))))
    assert decide.allocate(GPU, (card(6), card(7)), two).exchanges == (
        (card(6), card(4)),
        (card(7), card(5)),
    )


def test_a_card_of_another_memory_node_fits_unless_the_kubelet_promises_the_same_one() -> None:
    devices = tuple(map(factory.gpu, range(8)))
    decide, now = owner_and_plain(devices, resource=GPU, mine=card(1), accounted=card(4))
    assert decide.allocate(GPU, (card(1),), now).exchanges == ((card(1), card(4)),)
    for policy in ALIGNED_POLICIES:
        facts = SnapshotPart(KubeletView(topology_policy=policy), 1.0)
        promised = replace(now, cluster=replace(now.cluster, kubelet=facts))
        with pytest.raises(AllocationError, match="DeviceTaken"):
            decide.allocate(GPU, (card(1),), promised, last=True)


def test_a_card_that_fails_is_exchanged_for_nothing() -> None:
    sick = Health(state=HealthState.FAILED, reason="Xid79")
    devices = (factory.gpu(0, health=sick), *DEVICES[1:])
    decide, now = owner_and_plain(devices, resource=GPU, mine=card(2), accounted=card(0))
    with pytest.raises(AllocationError, match="DeviceTaken"):
        decide.allocate(GPU, (card(2),), now, last=True)


@pytest.mark.parametrize(("asks", "listed"), [(True, 4), (False, 3)])
def test_a_pod_that_the_kubelet_freed_before_the_agent_knew_its_end_withdraws_nothing(
    asks: bool, listed: int
) -> None:
    """Its successor would be refused for good: with too few healthy ones nobody is asked."""
    owner = waiting(1, phase="Running") if asks else factory.pod(1, 0, phase="Running")
    now = node(owner, devices=DEVICES, grants={0: allocation_of(card(2))}, handler="")
    (resource,) = (one for one in deciding().resources(now) if one.name == GPU)
    assert sum(one.healthy for one in resource.devices) == listed


def test_a_device_of_a_pod_that_no_list_has_yet_is_not_withdrawn() -> None:
    """Right after a start: what the pod asks of the kubelet is unknown, and so is its account."""
    owner, plain = waiting(1, phase="Running"), waiting(2, phase="Running")
    kubelet_allocations = (
        KubeletAllocation(pod_uid=owner.uid, resource=GPU, ids=(card(0),), container="main"),
        KubeletAllocation(pod_uid=plain.uid, resource=GPU, ids=(card(1),), container="main"),
    )
    now = node(
        owner,
        plain,
        devices=DEVICES,
        grants={0: allocation_of(card(2))},
        kubelet_allocations=kubelet_allocations,
        handler="",
    )
    early = replace(now, cluster=replace(now.cluster, pods=()))
    for snapshot in (early, now):
        (resource,) = (one for one in deciding().resources(snapshot) if one.name == GPU)
        assert not resource.withdrawn_ids
