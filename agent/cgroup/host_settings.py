"""Settings of the kernel outside of cgroups: their files, and the values that may be written."""

from __future__ import annotations

import re

from agent.cgroup.keys import CgroupKey, ValueKind
from agent.cgroup.layout import HOST

MAX_KBYTES = (1 << 31) - 1
MAX_INT64 = (1 << 63) - 1

# since Linux 5.13, and before
FEATURE_FILES = ("/sys/kernel/debug/sched/features", "/sys/kernel/debug/sched_features")
FEATURE_NAME = re.compile("[A-Z][A-Z0-9_]{0,63}")


def directory_of(key: CgroupKey) -> str:
    """Return the directory of a setting, which stands for the cgroup of its value."""
    return key.host_file.rpartition("/")[0]


def _setting(name: str, path: str, low: int, high: int) -> CgroupKey:
    return CgroupKey(name, HOST, None, low=low, high=high, host_file=path)


MIN_FREE_KBYTES = _setting("vm.min_free_kbytes", "/proc/sys/vm/min_free_kbytes", 0, MAX_KBYTES)
WATERMARK_SCALE = _setting(
    "vm.watermark_scale_factor", "/proc/sys/vm/watermark_scale_factor", 1, 3000
)
REAP_BACKGROUND = _setting(
    "memcg_reaper.reap_background", "/sys/kernel/mm/memcg_reaper/reap_background", 0, 1
)
GROUP_IDENTITY = _setting(
    "kernel.sched_group_identity_enabled", "/proc/sys/kernel/sched_group_identity_enabled", 0, 1
)
CORE_SCHEDULING = _setting("kernel.sched_core", "/proc/sys/kernel/sched_core", 0, 1)
IDLE_SAVER_WATERMARK = _setting(
    "kernel.sched_idle_saver_wmark",
    "/proc/sys/kernel/sched_idle_saver_wmark",
    -MAX_INT64,
    MAX_INT64,
)
PAGE_CACHE_LIMIT = _setting(
    "pagecache_limit.enabled", "/sys/kernel/mm/pagecache_limit/enabled", 0, 1
)

SETTINGS = {
    key.name: key
    for key in (
        *(MIN_FREE_KBYTES, WATERMARK_SCALE, REAP_BACKGROUND, GROUP_IDENTITY),
        *(IDLE_SAVER_WATERMARK, PAGE_CACHE_LIMIT),
    )
}


def feature_key(path: str, feature: str) -> CgroupKey:
    """Return the key of a feature of the kernel's scheduler in one of `FEATURE_FILES`."""
    name = f"{path.removeprefix('/sys/kernel/debug/')} {feature}"
    return CgroupKey(name, HOST, None, ValueKind.FEATURE, high=1, host_file=path)


def find_setting(name: str) -> CgroupKey | None:
    """Return the key of a name in the ledger; `None`: the agent writes no such setting."""
    file, _, feature = name.partition(" ")
    path = f"/sys/kernel/debug/{file}"
    if path in FEATURE_FILES and FEATURE_NAME.fullmatch(feature):
        return feature_key(path, feature)
    return SETTINGS.get(name)
