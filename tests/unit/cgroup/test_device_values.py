"""Lines of block devices: texts, values, and the kernel's answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroup import device_values as devices
from agent.cgroup.device_values import NO_LINE, DeviceFile, DeviceLine
from agent.cgroup.key_index import find_key
from agent.cgroup.keys import CgroupKey, device_key
from agent.cgroup.ledger import ChangeLedger
from agent.cgroup.restore import restore_all
from agent.cgroup.values import CgroupValues, KernelFiles
from agent.cgroup.write_plan import DesiredValue
from agent.cgroup.writer import CgroupWriter
from agent.clock import ManualClock
from agent.errors import ParseError
from agent.host.files import LiveHostFiles
from tests.realgroups import RealGroups, needs_blkio, real_groups

DISK = "253:16"
BPS = 1 << 20
IO_MAX = (
    b"253:0 rbps=max wbps=max riops=max wiops=7\n253:16 rbps=1048576 wbps=max riops=9 wiops=max\n"
)
QOS = b"253:16 enable=1 ctrl=user rpct=90.00 rlat=1000 wpct=90.50 wlat=1000 min=1.00 max=10000.00\n"
QOS_FIELDS = {"enable": "1", "ctrl": "user", "rpct": "90", "rlat": "1000"}


@pytest.mark.parametrize(
    ("file", "data", "fields"),
    [
        (devices.LIMITS, b"", ()),
        (devices.LIMITS, IO_MAX, (("rbps", "1048576"), ("riops", "9"))),
        (devices.LIMITS, b"253:160 rbps=1 wbps=max riops=max wiops=max\n", ()),
        (devices.LIMITS, b"253:16 rbps=max wbps=max riops=max wiops=max\n", ()),
        (devices.READ_BPS, b"254:0 5\n253:16 1048576\n", (("", "1048576"),)),
        (devices.WEIGHT, b"default 100\n253:16 40\n", (("", "40"),)),
        (devices.WEIGHT, b"default 100\n", ()),
        (devices.WEIGHT_V1, b"253:16 100\n", ()),
        (devices.LATENCY_TARGET, b"253:16 target=500\n", (("target", "500"),)),
        (devices.LATENCY, b"253:16 enable=0 ctrl=auto rpct=0.00 rlat=0 wpct=0.00 wlat=0\n", ()),
        (devices.LATENCY, b"253:16 enable=1 ctrl=auto rpct=0.00 rlat=0\n", (("enable", "1"),)),
        (devices.MODEL, b"253:16 ctrl=auto model=linear rbps=5 rseqiops=6\n", ()),
    ],
)
def test_the_line_of_one_device_is_read(
    file: DeviceFile, data: bytes, fields: tuple[tuple[str, str], ...]
) -> None:
    assert device_key(file, DISK).parse(file.version, (data,)) == DeviceLine(fields)


@pytest.mark.parametrize(
    "data",
    [b"253:16 rbps=1", b"253:16 \n", b"253:16 rbps\n", b"253:16 rbps=\n", b"253:16 rbps=-1\n"],
)
def test_what_no_kernel_prints_is_no_value(data: bytes) -> None:
    with pytest.raises(ParseError):
        device_key(devices.LIMITS, DISK).parse(2, (data,))


@pytest.mark.parametrize(
    ("file", "values", "text"),
    [
        (devices.LIMITS, {}, "253:16 rbps=max wbps=max riops=max wiops=max"),
        (devices.LIMITS, {"wbps": "5"}, "253:16 rbps=max wbps=5 riops=max wiops=max"),
        (devices.READ_IOPS, {}, "253:16 0"),
        (devices.READ_IOPS, {"": "1024"}, "253:16 1024"),
        (devices.WEIGHT, {"": "40"}, "253:16 40"),
        (devices.WEIGHT, {}, "253:16 default"),
        (devices.WEIGHT_V1, {}, "253:16 100"),
        (devices.LATENCY_V1, QOS_FIELDS, "253:16 enable=1 ctrl=user rpct=90 rlat=1000"),
        (devices.LATENCY, QOS_FIELDS, "253:16 enable=1 ctrl=user rpct=90.00 rlat=1000"),
        (devices.LATENCY, {}, "253:16 enable=0 ctrl=auto"),
        (devices.MODEL, {}, "253:16 ctrl=auto"),
        (
            devices.MODEL,
            {"ctrl": "user", "model": "linear", "rbps": "5"},
            "253:16 ctrl=user model=linear rbps=5",
        ),
        (devices.LATENCY_TARGET, {}, "253:16 target=0"),
    ],
)
def test_a_line_is_written_whole(file: DeviceFile, values: dict[str, str], text: str) -> None:
    key = device_key(file, DISK)
    assert key.text(file.version, devices.device_line(file, values)) == text


def test_a_value_without_min_and_max_leaves_those_of_the_kernel() -> None:
    key = device_key(devices.LATENCY, DISK)
    current = key.parse(2, (QOS,))
    desired = devices.device_line(devices.LATENCY, {**QOS_FIELDS, "wpct": "90.5", "wlat": "1000"})
    assert key.is_equivalent(desired, current)
    assert not key.is_equivalent(NO_LINE, current)
    assert not key.is_equivalent(DeviceLine((("enable", "1"),)), current)


def test_a_limit_that_another_line_has_besides_is_another_value() -> None:
    key = device_key(devices.LIMITS, DISK)
    one = devices.device_line(devices.LIMITS, {"rbps": "5"})
    both = devices.device_line(devices.LIMITS, {"rbps": "5", "wbps": "6"})
    assert not key.is_equivalent(one, both)
    assert not key.is_equivalent(both, one)


@pytest.mark.parametrize(
    ("file", "values"),
    [
        (devices.WEIGHT, {"": "10001"}),
        (devices.WEIGHT_V1, {"": "101"}),
        (devices.READ_IOPS, {"": str(1 << 32)}),
        (devices.LATENCY, {"enable": "1", "ctrl": "user", "rpct": "100.5"}),
        (devices.MODEL, {"ctrl": "user", "rbps": "0"}),
    ],
)
def test_a_value_that_the_kernel_refuses_or_cuts_is_not_written(
    file: DeviceFile, values: dict[str, str]
) -> None:
    key = device_key(file, DISK)
    with pytest.raises(ParseError):
        key.check(file.version, devices.device_line(file, values))


def test_the_name_in_the_ledger_has_the_device() -> None:
    key = device_key(devices.LIMITS, DISK)
    assert key.name == "io.max 253:16"
    assert find_key("io.max 253:16") is key
    assert find_key("blkio.throttle.read_bps_device 8:0") is not None
    for name in ("io.max", "io.max 253", "io.max 253:16 ", "io.stat 253:16", "io.max ../x"):
        assert find_key(name) is None


@given(
    st.sampled_from(sorted(devices.DEVICE_FILES.values(), key=lambda one: one.name)),
    st.binary(max_size=80),
)
def test_any_bytes_are_a_value_or_a_parse_error(file: DeviceFile, data: bytes) -> None:
    key = device_key(file, DISK)
    for contents in (data, b"253:16 " + data + b"\n"):
        try:
            value = key.parse(file.version, (contents,))
        except ParseError:
            continue
        assert isinstance(value, DeviceLine)
        assert key.from_ledger(key.to_ledger(value)) == value


# on this machine's kernel


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    with real_groups("blkio") as created:
        yield created


def disk() -> str:
    """Return a whole disk of this machine that limits can be set for."""
    for folder in sorted(Path("/sys/class/block").iterdir()):
        if not (folder / "partition").exists() and int((folder / "size").read_text()):
            return (folder / "dev").read_text().strip()
    pytest.skip("no block device with a size")


class Limits:
    """The limits of one pod on the real kernel, by the agent's writer."""

    def __init__(self, groups: RealGroups, ledger_path: Path) -> None:
        self.groups = groups
        self.pod = groups.pod()
        self.ledger = ChangeLedger(str(ledger_path), "boot")
        self.ledger.load()
        values = CgroupValues(KernelFiles(LiveHostFiles()), groups.layout)
        self.writer = CgroupWriter(values, self.ledger, ManualClock())

    def write(self, key: CgroupKey, value: DeviceLine) -> list[str]:
        """Write one line; return the errors' reasons."""
        desired = DesiredValue(cgroup=self.pod, key=key, value=value, owner="block_io")
        plan = self.writer.prepare((desired,), 0.0)
        self.writer.record_in_ledger(plan)
        self.ledger.flush()
        return [problem.reason for problem in self.writer.apply(plan, 0.0).problems]

    def lines(self, file: DeviceFile) -> list[str]:
        """Return what the kernel shows."""
        return self.groups.get(self.pod, file.name).splitlines()

    def restore(self, *, dry_run: bool = False) -> list[str]:
        """Restore from the ledger; return the lines of `--dry-run`."""
        results = restore_all(
            self.ledger,
            self.groups.layout,
            LiveHostFiles(),
            monotonic=lambda: 0.0,
            dry_run=dry_run,
        )
        return [result.summary for result in results]


