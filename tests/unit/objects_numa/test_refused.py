"""Whoever wrote an annotation that is not used hears of it once."""

from __future__ import annotations

from msgspec.structs import replace

from agent.objects.events import events_between
from agent.snapshot.pod import PodRef
from agent.wire_formats.annotations import RESERVATION
from agent.wire_formats.event import Event
from tests.clustered import RESOURCE_STATUS, node, pod, snapshot

BAD_NODE = node({RESERVATION: "{"})
BAD_POD = pod("p", annotations=((RESOURCE_STATUS, '{"cpuset":"x"}'),))
FINE, SPOILT = snapshot(), snapshot(owner=BAD_NODE, pods=(BAD_POD,))


def refused_entries(*events: Event) -> list[tuple[str, str, str]]:
    assert {event.type for event in events} <= {"Warning"}
    return [(event.reason, event.object_kind, event.message) for event in events]


def test_a_refusal_is_reported_at_the_node_and_at_the_pod() -> None:
    for before in (None, FINE):
        events = events_between(before, SPOILT, 1.0)
        assert refused_entries(*events) == [
            ("AnnotationRefused", "Node", f"annotation {RESERVATION}: no JSON"),
            (
                "AnnotationRefused",
                "Pod",
                f"annotation {RESOURCE_STATUS}: no list of CPUs such as 0-3,8",
            ),
        ]
        assert events[1].pod == PodRef(namespace="d", name="p", uid="uid-p")


def test_a_refusal_is_not_reported_again_while_it_lasts_or_ends() -> None:
    assert events_between(SPOILT, replace(SPOILT), 1.0) == ()
    assert events_between(SPOILT, FINE, 1.0) == ()


def test_another_mistake_is_another_event() -> None:
    worse = snapshot(owner=node({RESERVATION: "[]"}), pods=(BAD_POD,))
    assert refused_entries(*events_between(SPOILT, worse, 1.0)) == [
        ("AnnotationRefused", "Node", f"annotation {RESERVATION}: no JSON object")
    ]
