"""Every file that the agent writes and that Linux 6.1 has: a value, and texts that are refused."""

from __future__ import annotations

from dataclasses import dataclass, field

DISK, PARTITION, NO_DISK = "DISK", "PARTITION", "4095:4095"  # numbers that the machine fills in
POD, ROOT, HOST = "/table/pod", "/", ""
COST_LINE = "enable=1 ctrl=user rpct=95.00 rlat=3000 wpct=95.00 wlat=3000"
MODEL_LINE = (
    "ctrl=user model=linear rbps=1000000 rseqiops=1000 rrandiops=500 wbps=1000000 wseqiops=1000"
    " wrandiops=500"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One file: the key's name and the value as the ledger has them, and what the file shows."""

    key: str
    value: str
    shows: str
    group: str = POD
    refuses: dict[str, str] = field(default_factory=dict)  # errno by text


ROWS = (
    Row(key="cpu.shares", value="50", shows="50", refuses={"0": "ERANGE", "10001": "ERANGE"}),
    Row(
        key="cpu.cfs_quota_us",
        value="50000 100000",
        shows="50000 100000",
        refuses={"999 100000": "EINVAL", "-1": "EINVAL", "50000 1000001": "EINVAL"},
    ),
    Row(key="cpu.cfs_burst_us", value="20000", shows="20000", refuses={"-1": "EINVAL"}),
    Row(key="cpu.idle", value="1", shows="1", refuses={"2": "EINVAL"}),
    Row(
        key="cpuset.cpus",
        value="0-1",
        shows="0-1",
        refuses={"many": "EINVAL", "9000": "ERANGE"},
    ),
    Row(
        key="memory.limit_in_bytes",
        value="1073741825",
        shows="1073741824",
        refuses={"-1": "EINVAL", "much": "EINVAL"},
    ),
    *(
        Row(key=f"memory.{name}", value="8388609", shows="8388608", refuses={"-1": "EINVAL"})
        for name in ("high", "low", "min")
    ),
    Row(key="memory.oom.group", value="1", shows="1", refuses={"2": "EINVAL"}),
    Row(
        key=f"io.max {DISK}",
        value="rbps=1048576 wbps=max riops=1024 wiops=max",
        shows=f"{DISK} rbps=1048576 wbps=max riops=1024 wiops=max",
        refuses={
            f"{DISK} rbps=0": "ERANGE",
            f"{DISK} speed=1": "EINVAL",
            f"{PARTITION} rbps=1": "ENODEV",
            f"{NO_DISK} rbps=1": "ENODEV",
        },
    ),
    Row(
        key=f"io.cost.qos {DISK}",
        value=COST_LINE,
        shows=f"{DISK} {COST_LINE} min=1.00 max=10000.00",
        group=ROOT,
        refuses={
            f"{DISK} enable=1 rpct=101": "EINVAL",
            f"{PARTITION} enable=1": "ENODEV",
            f"{NO_DISK} enable=1": "ENODEV",
        },
    ),
    Row(
        key=f"io.cost.model {DISK}",
        value=MODEL_LINE,
        shows=f"{DISK} {MODEL_LINE}",
        group=ROOT,
        refuses={f"{DISK} ctrl=user model=cubic": "EINVAL", f"{PARTITION} ctrl=auto": "ENODEV"},
    ),
    Row(
        key=f"io.weight {DISK}",
        value="40",
        shows=f"{DISK} 40",
        refuses={f"{DISK} 0": "EINVAL", f"{DISK} 10001": "EINVAL", f"{NO_DISK} 40": "ENODEV"},
    ),
    Row(
        key="vm.min_free_kbytes",
        value="32768",
        shows="32768",
        group=HOST,
        refuses={"-1": "EINVAL", "many": "EINVAL"},
    ),
    Row(
        key="vm.watermark_scale_factor",
        value="20",
        shows="20",
        group=HOST,
        refuses={"0": "EINVAL", "3001": "EINVAL"},
    ),
    Row(
        key="sched/features WAKEUP_PREEMPTION",
        value="0",
        shows="NO_WAKEUP_PREEMPTION",
        group=HOST,
        refuses={"NO_SUCH_FEATURE": "EINVAL"},
    ),
)
ABSENT = (
    "cpu.bvt_warp_ns",
    "memory.wmark_ratio",
    "memory.wmark_scale_factor",
    "memory.wmark_min_adj",
    "memory.priority",
    "memory.use_priority_oom",
    "memory.pagecache_limit.enable",
    "memory.pagecache_limit.size",
    "memory.pagecache_limit.sync",
    f"io.latency {DISK}",
    "memcg_reaper.reap_background",
    "kernel.sched_group_identity_enabled",
    "kernel.sched_idle_saver_wmark",
    "pagecache_limit.enabled",
)
