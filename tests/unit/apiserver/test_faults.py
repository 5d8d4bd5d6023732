"""The server misbehaving on command: each way once, and only where it is told to."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import threading
import time
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import pytest

from tests.apiserver import ApiServer, Fault
from tests.unit.apiserver.client import DEVICES, PODS, Client, device

RESET = (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError)  # as TLS tells it, by chance


def test_a_status_in_its_own_words_so_many_times(api: ApiServer, client: Client) -> None:
    fault = api.faults.add(Fault(resource="devices", status=429, retry_after_s=3, skip=1, times=2))
    assert [client.get(DEVICES)[0] for _ in range(4)] == [200, 429, 429, 200]
    assert client.get(PODS)[0] == 200
    assert api.faults.hits(fault) == 2
    api.faults.add(Fault(status=503, retry_after_s=7))
    with client.open("GET", DEVICES) as answer:
        assert answer.headers["Retry-After"] == "7"
        body = json.loads(answer.read())
    assert (body["reason"], body["details"]) == ("ServiceUnavailable", {"retryAfterSeconds": 7})
    assert api.requests()[-1].faults == ("503",)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(method="GET", times=0, status=500),
        Fault(path="^/apis/scheduling", times=0, status=500),
        Fault(verb="list|watch", times=0, status=500),
        Fault(user_agent="plain", times=0, status=500),
        Fault(resource="devices", subresource="", times=0, status=500),
    ],
)
def test_a_fault_strikes_what_it_names_until_it_is_removed(
    api: ApiServer, client: Client, fault: Fault
) -> None:
    api.faults.add(fault)
    assert client.get(DEVICES)[0] == 500
    api.faults.remove(fault)
    assert client.get(DEVICES)[0] == 200


def test_chance_is_the_same_every_time(api: ApiServer, client: Client) -> None:
    def struck() -> list[int]:
        fault = api.faults.add(Fault(status=500, probability=0.5, seed=3, times=0))
        statuses = [client.get(DEVICES)[0] for _ in range(12)]
        api.faults.remove(fault)
        return statuses

    first = struck()
    assert first == struck()
    assert set(first) == {200, 500}


def test_causes_and_wrong_content(api: ApiServer, client: Client) -> None:
    cause = {"reason": "FieldValueInvalid", "message": "bad", "field": "spec.x"}
    api.faults.add(Fault(status=422, message="no", causes=(cause,)))
    assert client.get(DEVICES)[1]["details"]["causes"] == [cause]
    api.faults.add(Fault(status=502, html=True))
    with client.open("GET", DEVICES) as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (502, "text/html")
    api.faults.add(Fault(raw='{"items": null}'))
    assert client.get(DEVICES) == (200, {"items": None})


def test_an_answer_may_be_edited(api: ApiServer, client: Client) -> None:
    api.put(device())

    def lose_metadata(body: Any) -> Any:
        return {**body, "metadata": None}

    api.faults.add(Fault(verb="list", edit=lose_metadata))
    assert client.get(DEVICES)[1]["metadata"] is None
    api.faults.add(Fault(verb="watch", edit=lambda event: {**event, "type": "ODD"}))
    watch = client.watch(DEVICES)
    assert (watch.next() or {})["type"] == "ODD"
    watch.close()


def test_resets_before_and_after_the_work_is_done(api: ApiServer, client: Client) -> None:
    api.faults.add(Fault(verb="create", reset=True))
    with pytest.raises(RESET):
        client.call("POST", DEVICES, device())
    assert api.get("devices", "node-a") is None
    api.faults.add(Fault(verb="create", lose_answer=True))
    with pytest.raises(RESET):
        client.call("POST", DEVICES, device())
    assert api.get("devices", "node-a") is not None


@pytest.mark.parametrize(
    ("by_reset", "error"),
    [(False, http.client.IncompleteRead), (True, ConnectionResetError)],
)
def test_a_body_may_end_in_the_middle(
    api: ApiServer, client: Client, by_reset: bool, error: type[Exception]
) -> None:
    api.put(device())
    api.faults.add(Fault(cut_after_bytes=100, cut_by_reset=by_reset))
    with pytest.raises((error, http.client.IncompleteRead)):
        client.get(DEVICES)


def test_headers_warnings_and_a_skewed_clock(api: ApiServer, client: Client) -> None:
    api.faults.add(Fault(date_skew_s=-7200, warning="old API", headers={"X-A": "b"}))
    with client.open("GET", DEVICES) as answer:
        skew_s = time.time() - parsedate_to_datetime(answer.headers["Date"]).timestamp()
        assert abs(skew_s - 7200) < 60
        assert answer.headers["Warning"] == '299 - "old API"'
        assert answer.headers["X-A"] == "b"


def test_a_request_may_hang_until_the_client_leaves(api: ApiServer, client: Client) -> None:
    api.faults.add(Fault(hang=True))
    failures: list[BaseException] = []

    def request() -> None:
        try:
            client.get(DEVICES)
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=request)
    thread.start()
    api.wait_until(api.requests)
    assert thread.is_alive()
    api.stop()
    thread.join(10)
    assert failures


def test_slow_bytes_arrive_whole(api: ApiServer, client: Client) -> None:
    api.put(device())
    expected = client.get(DEVICES)
    api.faults.add(Fault(bytes_per_s=5000, delay_s=0.01, after_s=0.01))
    assert client.get(DEVICES) == expected


def opened(client: Client, api: ApiServer, fault: Fault) -> Any:
    api.put(device())
    api.faults.add(fault)
    return client.watch(DEVICES)


def test_a_stream_that_ends_early(api: ApiServer, client: Client) -> None:
    watch = opened(client, api, Fault(verb="watch", after_lines=1, stream="close"))
    assert watch.types(1) == [("ADDED", "node-a")]
    assert watch.next() is None


def test_a_stream_that_is_gone(api: ApiServer, client: Client) -> None:
    watch = opened(client, api, Fault(verb="watch", after_lines=1, stream="gone"))
    assert watch.types(1) == [("ADDED", "node-a")]
    assert (watch.next() or {})["object"]["code"] == 410
    assert watch.next() is None


@pytest.mark.parametrize("stream", ["html", "truncate", "garbage"])
def test_a_line_that_is_none(api: ApiServer, client: Client, stream: str) -> None:
    watch = opened(client, api, Fault(verb="watch", after_lines=1, stream=stream))
    assert watch.types(1) == [("ADDED", "node-a")]
    with pytest.raises(json.JSONDecodeError):
        watch.next()
    watch.close()


@pytest.mark.parametrize("stream", ["reset", "truncate-reset"])
def test_a_stream_that_is_reset(api: ApiServer, stream: str) -> None:
    async def lines() -> list[bytes]:
        context = ssl.create_default_context(cafile=str(api.ca_file))
        headers = {"Authorization": f"Bearer {api.token_file.read_text()}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"{api.url}{DEVICES}?watch=true", ssl=context) as answer,
        ):
            return [line async for line in answer.content]

    api.put(device())
    api.faults.add(Fault(verb="watch", after_lines=1, stream=stream))
    with pytest.raises(aiohttp.ClientError):
        asyncio.run(lines())


def test_a_stream_of_doubles_and_one_out_of_order(api: ApiServer, client: Client) -> None:
    watch = opened(client, api, Fault(verb="watch", stream="duplicate"))
    assert watch.types(2) == [("ADDED", "node-a")] * 2
    watch.close()
    api.put(device("node-b"))
    watch = opened(client, api, Fault(verb="watch", stream="reorder"))
    assert watch.types(2) == [("ADDED", "node-b"), ("ADDED", "node-a")]
    watch.close()


def test_a_stream_that_falls_silent(api: ApiServer, client: Client) -> None:
    watch = opened(client, api, Fault(verb="watch", after_lines=1, stream="silence"))
    assert watch.types(1) == [("ADDED", "node-a")]
    api.put(device(count=2))
    api.stop()
    assert watch.next() is None
