"""Reads HAMi-core regions and MPS daemons of shared cards, and compares them with the driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from agent.host.files import LiveHostFiles
from agent.snapshot.device import Device
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import DeviceSample, Problem
from agent.snapshot.pod import PodView
from agent.snapshot.usage import MpsDaemon, SharedCard, SharedRegion, SharingView
from agent.usage.hami_regions import read_regions
from agent.usage.mps import read_mps
from agent.wire_formats.device_info import is_cuda_device

MIN_MISMATCH_RATIO = 0.10
MIN_MISMATCH_BYTES = 256 << 20
MISMATCH_DURATION_S = 60.0

RegionCardKey = tuple[str, str, int]  # pod uid, container, card

MemoryByProcess = Mapping[str, Mapping[int, int]]  # by uuid, then host pid: bytes


def memory_by_process(samples: Iterable[DeviceSample], uuids: Mapping[str, str]) -> MemoryByProcess:
    """Return the driver's figures by uuid and host pid; `uuids` are by device key.

    A card whose processes, or the memory of one, the driver does not tell is left out.
    """
    by_card: dict[str, dict[int, int]] = {}
    for sample in samples:
        processes, uuid = sample.processes, uuids.get(sample.key)
        if processes is None or uuid is None:
            continue
        memory_by_pid = {p.pid: p.memory_bytes for p in processes if p.memory_bytes is not None}
        if len(memory_by_pid) == len({p.pid for p in processes}):
            by_card[uuid] = memory_by_pid
    return by_card


class MismatchTracker:
    """Remembers since when counts and measurements differ; forgets what is gone."""

    def __init__(self) -> None:
        self._since_s: dict[RegionCardKey, float] = {}

    def check(
        self, regions: Iterable[SharedRegion], measured: MemoryByProcess, now_s: float
    ) -> tuple[tuple[SharedRegion, ...], tuple[Problem, ...]]:
        """Put the driver's figure beside a count that has been off for a minute, and tell it.

        Off is more than a tenth and more than 256 MiB. Where the driver does not know the same
        processes nothing can be told.
        """
        previous, self._since_s = self._since_s, {}
        checked: list[SharedRegion] = []
        problems: list[Problem] = []
        for region in regions:
            cards = []
            for card in region.cards:
                key = (region.pod_uid, region.container, card.index)
                total = _measured_memory(card, measured)
                if total is not None and _is_mismatch(card.used_bytes, total):
                    self._since_s[key] = previous.get(key, now_s)
                lasting = now_s - self._since_s.get(key, now_s) >= MISMATCH_DURATION_S
                cards.append(replace(card, measured_bytes=total) if lasting else card)
                if lasting:
                    problems.append(_mismatch_problem(region, card, total))
            checked.append(replace(region, cards=tuple(cards)))
        return tuple(checked), tuple(problems)


def _measured_memory(card: SharedCard, measured: MemoryByProcess) -> int | None:
    """Return the sum over the card's processes; `None` if one is not known to both."""
    by_pid = measured.get(card.uuid)
    pids = {process.host_pid for process in card.processes}
    if by_pid is None or not pids or not pids <= by_pid.keys():
        return None
    return sum(by_pid[pid] for pid in pids)


def _is_mismatch(accounted: int, measured: int) -> bool:
    difference = abs(accounted - measured)
    return difference > MIN_MISMATCH_BYTES and difference > MIN_MISMATCH_RATIO * measured


def _mismatch_problem(region: SharedRegion, card: SharedCard, measured: int | None) -> Problem:
    who = f"pod {region.pod_uid} container {region.container} on {card.uuid[:64]}"
    return Problem(
        reason="RegionDrift",
        message=f"{who}: HAMi-core counts {card.used_bytes} bytes, the driver {measured}",
    )


REGIONS_INTERVAL_S = 10.0

MPS_INTERVAL_S = 60.0  # it walks all processes


class SharedDeviceCollector:
    """Reads one host's regions and daemons. Not for two threads."""

    def __init__(self, host: HostFiles, regions: str) -> None:
        """Begin without a look. `regions` is the folder of HAMi-core's files; empty: none.

        A recorded host has no regions: they are no text, and nobody recorded them.
        """
        self._host = host
        self._regions_folder = (
            host.path(regions) if regions and isinstance(host, LiveHostFiles) else ""
        )
        self._mismatches = MismatchTracker()
        self._mps: tuple[MpsDaemon, ...] = ()
        self._regions_read_s: float | None = None
        self._mps_read_s: float | None = None

    def collect(
        self,
        now_s: float,
        wall_s: float,
        pods: Iterable[PodView],
        devices: Iterable[Device],
        samples: Iterable[DeviceSample],
    ) -> SharingView | None:
        """Return how cards are shared, or `None` while the last look is young enough.

        `now_s` is monotonic. A node without cards of NVIDIA shares none and is not looked at.
        """
        if self._regions_read_s is not None and now_s - self._regions_read_s < REGIONS_INTERVAL_S:
            return None
        self._regions_read_s = now_s
        uuids = {d.key: d.info.uuid for d in devices if is_cuda_device(d.info) and d.info.uuid}
        if not uuids:
            return SharingView()
        if self._mps_read_s is None or now_s - self._mps_read_s >= MPS_INTERVAL_S:
            self._mps_read_s = now_s
            self._mps = read_mps(self._host)
        if not self._regions_folder:
            return SharingView(mps=self._mps, wall_s=wall_s)
        regions, problems = read_regions(self._regions_folder, pods)
        checked, drifts = self._mismatches.check(regions, memory_by_process(samples, uuids), now_s)
        return SharingView(
            regions=checked, mps=self._mps, problems=(*problems, *drifts), wall_s=wall_s
        )
