"""Events: the rules of events.k8s.io/v1, and the older view of the same objects."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.apiserver.client import TIME, Client, event

Object = dict[str, Any]
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
CORE = "/api/v1/namespaces/default/events"


def test_an_event_is_taken_and_shown_in_the_older_form_too(client: Client) -> None:
    assert client.call("POST", EVENTS, event())[0] == 201
    old = client.get(f"{CORE}/node-a.1")[1]
    assert old["apiVersion"] == "v1"
    assert old["involvedObject"] == event()["regarding"]
    assert old["message"] == event()["note"]
    assert old["reportingComponent"] == event()["reportingController"]
    query = {"fieldSelector": "involvedObject.name=node-a"}
    assert len(client.get(CORE, **query)[1]["items"]) == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"eventTime": None}, "eventTime"),
        ({"reportingController": None}, "reportingController"),
        ({"reportingController": "a b"}, "reportingController"),
        ({"reportingInstance": None}, "reportingInstance"),
        ({"reportingInstance": "i" * 129}, "reportingInstance"),
        ({"action": None}, "action"),
        ({"action": "a" * 129}, "action"),
        ({"reason": None}, "reason"),
        ({"reason": "r" * 129}, "reason"),
        ({"note": "n" * 1025}, "message"),
        ({"note": "ü" * 513}, "message"),
        ({"type": "Odd"}, "type"),
        ({"series": {"count": 1, "lastObservedTime": TIME}}, "series.count"),
        ({"deprecatedCount": 1}, "count"),
        (
            {"metadata": {"name": "e", "namespace": "xpu-agent"}},
            "involvedObject.namespace",
        ),
    ],
)
def test_a_new_event_must_keep_the_rules(client: Client, fields: Object, field: str) -> None:
    body = event(**fields)
    path = EVENTS.replace("default", body["metadata"]["namespace"])
    status, refusal = client.call("POST", path, body)
    assert status == 422
    assert field in [cause["field"] for cause in refusal["details"]["causes"]]


@pytest.mark.parametrize(
    "time",
    ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.000Z", "2026-01-02 03:04:05.000000Z", 5],
)
def test_a_time_of_an_event_has_six_digits(client: Client, time: object) -> None:
    status, body = client.call("POST", EVENTS, event(eventTime=time))
    assert (status, body["reason"]) == (400, "BadRequest")
    assert "2006-01-02T15:04:05.000000Z07:00" in body["message"]


def test_only_the_series_of_an_event_may_change(client: Client) -> None:
    client.call("POST", EVENTS, event())
    path = f"{EVENTS}/node-a.1"
    series = {"count": 2, "lastObservedTime": TIME}
    assert client.merge(path, {"series": series})[1]["series"] == series
    assert client.merge(path, {"series": {"count": 9}})[1]["series"]["count"] == 9
    for change in ({"note": "x"}, {"reason": "x"}, {"eventTime": "2027-01-02T03:04:05.000006Z"}):
        status, body = client.merge(path, change)
        assert status == 422
        assert "field is immutable" in body["message"]


def test_the_older_form_has_the_older_rules(client: Client) -> None:
    body = {
        "metadata": {"name": "old", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "message": "x" * 2000,
        "firstTimestamp": "2026-01-02T03:04:05Z",
        "count": 1,
    }
    assert client.call("POST", CORE, body)[0] == 201
    assert client.merge(f"{CORE}/old", {"count": 2})[1]["count"] == 2
    assert client.get(f"{EVENTS}/old")[1]["deprecatedCount"] == 2
    body["metadata"] = {"name": "other", "namespace": "default"}
    body["involvedObject"] = {"kind": "Pod", "name": "p", "namespace": "kube-system"}
    assert client.call("POST", CORE, body)[0] == 422
