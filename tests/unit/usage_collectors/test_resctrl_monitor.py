from __future__ import annotations

from pathlib import Path

import pytest

from agent.clock import ManualClock
from agent.errors import HostFileError, ParseError
from agent.host.files import LiveHostFiles
from agent.snapshot.host_files import MAX_READ
from agent.snapshot.usage import ResctrlCounters, ResctrlUsage
from agent.usage.collector import CollectorInput
from agent.usage.resctrl_monitor import MAX_COUNTER, ResctrlCollector, parse_counter

ROOT = "sys/fs/resctrl"
UID = "6f6f0000-0000-4000-8000-000000000001"
FEATURES = "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n"


class ResctrlTree:
    """A resctrl file system in a directory of a test."""

    def __init__(self, root: Path, features: str = FEATURES) -> None:
        self.root = root
        self.clock = ManualClock()
        self.write("info/L3_MON/mon_features", features)
        for group in ("", "LSR/", "BE/", f"koordlet-{UID}/", "other/"):
            for cache in (0, 1):
                self.counts(group, cache, occupancy=10 + cache, total=1000, local=600)
        self.collector = ResctrlCollector(LiveHostFiles(str(root)), self.clock)

    def write(self, path: str, text: str) -> None:
        target = self.root / ROOT / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def counts(self, group: str, cache: int, **values: object) -> None:
        names = {
            "occupancy": "llc_occupancy",
            "total": "mbm_total_bytes",
            "local": "mbm_local_bytes",
        }
        for name, value in values.items():
            self.write(f"{group}mon_data/mon_L3_{cache:02d}/{names[name]}", f"{value}\n")

    def collect(self, now_s: float) -> ResctrlUsage:
        value = self.collector.collect(CollectorInput(now_s=now_s))
        assert value is not None
        return value


@pytest.fixture
def tree(tmp_path: Path) -> ResctrlTree:
    return ResctrlTree(tmp_path)


def of(value: ResctrlUsage, group: str = "BE", cache: int = 0) -> ResctrlCounters | None:
    keys = {(one.group or one.pod_uid, one.cache_id): one for one in value.groups}
    return keys.get((group, cache))


def reasons(value: ResctrlUsage) -> list[str]:
    return [problem.reason for problem in value.problems]


def test_the_newline_of_the_kernel_is_no_error() -> None:
    assert parse_counter(b"4096\n") == 4096
    assert parse_counter(b"0\n") == 0


@pytest.mark.parametrize("data", [b"Unavailable\n", b"Unassigned\n"])
def test_a_count_that_the_hardware_does_not_have_now_is_absent(data: bytes) -> None:
    assert parse_counter(data) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"Error\n", b"12", b"-1\n", b"1\n1\n", b"max\n", b"1 2\n", b"%d\n" % MAX_COUNTER],
)
def test_other_texts_are_refused(data: bytes) -> None:
    with pytest.raises(ParseError):
        parse_counter(data)


def test_classes_pods_and_the_default_group_are_read_and_foreign_groups_are_not(
    tree: ResctrlTree,
) -> None:
    value = tree.collect(1.0)
    assert [(group.group, group.pod_uid, group.cache_id) for group in value.groups] == [
        (group, uid, cache)
        for group, uid in (("default", ""), ("LSR", ""), ("BE", ""), ("", UID))
        for cache in (0, 1)
    ]
    assert of(value, "BE", 1) == ResctrlCounters(
        group="BE", cache_id=1, occupancy_bytes=11, total_bytes=1000, local_bytes=600
    )
    assert value.problems == ()


def test_rates_are_those_between_two_rounds(tree: ResctrlTree) -> None:
    tree.collect(100.0)
    tree.counts("BE/", 0, total=21_000, local=600)
    use = of(tree.collect(110.0))
    assert use is not None
    assert (use.total_bytes_per_s, use.local_bytes_per_s) == (2000.0, 0.0)


@pytest.mark.parametrize("now_s", [100.0, 99.0])
def test_without_time_between_two_rounds_there_are_no_rates(
    tree: ResctrlTree, now_s: float
) -> None:
    tree.collect(100.0)
    use = of(tree.collect(now_s))
    assert use is not None
    assert use.total_bytes_per_s is None


