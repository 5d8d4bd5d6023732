"""The share of idle memory that DAMON_STAT of mainline kernels tells, where kidled is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.clock import ManualClock
from agent.errors import ParseError
from agent.host.files import LiveHostFiles
from agent.snapshot.usage import ColdMemory
from agent.usage.cold_memory import (
    ColdMemoryCollector,
    idle_ratio,
    parse_idle_percentiles,
)
from agent.usage.collector import CollectorInput

FOLDER = "sys/module/damon_stat/parameters"
KIDLED = "KidledMissing"


def percentiles(*idle_ms: int) -> str:
    """Return the kernel's text: the last percentiles are these, the ones before are in use."""
    times = [*range(len(idle_ms) - 101, 0), *sorted(idle_ms)]
    return ",".join(map(str, times))


class Host:
    """A mainline kernel whose DAMON_STAT is moved by hand."""

    def __init__(self, root: Path) -> None:
        self._folder = root / FOLDER
        self._folder.mkdir(parents=True)
        self.collector = ColdMemoryCollector(LiveHostFiles(str(root)), ManualClock())

    def put(self, text: str, enabled: str = "Y") -> None:
        (self._folder / "memory_idle_ms_percentiles").write_text(f"{text}\n")
        (self._folder / "enabled").write_text(f"{enabled}\n")

    def collect(self, now_s: float = 1.0) -> tuple[float | None, list[str]]:
        value = self.collector.collect(CollectorInput(now_s=now_s))
        assert isinstance(value, ColdMemory)
        assert (value.node_bytes, value.pods) == (None, {})  # it is not page cache
        return value.idle_ratio, [problem.reason for problem in value.problems]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_memory_that_was_idle_for_300_s_is_a_share_of_all_memory(host: Host) -> None:
    host.put(percentiles(299_999, 300_000, *[900_000] * 29))
    assert host.collect() == (0.3, [KIDLED])


def test_the_zeroth_percentile_is_no_part_of_memory() -> None:
    assert idle_ratio((300_000,) * 101, 300) == 1.0
    assert idle_ratio((0, *[300_000] * 100), 300) == 1.0
    assert idle_ratio((0,) * 101, 300) == 0.0


@pytest.mark.parametrize(
    ("after_s", "expected"),
    [(299.0, (None, [KIDLED, "DamonStatTooYoung"])), (300.0, (0.0, [KIDLED]))],
)
def test_nothing_idle_for_300_s_is_known_only_after_300_s(
    host: Host, after_s: float, expected: tuple[float | None, list[str]]
) -> None:
    host.put(percentiles(1000))
    host.collect(10.0)
    assert host.collect(10.0 + after_s) == expected


def test_the_time_begins_again_when_it_was_switched_off(host: Host) -> None:
    host.put(percentiles(1000))
    host.collect(0.0)
    host.put(percentiles(1000), "N")
    assert host.collect(200.0) == (None, [KIDLED, "DamonStatOff"])
    host.put(percentiles(1000))
    assert host.collect(400.0) == (None, [KIDLED, "DamonStatTooYoung"])


def test_kernels_without_it_have_that_reason(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert host.collect() == (None, [KIDLED, "DamonStatMissing"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        ",".join(["0"] * 100),
        ",".join(["0"] * 102),
        ",".join(["0"] * 100 + ["x"]),
        ",".join(["5"] * 100 + ["4"]),
        percentiles(1)[:-1] + "\xb2",
    ],
)
def test_what_no_kernel_prints_is_absent_with_a_reason(host: Host, text: str) -> None:
    host.put(text)
    assert host.collect() == (None, [KIDLED, "DamonStatUnreadable"])
    with pytest.raises(ParseError):
        parse_idle_percentiles(text.encode())
