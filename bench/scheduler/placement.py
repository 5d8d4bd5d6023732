"""How good placements of a stream of pods are, beside first fit and exhaustive search.

Fragmentation is the part of the free whole cards that a pod of eight cards cannot use, as a mean
over the stream. First fit takes the first node with enough free cards and the first cards of it.
A placement is local if each card has a NIC of the pod on its own PCIe root. The exhaustive search
finds a local placement whenever its own cluster has one on any node. Half of its pods want whole
NICs, the others cards alone, so that roots without a free card or a free NIC remain.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator

from agent.snapshot.allocation import AllocatedDevice
from bench.harness import Row
from bench.scheduler.cluster import CARD, JOINT, table
from plugins.scheduler.cluster_state import AssignedPod, ClusterState
from plugins.scheduler.decisions import DecisionMaker
from plugins.scheduler.devices.allocator import NodeRefused
from plugins.scheduler.devices.device_table import GPU, RDMA, NodeDevice
from plugins.scheduler.devices.requests import device_request
from plugins.scheduler.devices.scores import ScoringStrategy
from plugins.scheduler.numa.cpu_request import PodRequest
from plugins.scheduler.pod_object import PodKey

PODS, NODES, JOINT_NODES = 2000, 100, 50
LARGEST = 8  # cards of a pod
NIC_SHARE = 100
# without a required scope a pod is bound where no local placement is left, too
PREFERRED = {"scheduling.koordinator.sh/device-joint-allocate": '{"deviceTypes": ["gpu", "rdma"]}'}
RDMA_RESOURCE = "koordinator.sh/rdma"


class Stream:
    """One cluster and the pods of the stream that are on it."""

    def __init__(self, nodes: int) -> None:
        self.state = ClusterState()
        self.decisions = DecisionMaker(self.state, strategy=ScoringStrategy(type="MostAllocated"))
        for number in range(nodes):
            self.state.set_node(f"node-{number}", {})
            self.state.set_devices(table(f"node-{number}"))
        self.names = list(self.state.node_names())

    def place(self, number: int, request: PodRequest) -> tuple[AllocatedDevice, ...]:
        """Bind a pod to the best node; return its devices, none if no node fits."""
        answer = self.decisions.decide(request, self.names)
        for name, _ in answer.best(1):
            try:
                grant = self.decisions.allocate(request, name)
            except NodeRefused:
                return ()
            devices = tuple(device.as_allocated() for device in grant.devices)
            self.put(number, name, devices)
            return devices
        return ()

    def put(self, number: int, node: str, devices: Iterable[AllocatedDevice]) -> None:
        """Put a pod with its devices on a node."""
        key = PodKey(str(number), "default", str(number))
        self.state.set_pod(AssignedPod(key=key, node=node, allocation=tuple(devices)))

    def free(self, name: str, kind: str, share: int = 100) -> list[NodeDevice]:
        """Return the devices of a node of which so many percent are free."""
        state = self.state.state(name)
        resource = RDMA_RESOURCE if kind == RDMA else "koordinator.sh/gpu-core"
        devices = state.table.of(kind) if state.table is not None else ()
        return [device for device in devices if state.usage.free(device).get(resource, 0) >= share]

    def fragmentation(self) -> float:
        """Return the part of the free cards that no pod of the largest size can use."""
        free = [len(self.free(name, GPU)) for name in self.names]
        usable = sum(count // LARGEST * LARGEST for count in free)
        return 1 - usable / sum(free) if sum(free) else 0.0


def rows() -> Iterator[Row]:
    """Yield fragmentation beside first fit, and local placements beside exhaustive search."""
    (ours, first), (ours_placed, first_placed) = _fragmentation()
    yield Row(
        name="scheduler_placement_bound",
        metric="pods",
        subject=ours_placed,
        peer=first_placed,
        gate="ratio_peer>=0.99",
    )
    yield Row(
        name="scheduler_placement_fragmentation",
        metric="unusable_part",
        subject=ours,
        peer=first,
        gate="ratio_peer<=1",
    )
    for name, hints in (("required", JOINT), ("preferred", PREFERRED)):
        local, best = _local_placements(hints)
        yield Row(
            name=f"scheduler_placement_pcie_local_{name}",
            metric="pods",
            subject=local,
            limit=best,
            gate="ratio_limit>=0.95",
        )


def _fragmentation() -> tuple[tuple[float, float], tuple[int, int]]:
    """Return the mean parts, and how many pods were bound; ours first."""
    rng = random.Random(16)
    own_values, first = Stream(NODES), Stream(NODES)
    sums = [0.0, 0.0]
    bound = [0, 0]
    placed: list[int] = []
    for number in range(PODS):
        cards = rng.choice((1, 1, 1, 2, 2, 4, 8))
        bound[0] += bool(own_values.place(number, _request(cards)))
        bound[1] += _place_first(first, number, cards)
        placed.append(number)
        if len(placed) > NODES * 2:  # three quarters of the cards are in use then
            removed = str(placed.pop(rng.randrange(len(placed))))
            own_values.state.remove_pod(removed)
            first.state.remove_pod(removed)
        sums[0] += own_values.fragmentation()
        sums[1] += first.fragmentation()
    return (sums[0] / PODS, sums[1] / PODS), (bound[0], bound[1])


def _place_first(stream: Stream, number: int, cards: int) -> bool:
    for name in stream.names:
        free = stream.free(name, GPU)
        if len(free) >= cards:
            stream.put(number, name, map(_card, free[:cards]))
            return True
    return False


def _local_placements(hints: dict[str, str]) -> tuple[int, int]:
    rng = random.Random(17)
    own_values, search = Stream(JOINT_NODES), Stream(JOINT_NODES)
    local, best = 0, 0
    placed: list[int] = []
    for number in range(PODS):
        cards = rng.choice((1, 1, 2, 2, 4))
        if rng.random() < 0.5:
            request = _request(cards, hints)
            local += _is_local(own_values.place(number, request))
            best += _place_exhaustively(search, number, cards, request)
        else:
            own_values.place(number, _request(cards))
            search.place(number, _request(cards))
        placed.append(number)
        if len(placed) > JOINT_NODES * 3:
            removed = str(placed.pop(rng.randrange(len(placed))))
            own_values.state.remove_pod(removed)
            search.state.remove_pod(removed)
    return local, best


def _place_exhaustively(stream: Stream, number: int, cards: int, request: PodRequest) -> bool:
    """Put a pod where it is local, on as few PCIe roots as can be; return whether it is."""
    choices = (choice for name in stream.names for choice in _local_choices(stream, name, cards))
    best = min(choices, key=lambda choice: choice[0], default=None)
    if best is None:
        stream.place(number, request)
        return False
    stream.put(number, best[1], best[2])
    return True


def _local_choices(
    stream: Stream, name: str, cards: int
) -> Iterator[tuple[tuple[int, int], str, list[AllocatedDevice]]]:
    """Yield local placements with their cost: PCIe roots, and cards that stay free on the node."""
    free = stream.free(name, GPU)
    nics = {nic.pcie: nic for nic in stream.free(name, RDMA, NIC_SHARE)}
    near = [card for card in free if card.pcie in nics]
    for chosen in itertools.combinations(near, cards):
        roots = {card.pcie for card in chosen}
        devices = [*map(_card, chosen), *(_nic(nics[root]) for root in sorted(roots))]
        yield (len(roots), len(free) - cards), name, devices


def _is_local(devices: Iterable[AllocatedDevice]) -> bool:
    """Return whether each card has a NIC on its own root; the table has two cards for each NIC."""
    roots = {GPU: set[int](), RDMA: set[int]()}
    for device in devices:
        minor = device.minor or 0
        roots[device.type].add(minor // 2 if device.type == GPU else minor)
    return bool(roots[GPU]) and roots[GPU] <= roots[RDMA]


def _request(cards: int, annotations: dict[str, str] | None = None) -> PodRequest:
    amounts = {"koordinator.sh/gpu": cards * 100}
    if annotations is not None:
        amounts[RDMA_RESOURCE] = NIC_SHARE
    return PodRequest(devices=device_request(amounts, annotations or {}))


def _card(card: NodeDevice) -> AllocatedDevice:
    return AllocatedDevice(type=GPU, minor=card.minor, id=card.id, resources=tuple(CARD.items()))


def _nic(nic: NodeDevice) -> AllocatedDevice:
    resources = ((RDMA_RESOURCE, NIC_SHARE),)
    return AllocatedDevice(type=RDMA, minor=nic.minor, id=nic.id, resources=resources)
