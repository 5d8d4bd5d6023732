from __future__ import annotations

import pytest

from agent.snapshot.inventory import DeviceSample, ProcessSample
from agent.snapshot.usage import SharedCard, SharedProcess, SharedRegion
from agent.usage.shared_devices import MismatchTracker, memory_by_process

MIB = 1 << 20


def region(used: int, *pids: int) -> SharedRegion:
    share = used // max(1, len(pids))
    processes = tuple(SharedProcess(host_pid=pid, memory_bytes=share) for pid in pids)
    card = SharedCard(index=0, uuid="GPU-0", used_bytes=used, processes=processes)
    return SharedRegion(pod_uid="u", container="c", layout="A", cards=(card,))


def sample(**memory: int | None) -> DeviceSample:
    processes = tuple(ProcessSample(pid=int(k[1:]), memory_bytes=v) for k, v in memory.items())
    return DeviceSample(key="0000:10:00.0", processes=processes)


def after(seconds: list[float], used: int, **memory: int | None) -> tuple[int | None, list[str]]:
    """Judge at each of the seconds; return the last answer."""
    watch = MismatchTracker()
    measured = memory_by_process([sample(**memory)], {"0000:10:00.0": "GPU-0"})
    answers = [watch.check([region(used, 7, 8)], measured, now_s) for now_s in seconds]
    regions, problems = answers[-1]
    return regions[0].cards[0].measured_bytes, [problem.reason for problem in problems]


@pytest.mark.parametrize(
    ("seconds", "used", "memory", "told"),
    [
        ([0, 59], 1024 * MIB, {"p7": 1024 * MIB, "p8": 1024 * MIB}, None),
        ([0, 60], 1024 * MIB, {"p7": 1024 * MIB, "p8": 1024 * MIB}, 2048 * MIB),
        ([0, 60], 1024 * MIB, {"p7": 600 * MIB, "p8": 600 * MIB}, None),  # less than 256 MiB
        ([0, 60], 8000 * MIB, {"p7": 4200 * MIB, "p8": 4200 * MIB}, None),  # less than a tenth
        ([0, 60], 0, {"p7": 300 * MIB, "p8": 0}, 300 * MIB),
        ([0, 60], 1024 * MIB, {"p7": 2048 * MIB}, None),  # a process is not known to the driver
        ([0, 60], 1024 * MIB, {"p7": 2048 * MIB, "p8": None}, None),
        ([0, 60], 1024 * MIB, {"p7": 1 * MIB, "p8": 1 * MIB, "p9": 9000 * MIB}, 2 * MIB),
    ],
)
def test_a_count_that_differs_for_a_minute_is_reported_with_the_drivers(
    seconds: list[float], used: int, memory: dict[str, int | None], told: int | None
) -> None:
    assert after(seconds, used, **memory) == (told, [] if told is None else ["RegionDrift"])


def test_the_minute_begins_anew_when_both_agreed_in_between() -> None:
    watch = MismatchTracker()
    off = memory_by_process([sample(p7=4096 * MIB)], {"0000:10:00.0": "GPU-0"})
    good = memory_by_process([sample(p7=1024 * MIB)], {"0000:10:00.0": "GPU-0"})
    for now_s, measured in ((0.0, off), (50.0, good), (70.0, off), (129.0, off)):
        _, problems = watch.check([region(1024 * MIB, 7)], measured, now_s)
        assert problems == ()
    assert len(watch.check([region(1024 * MIB, 7)], off, 130.0)[1]) == 1


def test_a_card_without_processes_or_host_pids_cannot_be_compared() -> None:
    watch = MismatchTracker()
    measured = memory_by_process([sample(p7=4096 * MIB)], {"0000:10:00.0": "GPU-0"})
    for now_s in (0.0, 100.0):
        assert watch.check([region(0)], measured, now_s)[1] == ()
        assert watch.check([region(MIB, 0)], measured, now_s)[1] == ()


def test_values_that_the_driver_does_not_report_are_left_out() -> None:
    unknown = DeviceSample(key="0000:10:00.0", processes=None)
    assert memory_by_process([unknown, sample(p7=None)], {"0000:10:00.0": "GPU-0"}) == {}
    assert memory_by_process([sample(p7=1)], {}) == {}
