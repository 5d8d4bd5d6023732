"""What an answer that is no success means."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.kube import errors
from agent.kube.errors import ApiError, StatusCause
from agent.kube.http_errors import (
    MAX_EXTRACT_CHARS,
    MAX_WAIT_S,
    error_of_response,
    retry_after_s,
    safe_extract,
)

WALL_S = 1_767_323_045.0  # Fri, 02 Jan 2026 03:04:05 GMT
STATUS = b"""{"kind":"Status","apiVersion":"v1","status":"Failure",
 "message":"Device \\"n\\" is bad",
 "reason":"Invalid","code":422,"details":{"name":"n","causes":[
 {"reason":"FieldValueInvalid","message":"must be a string","field":"spec.devices[0].id"},
 {"reason":"FieldManagerConflict","message":"conflict with \\"koordlet\\"","field":".spec"}]}}"""


def failed(status: int, body: bytes = b"", *, secret: str = "", **headers: str) -> ApiError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return error_of_response("GET /x", status, named, body, secrets=(secret,), wall_s=WALL_S)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (302, errors.BadResponse),
        (400, errors.Invalid),
        (401, errors.Unauthorized),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (405, ApiError),
        (408, errors.ServerError),
        (409, errors.Conflict),
        (410, errors.Expired),
        (413, errors.TooLarge),
        (415, errors.Invalid),
        (422, errors.Invalid),
        (429, errors.Throttled),
        (500, errors.ServerError),
        (503, errors.ServerError),
        (999, errors.ServerError),
    ],
)
def test_each_status_is_the_class_of_what_to_do(status: int, kind: type[ApiError]) -> None:
    error = failed(status)
    assert type(error) is kind
    assert error.code == status
    assert str(error).startswith(f"GET /x: {status} ")


def test_a_status_object_gives_its_words_its_reason_and_its_causes() -> None:
    error = failed(422, STATUS)
    assert str(error) == 'GET /x: 422 Device "n" is bad'
    assert error.reason == "Invalid"
    assert error.causes == (
        StatusCause("spec.devices[0].id", "must be a string", "FieldValueInvalid"),
        StatusCause(".spec", 'conflict with "koordlet"', "FieldManagerConflict"),
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "Internal Server Error"),
        (b"null", "null"),
        (b"etcdserver: request timed out\n", "etcdserver: request timed out"),
        (b"<html><head><title>502 Bad</title></head>\r\n<p>nginx</html>", "502 Bad nginx"),
        (b'{"kind":"Status","message":null,"reason":7,"details":[1]}', "Internal Server Error"),
        (b'{"kind":"Status","message":"m","details":{"causes":"no"}}', "m"),
        (b'{"kind":"Status","message":"m","details":{"causes":[1,null,{"field":3}]}}', "m"),
        (b"\xff\xfe\x00bad", "\ufffd\ufffd bad"),
    ],
)
def test_any_body_of_an_error_gives_a_message(body: bytes, words: str) -> None:
    assert str(failed(500, body)) == f"GET /x: 500 {words}"


@pytest.mark.parametrize(
    "body",
    [
        b"x" * 1_000_000,
        b'{"kind":"Status","message":"' + b"y" * 60_000 + b'"}',
        b"[" * 100_000,
        b'{"kind":"Status","details":{"causes":[' + b'{"field":"f"},' * 4000 + b'{"field":"f"}]}}',
    ],
)
def test_a_huge_body_is_cut(body: bytes) -> None:
    error = failed(500, body)
    assert len(str(error)) <= len("GET /x: 500 ") + MAX_EXTRACT_CHARS
    assert len(error.causes) <= 32


@given(st.binary(max_size=300))
@example(b'{"kind":"Status","details":{"retryAfterSeconds":1e999}}')
@example(b'{"kind":"Status","details":{"retryAfterSeconds":-1}}')
@example(b'{"kind":"Status","details":{"retryAfterSeconds":true}}')
def test_no_body_breaks_it(body: bytes) -> None:
    error = failed(503, body)
    assert isinstance(error, errors.ServerError)
    assert error.retry_after_s is None or 0 <= error.retry_after_s <= MAX_WAIT_S


@pytest.mark.parametrize(
    "body",
    [
        b"you sent s3cr3t-token, which is bad",
        b'{"kind":"Status","message":"s3cr3t-token","reason":"s3cr3t-token"}',
        b'{"kind":"Status","details":{"causes":[{"field":"s3cr3t-token","message":"x"}]}}',
        b"Authorization: Bearer other.t0ken",
        b"token eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.abc_def",
    ],
)
def test_tokens_that_the_server_repeats_are_cut_out(body: bytes) -> None:
    error = failed(401, body, secret="s3cr3t-token")
    text = f"{error} {error.reason} {error.causes}"
    assert not any(word in text for word in ("s3cr3t", "t0ken", "eyJ"))


def test_a_redirect_says_where_it_leads() -> None:
    assert "to https://elsewhere/" in str(failed(302, location="https://elsewhere/"))


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [
        ("", None),
        ("soon", None),
        ("7", 7.0),
        (" 1.5 ", 1.5),
        ("0", 0.0),
        ("-3", 0.0),
        ("999999999999999", MAX_WAIT_S),
        ("9" * 400, None),
        ("Fri, 02 Jan 2026 03:04:15 GMT", 10.0),
        ("Fri, 02 Jan 2026 03:00:00 GMT", 0.0),
        ("Fri, 02 Jan 2099 03:00:00 GMT", MAX_WAIT_S),
        ("Fri, 99 Jan 2026 03:00:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_within_bounds(text: str, wait_s: float | None) -> None:
    assert retry_after_s(text, WALL_S) == wait_s


@given(st.text(max_size=70))
def test_no_retry_after_breaks_it(text: str) -> None:
    wait_s = retry_after_s(text, WALL_S)
    assert wait_s is None or 0 <= wait_s <= MAX_WAIT_S


def test_a_date_to_wait_for_is_measured_by_the_clock_that_wrote_it() -> None:
    error = failed(
        429,
        retry_after="Fri, 02 Jan 2026 09:00:08 GMT",
        date="Fri, 02 Jan 2026 09:00:00 GMT",  # six hours ahead of ours
    )
    assert error.retry_after_s == 8.0


def test_seconds_to_wait_may_stand_in_the_status_object() -> None:
    body = b'{"kind":"Status","details":{"retryAfterSeconds":3}}'
    assert failed(429, body).retry_after_s == 3.0
    assert failed(429, body, retry_after="9").retry_after_s == 9.0
    assert failed(429).retry_after_s is None


@given(st.text(max_size=500))
def test_an_extract_is_one_short_printable_line(text: str) -> None:
    line = safe_extract(text)
    assert len(line) <= MAX_EXTRACT_CHARS
    assert line.isprintable()
