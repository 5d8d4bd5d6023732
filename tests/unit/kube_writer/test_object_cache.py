"""When an object has to be read again: what a watch reports against what the server answered."""

from __future__ import annotations

import pytest

from agent.clock import ManualClock
from agent.kube.writer.context import WriterContext
from agent.kube.writer.object_cache import ObjectCache
from agent.messages import MessageQueue
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore
from tests.unit.kube_watch.script import ScriptedApi


def answered(version: str | None) -> ObjectCache:
    clock = ManualClock()
    api = ScriptedApi(clock)
    cache = ObjectCache(
        "Device",
        WriterContext(
            api=api,
            clock=clock,
            store=SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n", uid="u"))),
            messages=MessageQueue(),
        ),
    )
    cache.store(None if version is None else {"metadata": {"resourceVersion": version}}, None)
    return cache


@pytest.mark.parametrize(
    ("answer", "event", "outdated"),
    [
        ("9", "9", False),
        ("9", "10", True),
        ("10", "9", False),  # the event of an earlier write of ours comes after the next answer
        ("9", None, True),
        (None, "9", True),
        (None, None, False),
        ("a", "b", True),  # versions without an order
    ],
)
def test_an_object_is_read_again_where_a_watch_reports_a_version_that_was_not_answered(
    answer: str | None, event: str | None, outdated: bool
) -> None:
    cache = answered(answer)
    cache.note_version(event)
    assert cache.is_outdated is outdated
    assert (cache.due_in_s() == 0.0) is outdated


def test_an_event_during_a_read_counts_if_the_answer_is_older() -> None:
    cache = answered("9")
    cache.begin_read()
    cache.note_version("11")
    cache.store({"metadata": {"resourceVersion": "10"}}, None)
    assert cache.is_outdated
    cache.begin_read()
    cache.store({"metadata": {"resourceVersion": "11"}}, None)
    assert not cache.is_outdated
