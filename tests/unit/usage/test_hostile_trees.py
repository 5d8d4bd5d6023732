"""Trees of cgroups that change, die and lie: figures of a pod are its own, or absent."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.snapshot.usage import CgroupUsage
from agent.usage.monitor import UsageCollector
from tests.cgroups import PAGE, CgroupHost, container_id

SECOND_NS = 10**9
PODS, CONTAINERS = 2500, 3  # ten thousand groups
# contents that stand in for a whole file
LIES = (
    *("", "\n", "max\n", "-1\n", f"{1 << 64}\n", "usage_usec\n", "total_inactive_anon -5\n"),
    "\0" * 600,
)
FILES = {
    1: ("cpuacct.usage", "cpu.stat", "memory.stat"),
    2: ("cpu.stat", "memory.stat"),
}
few = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


def own_figures(number: int, cycle: int) -> CgroupUsage:
    """Return what pod `number` uses in a cycle; no two pods share a figure."""
    return CgroupUsage(
        cpu_cores=(number + 1) / 16,
        cpu_total_ns=(number + 1) * SECOND_NS // 16 * (cycle + 1),
        memory_bytes=(number + 1) * PAGE,
        memory_with_cache_bytes=(number + 1) * 1000 * PAGE,
        periods=(number + 1) * 100 + cycle,
        throttled_periods=(number + 1),
    )


def write_pod(host: CgroupHost, number: int, cycle: int) -> None:
    own = own_figures(number, cycle)
    host.group(
        f"/burstable/pod{number}",
        cpu_ns=own.cpu_total_ns or 0,
        anon=number + 1,
        cache=(number + 1) * 999,
        throttling=(own.periods or 0, own.throttled_periods or 0),
    )


def remove_pod(host: CgroupHost, number: int) -> None:
    """Remove a pod's group; as the kernel's, its open files have no content any more."""
    for path in files_of(host, number):
        path.write_text("")
    host.remove(f"/burstable/pod{number}")


def files_of(host: CgroupHost, number: int) -> Iterator[Path]:
    for point in set(host.points.values()):
        for name in FILES[host.version]:
            path = host.path(f"{point}/kubepods/burstable/pod{number}/{name}")
            if path.exists():
                yield path


def assert_own_or_absent(use: CgroupUsage, number: int, cycle: int) -> None:
    own = own_figures(number, cycle)
    for name in (
        *("cpu_total_ns", "memory_bytes", "memory_with_cache_bytes"),
        *("periods", "throttled_periods"),
    ):
        assert getattr(use, name) in (None, getattr(own, name)), (number, name)
    assert use.cpu_cores is None or use.cpu_cores == pytest.approx(own.cpu_cores, rel=1e-4)


@few
@given(data=st.data(), version=st.sampled_from([1, 2]))
def test_figures_of_pods_that_come_go_and_lie_are_their_own_or_absent(
    data: st.DataObject, version: int
) -> None:
    with TemporaryDirectory() as folder:
        host = CgroupHost(Path(folder), version=version)
        collector = UsageCollector(host.files)
        present: set[int] = set()
        for cycle in range(data.draw(st.integers(2, 5))):
            desired = data.draw(st.sets(st.integers(0, 4)))
            for number in present - desired:
                remove_pod(host, number)
            present = desired
            for number in sorted(present):
                write_pod(host, number, cycle)
                for path in files_of(host, number):
                    if not data.draw(st.integers(0, 3)):
                        path.write_text(data.draw(st.sampled_from(LIES)))
            sample = collector.measure(100.0 + cycle)
            for uid, use in sample.pods.items():
                assert_own_or_absent(use, int(uid), cycle)
        collector.close()


@few
@given(data=st.data())
def test_a_file_that_is_cut_gives_no_smaller_figure(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        host = CgroupHost(Path(folder), version=data.draw(st.sampled_from([1, 2])))
        for number in range(3):
            write_pod(host, number, 0)
            for path in files_of(host, number):
                text = path.read_text()
                path.write_text(text[: data.draw(st.integers(0, len(text)))])
        collector = UsageCollector(host.files)
        for uid, use in collector.measure(100.0).pods.items():
            assert_own_or_absent(use, int(uid), 0)
        collector.close()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("code", [errno.ENODEV, errno.EOPNOTSUPP, errno.EIO, errno.EACCES])
def test_a_group_that_dies_while_it_is_read_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, code: int
) -> None:
    host = CgroupHost(tmp_path, version=version)
    for number in range(3):
        write_pod(host, number, 0)
    collector = UsageCollector(host.files)
    collector.measure(100.0)
    for number in range(3):
        write_pod(host, number, 1)
    read = os.pread

    def fail(fd: int, size: int, offset: int) -> bytes:
        if "/pod1/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(code, os.strerror(code))
        return read(fd, size, offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", fail)
        pods = collector.measure(101.0).pods
        assert pods["1"] == CgroupUsage()
        for number in (0, 2):
            assert_own_or_absent(pods[str(number)], number, 1)
            assert pods[str(number)].cpu_cores is not None
    for number in range(3):
        write_pod(host, number, 2)
    pods = collector.measure(102.0).pods
    assert (pods["1"].memory_bytes, pods["1"].cpu_cores) == (2 * PAGE, None)


def test_ten_thousand_groups_beyond_the_descriptors_are_each_measured_as_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.usage.file_reader.RESERVED_DESCRIPTORS", 1 << 30)
    host = CgroupHost(tmp_path, version=2)
    for number in range(PODS):
        write_pod(host, number, 0)
        for at in range(CONTAINERS):
            name = container_id(number * CONTAINERS + at)
            host.group(f"/burstable/pod{number}/{name}", anon=number * CONTAINERS + at)
    collector = UsageCollector(host.files)
    sample = collector.measure(100.0)
    assert (len(sample.pods), len(sample.containers)) == (PODS, PODS * CONTAINERS)
    for number in range(PODS):
        assert sample.pods[str(number)].memory_bytes == (number + 1) * PAGE
        assert_own_or_absent(sample.pods[str(number)], number, 0)
    for number in range(PODS * CONTAINERS):
        assert sample.containers[container_id(number)].memory_bytes == number * PAGE
    collector.close()
