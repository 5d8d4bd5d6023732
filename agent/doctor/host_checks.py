"""Checks of this host: privileges, device nodes, limits, cgroups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from agent.doctor.check import CheckInputs, CheckResult, CheckStatus
from agent.snapshot.device import DeviceKind
from agent.snapshot.usage import CollectorStatus


def check_privileges(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether this process may read everything."""
    if not facts.is_live:
        yield CheckResult(id="privileges", status=CheckStatus.SKIP, observation="a recorded host")
    elif facts.is_root:
        yield CheckResult(id="privileges", status=CheckStatus.OK, observation="root")
    else:
        yield CheckResult(
            id="privileges",
            status=CheckStatus.WARN,
            observation="an ordinary user",
            impact="sockets, limits and logs of others cannot be looked at; checks are skipped",
            remedy="run it as root",
        )


def check_char_links(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether systemd finds the device nodes that it has to allow after a reload."""
    if facts.cgroup_driver != "systemd" or not facts.char_links:
        return
    missing = sorted(path for path, there in facts.char_links.items() if not there)
    if not missing:
        observation = f"{len(facts.char_links)} nodes have their links"
        yield CheckResult(id="char-links", status=CheckStatus.OK, observation=observation)
        return
    yield CheckResult(
        id="char-links",
        status=CheckStatus.FAIL,
        observation=f"no link in /dev/char for {', '.join(missing[:4])}",
        impact="a systemd daemon-reload takes these devices away from running containers "
        "(Failed to initialize NVML: Unknown Error)",
        remedy="nvidia-ctk system create-dev-char-symlinks --create-all",
    )


def check_memlock(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether containers may lock the memory that RDMA needs."""
    devices = facts.snapshot.devices.value.devices
    if not any(device.info.kind is DeviceKind.RDMA for device in devices):
        return
    runtimes = [runtime for runtime in facts.runtimes if runtime.is_memlock_known]
    if not runtimes:
        yield CheckResult(
            id="memlock", status=CheckStatus.SKIP, observation="the runtime's limits are not known"
        )
    for runtime in runtimes:
        low = runtime.memlock_bytes is not None and runtime.memlock_bytes < 1 << 30
        limit = "unlimited" if runtime.memlock_bytes is None else f"{runtime.memlock_bytes} bytes"
        yield CheckResult(
            id="memlock",
            status=CheckStatus.WARN if low else CheckStatus.OK,
            observation=f"{runtime.name} (process {runtime.pid}): {limit}",
            impact="RDMA pins memory; containers inherit the runtime's limit where no NRI raises it"
            if low
            else "",
            remedy="set LimitMEMLOCK=infinity in the runtime's unit, or enable NRI" if low else "",
        )


def check_cgroups(facts: CheckInputs) -> Iterator[CheckResult]:
    """Report the cgroups of this host."""
    if facts.cgroup_version is None:
        yield CheckResult(
            id="cgroups",
            status=CheckStatus.FAIL if facts.is_live else CheckStatus.SKIP,
            observation="no cgroup file system that tells of CPU and memory",
            impact="usage of pods cannot be measured, and no limit set",
            remedy="mount the host's /sys/fs/cgroup into the agent's container",
        )
    elif facts.cgroup_driver is None and facts.kubelet:
        yield CheckResult(
            id="cgroups",
            status=CheckStatus.FAIL,
            observation=f"version {facts.cgroup_version}; {facts.kubelet}, "
            "and its groups are not found",
            impact="usage of pods is not measured, and no limit set",
            remedy="set kubelet.cgroup_root to the --cgroup-root of the kubelet",
        )
    else:
        driver = facts.cgroup_driver
        message = "no group of the kubelet's yet" if driver is None else f"driver {driver}"
        observation = f"version {facts.cgroup_version}, {message}"
        yield CheckResult(id="cgroups", status=CheckStatus.OK, observation=observation)


def check_collectors(facts: CheckInputs) -> Iterator[CheckResult]:
    """Yield a warning for each reason why values of the running agent's collectors are absent."""
    for status in _collector_statuses(facts.agent):
        for problem in status.problems:
            yield CheckResult(
                id=f"collector:{status.name}",
                status=CheckStatus.WARN,
                observation=f"{problem.reason}: {problem.message}",
                impact="values of this collector are absent",
                remedy=f"docs/collectors.md says what {problem.reason} needs; "
                f"collect.{status.name}: false switches the collector off",
            )


def _collector_statuses(agent: Mapping[str, object] | None) -> tuple[CollectorStatus, ...]:
    """Return the collectors in the running agent's snapshot; none if it is invalid."""
    value: object = agent
    for name in ("parts", "usage", "value", "collectors"):
        value = value.get(name) if isinstance(value, Mapping) else None
    try:
        return msgspec.convert(value or (), tuple[CollectorStatus, ...])
    except msgspec.ValidationError:
        return ()


CHECKS = (check_privileges, check_char_links, check_memlock, check_cgroups, check_collectors)
