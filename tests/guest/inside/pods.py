"""What the agent says of pods whose use of the machine is known."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from agent.clock import SystemClock
from agent.host.files import LiveHostFiles
from agent.snapshot.usage import UsageSample
from agent.usage.best_effort import BestEffortCollector
from agent.usage.collector import CollectorInput
from agent.usage.cycles import CycleCollector
from agent.usage.monitor import UsageCollector
from agent.usage.storage import StorageCollector
from tests.guest.inside.groups import BUSY, HOLD, Groups, read
from tests.guest.machine_facts import (
    BUSY_S,
    CONTAINER,
    FILE,
    HELD_BYTES,
    HELD_NODE,
    POD,
    QUOTA,
    QUOTA_BUSY_S,
    SLICE,
)

COMMAND_S = 120.0
EVERY_CYCLE_S = 10.0  # at this interval slow files have their turn in each cycle


def cgroupfs(outside: Path) -> dict[str, Any]:
    """Run children below `/kubepods` and return what they told, and two cycles around them."""
    with Groups() as groups:
        cgroups = {
            "busy": f"/kubepods/burstable/pod{POD['busy']}/{CONTAINER['busy']}",
            "held": f"/kubepods/besteffort/pod{POD['held']}/{CONTAINER['held']}",
            "throttled": f"/kubepods/pod{POD['throttled']}/{CONTAINER['throttled']}",
        }
        paths = {name: groups.make(cgroup) for name, cgroup in cgroups.items()}
        (paths["throttled"] / "cpu.max").write_text(QUOTA)
        (paths["held"].parent / "cgroup.pressure").write_text("0")
        collector = UsageCollector(LiveHostFiles(), interval_s=EVERY_CYCLE_S)
        before_s = time.monotonic()
        before = collector.measure(before_s)
        children = {
            "busy": groups.run(cgroups["busy"], BUSY, BUSY_S),
            "throttled": groups.run(cgroups["throttled"], BUSY, QUOTA_BUSY_S),
            "held": groups.run(cgroups["held"], HOLD, HELD_NODE, HELD_BYTES, outside / FILE),
        }
        after_s = time.monotonic()
        after = collector.measure(after_s)
        optional = collected(collector, after_s)
        kernel = {name: _kernel(path) for name, path in paths.items()}
        views = msgspec.to_builtins(collector.pods)
    removed = collector.measure(time.monotonic())
    collector.close()
    return {
        "children": children,
        "kernel": kernel,
        "views": views,
        "elapsed_s": after_s - before_s,
        "before": plain(before),
        "after": plain(after),
        "gone": plain(removed),
        "optional": optional,
    }


def collected(collector: UsageCollector, now_s: float) -> dict[str, Any]:
    """Return one measurement of each optional collector that needs version 2 groups."""
    files, clock = LiveHostFiles(), SystemClock()
    cycle = CollectorInput(now_s=now_s, layout=collector.layout, pods=collector.pods)
    cycles = CycleCollector(files, clock, interval_s=60.0, window_s=1.0)
    tier, storage = BestEffortCollector(files, clock), StorageCollector(files, clock)
    usage = io = counts = None
    while usage is None:
        usage = tier.collect(cycle)
    while io is None:
        io = storage.collect(cycle)
    while counts is None:
        counts = cycles.collect(replace(cycle, now_s=time.monotonic()))
    values = {
        "best_effort": msgspec.to_builtins(usage),
        "cycles": msgspec.to_builtins(counts),
        "storage": msgspec.to_builtins(io),
    }
    for one in (tier, storage, cycles):
        one.close()
    return values


def systemd(outside: Path) -> dict[str, Any]:
    """Return `xpu-agent snapshot` while a child holds memory in a systemd scope."""
    uid = POD["held"].replace("-", "_")
    kind = f"{SLICE}-besteffort"
    pod = f"/{SLICE}.slice/{kind}.slice/{kind}-pod{uid}.slice"
    with Groups() as groups:
        cgroup = f"{pod}/cri-containerd-{CONTAINER['held']}.scope"
        groups.run(cgroup, HOLD, HELD_NODE, HELD_BYTES, outside / FILE)
        return {"snapshot": agent("snapshot")}


def agent(*words: str) -> Any:
    """Run a command of the agent and return its JSON."""
    outcome = subprocess.run(
        [sys.executable, "-m", "agent", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    if outcome.returncode not in (0, 1):
        raise RuntimeError(f"{words}: status {outcome.returncode}: {outcome.stderr[-2000:]}")
    return json.loads(outcome.stdout or "null")


def plain(sample: UsageSample) -> dict[str, Any]:
    """Return a sample as JSON values."""
    return {
        "node": msgspec.to_builtins(sample.node, str_keys=True),
        "pods": {key: msgspec.to_builtins(use) for key, use in sample.pods.items()},
        "containers": {key: msgspec.to_builtins(use) for key, use in sample.containers.items()},
    }


def _kernel(path: Path) -> dict[str, str | None]:
    names = ("cpu.stat", "memory.stat", "memory.current", "memory.numa_stat", "cpu.pressure")
    return {name: read(path / name) for name in names}
