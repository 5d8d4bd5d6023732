"""Memory of best-effort pods on version 2 groups: reclaimed by the kernel, limited, given back."""

from __future__ import annotations

from pathlib import Path

import msgspec

from agent.cgroup.reclaim import MemoryReclaimer
from agent.host.files import LiveHostFiles
from agent.qos.eviction.memory_reclaim import HOLD_S, MemoryReclaimStrategy
from agent.snapshot.cluster import ClusterView, NodeView
from agent.snapshot.part import SnapshotPart
from agent.snapshot.slo import NodeSlo, NodeSloView, ResourceThresholds
from agent.snapshot.usage import BestEffortUsage, CgroupUsage, NodeUsage, UsageSample
from tests.cgroup_v2.session import CACHE_BYTES
from tests.guest.inside.groups import MOUNT
from tests.guest.inside.restore import DRIVERS, Version2Groups
from tests.guest.inside.session import kernel_groups
from tests.unit.reconcile.scene import Scene

GIB = 1 << 30
DEADLINE_S = 60.0
THRESHOLDS = ResourceThresholds(enable=True, memory_evict_threshold_percent=90)
FILES = ("memory.high", "memory.max", "memory.min")


def _reclaimed(file: Path) -> dict[str, object]:
    """Reclaim half of a group's page cache, then more than there is."""
    reclaimer = MemoryReclaimer(LiveHostFiles())
    with kernel_groups(file) as groups:
        groups.make("besteffort")
        groups.make("besteffort/pod")
        groups.read_file("besteffort/pod")
        used = []
        problems = []
        for size in (0, CACHE_BYTES // 2, 64 * CACHE_BYTES):
            if size:
                reclaimer.reclaim(f"{MOUNT}/session/besteffort", size)
                reclaimer.wait(DEADLINE_S)
            used.append(int(groups.read("besteffort/memory.current")))
            problems.append(reclaimer.problem)
        return {"used": used, "problems": problems, "alive": groups.alive("besteffort/pod")}


def _usage(used: int) -> UsageSample:
    tier = BestEffortUsage(use=CgroupUsage(memory_with_cache_bytes=30 * GIB))
    return UsageSample(node=NodeUsage(memory_bytes=used), best_effort=tier)


def _limited(driver: str) -> dict[str, object]:
    """Let memory be short, then not; return the files of the directory before and after each."""
    groups = Version2Groups(driver)
    try:
        scene = Scene(groups, strategies=(MemoryReclaimStrategy(),))
        part = "kubepods-besteffort.slice" if driver == "systemd" else "besteffort"
        directory = groups.make(f"{groups.root}/{part}")
        values = [[groups.get(directory, name) for name in FILES]]
        for used, seconds in ((88 * GIB, 1.0), (50 * GIB, 1.0), (50 * GIB, HOLD_S)):
            now_s = scene.clock.monotonic() + seconds
            capacity = {"cpu": "4", "memory": "100Gi"}
            node = NodeView(name="node", uid="u", capacity=capacity, allocatable=capacity)
            scene.snapshot = msgspec.structs.replace(
                scene.snapshot,
                usage=SnapshotPart(_usage(used), now_s),
                cluster=ClusterView(
                    node=SnapshotPart(node, now_s),
                    slo=SnapshotPart(NodeSloView(slo=NodeSlo(thresholds=THRESHOLDS)), now_s),
                ),
            )
            scene.cycle(seconds)
            values.append([groups.get(directory, name) for name in FILES])
        return {"values": values, "left": [entry.key for entry in scene.ledger.entries.values()]}
    finally:
        groups.stop()


def facts(file: Path) -> dict[str, object]:
    """Return what the kernel did; nobody has read `file` before."""
    return {"reclaimed": _reclaimed(file), **{driver: _limited(driver) for driver in DRIVERS}}