@pytest.fixture
def limits(groups: RealGroups, tmp_path: Path) -> Limits:
    return Limits(groups, tmp_path / "ledger.log")


@needs_blkio
@pytest.mark.root
def test_a_limit_is_set_for_one_disk_and_its_absence_restored(limits: Limits) -> None:
    number = disk()
    key = device_key(devices.READ_BPS, number)
    assert limits.write(key, DeviceLine((("", str(BPS)),))) == []
    assert limits.lines(devices.READ_BPS) == [f"{number} {BPS}"]
    entry = next(iter(limits.ledger.entries.values()))
    assert (entry.key, entry.original) == (f"{devices.READ_BPS.name} {number}", "unset")
    assert limits.restore(dry_run=True) == [f"{limits.pod}/{key.name} {BPS} → unset"]
    limits.restore()
    assert limits.lines(devices.READ_BPS) == []
    assert limits.ledger.entries == {}


@needs_blkio
@pytest.mark.root
def test_the_value_that_was_there_is_restored(limits: Limits) -> None:
    number = disk()
    limits.groups.put(limits.pod, devices.WRITE_IOPS.name, f"{number} 77")
    key = device_key(devices.WRITE_IOPS, number)
    limits.write(key, DeviceLine((("", "1024"),)))
    assert limits.lines(devices.WRITE_IOPS) == [f"{number} 1024"]
    limits.restore()
    assert limits.lines(devices.WRITE_IOPS) == [f"{number} 77"]


