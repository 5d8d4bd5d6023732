from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kube import errors
from agent.kube.errors import ApiError, BadResponse
from agent.kube.watch.decoder import WatchDecoder, classify_failure
from agent.kube.watch.machine import WatchFailureReason, is_older_version
from agent.wire_formats.pod import PodObject

READER = WatchDecoder("GET /api/v1/pods", PodObject)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_but_a_bad_answer(data: bytes) -> None:
    for take in (READER.decode_page, READER.decode_line):
        with pytest.raises(BadResponse):
            take(data)


@given(st.lists(json_values, max_size=4))
def test_no_object_of_a_list_makes_it_useless(items: list[object]) -> None:
    good = {"metadata": {"name": "a", "namespace": "d", "uid": "u", "resourceVersion": "3"}}
    body = {"metadata": {"resourceVersion": "7"}, "items": [*items, good]}
    page = READER.decode_page(json.dumps(body).encode())
    assert page.objects[-1].key == "d/a"
    assert len(page.objects) + len(page.unreadable) == len(items) + 1


@given(st.sampled_from(["ADDED", "DELETED", "BOOKMARK", "ERROR", "?"]), json_values)
def test_no_object_of_an_event_makes_it_raise(kind: str, body: object) -> None:
    line = READER.decode_line(json.dumps({"type": kind, "object": body}).encode())
    assert (line.failure is not None) == (kind == "ERROR")


@pytest.mark.parametrize("nest", ["[" * 100_000, '{"a":' * 100_000])
def test_deep_nests_cost_themselves_only(nest: str) -> None:
    with pytest.raises(BadResponse):
        READER.decode_page(f'{{"metadata":{{"resourceVersion":"7"}},"items":{nest}'.encode())
    with pytest.raises(BadResponse):
        READER.decode_line(f'{{"type":"ADDED","object":{nest}'.encode())


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (errors.Unreachable("GET", "no"), WatchFailureReason.UNREACHABLE),
        (errors.Unauthorized("GET", "no", code=401), WatchFailureReason.UNAVAILABLE),
        (errors.Forbidden("GET", "no", code=403), WatchFailureReason.FORBIDDEN),
        (errors.NotFound("GET", "no", code=404), WatchFailureReason.ABSENT),
        (errors.Expired("GET", "no", code=410), WatchFailureReason.EXPIRED),
        (ApiError("GET", "no", code=400, reason="Expired"), WatchFailureReason.EXPIRED),
        (errors.Invalid("GET", "no", code=400), WatchFailureReason.REFUSED),
        (errors.Invalid("GET", "no", code=422), WatchFailureReason.REFUSED),
        (errors.TooLarge("GET", "no", code=413), WatchFailureReason.ANSWERED),
        (errors.Throttled("GET", "no", code=429), WatchFailureReason.UNAVAILABLE),
        (errors.ServerError("GET", "no", code=500), WatchFailureReason.ANSWERED),
        (errors.ServerError("GET", "no", code=502), WatchFailureReason.UNAVAILABLE),
        (errors.ServerError("GET", "no", code=503), WatchFailureReason.UNAVAILABLE),
        (errors.ServerError("GET", "no", code=504), WatchFailureReason.ANSWERED),
        (errors.BadResponse("GET", "no"), WatchFailureReason.ANSWERED),
        (errors.BadResponse("GET", "no", code=302), WatchFailureReason.ANSWERED),
    ],
)
def test_each_error_has_one_reaction(error: ApiError, why: WatchFailureReason) -> None:
    assert classify_failure(error).reason is why


@pytest.mark.parametrize("requested_s", [-5, 0, 7, 10**9])
def test_an_error_in_a_stream_is_waited_for_within_bounds(requested_s: int) -> None:
    status = {"code": 429, "details": {"retryAfterSeconds": requested_s}}
    failure = READER.decode_line(json.dumps({"type": "ERROR", "object": status}).encode()).failure
    assert failure is not None
    assert 0 <= (failure.retry_after_s or 0) <= 300


@pytest.mark.parametrize(
    ("version", "than", "is_older"),
    [
        ("9", "10", True),
        ("10", "10", False),
        ("11", "10", False),
        ("v9", "v10", False),
        ("", "10", False),
        ("٩", "10", False),
        ("9" * 30, "1" + "0" * 30, True),
    ],
)
def test_only_decimal_versions_have_an_order(version: str, than: str, is_older: bool) -> None:
    assert is_older_version(version, than) is is_older


def test_a_list_with_an_empty_version_is_none() -> None:
    with pytest.raises(BadResponse, match="without resourceVersion"):
        READER.decode_page(b'{"metadata":{"resourceVersion":""},"items":[]}')
