"""What the agent does after each errno, by kind of file and version."""

from __future__ import annotations

import errno

import pytest

from agent.cgroup import device_values as devices
from agent.cgroup.host_settings import MIN_FREE_KBYTES
from agent.cgroup.keys import (
    BURST,
    BVT,
    CPUS,
    HIGH,
    IDLE,
    MEMORY,
    QUOTA,
    SHARES,
    CgroupKey,
    device_key,
)
from agent.cgroup.write_backoff import WriteErrorClass, classify_error

LIMITS = device_key(devices.LIMITS, "253:16")
THROTTLE = device_key(devices.READ_BPS, "253:16")
KEYS = (SHARES, QUOTA, BURST, BVT, IDLE, CPUS, MEMORY, HIGH, LIMITS, THROTTLE, MIN_FREE_KBYTES)
GONE, REFUSED, ORDER = WriteErrorClass.GONE, WriteErrorClass.REFUSED, WriteErrorClass.ORDER
BUSY, DENIED, AGAIN = WriteErrorClass.BUSY, WriteErrorClass.DENIED, WriteErrorClass.AGAIN


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOENT, GONE),
        (errno.EROFS, DENIED),
        (errno.EPERM, DENIED),
        (errno.EAGAIN, AGAIN),
        (errno.EINTR, AGAIN),
        (errno.EOPNOTSUPP, REFUSED),
        (errno.ERANGE, REFUSED),
    ],
)
def test_these_mean_the_same_for_every_file(
    number: int, expected: WriteErrorClass, key: CgroupKey, version: int
) -> None:
    assert classify_error(number, key, version) is expected


@pytest.mark.parametrize(
    ("number", "key", "version", "expected"),
    [
        # outside of the group above, or inside a group below: another value conflicts
        *((number, CPUS, 1, ORDER) for number in (errno.EBUSY, errno.EACCES, errno.ENOSPC)),
        (errno.EINVAL, QUOTA, 1, ORDER),
        # version 2 has no such order: the value itself is refused
        (errno.EINVAL, QUOTA, 2, REFUSED),
        (errno.ENOSPC, CPUS, 2, REFUSED),
        (errno.EINVAL, BURST, 2, REFUSED),
        (errno.EINVAL, SHARES, 1, REFUSED),  # while the group is idle
        (errno.EINVAL, BVT, 1, REFUSED),
        (errno.EBUSY, MEMORY, 1, BUSY),  # in use
        (errno.EBUSY, HIGH, 2, BUSY),
        (errno.EACCES, MEMORY, 1, DENIED),
        (errno.EACCES, CPUS, 2, DENIED),
        # a group that was removed; of a line, a disk that was, or a partition
        (errno.ENODEV, QUOTA, 2, GONE),
        (errno.ENODEV, LIMITS, 2, REFUSED),
        (errno.ENODEV, THROTTLE, 1, REFUSED),
        (errno.EINVAL, THROTTLE, 1, REFUSED),
        (errno.EINVAL, MIN_FREE_KBYTES, 2, REFUSED),
        (errno.EACCES, MIN_FREE_KBYTES, 1, DENIED),
    ],
)
def test_these_depend_on_the_file(
    number: int, key: CgroupKey, version: int, expected: WriteErrorClass
) -> None:
    assert classify_error(number, key, version) is expected
