"""One publisher's run: what was written, what failed, and how it is said."""

from __future__ import annotations

import logging
import threading

import pytest

from agent.app.publishing import FilePublisherRunner
from agent.clock import ManualClock
from agent.errors import PublishError
from agent.objects.files import SinkResult
from agent.snapshot.node import NodeSnapshot, SnapshotStore
from agent.snapshot.publications import DesiredObject
from agent.state_writer import NO_ANSWER, StateWriter
from tests import factory
from tests.patience import PATIENCE_S


class Thing:
    """Publishes one object that is the node's name."""

    name = "thing"
    interval_s = 3.0

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[DesiredObject, ...]:
        return (
            DesiredObject(
                file_name="thing.yaml",
                api_version="v1",
                kind="Thing",
                name="n",
                body={"name": snapshot.node.name, "at": now_s},
            ),
        )


class Shelf:
    """Takes objects, until it is full."""

    def __init__(self) -> None:
        self.full = False
        self.answers = threading.Event()
        self.answers.set()
        self.taken: list[DesiredObject] = []

    def apply(self, desired: tuple[DesiredObject, ...]) -> SinkResult:
        assert self.answers.wait(PATIENCE_S)
        if self.full:
            raise PublishError("shelf", "full; make room", 28)
        new = tuple(item for item in desired if item not in self.taken)
        self.taken += new
        return SinkResult(
            written=tuple(item.file_name for item in new),
            unchanged=tuple(item.file_name for item in desired if item not in new),
        )

    def where(self, desired: DesiredObject) -> str:
        return f"shelf/{desired.file_name}"


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def run(shelf: Shelf) -> FilePublisherRunner:
    store = SnapshotStore(factory.snapshot())
    return FilePublisherRunner(Thing(), shelf, StateWriter("shelf"), store, ManualClock())  # type: ignore[arg-type]  # takes what it is given


def publish(run: FilePublisherRunner) -> None:
    run.run_once()
    assert run.flush(PATIENCE_S)


def test_before_the_first_run_it_is_not_well(run: FilePublisherRunner) -> None:
    assert not run.check().ok
    assert run.publications() == ()


def test_what_is_written_and_what_is_unchanged_is_counted(run: FilePublisherRunner) -> None:
    publish(run)
    publish(run)
    assert (run.status.written, run.status.unchanged, run.status.failed) == (1, 1, 0)
    assert run.check().ok
    shown = run.publications()[0]
    assert (shown.desired.kind, shown.where, shown.problem) == ("Thing", "shelf/thing.yaml", "")
    assert shown.desired.body["name"] == "hgx-h100-01"


def test_a_failure_is_logged_once_and_shown_until_it_is_over(
    run: FilePublisherRunner, shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shelf.full = True
    for _ in range(3):
        publish(run)
    assert run.status.failed == 3
    assert not run.check().ok
    assert "make room" in run.check().message
    assert "make room" in run.publications()[0].problem
    shelf.full = False
    publish(run)
    assert run.check().ok
    assert run.publications()[0].problem == ""
    assert [record.getMessage() for record in caplog.records] == [
        "publish_failed",
        "publish_recovered",
    ]


def test_a_sink_that_hangs_is_not_waited_for_and_gets_the_newest_objects_when_it_answers(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    store, clock = SnapshotStore(factory.snapshot()), ManualClock()
    run = FilePublisherRunner(Thing(), shelf, StateWriter("shelf"), store, clock)  # type: ignore[arg-type]  # takes what it is given
    shelf.answers.clear()
    for _ in range(5):
        run.run_once()
        clock.advance(1.0)
    assert not run.flush(0.0)
    assert not run.check().ok
    assert NO_ANSWER in run.status.error
    assert [record.getMessage() for record in caplog.records] == ["publish_failed"]
    shelf.answers.set()
    assert run.flush(PATIENCE_S)
    assert run.check().ok
    times = [item.body["at"] for item in shelf.taken]
    assert times[-1] == clock.wall() - 1.0
    assert len(times) <= 2