@needs_blkio
@pytest.mark.root
def test_a_value_that_another_program_wrote_since_stays(limits: Limits) -> None:
    number = disk()
    key = device_key(devices.WRITE_BPS, number)
    limits.write(key, DeviceLine((("", str(BPS)),)))
    limits.groups.put(limits.pod, devices.WRITE_BPS.name, f"{number} 9")
    limits.restore()
    assert limits.lines(devices.WRITE_BPS) == [f"{number} 9"]


@needs_blkio
@pytest.mark.root
def test_a_disk_that_does_not_exist_is_refused_once_and_reported(limits: Limits) -> None:
    key = device_key(devices.READ_BPS, "4095:4095")
    value = DeviceLine((("", str(BPS)),))
    assert limits.write(key, value) == ["ValueRefused"]
    assert limits.write(key, value) == []
    limits.restore()
    assert limits.ledger.entries == {}


@needs_blkio
@pytest.mark.root
def test_more_operations_than_the_kernel_can_count_are_no_limit(limits: Limits) -> None:
    number = disk()
    limits.groups.put(limits.pod, devices.READ_IOPS.name, f"{number} {devices.MAX_IOPS}")
    assert limits.lines(devices.READ_IOPS) == [f"{number} {devices.MAX_IOPS}"]
    limits.groups.put(limits.pod, devices.READ_IOPS.name, f"{number} {devices.MAX_IOPS + 1}")
    assert limits.lines(devices.READ_IOPS) == []
