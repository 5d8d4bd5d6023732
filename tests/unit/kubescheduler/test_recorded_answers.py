"""The strict kube-scheduler beside what the real one did with the same answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.kubescheduler import (
    BadSchedulerConfig,
    ExtenderConfig,
    ExtenderFailed,
    HttpExtender,
    read_extenders,
)

RECORDED = Path(__file__).parents[4] / "shared" / "oracle" / "kube-scheduler-extender.json"
Object = dict[str, Any]

pytestmark = pytest.mark.skipif(
    not RECORDED.exists(), reason=f"no recorded calls: {RECORDED.name} is not here"
)
# redirects and gzip, which the strict caller does not know; a list of nodes that was cut; a pod
# that was deleted meanwhile
NOT_COMPARED = {
    "filter-302",
    "filter-307",
    "filter-gzip",
    "all-nodes-nodes",
    "filter-nodes-items-null",
}
LATE_MS = 900  # longer answers are of scenarios with a time-out


def recorded() -> Object:
    return json.loads(RECORDED.read_text())  # type: ignore[no-any-return]  # JSON


def scenarios(verb: str) -> list[Object]:
    """Return those whose first call of a verb was answered, with one extender in its config."""
    if not RECORDED.exists():
        return []
    return [
        one
        for one in recorded()["scenarios"]
        if one["config"] in ("cache", "cache2", "preempt", "nodes")
        and one["name"].startswith(f"{verb}-")
        and one["name"] not in NOT_COMPARED
        and (call := _answered(one, verb)) is not None
        and call["took_ms"] < LATE_MS
    ]


def _answered(scenario: Object, verb: str) -> Object | None:
    for call in scenario["calls"]:
        if call["verb"] == verb:
            is_whole = isinstance(call["request"]["body"], dict)
            has_answer = isinstance(call.get("answer"), dict) and "status" in call["answer"]
            return call if is_whole and has_answer else None
    return None


@contextmanager
def server(answer: Object) -> Iterator[tuple[str, list[Any]]]:
    """Serve one recorded answer; yield the URL and the requests."""
    requests: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.requestline, dict(self.headers), json.loads(body)))
            sent = answer.get("body")
            if isinstance(sent, dict) and set(sent) == {"raw"}:
                data = sent["raw"].encode()
            else:
                data = b"" if sent is None and "body" not in answer else json.dumps(sent).encode()
            self.send_response(answer["status"])
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    one = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=one.serve_forever, args=(0.005,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{one.server_port}/scheduler", requests
    finally:
        one.shutdown()
        one.server_close()


def extender(url: str, *, is_capable: bool = True) -> HttpExtender:
    return HttpExtender(
        ExtenderConfig(
            url_prefix=url,
            filter_verb="filter",
            prioritize_verb="prioritize",
            preempt_verb="preempt",
            bind_verb="bind",
            weight=1,
            http_timeout="30s",
            node_cache_capable=is_capable,
        )
    )


def first_note(scenario: Object, url: str) -> str:
    """Return the first event's text, with our server's address; empty: the pod was scheduled."""
    for event in scenario["result"]["events"]:
        if event["reason"] == "FailedScheduling":
            return str(event["note"]).replace("http://EXTENDER/scheduler", url)
        return ""
    return ""


@pytest.mark.parametrize("scenario", scenarios("filter"), ids=lambda one: one["name"])
def test_an_answer_to_filter_has_the_recorded_effect(scenario: Object) -> None:
    call = _answered(scenario, "filter")
    assert call is not None
    body = call["request"]["body"]
    listed = body["NodeNames"] or [one["metadata"]["name"] for one in body["Nodes"]["items"]]
    nodes = {name: {"metadata": {"name": name}} for name in listed}
    with server(call["answer"]) as (url, _):
        note = first_note(scenario, url)
        one = extender(url, is_capable=body["NodeNames"] is not None)
        try:
            outcome = one.filter(body["Pod"], nodes)
        except ExtenderFailed as error:
            message = str(error)
        else:
            message = ""
    if message:
        assert message.split("'")[0] == note.split("'")[0]
    elif outcome.kept:
        assert note == ""
    else:
        assert "nodes are available" in note
        if "none" in scenario["name"]:
            reasons = {**outcome.failed, **outcome.unresolvable}
            assert all(reason in note for reason in reasons.values())


@pytest.mark.parametrize("scenario", scenarios("bind"), ids=lambda one: one["name"])
def test_an_answer_to_bind_has_the_recorded_effect(scenario: Object) -> None:
    call = _answered(scenario, "bind")
    assert call is not None
    pod = {"metadata": {"name": scenario["name"], "namespace": "default", "uid": "u"}}
    with server(call["answer"]) as (url, requests):
        note = first_note(scenario, url)
        message = ""
        try:
            extender(url).bind(pod, call["request"]["body"]["Node"])
        except ExtenderFailed as error:
            message = str(error)
        assert message.split("'")[0] == note.split("'")[0]
        assert set(requests[0][2]) == set(call["request"]["body"])


@pytest.mark.parametrize("scenario", scenarios("preempt"), ids=lambda one: one["name"])
def test_an_answer_to_preempt_has_the_recorded_effect(scenario: Object) -> None:
    call = _answered(scenario, "preempt")
    assert call is not None
    offered = call["request"]["body"]["NodeNameToMetaVictims"]
    if offered is None:
        whole = call["request"]["body"]["NodeNameToVictims"]
        offered = {
            node: {"Pods": [{"UID": one["metadata"]["uid"]} for one in of_node["Pods"]]}
            for node, of_node in whole.items()
        }
    victims = {
        node: [{"metadata": {"uid": pod["UID"]}} for pod in one["Pods"]]
        for node, one in offered.items()
    }
    pod = {"metadata": {"name": "p", "namespace": "default", "uid": "u"}}
    with server(call["answer"]) as (url, requests):
        note = first_note(scenario, url)
        remaining: object = None
        message = "no candidate node for preemption"
        try:
            remaining = extender(url).preempt(pod, victims)
        except ExtenderFailed as error:
            message = str(error)
        assert bool(remaining) is not note.endswith(f"preemption: {message}")
        sent = requests[0][2]["NodeNameToMetaVictims"]
        assert {node: one["Pods"] for node, one in sent.items()} == {
            node: one["Pods"] for node, one in offered.items()
        }


@pytest.mark.parametrize("mode", ["nodeCacheCapable true", "nodeCacheCapable false"])
def test_what_is_sent_is_what_the_real_one_sends(mode: str) -> None:
    whole = recorded()["whole_requests"][mode]
    for verb in ("filter", "prioritize"):
        request = whole[verb]
        body = request["body"]
        items = (body["Nodes"] or {}).get("items", [])
        nodes = {name: {"metadata": {"name": name}} for name in body["NodeNames"] or ()}
        nodes |= {item["metadata"]["name"]: item for item in items}
        with server({"status": 200, "body": {} if verb == "filter" else []}) as (url, requests):
            one = extender(url, is_capable=not items)
            pod = {"kind": "Pod", "apiVersion": "v1", **body["Pod"]}
            getattr(one, verb)(pod, nodes)
        line, headers, sent = requests[0]
        assert (line, sent) == (request["line"], body)
        assert list(sent) == list(body)
        varies = {"Host", "Content-Length"}
        assert {name: text for name, text in headers.items() if name not in varies} == {
            name: text for name, text in request["headers"].items() if name not in varies
        }


@pytest.mark.parametrize(
    ("answer", "scores"),
    [
        ([{"Host": "a", "Score": 1}, {"host": "a", "score": 2}], {"a": 30}),
        ([{"Host": "a", "Score": 1000}, {"Host": "b", "Score": -10}], {"a": 10000, "b": -100}),
        (None, None),
        ({"a": 1}, None),
        ([{"Host": "a", "Score": 1.5}], None),
        ([{"Host": "a", "Score": "1"}], None),
    ],
)
def test_priorities_are_summed_and_dropped_when_malformed(
    answer: object, scores: dict[str, int] | None
) -> None:
    pod = {"metadata": {"name": "p"}}
    with server({"status": 200, "body": answer}) as (url, _):
        read = extender(url).prioritize(pod, {"a": {}, "b": {}})
    assert (read or None) == scores
    with server({"status": 500, "body": []}) as (url, _):
        assert extender(url).prioritize(pod, {"a": {}}) is None


def test_configurations_are_refused_as_the_real_one_refuses_them() -> None:
    checked = 0
    for scenario in recorded()["scenarios"]:
        name = scenario["name"]
        if not name.startswith("config-") or name == "config-no-url":
            continue
        config = scenario["config"]
        listed = recorded()["configs"].get(config) if isinstance(config, str) else config
        with pytest.raises(BadSchedulerConfig):
            read_extenders(json.dumps({"extenders": listed}))
        checked += 1
    assert checked > 5
