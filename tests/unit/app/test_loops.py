"""What the loops are built with."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.app.composition import build_host_reader, create_inputs
from agent.app.loops import PeriodicLoops
from agent.app.oneshot import build_usage_monitor
from agent.app.publishing import FolderPublishSink
from agent.app.services import open_usage_monitor
from agent.clock import ManualClock
from agent.config.settings import Settings
from agent.messages import MessageQueue
from agent.recording.host_source import HostSource
from agent.usage.monitor import UsageMonitor
from tests.cgroups import CgroupHost
from tests.pipelines import build_pipeline

PODS = 300  # with two files each


def built(folder: Path) -> tuple[PeriodicLoops, UsageMonitor]:
    host = CgroupHost(folder / "host")
    inputs = create_inputs(Settings(), HostSource(files=host.files), ManualClock(), vendors={})
    sink = FolderPublishSink(str(folder / "out"), inputs.store, inputs.clock)
    usage_monitor = build_usage_monitor(inputs)
    pipeline = build_pipeline(inputs, sink)
    loops = PeriodicLoops(
        inputs.settings,
        inputs.store,
        usage_monitor,
        build_host_reader(inputs),
        pipeline,
        sink,
        MessageQueue(),
    )
    return loops, usage_monitor


@pytest.fixture
def few_files() -> Iterator[None]:
    """Lower the limit of open files to fewer than the pods need, whatever is open by now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + PODS, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_files")
def test_the_collector_keeps_every_descriptor_though_the_process_began_with_a_low_limit(
    tmp_path: Path,
) -> None:
    host = CgroupHost(tmp_path / "host")
    for number in range(PODS):
        host.group(f"/pod{number}")
    inputs = create_inputs(Settings(), HostSource(files=host.files), ManualClock(), vendors={})
    usage_monitor = open_usage_monitor(inputs)
    open_before = len(os.listdir("/proc/self/fd"))
    usage_monitor.cycle()
    open_after = len(os.listdir("/proc/self/fd"))
    usage_monitor.close()
    assert open_after - open_before > 2 * PODS


def test_a_slow_read_of_the_host_delays_no_news_about_devices(tmp_path: Path) -> None:
    loops, usage_monitor = built(tmp_path)
    usage_monitor.close()
    threads = {timed.loop.name: timed.is_on_devices_thread for timed in loops.scheduled_loops}
    assert {name for name, devices in threads.items() if devices} == {
        "publish-device",
        "publish-topology",
        "events",
    }
    assert {"collect", "host", "publish-node_metric"} <= set(threads)


def test_a_report_waits_for_the_second_cycle_without_which_no_rate_is_known(tmp_path: Path) -> None:
    loops, usage_monitor = built(tmp_path)
    (report,) = (
        scheduled_loop.loop
        for scheduled_loop in loops.scheduled_loops
        if scheduled_loop.loop.name == "publish-node_metric"
    )
    written = tmp_path / "out" / "nodemetric.yaml"
    usage_monitor.cycle()
    assert report.step(0.0) == Settings().collect.interval_s
    assert not written.exists()
    usage_monitor.cycle()
    assert report.step(0.0) == Settings().publish.report_interval_s
    loops.flush()
    assert written.exists()
    usage_monitor.close()
