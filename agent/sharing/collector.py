"""Looks at shared cards now and then; the work belongs to the collector thread."""

from __future__ import annotations

from collections.abc import Iterable

from agent.host.files import HostFiles, LiveRoot
from agent.model.device import Device
from agent.model.grant.sharing import MpsDaemon, SharingView
from agent.model.inventory import DeviceSample
from agent.model.pod import PodView
from agent.sharing.drift import DriftWatch, measured_by
from agent.sharing.folders import read_regions
from agent.sharing.mps import read_mps

REGIONS_EVERY_S = 10.0
MPS_EVERY_S = 60.0  # it walks all processes


class SharingCollector:
    """Reads one host's regions and daemons. Not for two threads."""

    def __init__(self, host: HostFiles, regions: str) -> None:
        """Begin without a look. `regions` is the folder of HAMi-core's files; empty: none.

        A recorded host has no regions: they are no text, and nobody recorded them.
        """
        self._host = host
        self._root = host.path(regions) if regions and isinstance(host, LiveRoot) else ""
        self._drift = DriftWatch()
        self._mps: tuple[MpsDaemon, ...] = ()
        self._looked_s: float | None = None
        self._asked_s: float | None = None

    def look(
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
        if self._looked_s is not None and now_s - self._looked_s < REGIONS_EVERY_S:
            return None
        self._looked_s = now_s
        uuids = {d.key: d.info.uuid for d in devices if d.info.vendor == "nvidia" and d.info.uuid}
        if not uuids:
            return SharingView()
        if self._asked_s is None or now_s - self._asked_s >= MPS_EVERY_S:
            self._asked_s = now_s
            self._mps = read_mps(self._host)
        if not self._root:
            return SharingView(mps=self._mps, wall_s=wall_s)
        regions, problems = read_regions(self._root, pods)
        judged, drifts = self._drift.judge(regions, measured_by(samples, uuids), now_s)
        return SharingView(
            regions=judged, mps=self._mps, problems=(*problems, *drifts), wall_s=wall_s
        )