def test_a_counter_that_fell_has_no_rate(tree: ResctrlTree) -> None:
    tree.collect(100.0)
    tree.counts("BE/", 0, total=5)
    use = of(tree.collect(110.0))
    assert use is not None
    assert (use.total_bytes, use.total_bytes_per_s, use.local_bytes_per_s) == (5, None, 0.0)


def test_a_count_that_was_not_available_gives_no_rate_after_it(tree: ResctrlTree) -> None:
    tree.collect(100.0)
    tree.counts("BE/", 0, total="Unavailable")
    use = of(tree.collect(110.0))
    assert use is not None
    assert (use.total_bytes, use.total_bytes_per_s, use.occupancy_bytes) == (None, None, 10)
    tree.counts("BE/", 0, total=9000)
    use = of(tree.collect(120.0))
    assert use is not None
    assert (use.total_bytes, use.total_bytes_per_s) == (9000, None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("Error", "CounterError"), ("", "CounterUnreadable"), ("-4", "CounterUnreadable")],
)
def test_a_broken_count_costs_itself_only(tree: ResctrlTree, text: str, reason: str) -> None:
    tree.counts("BE/", 0, occupancy=text)
    value = tree.collect(1.0)
    use = of(value)
    assert use is not None
    assert (use.occupancy_bytes, use.total_bytes) == (None, 1000)
    assert reasons(value) == [reason]


def test_a_group_that_goes_while_it_is_read_is_no_problem(tree: ResctrlTree) -> None:
    for path in (tree.root / ROOT / "BE/mon_data/mon_L3_00").iterdir():
        path.unlink()
    value = tree.collect(1.0)
    assert (of(value), reasons(value)) == (None, [])


def test_only_what_the_kernel_monitors_is_read(tmp_path: Path) -> None:
    value = ResctrlTree(tmp_path, "llc_occupancy\n").collect(1.0)
    assert of(value) == ResctrlCounters(group="BE", cache_id=0, occupancy_bytes=10)


def test_a_host_without_resctrl_or_without_monitoring_says_so(tmp_path: Path) -> None:
    tree = ResctrlTree(tmp_path, "")
    value = tree.collect(1.0)
    assert (value.groups, reasons(value)) == ((), ["ResctrlWithoutMonitoring"])
    empty = ResctrlCollector(LiveHostFiles(str(tmp_path / "empty")), ManualClock())
    value = empty.collect(CollectorInput(now_s=1.0)) or ResctrlUsage()
    assert (value.groups, reasons(value)) == ((), ["ResctrlNotMounted"])


class SlowFiles(LiveHostFiles):
    """A host whose counters take more than a millisecond each, and may fail."""

    def __init__(self, tree: ResctrlTree, errno: int = 0) -> None:
        super().__init__(str(tree.root))
        self.clock = tree.clock
        self.errno = errno
        self.reads = 0

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        if "/mon_data/" in path:
            self.reads += 1
            self.clock.advance(0.0011)
            if self.errno:
                raise HostFileError(path, self.errno)
        return super().read(path, limit)


def test_a_round_is_spread_over_calls_of_a_few_milliseconds(tree: ResctrlTree) -> None:
    files = SlowFiles(tree)
    collector = ResctrlCollector(files, tree.clock)
    reads = []
    for second in range(8):
        value = collector.collect(CollectorInput(now_s=float(second)))
        reads.append(files.reads)
        assert (value is None) == (second < 7)
    assert reads == [3, 6, 9, 12, 15, 18, 21, 24]
    assert value is not None
    assert len(value.groups) == 8


def test_files_that_refuse_are_a_problem_and_no_value(tree: ResctrlTree) -> None:
    collector = ResctrlCollector(SlowFiles(tree, errno=5), tree.clock)
    value = None
    while value is None:
        value = collector.collect(CollectorInput(now_s=1.0))
    assert (value.groups, reasons(value)) == ((), ["CounterUnreadable"])
