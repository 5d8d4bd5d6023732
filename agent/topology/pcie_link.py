"""PCIe links: speed and width, their maxima, and whether a link is slower than possible."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from agent.snapshot.pci import PciLink, PciTree

SLOW_SAMPLES = 3  # low readings in a row before the speed counts as degraded
SLOW_INTERVAL_S = 60.0  # minimum between two readings that count

_SPEED = re.compile(r"([0-9]{1,3})(?:\.([0-9]))? GT/s(?: PCIe)?")
_WIDTHS = frozenset((1, 2, 4, 8, 12, 16, 32))
# GT/s x 10: payload bits of transferred bits: 8b/10b, 128b/130b, flits of 242 in 256 bytes
_ENCODING = {
    25: (8, 10),
    50: (8, 10),
    80: (128, 130),
    160: (128, 130),
    320: (128, 130),
    640: (242, 256),
}


def parse_speed(text: str | None) -> int | None:
    """Return GT/s times ten; `None` for Unknown and for speeds that PCIe does not have."""
    match = _SPEED.fullmatch(text) if text else None
    if match is None:
        return None
    speed = int(match[1]) * 10 + int(match[2] or 0)
    return speed if speed in _ENCODING else None


def parse_width(text: str | None) -> int | None:
    """Return lanes; `None` for 0, 63, 255 (all mean unknown) and widths that PCIe does not have."""
    if not text or len(text) > 3 or not (text.isascii() and text.isdecimal()):
        return None
    width = int(text)
    return width if width in _WIDTHS else None


def bandwidth_mb_s(speed: int | None, width: int | None) -> int | None:
    """Return MB/s of one direction after line encoding: floor(GT/s x 1000 x e / 8 x lanes)."""
    if speed not in _ENCODING or width is None:
        return None
    payload, raw = _ENCODING[speed]
    return speed * 100 * payload * width // (raw * 8)


def _minimum(own: int | None, upstream: int | None) -> int | None:
    values = [value for value in (own, upstream) if value]
    return min(values, default=None)


def attainable_link(link: PciLink, port: PciLink | None) -> tuple[int | None, int | None]:
    """Return (speed, width) that both ends support.

    `port` is the link of the port directly above; an unknown side is ignored.
    """
    port_link = port or PciLink()
    return (
        _minimum(link.max_speed, port_link.max_speed),
        _minimum(link.max_width, port_link.max_width),
    )


def is_slow(link: PciLink, port: PciLink | None) -> bool:
    """Return whether the link is slower than both ends support, idle or not."""
    speed, _ = attainable_link(link, port)
    return speed is not None and link.speed is not None and link.speed < speed


def degradation(link: PciLink, port: PciLink | None, *, slow_for_long: bool = False) -> str | None:
    """Return `width`, `speed` or `None`.

    Too few lanes count at once. Low speed counts only if it lasts or the device is busy
    (`slow_for_long`): GPUs drop to 2.5 GT/s when idle, and integrated NICs always read low.
    """
    _, width = attainable_link(link, port)
    if width is not None and link.width is not None and link.width < width:
        return "width"
    return "speed" if slow_for_long and is_slow(link, port) else None


class SlowLinkRecord(msgspec.Struct, frozen=True):
    """Number of slow readings of one link in a row, and the time of the last one that counted."""

    count: int = 0
    counted_s: float = 0.0  # monotonic

    def observe(self, now_s: float, *, slow: bool, busy: bool) -> SlowLinkRecord:
        """Return the record after one more reading; readings within a minute count as one."""
        if not slow:
            return SlowLinkRecord()
        if busy:  # a busy device does not save power
            return SlowLinkRecord(SLOW_SAMPLES, now_s)
        if self.count and now_s - self.counted_s < SLOW_INTERVAL_S:
            return self
        return SlowLinkRecord(min(self.count + 1, SLOW_SAMPLES), now_s)

    @property
    def is_persistent(self) -> bool:
        """Return whether the low speed is a fault, not power saving."""
        return self.count >= SLOW_SAMPLES


def observe_links(
    records: Mapping[str, SlowLinkRecord],
    tree: PciTree,
    addresses: Iterable[str],
    now_s: float,
    busy: frozenset[str] = frozenset(),
) -> dict[str, SlowLinkRecord]:
    """Return the records of these functions after one more reading; others are dropped."""
    links = {}
    for address in addresses:
        function = tree.get(address)
        if function is None:
            continue
        port = tree.get(function.bridges[-1]) if function.bridges else None
        slow = is_slow(function.link, port.link if port else None)
        previous = records.get(address, SlowLinkRecord())
        links[address] = previous.observe(now_s, slow=slow, busy=address in busy)
    return links


def persistently_slow(records: Mapping[str, SlowLinkRecord]) -> frozenset[str]:
    """Return the functions whose low speed is a fault."""
    return frozenset(address for address, record in records.items() if record.is_persistent)
