"""Entries of collectors: why values of usage are absent."""

from __future__ import annotations

from agent.runbook.entry import RecommendedAction, RunbookEntry

_ABSENT = "The values of the collector are absent in metrics and NodeMetric; they are not 0."
_SOME_ABSENT = "Some values of the collector are absent."
_CYCLES_OFF = "see docs/collectors.md, or switch the collector off"
_COLD_OFF = "see docs/collectors.md, Cold memory; or switch the collector off"


def _absent(
    reason: str,
    title: str,
    meaning: str,
    remedy: str,
    impact: str = _ABSENT,
    action: RecommendedAction = RecommendedAction.LOOK,
) -> RunbookEntry:
    return RunbookEntry(reason, title, meaning, impact, remedy, action)


USAGE_ENTRIES = (
    _absent(
        "CollectorFailed",
        "a collector failed",
        "An optional collector raised an error. The other collectors go on.",
        "see the message; report it with `xpu-agent doctor --bundle FILE` if it lasts",
    ),
    _absent(
        "TooManyCgroups",
        "more cgroups than the agent reads",
        "A directory has more cgroups than the agent's limit.",
        "see the message: something makes cgroups and does not remove them",
        "Usage of some cgroups, and of the system, is absent.",
    ),
    _absent(
        "NoHardwareCounters",
        "the kernel has no hardware counters",
        "Counters of cycles and instructions are missing, as in most virtual machines.",
        _CYCLES_OFF,
        action=RecommendedAction.NONE,
    ),
    _absent(
        "NotPermitted",
        "the agent may not use performance counters",
        "The agent lacks CAP_PERFMON, or CAP_SYS_ADMIN on kernels before 5.8.",
        "give the agent CAP_PERFMON; see kernel.perf_event_paranoid",
    ),
    _absent(
        "NotSupported",
        "the kernel or the driver does not have the feature",
        "The kernel does not count events of cgroups, or a driver lacks a call.",
        "nothing, or switch the collector off",
        action=RecommendedAction.NONE,
    ),
    _absent(
        "TooManyOpenFiles",
        "the limit of open files is too low",
        "Each counter needs an open file on each CPU.",
        "raise the limit of open files of the agent's container",
    ),
    _absent(
        "OnlineCpusUnknown",
        "the list of CPUs is unreadable",
        "/sys/devices/system/cpu/online cannot be read.",
        "mount /sys into the agent's container",
    ),
    _absent(
        "CgroupNotInPerfHierarchy",
        "a container's cgroup cannot be counted",
        "On cgroup 1 the container's cgroup is in no hierarchy whose events are counted.",
        "mount the perf_event hierarchy, or use cgroup 2",
        _SOME_ABSENT,
    ),
    _absent(
        "CountersBusy",
        "other programs use the hardware counters",
        "Other users of the counters left no time for a container.",
        "end the other profiler, or nothing",
        _SOME_ABSENT,
        RecommendedAction.NONE,
    ),
    _absent(
        "ImplausibleCount",
        "a counter cannot be true",
        "More cycles or instructions were counted than the CPUs can complete.",
        "nothing, if it is rare; else look at the hypervisor",
        _SOME_ABSENT,
        RecommendedAction.NONE,
    ),
    _absent(
        "RecordedHost",
        "a recorded host has no counters",
        "The host is a recording.",
        "nothing",
        action=RecommendedAction.NONE,
    ),
    _absent(
        "DamonStatMissing",
        "the kernel has no DAMON_STAT",
        "The kernel is older than 6.17, or built without it.",
        _COLD_OFF,
    ),
    _absent(
        "DamonStatOff",
        "DAMON_STAT is switched off",
        "The parameter `enabled` of the module is N.",
        "write Y to /sys/module/damon_stat/parameters/enabled",
    ),
    _absent(
        "DamonStatTooYoung",
        "DAMON_STAT has not measured long enough",
        "Cold memory is known some minutes after DAMON_STAT was switched on.",
        "nothing, for some minutes",
        action=RecommendedAction.NONE,
    ),
    _absent(
        "DamonStatUnreadable",
        "the values of DAMON_STAT cannot be read",
        "A parameter file of the module is unreadable or malformed.",
        _COLD_OFF,
    ),
    _absent(
        "KidledMissing",
        "the kernel has no kidled",
        "kidled is part of the Anolis kernel.",
        _COLD_OFF,
    ),
    _absent(
        "KidledOff",
        "kidled does not scan",
        "scan_period_in_seconds is 0.",
        "write 5 to /sys/kernel/mm/kidled/scan_period_in_seconds, as Koordinator does",
    ),
    _absent(
        "KidledWithoutHierarchy",
        "kidled does not add the groups below a group",
        "use_hierarchy is 0, so pods and the node lack the groups below them.",
        "write 1 to /sys/kernel/mm/kidled/use_hierarchy",
        _SOME_ABSENT,
    ),
    _absent(
        "TooFewScans",
        "kidled has not scanned long enough",
        "Cold memory is known some minutes after kidled was switched on.",
        "nothing, for some minutes",
        action=RecommendedAction.NONE,
    ),
    _absent(
        "IdlePageStatsMissing",
        "no group has idle page statistics",
        "The file memory.idle_page_stats is missing in all cgroups.",
        _COLD_OFF,
    ),
    _absent(
        "IdlePageStatsUnreadable",
        "idle page statistics cannot be read",
        "memory.idle_page_stats of a group is unreadable or malformed.",
        _COLD_OFF,
        _SOME_ABSENT,
    ),
    _absent(
        "ResctrlWithoutMonitoring",
        "the processor cannot monitor cache and bandwidth",
        "resctrl is mounted, and the kernel shows no monitoring.",
        "nothing, or switch the collector off",
        action=RecommendedAction.NONE,
    ),
    _absent(
        "CounterError",
        "the kernel reports an error for a counter",
        "A monitoring file of resctrl has the text Error.",
        "see the kernel's log",
        _SOME_ABSENT,
    ),
    _absent(
        "CounterUnreadable",
        "a counter cannot be read",
        "A monitoring file of resctrl is unreadable or malformed.",
        "see the message",
        _SOME_ABSENT,
    ),
    _absent(
        "IoControllerMissing",
        "the IO controller is not enabled for pods",
        "The cgroups of pods have no io.stat.",
        "let the kubelet or systemd enable io in cgroup.subtree_control",
    ),
    _absent(
        "IoFileUnreadable",
        "IO statistics of a group cannot be read",
        "io.stat of a group is unreadable or malformed.",
        "see the message",
        _SOME_ABSENT,
    ),
    _absent(
        "RegionUnreadable",
        "a shared region of HAMi-core cannot be read",
        "The file by which HAMi-core counts the memory of a container is not valid.",
        "restart the pod; see whether the versions of HAMi-core fit",
        "Usage of the container on its card is that of the driver.",
    ),
    _absent(
        "RegionDrift",
        "HAMi-core and the driver count different memory",
        "The memory of a container by HAMi-core's region differs from the driver's.",
        "nothing, if it is small; else restart the pod",
        "The limit of the container may be too low or too high.",
        RecommendedAction.NONE,
    ),
    _absent(
        "ImplausibleReadings",
        "readings of a device cannot be true",
        "The driver answers with values outside what the hardware can have.",
        "see the kernel's log for errors of the device; update its driver and firmware if it "
        "goes on",
        "These readings are left out of metrics, NodeMetric and averages.",
    ),
)
