"""Does HAMi-core count what the driver measures? Where it is left out it counts less."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from agent.model.grant.sharing import SharedCard, SharedRegion
from agent.model.inventory import DeviceSample, Problem

MIN_RATIO = 0.10
MIN_BYTES = 256 << 20
LASTING_S = 60.0

Key = tuple[str, str, int]  # pod uid, container, card
Measured = Mapping[str, Mapping[int, int]]  # by uuid, then host pid: bytes


def measured_by(samples: Iterable[DeviceSample], uuids: Mapping[str, str]) -> Measured:
    """Return the driver's figures by uuid and host pid; `uuids` are by device key.

    A card whose processes, or the memory of one, the driver does not tell is left out.
    """
    found: dict[str, dict[int, int]] = {}
    for sample in samples:
        processes, uuid = sample.processes, uuids.get(sample.key)
        if processes is None or uuid is None:
            continue
        told = {p.pid: p.memory_bytes for p in processes if p.memory_bytes is not None}
        if len(told) == len({p.pid for p in processes}):
            found[uuid] = told
    return found


class DriftWatch:
    """Remembers since when counts and measurements differ; forgets what is gone."""

    def __init__(self) -> None:
        self._since_s: dict[Key, float] = {}

    def judge(
        self, regions: Iterable[SharedRegion], measured: Measured, now_s: float
    ) -> tuple[tuple[SharedRegion, ...], tuple[Problem, ...]]:
        """Put the driver's figure beside a count that has been off for a minute, and tell it.

        Off is more than a tenth and more than 256 MiB. Where the driver does not know the same
        processes nothing can be told.
        """
        before, self._since_s = self._since_s, {}
        judged: list[SharedRegion] = []
        problems: list[Problem] = []
        for region in regions:
            cards = []
            for card in region.cards:
                key = (region.pod_uid, region.container, card.index)
                total = _measured(card, measured)
                if total is not None and _off(card.used_bytes, total):
                    self._since_s[key] = before.get(key, now_s)
                lasting = now_s - self._since_s.get(key, now_s) >= LASTING_S
                cards.append(replace(card, measured_bytes=total) if lasting else card)
                if lasting:
                    problems.append(_problem(region, card, total))
            judged.append(replace(region, cards=tuple(cards)))
        return tuple(judged), tuple(problems)


def _measured(card: SharedCard, measured: Measured) -> int | None:
    """Return the sum over the card's processes; `None` if one is not known to both."""
    told = measured.get(card.uuid)
    pids = {process.host_pid for process in card.processes}
    if told is None or not pids or not pids <= told.keys():
        return None
    return sum(told[pid] for pid in pids)


def _off(counted: int, measured: int) -> bool:
    difference = abs(counted - measured)
    return difference > MIN_BYTES and difference > MIN_RATIO * measured


def _problem(region: SharedRegion, card: SharedCard, measured: int | None) -> Problem:
    who = f"pod {region.pod_uid} container {region.container} on {card.uuid[:64]}"
    return Problem(
        reason="RegionDrift",
        message=f"{who}: HAMi-core counts {card.used_bytes} bytes, the driver {measured}",
    )
