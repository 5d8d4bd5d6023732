from __future__ import annotations

import errno
import os
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cgroup.layout import CgroupLayout
from agent.clock import ManualClock, SystemClock
from agent.host.files import LiveHostFiles
from agent.snapshot.pod import ContainerView, KubeQos, PodView
from agent.snapshot.usage import CycleUsage
from agent.usage import cycles as module
from agent.usage.collector import CollectorInput
from agent.usage.cycles import CycleCollector, CycleLimits
from agent.usage.perf_counters import (
    CounterGroup,
    GroupReading,
    PerfEvent,
    is_cgroup_countable,
    parse_group_reading,
)

CPU_CLOCK, CONTEXT_SWITCHES = PerfEvent(1, 0), PerfEvent(1, 3)  # software: every kernel has them

UNIFIED = Path("/sys/fs/cgroup/unified")
if not (UNIFIED / "cgroup.procs").exists():
    UNIFIED = Path("/sys/fs/cgroup")


def _counts_cgroups() -> bool:
    try:
        fd = os.open(UNIFIED, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        return is_cgroup_countable(fd, 0)
    finally:
        os.close(fd)


needs_perf = pytest.mark.skipif(
    not _counts_cgroups(), reason="needs a kernel and rights to count events of a cgroup"
)


def pods(*ids: str) -> tuple[PodView, ...]:
    containers = tuple(ContainerView(id=one, cgroup=f"/kubepods/poda/{one}") for one in ids)
    return (
        PodView(uid="a", qos=KubeQos.BURSTABLE, cgroup="/kubepods/poda", containers=containers),
    )


def layout(unified: str | None = "/sys/fs/cgroup", version: int = 2) -> CgroupLayout:
    return CgroupLayout(
        version=version, driver="cgroupfs", mounts=(), unified=unified, root="/kubepods"
    )


class FakeGroup:
    """Counters that give what the test says, and count descriptors."""

    open_count = 0
    most_open = 0
    opened = 0
    refusal: OSError | None = None
    reading: GroupReading | None = GroupReading(enabled_ns=10, running_ns=10, counts=(30, 20))
    cost_s = 0.0
    clock = ManualClock()
    offline: frozenset[int] = frozenset()

    def __init__(self, cgroup_fd: int, cpu: int, events: tuple[PerfEvent, ...]) -> None:
        cls = type(self)
        assert len(events) == 2
        os.fstat(cgroup_fd)
        cls.clock.advance(cls.cost_s)
        if cpu in cls.offline:
            raise OSError(errno.ENODEV, "offline")
        if cls.refusal is not None:
            raise cls.refusal
        cls.opened += 1
        cls.open_count += 1
        cls.most_open = max(cls.most_open, cls.open_count)
        self.is_enabled = False

    def enable(self) -> None:
        self.is_enabled = True

    def read(self) -> GroupReading | None:
        assert self.is_enabled
        return type(self).reading

    def close(self) -> None:
        type(self).open_count -= 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeGroup]:
    group = type("Group", (FakeGroup,), {"clock": ManualClock()})
    monkeypatch.setattr(module, "CounterGroup", group)
    return group


@pytest.fixture
def host(tmp_path: Path) -> LiveHostFiles:
    write(tmp_path, "/sys/devices/system/cpu/online", "0-1\n")
    for one in "abcdef":
        (tmp_path / f"sys/fs/cgroup/kubepods/poda/{one}").mkdir(parents=True)
    return LiveHostFiles(str(tmp_path))


def write(root: Path, path: str, text: str) -> None:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def collector(
    host: LiveHostFiles, fake: type[FakeGroup], limits: CycleLimits | None = None
) -> CycleCollector:
    return CycleCollector(
        host, fake.clock, interval_s=60, window_s=10, limits=limits or CycleLimits()
    )


def run(
    one: CycleCollector, ids: str = "a", first_s: float = 100.0, seconds: int = 60
) -> tuple[CycleUsage, float]:
    """Call once a second until a round is complete; return it and when it was."""
    for second in range(seconds):
        value = one.collect(
            CollectorInput(now_s=first_s + second, layout=layout(), pods=pods(*ids))
        )
        if value is not None:
            return value, first_s + second
    raise AssertionError("no round was completed")


def reasons(value: CycleUsage) -> tuple[str, ...]:
    return tuple(problem.reason for problem in value.problems)


