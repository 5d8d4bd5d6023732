"""Checks of the kernel of this host: version, options, memory, cgroups."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from agent.doctor.check import (
    NO_REQUEST,
    RECORDED,
    Check,
    CheckGroup,
    CheckInputs,
    CheckResult,
    fail,
    join_names,
    ok,
    skip,
    warn,
)
from agent.slo.requests import BURST, requested_strategies
from agent.snapshot.device import DeviceKind
from agent.snapshot.usage import CollectorStatus

COMMAND_LINE, PRESSURE = "/proc/cmdline", "/proc/pressure/memory"
OWN_MOUNTS, INIT_NAME = "/proc/self/mounts", "/proc/1/comm"
INOTIFY_INSTANCES = "/proc/sys/fs/inotify/max_user_instances"
SELINUX_MODE = "/sys/fs/selinux/enforce"
SELINUX_DEVICES = "/sys/fs/selinux/booleans/container_use_devices"  # now, and after a commit
CHECKED_TEXTS = (
    *(COMMAND_LINE, PRESSURE, OWN_MOUNTS, INIT_NAME),
    *(INOTIFY_INSTANCES, SELINUX_MODE, SELINUX_DEVICES),
)
REBOOT_FILES = ("/var/run/reboot-required", "/run/reboot-required")  # of Debian and its kin
MIN_INOTIFY_INSTANCES = 512

OLDEST_KERNEL = (4, 18)
POD_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
POD_CONTROLLERS_V1 = ("cpu", "cpuacct", "cpuset", "memory")
_RELEASE = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")

# words of the kernel's command line that take something from the agent, and what
_BAD_OPTIONS = {
    "psi=0": "the kernel reports no pressure",
    "cgroup_disable=memory": "no memory of pods is measured or limited",
    "cgroup_disable=cpu": "no CPU of pods is limited",
    "pci=nommconf": "ACS, ATS and links of PCI devices cannot be read",
    "numa=off": "the kernel shows one NUMA node: devices and CPUs have no place",
}


def check_kernel_version(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the kernel is one that the agent is tested with."""
    release = facts.snapshot.node.kernel
    match = _RELEASE.match(release)
    if match is None:
        yield skip("kernel-version", "its release cannot be read")
        return
    version = int(match[1]), int(match[2])
    if version < OLDEST_KERNEL:
        yield warn(
            "kernel-version",
            f"{release}: the agent is tested with Linux 4.18 and later",
            impact="pressure, files of cgroups and facts of PCI devices are absent; drivers of new "
            "cards do not support it",
            remedy="update to a kernel that the distribution supports, 5.14 or later for CPU burst "
            "and core scheduling",
        )
    else:
        yield ok("kernel-version", release)


