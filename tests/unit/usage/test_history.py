from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.snapshot.inventory import DeviceSample, ProcessSample
from agent.snapshot.usage import CgroupUsage, NodeUsage, NumaUsage, UsageSample
from agent.usage.history import MAX_POD_VALUES, UsageHistory, UsageReportPolicy

POD = CgroupUsage(cpu_cores=0.5, memory_bytes=100, memory_with_cache_bytes=300)
NODE = NodeUsage(
    cpu_cores=4.0,
    memory_bytes=1000,
    memory_with_cache_bytes=2000,
    system_cpu_cores=2.0,
    system_memory_bytes=400,
    numa=(
        NumaUsage(node_id=0, cpu_cores=3.0, memory_bytes=600, pods_memory_bytes=100),
        NumaUsage(node_id=1, cpu_cores=1.0, memory_bytes=400, pods_memory_bytes=900),
    ),
)
SAMPLE = UsageSample(node=NODE, pods={"a": POD})
GPU = DeviceSample(
    key="gpu0",
    core_percent=40.0,
    memory_used_bytes=800,
    memory_total_bytes=1000,
    processes=(
        ProcessSample(pid=1, memory_bytes=300, core_percent=10.0),
        ProcessSample(pid=2, memory_bytes=200),
        ProcessSample(pid=3, memory_bytes=100, core_percent=5.0),
    ),
)


def test_means_are_over_the_aggregation_period() -> None:
    history = UsageHistory()
    for now_s in range(3):
        history.add(float(now_s), SAMPLE)
    report = history.report(2.0)
    assert (report.node.cpu_cores, report.node.memory_bytes) == (4.0, 1000.0)
    assert (report.system.cpu_cores, report.system.memory_bytes) == (2.0, 400.0)


def test_system_use_of_memory_nodes_follows_their_shares() -> None:
    history = UsageHistory()
    history.add(0.0, SAMPLE)
    zero, one = history.report(0.0).numa
    assert zero.system is not None
    assert one.system is not None
    assert (zero.system.cpu_cores, one.system.cpu_cores) == (1.5, 0.5)
    assert (zero.system.memory_bytes, one.system.memory_bytes) == (500.0, 0.0)


def test_idle_memory_nodes_have_no_system_use_of_the_cpu() -> None:
    idle = NodeUsage(system_cpu_cores=0.0, numa=(NumaUsage(node_id=0, cpu_cores=0.0),))
    history = UsageHistory()
    history.add(0.0, UsageSample(node=idle))
    (window,) = history.report(0.0).numa
    assert window.system is not None
    assert window.system.cpu_cores == 0.0


def test_a_memory_node_without_use_is_left_out_and_without_pods_has_no_system() -> None:
    numa = (NumaUsage(node_id=0), NumaUsage(node_id=1, memory_bytes=5))
    history = UsageHistory()
    history.add(0.0, UsageSample(node=NodeUsage(numa=numa)))
    (window,) = history.report(0.0).numa
    assert (window.node_id, window.system) == (1, None)


def test_the_memory_policy_counts_for_pods_too() -> None:
    history = UsageHistory()
    history.add(0.0, SAMPLE)
    report = history.report(0.0, UsageReportPolicy(memory="usageWithPageCache"))
    assert report.pods[0].use.memory_bytes == 300.0


def test_a_pod_of_which_half_is_unknown_is_left_out() -> None:
    history = UsageHistory()
    history.add(0.0, UsageSample(pods={"a": CgroupUsage(memory_bytes=5), "b": POD}))
    assert [pod.uid for pod in history.report(0.0).pods] == ["b"]


def test_series_of_pods_that_went_are_dropped() -> None:
    history = UsageHistory()
    history.add(0.0, SAMPLE)
    history.add(1.0, UsageSample(node=NODE))
    assert history.report(1.0).pods == ()


def test_device_use_of_a_pod_is_the_sum_of_its_processes() -> None:
    history = UsageHistory()
    history.add(0.0, SAMPLE, [GPU], {1: ("a", "c1"), 2: ("a", "c2"), 3: ("b", "c3")})
    report = history.report(0.0)
    (card,) = report.devices
    assert (card.core_percent, card.memory_bytes, card.memory_total_bytes) == (40.0, 800.0, 1000)
    (part,) = report.pods[0].devices
    assert (part.key, part.core_percent, part.memory_bytes) == ("gpu0", 10.0, 500.0)


def test_an_unsupported_value_is_absent_and_not_zero() -> None:
    blind = DeviceSample(key="npu0", memory_used_bytes=5, memory_total_bytes=10)
    history = UsageHistory()
    history.add(0.0, SAMPLE, [blind, DeviceSample(key="npu1")])
    (card,) = history.report(0.0).devices
    assert (card.key, card.core_percent, card.memory_bytes) == ("npu0", None, 5.0)


def test_a_device_that_is_gone_for_half_an_hour_is_forgotten() -> None:
    history = UsageHistory(interval_s=60.0)
    history.add(0.0, SAMPLE, [GPU])
    for minute in range(1, 33):
        history.add(minute * 60.0, SAMPLE)
    report = history.report(32 * 60.0, UsageReportPolicy(aggregate_s=3600))
    assert report.devices == ()


def test_a_gone_device_does_not_stay_because_reports_look_for_its_values() -> None:
    history = UsageHistory(interval_s=60.0)
    history.add(0.0, SAMPLE, [GPU])
    for minute in range(1, 40):
        history.add(minute * 60.0, SAMPLE, [replace(GPU, key="other")] if minute > 35 else ())
        history.report(minute * 60.0)
    assert history._node.names("device") == ["other"]


@pytest.mark.parametrize("interval_s", [0.5, 1.0, 10.0])
def test_half_an_hour_is_stored_at_any_interval(interval_s: float) -> None:
    history = UsageHistory(interval_s=interval_s)
    for step in range(int(2000 / interval_s) + 1):
        history.add(step * interval_s, UsageSample(node=NodeUsage(cpu_cores=float(step))))
    (window,) = history.report(2000.0, UsageReportPolicy(windows_s=(1800,))).aggregates
    average = dict(window.node)["avg"].cpu_cores
    assert average == pytest.approx((200 + 2000) / 2 / interval_s)


def test_a_longer_window_of_pods_is_stored_within_the_same_memory() -> None:
    history = UsageHistory()
    history.set_pod_window(7200.0)
    pods = {f"pod{n}": POD for n in range(3000)}
    for second in range(0, 1801, 600):
        history.add(float(second), UsageSample(node=NODE, pods=pods))
    report = history.report(1800.0, UsageReportPolicy(aggregate_s=1800.0))
    assert 0 < len(report.pods) < MAX_POD_VALUES // 1800
    first = history.report(1800.0, UsageReportPolicy(aggregate_s=60.0)).pods[0]
    assert first in report.pods


def test_a_shorter_window_drops_nothing() -> None:
    history = UsageHistory()
    history.add(0.0, SAMPLE)
    history.set_pod_window(60.0)
    assert [pod.uid for pod in history.report(0.0).pods] == ["a"]
