"""Checks of this host and its devices."""

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


def vendors(facts: Facts) -> Iterator[Finding]:
    """Say of each vendor with hardware here whether its driver answers."""
    for state in facts.snapshot.vendors:
        inventory = state.inventory.value
        problems = inventory.problems if inventory is not None else ()
        if state.state != "ready" or problems:
            words = "; ".join(f"{one.reason}: {one.message}" for one in problems) or state.message
            yield Finding(
                id=f"vendor:{state.vendor}",
                result=Result.FAIL if state.state != "ready" else Result.WARN,
                seen=words,
                why="devices whose driver does not answer are told as out of service, or not whole",
                do="install or load the vendor's driver; see `xpu-agent devices`",
            )
        else:
            count = len(inventory.devices) if inventory is not None else 0
            seen = f"{count} devices" + (
                f", driver {inventory.driver_version}"
                if inventory is not None and inventory.driver_version
                else ""
            )
            yield Finding(id=f"vendor:{state.vendor}", result=Result.OK, seen=seen)
    if not facts.snapshot.vendors:
        yield Finding(id="vendors", result=Result.OK, seen="no accelerator and no RDMA device")


def health(facts: Facts) -> Iterator[Finding]:
    """Name each device of ours that is out of service."""
    devices = [one.info for one in facts.snapshot.devices.value.devices if one.info.managed]
    bad = [one for one in devices if not one.health.in_service]
    for one in bad:
        yield Finding(
            id=f"device:{one.key}",
            result=Result.FAIL,
            seen=f"{one.health.state.value}: {one.health.reason}: {one.health.message}",
            why="the scheduler grants it to nobody",
            do="see `xpu-agent devices`, and the kernel's log at that time",
        )
    if devices and not bad:
        yield Finding(id="devices", result=Result.OK, seen=f"{len(devices)} in service")


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
    else:
        driver = facts.cgroup_driver
        words = "no group of the kubelet's yet" if driver is None else f"driver {driver}"
        seen = f"version {facts.cgroup_version}, {words}"
        yield Finding(id="cgroups", result=Result.OK, seen=seen)


CHECKS = (privileges, vendors, health, char_links, memlock, cgroups)