def check_kernel_options(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the kernel was booted without options that take away what the agent needs."""
    line = facts.texts.get(COMMAND_LINE)
    if line is None:
        yield skip("kernel-options", f"{COMMAND_LINE} cannot be read")
        return
    losses = {word: loss for word, loss in _BAD_OPTIONS.items() if word in line.split()}
    for word, loss in losses.items():
        yield warn(
            f"kernel-options:{word}",
            f"booted with {word}",
            impact=loss,
            remedy=f"remove {word} from the kernel's command line and reboot",
        )
    if not losses:
        yield ok("kernel-options", "none that takes away what the agent needs")


def check_pressure(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the kernel reports pressure stall information."""
    if PRESSURE in facts.texts:
        yield ok("pressure", "/proc/pressure is readable")
    elif not facts.is_live:
        yield skip("pressure", "the recording has no /proc/pressure")
    elif not facts.settings.collect.pressure:
        yield skip("pressure", "collect.pressure is off")
    else:
        yield warn(
            "pressure",
            f"{PRESSURE} cannot be read",
            impact="no pressure is exported, and strategies do not see that pods stall",
            remedy="boot with psi=1, on a kernel with CONFIG_PSI",
        )


def check_core_scheduling(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the kernel has core scheduling if the settings ask for it."""
    mode = facts.settings.enforce.hooks.core_scheduling
    if mode == "off":
        yield skip("core-scheduling", "enforce.hooks.core_scheduling is off")
    elif not facts.is_live:
        yield skip("core-scheduling", RECORDED)
    elif facts.snapshot.host_devices.value.kernel.core_scheduling:
        yield ok("core-scheduling", "tasks can have cookies")
    else:
        yield warn(
            "core-scheduling",
            "the settings ask for it, and this kernel has none",
            impact="pods of different tenants share the threads of a core",
            remedy="use a kernel 5.14 or later with CONFIG_SCHED_CORE and SMT on, or set "
            "enforce.hooks.core_scheduling: off",
        )


def check_cpu_burst(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the kernel has CPU burst if a NodeSLO asks for it."""
    if facts.has_burst_file is None:
        yield skip("cpu-burst", "there is no cgroup of pods")
    elif facts.has_burst_file:
        yield ok("cpu-burst", "the kernel has it")
    elif (slo := facts.node_slo) is None or BURST not in requested_strategies(slo):
        yield skip("cpu-burst", f"this kernel has none; {NO_REQUEST}")
    else:
        yield warn(
            "cpu-burst",
            "the NodeSLO asks for it, and cpu.max.burst (cpu.cfs_burst_us) is not there",
            impact="only the quota is raised: short bursts of pods are throttled",
            remedy="use a kernel 5.14 or later, or set cpuBurstStrategy.policy to "
            "cfsQuotaBurstOnly",
        )


def check_inotify(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether programs of one user may have enough inotify instances."""
    text = facts.texts.get(INOTIFY_INSTANCES, "")
    if not re.fullmatch("[0-9]{1,9}", text):
        yield skip("inotify", f"{INOTIFY_INSTANCES} cannot be read")
    elif int(text) < MIN_INOTIFY_INSTANCES:
        yield warn(
            "inotify",
            f"fs.inotify.max_user_instances is {text}",
            impact="with many pods the kubelet, log collectors and this agent fail to watch files "
            "(too many open files)",
            remedy="sysctl fs.inotify.max_user_instances=8192, in a file below /etc/sysctl.d",
        )
    else:
        yield ok("inotify", f"fs.inotify.max_user_instances is {text}")


def check_selinux(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether SELinux lets containers use devices."""
    mode, devices = facts.texts.get(SELINUX_MODE), facts.texts.get(SELINUX_DEVICES, "")
    if mode is None:
        yield skip("selinux", "no SELinux, or its mode cannot be read")
    elif mode != "1":
        yield ok("selinux", "permissive")
    elif not devices:
        yield skip("selinux", "enforcing; whether containers may use devices cannot be read")
    elif devices.startswith("1"):
        yield ok("selinux", "enforcing, and containers may use devices")
    elif not facts.snapshot.devices.value.devices:
        yield skip("selinux", "enforcing; no device here")
    else:
        yield warn(
            "selinux",
            "enforcing, and container_use_devices is off",
            impact="containers that are not privileged see their devices and may not open them",
            remedy="setsebool -P container_use_devices 1, or label the pods' containers with a "
            "type that may (seLinuxOptions)",
        )


def check_pending_reboot(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether updates wait for a reboot."""
    files = [path for path in REBOOT_FILES if path in facts.paths]
    if not facts.is_live:
        yield skip("pending-reboot", RECORDED)
    elif files:
        yield warn(
            "pending-reboot",
            f"{files[0]} is there",
            impact="libraries of drivers may be newer than the loaded modules, and the next "
            "process that uses them fails",
            remedy="drain the node and reboot it; keep drivers out of unattended upgrades",
        )
    else:
        yield ok("pending-reboot", "no update waits for a reboot, as far as the host says")


def check_huge_pages(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the kubelet knows the huge pages of this host."""
    pools: dict[int, int] = {}
    for node in facts.snapshot.numa.value.nodes:
        for size, pages in node.hugepages:
            pools[size] = pools.get(size, 0) + pages
    if facts.snapshot.numa.taken_s is None:
        yield skip("huge-pages", "memory nodes cannot be read")
        return
    pools = {size: pages for size, pages in pools.items() if pages}
    if not pools:
        yield ok("huge-pages", "none are reserved")
        return
    capacity = facts.cluster_part("node").get("capacity")
    if not isinstance(capacity, Mapping):
        yield skip("huge-pages", "the Node's capacity is not known")
        return
    unknown = [
        _page_name(size) for size in pools if str(capacity.get(_page_name(size), "0")) == "0"
    ]
    if unknown:
        yield warn(
            "huge-pages",
            f"the host has reserved {join_names(unknown)}, and the Node has none",
            impact="pods cannot ask for them, and their memory counts as free for pods",
            remedy="restart the kubelet: it reads huge pages only at its start",
        )
    else:
        yield ok("huge-pages", join_names([_page_name(size) for size in pools]))


def _page_name(size: int) -> str:
    """Return the name of the Node's resource of one page size."""
    return f"hugepages-{size >> 30}Gi" if size >= 1 << 30 else f"hugepages-{size >> 20}Mi"


def check_huge_page_nodes(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether huge pages are reserved on each memory node with CPUs."""
    nodes = [node for node in facts.snapshot.numa.value.nodes if node.cpus]
    sizes = sorted({size for node in nodes for size, pages in node.hugepages if pages})
    if len(nodes) < 2 or not sizes:
        yield skip("huge-page-nodes", "one memory node, or no huge pages are reserved")
        return
    gaps = [
        f"{_page_name(size)} on node {node.id}"
        for size in sizes
        for node in nodes
        if not dict(node.hugepages).get(size)
    ]
    if gaps:
        yield warn(
            "huge-page-nodes",
            f"no {join_names(gaps)}",
            impact="pods with devices near these nodes use remote memory, or are not admitted",
            remedy="reserve them for each node: "
            "/sys/devices/system/node/nodeN/hugepages/hugepages-*/nr_hugepages",
        )
    else:
        yield ok("huge-page-nodes", f"each of {len(nodes)} nodes has its share")


def check_memlock(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether containers may lock the memory that RDMA needs."""
    devices = facts.snapshot.devices.value.devices
    if not any(device.info.kind is DeviceKind.RDMA for device in devices):
        return
    runtimes = [runtime for runtime in facts.runtimes if runtime.is_memlock_known]
    if not runtimes:
        yield skip("memlock", "the runtime's limits are not known")
    for runtime in runtimes:
        low = runtime.memlock_bytes is not None and runtime.memlock_bytes < 1 << 30
        limit = "unlimited" if runtime.memlock_bytes is None else f"{runtime.memlock_bytes} bytes"
        observation = f"{runtime.name} (process {runtime.pid}): {limit}"
        if not low:
            yield ok("memlock", observation)
            continue
        yield warn(
            "memlock",
            observation,
            impact="RDMA pins memory; containers inherit the runtime's limit where no NRI raises "
            "it",
            remedy="set LimitMEMLOCK=infinity in the runtime's unit, or enable NRI",
        )


def check_cgroups(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the cgroups of pods are found."""
    if facts.cgroup_version is None and not facts.is_live:
        yield skip("cgroups", "no cgroup file system that tells of CPU and memory")
    elif facts.cgroup_version is None:
        yield fail(
            "cgroups",
            "no cgroup file system that tells of CPU and memory",
            impact="usage of pods cannot be measured, and no limit set",
            remedy="mount the host's /sys/fs/cgroup into the agent's container",
        )
    elif facts.cgroup_driver is None and facts.kubelet:
        yield fail(
            "cgroups",
            f"version {facts.cgroup_version}; {facts.kubelet}, and its groups are not found",
            impact="usage of pods is not measured, and no limit set",
            remedy="set kubelet.cgroup_root to the --cgroup-root of the kubelet",
        )
    else:
        driver = facts.cgroup_driver
        message = "no group of the kubelet's yet" if driver is None else f"driver {driver}"
        yield ok("cgroups", f"version {facts.cgroup_version}, {message}")


def check_cgroup_version(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the host uses the cgroup version that Kubernetes supports."""
    if facts.cgroup_version is None:
        yield skip("cgroup-version", "no cgroup file system")
    elif facts.cgroup_version == 2:
        yield ok("cgroup-version", "version 2")
    else:
        yield warn(
            "cgroup-version",
            "version 1",
            impact="kubelets from Kubernetes 1.35 do not start on it by default; there is no "
            "memory.high, no io controller for pods, and no pressure by pod",
            remedy="boot with systemd.unified_cgroup_hierarchy=1",
        )


def check_cgroup_controllers(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether pods have the controllers by which they are measured."""
    if facts.controllers is None:
        yield skip("cgroup-controllers", "there is no cgroup of pods")
        return
    required = POD_CONTROLLERS_V1 if facts.cgroup_version == 1 else POD_CONTROLLERS
    missing = [name for name in required if name not in facts.controllers]
    if missing:
        yield fail(
            "cgroup-controllers",
            f"the cgroups of pods have no {join_names(missing)}",
            impact="usage of pods is not measured, and limits of the kubelet have no effect",
            remedy="let systemd delegate them (Delegate=yes of the kubelet's slice), and boot "
            "without cgroup_disable",
        )
    else:
        yield ok("cgroup-controllers", join_names(sorted(facts.controllers), 12))


def check_cgroup_mount(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether this process sees the cgroups writable."""
    if not facts.is_live:
        yield skip("cgroup-mount", RECORDED)
        return
    mounts = [line.split(" ") for line in facts.texts.get(OWN_MOUNTS, "").splitlines()]
    options = [
        fields[3].split(",")
        for fields in mounts
        if len(fields) > 3 and fields[2] in ("cgroup", "cgroup2")
    ]
    if not options:
        yield skip("cgroup-mount", "no cgroup file system is mounted here")
    elif all("ro" in one for one in options):
        yield warn(
            "cgroup-mount",
            "mounted read-only here",
            impact="no CPUs, limits or strategies can be set from here; usage is measured",
            remedy="mount the host's /sys/fs/cgroup writable, as daemonset/base does; nothing, "
            "if the agent shall only observe",
        )
    else:
        yield ok("cgroup-mount", "writable")


def check_cgroup_driver(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether one program manages the cgroups of a systemd host."""
    init = facts.texts.get(INIT_NAME)
    if not facts.is_live or facts.cgroup_driver is None or init is None:
        yield skip(
            "cgroup-driver",
            "there is no cgroup of pods, or process 1 is not visible"
            if facts.is_live
            else RECORDED,
        )
    elif init == "systemd" and facts.cgroup_driver == "cgroupfs":
        yield warn(
            "cgroup-driver",
            "process 1 is systemd, and the kubelet uses cgroupfs",
            impact="two managers of one tree: under pressure the node becomes unstable",
            remedy="set cgroupDriver: systemd in the kubelet's configuration and in the runtime's",
        )
    else:
        yield ok("cgroup-driver", f"{facts.cgroup_driver}, process 1 is {init}")


def check_collectors(facts: CheckInputs) -> Iterator[CheckResult]:
    """Yield a warning for each reason why values of the running agent's collectors are absent."""
    statuses = _collector_statuses(facts.agent)
    problems = [(status.name, problem) for status in statuses for problem in status.problems]
    for name, problem in problems:
        result = warn(
            f"collector:{name}",
            f"{problem.reason}: {problem.message}",
            impact="values of this collector are absent",
            remedy=f"docs/collectors.md says what {problem.reason} needs; "
            f"collect.{name}: false switches the collector off",
        )
        yield msgspec.structs.replace(result, reason=problem.reason, message=problem.message)
    if statuses and not problems:
        yield ok("collectors", join_names([status.name for status in statuses], 12))


def _collector_statuses(agent: Mapping[str, object] | None) -> tuple[CollectorStatus, ...]:
    """Return the collectors in the running agent's snapshot; none if it is invalid."""
    value: object = agent
    for name in ("parts", "usage", "value", "collectors"):
        value = value.get(name) if isinstance(value, Mapping) else None
    try:
        return msgspec.convert(value or (), tuple[CollectorStatus, ...])
    except msgspec.ValidationError:
        return ()


CHECKS = (
    Check(
        id="kernel-version",
        group=CheckGroup.KERNEL,
        question="Is the kernel one that the agent is tested with?",
        run=check_kernel_version,
    ),
    Check(
        id="kernel-options",
        group=CheckGroup.KERNEL,
        question="Was it booted without options that take away what the agent needs?",
        run=check_kernel_options,
    ),
    Check(
        id="pressure",
        group=CheckGroup.KERNEL,
        question="Does the kernel report pressure (PSI)?",
        run=check_pressure,
    ),
    Check(
        id="core-scheduling",
        group=CheckGroup.KERNEL,
        question="Has it core scheduling, if settings ask for it?",
        run=check_core_scheduling,
    ),
    Check(
        id="cpu-burst",
        group=CheckGroup.KERNEL,
        question="Has it CPU burst, if a NodeSLO asks for it?",
        run=check_cpu_burst,
    ),
    Check(
        id="inotify",
        group=CheckGroup.KERNEL,
        question="May programs watch enough files (inotify)?",
        run=check_inotify,
    ),
    Check(
        id="selinux",
        group=CheckGroup.KERNEL,
        question="Does SELinux let containers use devices?",
        run=check_selinux,
    ),
    Check(
        id="pending-reboot",
        group=CheckGroup.KERNEL,
        question="Does no update wait for a reboot?",
        run=check_pending_reboot,
    ),
    Check(
        id="huge-pages",
        group=CheckGroup.KERNEL,
        question="Does the kubelet know the huge pages of the host?",
        run=check_huge_pages,
    ),
    Check(
        id="huge-page-nodes",
        group=CheckGroup.KERNEL,
        question="Has each memory node its share of huge pages?",
        run=check_huge_page_nodes,
    ),
    Check(
        id="memlock",
        group=CheckGroup.KERNEL,
        question="May containers lock the memory that RDMA needs?",
        run=check_memlock,
        absence="no RDMA device",
    ),
    Check(
        id="cgroups",
        group=CheckGroup.CGROUP,
        question="Are the cgroups of pods found?",
        run=check_cgroups,
    ),
    Check(
        id="cgroup-version",
        group=CheckGroup.CGROUP,
        question="Is it cgroup version 2?",
        run=check_cgroup_version,
    ),
    Check(
        id="cgroup-controllers",
        group=CheckGroup.CGROUP,
        question="Have pods the controllers by which they are measured?",
        run=check_cgroup_controllers,
    ),
    Check(
        id="cgroup-mount",
        group=CheckGroup.CGROUP,
        question="Are the cgroups writable here?",
        run=check_cgroup_mount,
    ),
    Check(
        id="cgroup-driver",
        group=CheckGroup.CGROUP,
        question="Does one program manage the cgroups?",
        run=check_cgroup_driver,
    ),
    Check(
        id="collectors",
        group=CheckGroup.ENFORCEMENT,
        question="Do the agent's collectors measure what is switched on?",
        run=check_collectors,
        absence="no agent answers, or it has measured nothing yet",
    ),
)
