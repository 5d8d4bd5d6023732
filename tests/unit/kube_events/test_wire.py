"""The objects that are written: valid whatever the event says."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kube.events import (
    MAX_EVENT_NAME,
    event_name,
    event_object,
    event_series,
    micro_time,
    note_text,
)
from agent.snapshot.pod import PodRef
from agent.wire_formats.event import Event, EventReporter

AT_S = 1_767_323_045.25
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
DEVICE = Event(
    type="Warning",
    reason="DeviceUnhealthy",
    message="GPU 3: Xid79",
    object_kind="Device",
    at_s=AT_S,
)
POD = Event(
    type="Warning",
    reason="GrantInvalid",
    message="no such minor",
    object_kind="Pod",
    at_s=AT_S,
    pod=PodRef(namespace="team-a", name="train-0", uid="p-1"),
)


def test_an_event_of_a_device_is_whole() -> None:
    assert event_object(DEVICE, EventReporter(name="node-a"), "u-9", 1, AT_S, AT_S) == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": event_name(DEVICE, "node-a", AT_S), "namespace": "default"},
        "eventTime": "2026-01-02T03:04:05.250000Z",
        "type": "Warning",
        "reason": "DeviceUnhealthy",
        "action": "Observe",
        "note": "GPU 3: Xid79",
        "regarding": {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Device",
            "name": "node-a",
            "uid": "u-9",
        },
        "reportingController": "xpu-agent",
        "reportingInstance": "node-a",
    }


def test_a_pods_event_is_stored_beside_the_pod() -> None:
    event_body = event_object(POD, EventReporter(name="node-a"), "", 3, AT_S, AT_S + 1)
    assert event_body["metadata"] == {
        "name": event_name(POD, "node-a", AT_S),
        "namespace": "team-a",
    }
    assert event_body["regarding"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "train-0",
        "namespace": "team-a",
        "uid": "p-1",
    }
    assert event_body["series"] == {"count": 3, "lastObservedTime": "2026-01-02T03:04:06.250000Z"}


@pytest.mark.parametrize(
    ("wall_s", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000000Z"),
        (1.0, "1970-01-01T00:00:01.000000Z"),
        (1.9999999, "1970-01-01T00:00:02.000000Z"),
        (0.000001, "1970-01-01T00:00:00.000001Z"),
        (-5.0, "1970-01-01T00:00:00.000000Z"),
        (float("nan"), "1970-01-01T00:00:00.000000Z"),
        (float("inf"), "1970-01-01T00:00:00.000000Z"),
        (1e300, "1970-01-01T00:00:00.000000Z"),
    ],
)
def test_times_have_exactly_six_digits(wall_s: float, text: str) -> None:
    assert micro_time(wall_s) == text


@given(wall_s=st.floats())
def test_every_time_is_one(wall_s: float) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", micro_time(wall_s))


def test_a_clock_that_was_set_back_ends_no_series_before_its_beginning() -> None:
    assert event_series(2, 100.0, 50.0)["lastObservedTime"] == micro_time(100.0)


@given(message=st.text(max_size=3000))
def test_a_note_is_short_enough_in_bytes_and_whole_in_characters(message: str) -> None:
    text = note_text(message)
    assert len(text.encode()) <= 1024


def test_a_note_is_cut_between_two_characters() -> None:
    assert note_text("\U0001f600" * 400) == "\U0001f600" * 256
    assert note_text("x" + "\U0001f600" * 400) == "x" + "\U0001f600" * 255


@given(name=st.text(alphabet="ab0.-_/X\u00e9", max_size=300), pod=st.booleans())
def test_every_name_is_one_that_kubernetes_allows(name: str, pod: bool) -> None:
    ref = PodRef(namespace="n", name=name) if pod else None
    event = Event(type="Normal", reason="R", message="m", object_kind="Node", at_s=AT_S, pod=ref)
    event_name_text = event_name(event, name, AT_S)
    assert len(event_name_text) <= MAX_EVENT_NAME
    assert SUBDOMAIN.fullmatch(event_name_text)


def test_names_of_the_longest_nodes_still_differ() -> None:
    names = {event_name(DEVICE, "a" * 252 + end, AT_S) for end in "bc"}
    assert len(names) == 2
    assert {len(name) for name in names} == {MAX_EVENT_NAME}


def test_one_series_has_one_name_and_another_start_another() -> None:
    assert event_name(DEVICE, "node-a", AT_S) == event_name(DEVICE, "node-a", AT_S)
    assert event_name(DEVICE, "node-a", AT_S) != event_name(DEVICE, "node-a", AT_S + 1)


def test_a_long_node_is_a_shorter_instance() -> None:
    event_body = event_object(DEVICE, EventReporter(name="n" * 253), "", 1, AT_S, AT_S)
    assert event_body["reportingInstance"] == "n" * 128


def test_an_invalid_reason_is_made_valid() -> None:
    odd = Event(type="Normal", reason="chip error!", message="", object_kind="Node", at_s=AT_S)
    assert (
        event_object(odd, EventReporter(name="node-a"), "", 1, AT_S, AT_S)["reason"] == "ChipError"
    )
