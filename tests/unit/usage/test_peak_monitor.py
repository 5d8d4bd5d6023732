"""The predictor is trained once a minute, and its file survives what happens to files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.clock import ManualClock
from agent.config.settings import PredictionSettings
from agent.snapshot.cluster import ClusterView, NodeView
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ComputeRequest, KubeQos, PodView
from agent.snapshot.usage import CgroupUsage, NodeUsage, Prediction, UsageSample
from agent.state_writer import StateWriter
from agent.usage.history import UsageHistory
from agent.usage.peak_monitor import FILE_NAME, PeakMonitor, pod_demand

GIB = 2**30
POD = PodView(
    uid="a",
    name="p",
    namespace="d",
    qos=KubeQos.BURSTABLE,
    created="2025-01-01T00:00:00Z",
    compute_request=ComputeRequest(cpu_cores=8.0, memory_bytes=16.0 * GIB),
)
NODE = NodeView(name="n", uid="u", allocatable={"cpu": "64", "memory": "256Gi"})
SNAPSHOT = NodeSnapshot(
    node=NodeIdentity(name="n"),
    cluster=ClusterView(node=SnapshotPart(NODE)),
    pods=SnapshotPart((POD,)),
)
WARM_AT_ONCE = PredictionSettings(cold_start_s=0)


class Measured:
    """A node that uses 3 cores, of which its pod uses 2, measured each second."""

    def __init__(
        self, folder: Path, settings: PredictionSettings = WARM_AT_ONCE, node: str = "n"
    ) -> None:
        self.clock = ManualClock()
        self.writer = StateWriter()
        self.monitor = PeakMonitor(settings, str(folder), self.writer, node)
        self.history = UsageHistory()

    def measure(self, seconds: int, *, cores: float = 2.0, uid: str = "a") -> None:
        pod = CgroupUsage(cpu_cores=cores, memory_bytes=4 * GIB, memory_with_cache_bytes=5 * GIB)
        node = NodeUsage(cpu_cores=1.0 + cores, memory_bytes=6 * GIB)
        for _ in range(seconds):
            self.clock.advance(1.0)
            now_s, wall_s = self.clock.monotonic(), self.clock.wall()
            self.history.add(now_s, UsageSample(node=node, pods={uid: pod}))
            if now_s >= self.monitor.due_s:
                self.monitor.train(self.history, (POD,), now_s, wall_s)

    def predict(self, snapshot: NodeSnapshot = SNAPSHOT) -> Prediction:
        return self.monitor.predict(snapshot, self.clock.monotonic(), self.clock.wall())


def test_nothing_is_predicted_before_a_whole_minute_was_measured(tmp_path: Path) -> None:
    measured = Measured(tmp_path)
    measured.measure(60)
    assert measured.predict().error
    measured.measure(1)
    assert not measured.predict().error


def test_the_p90_of_a_minute_is_its_sample(tmp_path: Path) -> None:
    measured = Measured(tmp_path)
    measured.measure(121)
    peak = measured.predict().pods.peak
    assert peak.cpu_cores == pytest.approx(2.2, rel=0.06)
    assert peak.memory_bytes == pytest.approx(4.4 * GIB, rel=0.06)


def test_the_amounts_that_koord_manager_stored_come_before_those_of_the_status(
    tmp_path: Path,
) -> None:
    measured = Measured(tmp_path)
    measured.measure(121)
    annotation = ("node.koordinator.sh/raw-allocatable", '{"cpu":"3","memory":"256Gi"}')
    node = replace(NODE, annotations=(annotation,))
    snapshot = replace(SNAPSHOT, cluster=ClusterView(node=SnapshotPart(node)))
    reclaimable = measured.predict(snapshot).pods.reclaimable
    assert reclaimable.cpu_cores == pytest.approx(3 - 2.2, abs=0.1)


@pytest.mark.parametrize("allocatable", [{}, {"cpu": "64"}, {"cpu": "x", "memory": "1Gi"}])
def test_a_node_that_does_not_say_what_it_has_gets_no_prediction(
    tmp_path: Path, allocatable: dict[str, str]
) -> None:
    measured = Measured(tmp_path)
    measured.measure(121)
    node = replace(NODE, allocatable=allocatable)
    snapshot = replace(SNAPSHOT, cluster=ClusterView(node=SnapshotPart(node)))
    assert "allocatable" in measured.predict(snapshot).error


def test_models_outlive_a_restart(tmp_path: Path) -> None:
    settings = PredictionSettings(cold_start_s=300)
    before = Measured(tmp_path, settings)
    before.measure(700)
    assert before.writer.close()
    after = Measured(tmp_path, settings)
    after.clock = before.clock
    after.measure(61)
    assert after.predict().predicted_pods == 1


@pytest.mark.parametrize("days", [10, -10, 400, -400])
def test_minutes_of_a_clock_that_is_wrong_weigh_no_more_than_other_minutes(
    tmp_path: Path, days: int
) -> None:
    measured = Measured(tmp_path)
    measured.measure(1201)
    measured.clock.wall_s += days * 86400.0
    measured.measure(60, cores=0.1)
    measured.clock.wall_s -= days * 86400.0
    measured.measure(60, cores=0.1)
    peak = measured.predict().pods.peak
    assert peak.cpu_cores == pytest.approx(2.2, rel=0.06)


@pytest.mark.parametrize("seconds", [0, 61])
def test_a_clock_that_is_set_ahead_makes_no_model_older(tmp_path: Path, seconds: int) -> None:
    measured = Measured(tmp_path, PredictionSettings(cold_start_s=300))
    measured.clock.wall_s -= 20 * 365 * 86400.0
    measured.measure(121)
    measured.clock.wall_s += 20 * 365 * 86400.0
    measured.measure(seconds)
    assert measured.predict().cold_pods == 1
    measured.measure(300)
    assert measured.predict().predicted_pods == 1


def test_the_model_of_a_pod_that_is_gone_expires_after_the_clock_was_set_back(
    tmp_path: Path,
) -> None:
    measured = Measured(tmp_path)
    measured.measure(121)
    measured.clock.wall_s -= 365 * 86400.0
    measured.measure(1921, uid="b")
    assert "a" not in measured.monitor._predictor.checkpoint().models


def test_models_outlive_a_restart_after_the_clock_was_set(tmp_path: Path) -> None:
    settings = PredictionSettings(cold_start_s=300)
    before = Measured(tmp_path, settings)
    before.measure(400)
    before.clock.wall_s += 90 * 86400.0
    before.measure(400)
    assert before.writer.close()
    after = Measured(tmp_path, settings)
    after.clock = before.clock
    after.measure(61)
    assert after.predict().predicted_pods == 1


def test_without_a_folder_nothing_is_stored(tmp_path: Path) -> None:
    measured = Measured(tmp_path)
    measured.monitor = PeakMonitor(WARM_AT_ONCE, "", measured.writer)
    measured.measure(700)
    assert measured.writer.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"version": 9, "models": {}}', b'{"version": 1, "models": {"a": 1}}'],
)
def test_a_damaged_file_is_set_aside_and_the_models_begin_anew(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(content)
    measured = Measured(tmp_path)
    measured.measure(121)
    assert not measured.predict().error
    assert (tmp_path / f"{FILE_NAME}.bad").read_bytes() == content


def test_the_file_of_another_node_is_set_aside(tmp_path: Path) -> None:
    settings = PredictionSettings(cold_start_s=300)
    before = Measured(tmp_path, settings, node="other")
    before.measure(700)
    assert before.writer.close()
    after = Measured(tmp_path, settings)
    after.clock = before.clock
    after.measure(1)
    assert after.predict().error
    assert (tmp_path / f"{FILE_NAME}.bad").exists()


def test_a_file_cut_at_any_byte_is_never_half_a_model(tmp_path: Path) -> None:
    before = Measured(tmp_path)
    before.measure(700)
    assert before.writer.close()
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    json.loads(whole)
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        after = Measured(tmp_path)
        after.measure(1)
        assert not path.exists()


def test_a_pod_that_ends_is_no_demand() -> None:
    assert pod_demand(replace(POD, phase="Succeeded")).is_ended
    assert pod_demand(replace(POD, terminating=True)).is_ended


@pytest.mark.parametrize("created", ["", "yesterday", "2025-01-01T00:00:00"])
def test_a_time_that_cannot_be_read_is_not_known(created: str) -> None:
    assert pod_demand(replace(POD, created=created)).created_s is None
