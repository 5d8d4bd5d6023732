"""What the loops are built with."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.clock import ManualClock
from agent.config.sections import Settings
from agent.daemon.loops import Loops
from agent.daemon.telling.device_changes import DeviceChanges
from agent.daemon.telling.outlet import Folder
from agent.node.parts import build_parts
from agent.recording.open import OpenedHost
from tests.cgroups import CgroupHost

PODS = 300  # with two files each


def built(folder: Path) -> Loops:
    host = CgroupHost(folder / "host")
    parts = build_parts(Settings(), OpenedHost(files=host.files), ManualClock(), vendors={})
    outlet = Folder(str(folder / "out"), parts.store, parts.clock)
    changes = DeviceChanges(parts, outlet, parts.facts())
    return Loops(parts, changes, outlet, lambda: None)


@pytest.fixture
def few_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_files")
def test_the_collector_keeps_every_descriptor_though_the_process_began_with_a_low_limit(
    tmp_path: Path,
) -> None:
    host = CgroupHost(tmp_path / "host")
    for number in range(PODS):
        host.group(f"/pod{number}")
    parts = build_parts(Settings(), OpenedHost(files=host.files), ManualClock(), vendors={})
    out = str(tmp_path / "out")
    outlet = Folder(out, parts.store, parts.clock)
    changes = DeviceChanges(parts, outlet, parts.facts())
    loops = Loops(parts, changes, outlet, lambda: None)
    loops.measuring.cycle()
    kept = len(os.listdir("/proc/self/fd"))
    loops.measuring.close()
    assert kept > 2 * PODS


def test_a_slow_read_of_the_host_holds_up_nothing_that_tells_of_devices(tmp_path: Path) -> None:
    loops = built(tmp_path)
    loops.measuring.close()
    threads = {timed.loop.name: timed.devices for timed in loops.timed}
    assert {name for name, devices in threads.items() if devices} == {
        "publish-device",
        "publish-topology",
        "events",
    }
    assert {"collect", "host", "publish-node_metric"} <= set(threads)


def test_a_report_waits_for_the_second_cycle_without_which_no_rate_is_known(tmp_path: Path) -> None:
    loops = built(tmp_path)
    (report,) = (one.loop for one in loops.timed if one.loop.name == "publish-node_metric")
    written = tmp_path / "out" / "nodemetric.yaml"
    loops.measuring.cycle()
    assert report.step(0.0) == Settings().collect.interval_s
    assert not written.exists()
    loops.measuring.cycle()
    assert report.step(0.0) == Settings().publish.report_interval_s
    assert written.exists()
    loops.measuring.close()
