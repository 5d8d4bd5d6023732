"""One publisher's run: what was written, what failed, and how it is said."""

from __future__ import annotations

import logging

import pytest

from agent.app.publishing import FilePublisherRunner
from agent.clock import ManualClock
from agent.errors import PublishError
from agent.objects.files import SinkResult
from agent.snapshot.node import NodeSnapshot, SnapshotStore
from agent.snapshot.publications import DesiredObject
from tests import factory


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
        self.taken: list[DesiredObject] = []

    def apply(self, desired: tuple[DesiredObject, ...]) -> SinkResult:
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
    return FilePublisherRunner(Thing(), shelf, SnapshotStore(factory.snapshot()), ManualClock())  # type: ignore[arg-type]  # takes what it is given


def test_before_the_first_run_it_is_not_well(run: FilePublisherRunner) -> None:
    assert not run.check().ok
    assert run.publications() == ()


def test_what_is_written_and_what_is_unchanged_is_counted(run: FilePublisherRunner) -> None:
    run.run_once()
    run.run_once()
    assert (run.status.written, run.status.unchanged, run.status.failed) == (1, 1, 0)
    assert run.check().ok
    shown = run.publications()[0]
    assert (shown.desired.kind, shown.where, shown.problem) == ("Thing", "shelf/thing.yaml", "")
    assert shown.desired.body["name"] == "hgx-h100-01"


def test_a_failure_is_said_once_and_shown_until_it_is_over(
    run: FilePublisherRunner, shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shelf.full = True
    for _ in range(3):
        run.run_once()
    assert run.status.failed == 3
    assert not run.check().ok
    assert "make room" in run.check().message
    assert "make room" in run.publications()[0].problem
    shelf.full = False
    run.run_once()
    assert run.check().ok
    assert run.publications()[0].problem == ""
    assert [record.getMessage() for record in caplog.records] == [
        "publish_failed",
        "publish_recovered",
    ]