def test_counts_are_scaled_by_the_time_on_the_hardware() -> None:
    reading = GroupReading(enabled_ns=1000, running_ns=250, counts=(10, 4))
    assert reading.scaled() == (40, 16)


@pytest.mark.parametrize(("enabled", "running"), [(1000, 0), (1000, 1001), (0, 5)])
def test_a_group_without_time_on_the_hardware_has_no_counts(enabled: int, running: int) -> None:
    assert GroupReading(enabled_ns=enabled, running_ns=running, counts=(7, 7)).scaled() is None


def test_a_cgroup_that_did_not_run_on_a_cpu_has_a_real_zero_there() -> None:
    assert GroupReading(enabled_ns=0, running_ns=0, counts=(0, 0)).scaled() == (0, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("=4Q", 2, 9, 9, 1),  # cut
        struct.pack("=6Q", 2, 9, 9, 1, 2, 3),  # longer
        struct.pack("=5Q", 1, 9, 9, 1, 2),  # of another group
    ],
)
def test_a_broken_reading_is_absent(data: bytes) -> None:
    assert parse_group_reading(data, 2) is None


def test_a_window_is_summed_over_all_cpus(host: LiveHostFiles, fake: type[FakeGroup]) -> None:
    value, end_s = run(collector(host, fake))
    one = value.containers["a"]
    assert (one.cycles, one.instructions, one.window_s) == (60, 40, 10.0)
    assert one.per_instruction == pytest.approx(1.5)
    assert (end_s, fake.open_count, reasons(value)) == (110.0 + 1, 0, ())


def test_a_container_without_instructions_has_no_ratio(
    host: LiveHostFiles, fake: type[FakeGroup]
) -> None:
    fake.reading = GroupReading(enabled_ns=0, running_ns=0, counts=(0, 0))
    one = run(collector(host, fake))[0].containers["a"]
    assert (one.cycles, one.per_instruction) == (0, None)


def test_a_round_begins_once_an_interval_and_one_at_a_time(
    host: LiveHostFiles, fake: type[FakeGroup]
) -> None:
    one = collector(host, fake)
    _, end_s = run(one)
    assert fake.opened == 2
    assert all(
        one.collect(CollectorInput(now_s=second, layout=layout(), pods=pods("a"))) is None
        for second in (end_s + 1, 159.0)
    )
    assert fake.opened == 2
    one.collect(CollectorInput(now_s=160.0, layout=layout(), pods=pods("a")))
    assert fake.opened == 4


def test_a_call_does_a_few_milliseconds_of_work_and_the_next_one_continues(
    host: LiveHostFiles, fake: type[FakeGroup]
) -> None:
    fake.cost_s = 0.002
    value, _ = run(collector(host, fake), "abcdef")
    assert set(value.containers) == set("abcdef")
    assert fake.open_count == 0
    # two groups of 2 ms a call: one container each second, the last of six begins at 105
    assert {container.window_s for container in value.containers.values()} == {10.0}


def test_descriptors_are_bounded_and_all_containers_have_their_turn(
    host: LiveHostFiles, fake: type[FakeGroup]
) -> None:
    value, end_s = run(collector(host, fake, CycleLimits(descriptors=8)), "abcdef", seconds=120)
    assert set(value.containers) == set("abcdef")
    assert fake.most_open == 4  # groups of two descriptors
    assert end_s >= 130.0


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.EACCES, "NotPermitted"),
        (errno.EPERM, "NotPermitted"),
        (errno.EMFILE, "TooManyOpenFiles"),
        (errno.ENFILE, "TooManyOpenFiles"),
        (errno.ENOSYS, "NotSupported"),
        (errno.EINVAL, "NotSupported"),
        (errno.EOPNOTSUPP, "NotSupported"),
    ],
)
def test_a_refusal_of_the_host_ends_the_round_with_its_reason(
    host: LiveHostFiles, fake: type[FakeGroup], code: int, reason: str
) -> None:
    fake.refusal = OSError(code, os.strerror(code))
    value, end_s = run(collector(host, fake), "abc")
    assert (value.containers, reasons(value), end_s) == ({}, (reason,), 100.0)


