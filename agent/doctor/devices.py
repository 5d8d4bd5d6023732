"""Checks of this host: privileges, device nodes, limits, cgroups."""

from __future__ import annotations

from collections.abc import Iterator

from agent.doctor.base import Facts, Finding, Result
from agent.model.device import DeviceKind


def privileges(facts: Facts) -> Iterator[Finding]:
    """Say whether everything can be looked at."""
    if not facts.live:
        yield Finding(id="privileges", result=Result.SKIP, seen="a recorded host")
    elif facts.root:
        yield Finding(id="privileges", result=Result.OK, seen="root")
    else:
        yield Finding(
            id="privileges",
            result=Result.WARN,
            seen="an ordinary user",
            why="sockets, limits and logs of others cannot be looked at; checks are skipped",
            do="run it as root",
        )


def char_links(facts: Facts) -> Iterator[Finding]:
    """Say whether systemd finds the device nodes that it must allow again and again."""
    if facts.cgroup_driver != "systemd" or not facts.char_links:
        return
    missing = sorted(path for path, there in facts.char_links.items() if not there)
    if not missing:
        seen = f"{len(facts.char_links)} nodes have their links"
        yield Finding(id="char-links", result=Result.OK, seen=seen)
        return
    yield Finding(
        id="char-links",
        result=Result.FAIL,
        seen=f"no link in /dev/char for {', '.join(missing[:4])}",
        why="a systemd daemon-reload takes these devices away from running containers "
        "(Failed to initialize NVML: Unknown Error)",
        do="nvidia-ctk system create-dev-char-symlinks --create-all",
    )


def memlock(facts: Facts) -> Iterator[Finding]:
    """Say whether containers may lock the memory that RDMA needs."""
    devices = facts.snapshot.devices.value.devices
    if not any(one.info.kind is DeviceKind.RDMA for one in devices):
        return
    known = [one for one in facts.runtimes if one.memlock_known]
    if not known:
        yield Finding(id="memlock", result=Result.SKIP, seen="the runtime's limits are not known")
    for one in known:
        low = one.memlock_bytes is not None and one.memlock_bytes < 1 << 30
        limit = "unlimited" if one.memlock_bytes is None else f"{one.memlock_bytes} bytes"
        yield Finding(
            id="memlock",
            result=Result.WARN if low else Result.OK,
            seen=f"{one.name} (process {one.pid}): {limit}",
            why="RDMA pins memory; containers inherit the runtime's limit where no NRI raises it"
            if low
            else "",
            do="set LimitMEMLOCK=infinity in the runtime's unit, or enable NRI" if low else "",
        )


def cgroups(facts: Facts) -> Iterator[Finding]:
    """Say which cgroups this host has."""
    if facts.cgroup_version is None:
        yield Finding(
            id="cgroups",
            result=Result.FAIL if facts.live else Result.SKIP,
            seen="no cgroup file system that tells of CPU and memory",
            why="usage of pods cannot be measured, and no limit set",
            do="mount the host's /sys/fs/cgroup into the agent's container",
        )
    elif facts.cgroup_driver is None and facts.kubelet:
        yield Finding(
            id="cgroups",
            result=Result.FAIL,
            seen=f"version {facts.cgroup_version}; {facts.kubelet}, and its groups are not found",
            why="usage of pods is not measured, and no limit set",
            do="set kubelet.cgroup_root to the --cgroup-root of the kubelet",
        )
    else:
        driver = facts.cgroup_driver
        words = "no group of the kubelet's yet" if driver is None else f"driver {driver}"
        seen = f"version {facts.cgroup_version}, {words}"
        yield Finding(id="cgroups", result=Result.OK, seen=seen)


CHECKS = (privileges, char_links, memlock, cgroups)
