from __future__ import annotations

import errno

import pytest

from agent.cgroup.layout import CgroupLayout
from agent.recording.tree import ErrorEntry, TreeEntry, TreeFiles
from agent.usage.file_reader import (
    DescriptorCache,
    PressureFileReader,
    ReadSchedule,
    RotatingReader,
    read_pressure,
)

LINE = b"some avg10=1.00 avg60=0.00 avg300=0.00 total=5\n"
PLACES = ("/cpu.pressure", "/memory.pressure", "/io.pressure")


def test_new_keys_are_fetched_at_once_and_then_in_turns() -> None:
    fetched: list[str] = []
    column: RotatingReader[None] = RotatingReader(fetched.append, every=3)
    column.set_keys("abcd")
    column.read()
    assert sorted(fetched) == ["a", "b", "c", "d"]
    fetched.clear()
    for _ in range(3):
        column.read()
    assert sorted(fetched) == ["a", "b", "c", "d"]


def test_no_cycle_fetches_more_than_its_share() -> None:
    fetched: list[str] = []
    column: RotatingReader[None] = RotatingReader(fetched.append, every=10)
    column.set_keys([str(i) for i in range(100)])
    column.read()
    for _ in range(10):
        fetched.clear()
        column.read()
        assert len(fetched) == 10


def test_a_key_that_was_not_fetched_yet_stays_new() -> None:
    column = RotatingReader(str.upper, every=10)
    column.set_keys("xyzab")
    column.set_keys("xyzabc")
    assert column.read() == ["X", "Y", "Z", "A", "B", "C"]


def test_values_of_remaining_keys_stay() -> None:
    column = RotatingReader(str.upper, every=10)
    column.set_keys("ab")
    column.read()
    column.set_keys("bc")
    assert column.read() == ["B", "C"]


@pytest.mark.parametrize(
    ("interval_s", "pressure_interval_s", "pace"),
    [
        (1.0, 10.0, ReadSchedule(numa_memory_period=10, pressure_period=10)),
        (4.0, 10.0, ReadSchedule(numa_memory_period=2, pressure_period=2)),
        (60.0, 10.0, ReadSchedule(numa_memory_period=1, pressure_period=1)),
        (0.5, 30.0, ReadSchedule(numa_memory_period=20, pressure_period=60)),
        (1.0, None, ReadSchedule(numa_memory_period=10, pressure_period=None)),
    ],
)
def test_the_pace_follows_the_intervals(
    interval_s: float, pressure_interval_s: float | None, pace: ReadSchedule
) -> None:
    assert ReadSchedule.for_intervals(interval_s, pressure_interval_s) == pace


@pytest.mark.parametrize("refusal", [errno.EOPNOTSUPP, errno.ENOENT, errno.EACCES])
def test_a_kernel_without_psi_has_no_pressure(refusal: int) -> None:
    host = TreeFiles.from_entries(dict.fromkeys(PLACES, ErrorEntry(refusal)))
    assert read_pressure(DescriptorCache(host), PLACES) is None


def test_one_resource_without_pressure_leaves_the_others() -> None:
    host = TreeFiles.from_entries({"/memory.pressure": LINE, "/cpu.pressure": b"odd\n"})
    pressure = read_pressure(DescriptorCache(host), PLACES)
    assert pressure is not None
    assert list(pressure) == ["memory"]


@pytest.mark.parametrize(
    ("place", "found"), [("cpuacct", True), ("unified", True), ("memory", False)]
)
def test_version_1_pressure_is_found_where_the_kernel_has_it(place: str, found: bool) -> None:
    entries: dict[str, TreeEntry] = {
        f"/c/{place}/kubepods/cpu.pressure": LINE,
        f"/c/{place}/kubepods/poda/cpu.pressure": LINE,
    }
    layout = CgroupLayout(
        version=1,
        driver="cgroupfs",
        mounts=(("cpuacct", "/c/cpuacct"), ("memory", "/c/memory")),
        unified="/c/unified",
        root="/kubepods",
    )
    source = PressureFileReader(DescriptorCache(TreeFiles.from_entries(entries)), layout)
    assert (source.read("/kubepods/poda") is not None) is found