@pytest.mark.parametrize(
    ("countable", "reason"), [(True, "NoHardwareCounters"), (False, "CgroupNotInPerfHierarchy")]
)
def test_no_such_event_means_no_hardware_or_no_such_hierarchy(
    host: LiveHostFiles,
    fake: type[FakeGroup],
    monkeypatch: pytest.MonkeyPatch,
    countable: bool,
    reason: str,
) -> None:
    monkeypatch.setattr(module, "is_cgroup_countable", lambda *_: countable)
    fake.refusal = OSError(errno.ENOENT, "no such event")
    value, _ = run(collector(host, fake), "abc")
    assert (value.containers, reasons(value)) == ({}, (reason,))


@pytest.mark.parametrize(
    ("reading", "reason"),
    [
        (None, "CountersBusy"),
        (GroupReading(enabled_ns=10, running_ns=0, counts=(0, 0)), "CountersBusy"),
        (GroupReading(enabled_ns=9, running_ns=9, counts=(1 << 63, 1)), "ImplausibleCount"),
        (GroupReading(enabled_ns=9, running_ns=9, counts=(1, 1 << 63)), "ImplausibleCount"),
        (GroupReading(enabled_ns=1 << 62, running_ns=1, counts=(99, 1)), "ImplausibleCount"),
    ],
)
def test_counts_that_mean_nothing_are_absent(
    host: LiveHostFiles, fake: type[FakeGroup], reading: GroupReading | None, reason: str
) -> None:
    fake.reading = reading
    value, _ = run(collector(host, fake))
    assert (value.containers, reasons(value)) == ({}, (reason,))


def test_a_cpu_that_goes_offline_costs_itself_only(
    host: LiveHostFiles, fake: type[FakeGroup]
) -> None:
    fake.offline = frozenset({1})
    assert run(collector(host, fake))[0].containers["a"].cycles == 30
    fake.offline = frozenset({0, 1})
    value, _ = run(collector(host, fake))
    assert (value.containers, reasons(value)) == ({}, ("CountersBusy",))


def test_a_container_that_ends_before_its_turn_is_no_problem(
    host: LiveHostFiles, fake: type[FakeGroup], tmp_path: Path
) -> None:
    (tmp_path / "sys/fs/cgroup/kubepods/poda/b").rmdir()
    value, _ = run(collector(host, fake), "abc")
    assert (set(value.containers), reasons(value)) == ({"a", "c"}, ())


@pytest.mark.parametrize("text", ["", "x\n", "3-1\n"])
def test_without_a_list_of_cpus_nothing_is_counted(
    host: LiveHostFiles, fake: type[FakeGroup], tmp_path: Path, text: str
) -> None:
    write(tmp_path, "/sys/devices/system/cpu/online", text)
    value, _ = run(collector(host, fake))
    assert (value.containers, reasons(value)) == ({}, ("OnlineCpusUnknown",))


def test_too_few_descriptors_for_all_cpus_is_a_reason(
    host: LiveHostFiles, fake: type[FakeGroup]
) -> None:
    value, _ = run(collector(host, fake, CycleLimits(descriptors=3)))
    assert (fake.opened, reasons(value)) == (0, ("TooManyOpenFiles",))


