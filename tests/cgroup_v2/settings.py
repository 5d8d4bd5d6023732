"""Settings of the kernel in memory: `/proc/sys` and the features of the scheduler."""

from __future__ import annotations

import errno
from collections.abc import Iterable

from agent.cgroup.host_settings import FEATURE_FILES
from agent.cgroup.values import ExpectedBytes
from agent.errors import HostFileError

MIN_FREE, WATERMARK = "/proc/sys/vm/min_free_kbytes", "/proc/sys/vm/watermark_scale_factor"
REAPER = "/sys/kernel/mm/memcg_reaper/reap_background"
IDENTITY = "/proc/sys/kernel/sched_group_identity_enabled"
CORE = "/proc/sys/kernel/sched_core"
NEW_FEATURES, OLD_FEATURES = FEATURE_FILES
RANGES = {
    MIN_FREE: (0, 1 << 31),
    WATERMARK: (1, 3000),
    REAPER: (0, 1),
    IDENTITY: (0, 1),
    CORE: (0, 1),
    "/proc/sys/kernel/sched_idle_saver_wmark": (-(1 << 63), 1 << 63),
    "/sys/kernel/mm/pagecache_limit/enabled": (0, 1),
}


class FakeSettings:
    """The agent's `CgroupFiles`: files that exist, and the errno of the kernel for the others."""

    def __init__(self, **numbers: int) -> None:
        by_name = {path.rpartition("/")[2]: path for path in RANGES}
        self.files: dict[str, str] = {
            by_name[name]: f"{number}\n" for name, number in numbers.items()
        }
        self.features: dict[str, bool] = {}
        self.feature_file = ""
        self.refuses = 0  # errno of every write: EROFS, EPERM
        self.writes: list[tuple[str, str]] = []

    def read(self, path: str, size: int) -> bytes:
        if path == self.feature_file:
            words = (name if on else f"NO_{name}" for name, on in self.features.items())
            return f"{' '.join(words)}\n".encode()[:size]
        if path not in self.files:
            raise HostFileError(path, errno.ENOENT)
        return self.files[path].encode()[:size]

    def write(self, path: str, text: str) -> None:
        self.read(path, 1)
        if self.refuses:
            raise HostFileError(path, self.refuses)
        if path == self.feature_file:
            name = text.strip()
            feature, is_on = name.removeprefix("NO_"), not name.startswith("NO_")
            if feature not in self.features:
                raise HostFileError(path, errno.EINVAL)
            self.features[feature] = is_on
        else:
            low, high = RANGES[path]
            if not text.strip().lstrip("-").isdecimal() or not low <= int(text) <= high:
                raise HostFileError(path, errno.EINVAL)
            self.files[path] = f"{int(text)}\n"
        self.writes.append((path, text))

    def inode(self, path: str) -> int:
        if not any(one.startswith(f"{path}/") for one in (*self.files, self.feature_file)):
            raise HostFileError(path, errno.ENOENT)
        return len(self.writes) + 1  # as in /proc/sys, it does not stay the same

    def holds(self, expected: Iterable[ExpectedBytes]) -> bool:
        """Return whether each file starts with these bytes."""
        return all(self.read(path, size) == data for path, size, data in expected)

    def generation(self, path: str) -> None:
        """Return `None`: no descriptor stays open."""

    def close(self, path: str) -> None:
        """Keep nothing open."""
