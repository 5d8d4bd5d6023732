"""The kubelet's question which cards are best: 16 cards, every size, the dearest one counts.

CPU milliseconds of the thread for one whole answer from a snapshot; the board of distances is made
once for each discovery, and has a row of its own. The peer looks at every set by itself. The limit
looks once at each of the 12870 scores of the sets of eight, which somebody else has made.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations

from agent.allocation.device_scores import PairScores, score_pairs
from agent.config.containers import DevicePluginSettings
from agent.deviceplugin.allocator import Allocator
from agent.snapshot.device import Device, DeviceKind, DeviceLink, Placement, VendorDevice
from agent.snapshot.inventory import DeviceGroup
from agent.snapshot.node import DeviceView, NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciTree
from agent.workers.load import load_vendors
from bench.harness import Row, compare

CARDS = 16
TRIES = 3  # of each size; the least counts, what the machine did beside it does not
SETS = 12870  # of eight cards of 16
RESOURCE = "nvidia.com/gpu"


def rows() -> Iterator[Row]:
    """Yield the dearest answer with and without links, and what the board costs."""
    peer, limit = _naive(score_pairs(_view(18), PciTree())), _limit()
    for name, links in (("preferred_nvswitch_16", 18), ("preferred_without_links_16", 0)):
        snapshot = _snapshot(_view(links))
        gate = "subject<=5,ratio_peer<=0.2"
        yield compare(name, "cpu_ms", _dearest(snapshot), peer=peer, limit=limit, gate=gate)
    view = _view(18)
    yield compare("preferred_board_16", "cpu_ms", lambda: _ms(lambda: score_pairs(view, PciTree())))


def _view(links: int) -> DeviceView:
    cards = tuple(map(_card, range(CARDS)))
    pairs = combinations(cards, 2) if links else ()
    groups = [cards[i : i + size] for size in (2, 4, 8) for i in range(0, CARDS, size)]
    return DeviceView(
        devices=cards,
        links=tuple(DeviceLink(a=a.key, b=b.key, type="NVLink", count=links) for a, b in pairs),
        groups=tuple(
            DeviceGroup(keys=tuple(card.key for card in group), link_type="NVLink")
            for group in groups
        ),
    )


def _card(index: int) -> Device:
    """Sit a card below a switch with its neighbour, eight cards on a memory node."""
    bus_id, root = f"0000:{0x10 + index:02x}:00.0", f"pci0000:{index // 2:02x}"
    bridges = (f"0000:{index // 2:02x}:01.0", f"0000:{0x40 + index // 2:02x}:00.0")
    info = VendorDevice(
        kind=DeviceKind.GPU,
        vendor="nvidia",
        bus_id=bus_id,
        uuid=f"GPU-00000000-0000-4000-8000-{index:012d}",
        minor=index,
        resources=(("koordinator.sh/gpu-core", "100"),),
    )
    place = Placement(numa_node=index // 8, root=root, path=(root, *bridges, bus_id))
    return Device(info=info, place=place)


def _snapshot(view: DeviceView) -> NodeSnapshot:
    return NodeSnapshot(node=NodeIdentity(name="bench"), devices=SnapshotPart(view, 1.0))


def _dearest(snapshot: NodeSnapshot) -> Callable[[], float]:
    decide = Allocator(DevicePluginSettings(vendors=("nvidia",)), load_vendors())
    (resource,) = decide.resources(snapshot)
    ids = tuple(device.id for device in resource.devices)

    def answered(size: int) -> float:
        ask = partial(decide.select_preferred, RESOURCE, ids, (), size, snapshot)
        return min(_ms(ask) for _ in range(TRIES))

    def figure() -> float:
        return max(map(answered, range(1, CARDS + 1)))

    return figure


def _naive(board: PairScores) -> Callable[[], float]:
    """Return the cost of scoring each set of eight by itself, ties and all else left aside."""
    ids = [card.id for card in board.candidates]

    def score(chosen: tuple[str, ...]) -> int:
        return sum(board.scores[pair] for pair in combinations(chosen, 2))

    def figure() -> float:
        return _ms(lambda: max(combinations(ids, 8), key=score))

    return figure


def _limit() -> Callable[[], float]:
    scores = array("Q", range(SETS))
    return lambda: _ms(lambda: max(scores))


def _ms(work: Callable[[], object]) -> float:
    began_s = time.thread_time()
    work()
    return (time.thread_time() - began_s) * 1000