def test_descriptors_of_others_and_a_reserve_are_left_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_count = len(os.listdir("/proc/self/fd"))
    for soft, expected in ((open_count + 600, 88), (open_count + 100, 0), (1 << 20, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert abs(CycleLimits.of_process().descriptors - expected) <= 2
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert CycleLimits.of_process().descriptors == 4096


def test_closing_in_the_middle_of_a_round_closes_all(
    host: LiveHostFiles, fake: type[FakeGroup]
) -> None:
    fake.cost_s = 0.002
    one = collector(host, fake)
    before = len(os.listdir("/proc/self/fd"))
    for second in (100.0, 101.0):
        one.collect(CollectorInput(now_s=second, layout=layout(), pods=pods(*"abc")))
    assert fake.open_count > 0
    one.close()
    assert fake.open_count == 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_groups_of_version_1_are_those_of_the_perf_event_hierarchy(
    host: LiveHostFiles, fake: type[FakeGroup], tmp_path: Path
) -> None:
    write(tmp_path, "/proc/mounts", "cgroup /cg/perf_event cgroup rw,perf_event 0 0\n")
    (tmp_path / "cg/perf_event/kubepods/poda/b").mkdir(parents=True)
    one, value = collector(host, fake), None
    for second in range(13):
        cycle = CollectorInput(
            now_s=float(second), layout=layout("/sys/fs/cgroup", 1), pods=pods("a", "b")
        )
        value = one.collect(cycle) or value
    assert value is not None
    assert set(value.containers) == {"b"}


def test_pods_outside_of_every_perf_hierarchy_are_a_reason(
    host: LiveHostFiles, fake: type[FakeGroup]
) -> None:
    for unified in (None, "/sys/fs/cgroup/unified"):
        one = collector(host, fake)
        cycle = CollectorInput(now_s=1.0, layout=layout(unified, 1), pods=pods("a", "b"))
        value = one.collect(cycle)
        assert value is not None
        assert reasons(value) == ("CgroupNotInPerfHierarchy",)
        assert "2 containers" in value.problems[0].message


@pytest.fixture
def real_groups() -> Iterator[str]:
    """Two groups of the unified hierarchy, of which the first runs a busy process."""
    base = UNIFIED / f"cycles-{os.getpid()}"
    folders = [base / "poda" / name for name in ("busy", "idle")]
    for folder in folders:
        folder.mkdir(parents=True)
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        (folders[0] / "cgroup.procs").write_text(str(process.pid))
        yield f"/{base.name}"
    finally:
        process.kill()
        process.wait()
        for folder in (*folders, base / "poda", base):
            _remove(folder)


def _remove(folder: Path) -> None:
    for _ in range(100):
        try:
            folder.rmdir()
        except OSError:  # the kernel has not let go of the process yet
            time.sleep(0.02)
        else:
            return


@needs_perf
def test_the_kernel_counts_a_busy_group_and_an_idle_one(real_groups: str) -> None:
    layout = CgroupLayout(
        version=2, driver="cgroupfs", mounts=(), unified=str(UNIFIED), root=real_groups
    )
    containers = tuple(
        ContainerView(id=name, cgroup=f"{real_groups}/poda/{name}") for name in ("busy", "idle")
    )
    pod = PodView(uid="a", qos=KubeQos.BURSTABLE, containers=containers)
    one = CycleCollector(
        LiveHostFiles(),
        SystemClock(),
        interval_s=60,
        window_s=0.5,
        events=(CPU_CLOCK, CONTEXT_SWITCHES),
    )
    before = len(os.listdir("/proc/self/fd"))
    value = None
    until_s = time.monotonic() + 20
    while value is None and time.monotonic() < until_s:
        value = one.collect(CollectorInput(now_s=time.monotonic(), layout=layout, pods=(pod,)))
        time.sleep(0.05)
    assert value is not None
    assert len(os.listdir("/proc/self/fd")) == before
    busy, idle = value.containers["busy"], value.containers["idle"]
    assert busy.cycles > 10_000_000  # nanoseconds on a CPU
    assert (idle.cycles, idle.instructions) == (0, 0)


@needs_perf
def test_hardware_counters_are_counted_or_absent_with_a_reason(real_groups: str) -> None:
    layout = CgroupLayout(
        version=2, driver="cgroupfs", mounts=(), unified=str(UNIFIED), root=real_groups
    )
    busy = ContainerView(id="busy", cgroup=f"{real_groups}/poda/busy")
    pod = PodView(uid="a", qos=KubeQos.BURSTABLE, containers=(busy,))
    one = CycleCollector(LiveHostFiles(), SystemClock(), interval_s=60, window_s=0.5)
    value = None
    until_s = time.monotonic() + 20
    while value is None and time.monotonic() < until_s:
        value = one.collect(CollectorInput(now_s=time.monotonic(), layout=layout, pods=(pod,)))
        time.sleep(0.05)
    assert value is not None
    if value.containers:
        assert 0.05 < (value.containers["busy"].per_instruction or 0) < 50
    else:
        assert reasons(value) in (("NoHardwareCounters",), ("CountersBusy",))


@needs_perf
def test_groups_of_other_version_1_hierarchies_are_not_countable() -> None:
    memory = Path("/sys/fs/cgroup/memory")
    if not (memory / "cgroup.procs").exists():
        pytest.skip("needs cgroup v1")
    fd = os.open(memory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert not is_cgroup_countable(fd, 0)
        with pytest.raises(FileNotFoundError):
            CounterGroup(fd, 0, (CPU_CLOCK,))
    finally:
        os.close(fd)
