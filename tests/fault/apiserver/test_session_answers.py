"""Answers of a server that refuses, or that talks nonsense."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import pytest

from agent.kube import errors
from agent.kube.api import MAX_BODY_BYTES
from agent.kube.errors import ApiError, BadResponse, NotFound, Throttled, Unreachable
from agent.kube.http_errors import MAX_ERROR_BYTES, MAX_EXTRACT_CHARS
from tests.unit.kube_session.conftest import account, authority
from tests.unit.kube_session.servers import (
    GET,
    OK,
    Authority,
    ServedRequest,
    serving,
    session_with,
)

__all__ = ["account", "authority"]


def failed(account: Path, authority: Authority, *chunks: bytes, close: bool = True) -> ApiError:
    """Return how a call fails that is answered with these bytes; the next one must succeed."""

    async def run() -> ApiError:
        async def answer(request: ServedRequest) -> None:
            if len(server.requests) > 2:  # the library asks twice on a connection that is closed
                await request.answer(OK)
                return
            await request.answer(*chunks)
            if close:
                request.writer.close()

        async with (
            serving(answer, authority.server) as server,
            session_with(server.url, account) as session,
        ):
            with pytest.raises(ApiError) as caught:
                await session.call(GET)
            while len(server.requests) < 2:
                with pytest.raises(ApiError):
                    await session.call(GET)
            assert (await session.call(GET)).body == b"{}"
            assert session.state.in_flight == 0
            return caught.value

    return asyncio.run(run())


def head(status: int, *fields: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} X", *fields, "", ""]).encode()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (307, BadResponse),
        (400, errors.Invalid),
        (401, errors.Unauthorized),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (409, errors.Conflict),
        (410, errors.Expired),
        (413, errors.TooLarge),
        (415, errors.Invalid),
        (422, errors.Invalid),
        (429, errors.Throttled),
        (500, errors.ServerError),
        (503, errors.ServerError),
    ],
)
def test_a_refusal_is_the_error_of_its_status(
    account: Path, authority: Authority, status: int, kind: type[ApiError]
) -> None:
    body = b'{"kind":"Status","message":"because","reason":"Why"}'
    error = failed(account, authority, head(status, f"Content-Length: {len(body)}") + body)
    assert type(error) is kind
    assert error.code == status
    assert str(error).startswith("GET /api/v1/nodes/n: ")


@pytest.mark.parametrize("status", [429, 503])
def test_a_wait_that_the_server_requests_is_respected(
    account: Path, authority: Authority, status: int
) -> None:
    error = failed(account, authority, head(status, "Retry-After: 17", "Content-Length: 0"))
    assert error.retry_after_s == 17.0


def test_a_redirect_is_not_followed(account: Path, authority: Authority) -> None:
    error = failed(
        account, authority, head(302, "Location: https://evil.test/", "Content-Length: 0")
    )
    assert isinstance(error, BadResponse)
    assert "https://evil.test/" in str(error)


def test_a_page_of_some_proxy_is_cut_to_its_words(account: Path, authority: Authority) -> None:
    page = b"<html><h1>502 Bad Gateway</h1>" + b"<p>words</p>" * 1000
    error = failed(account, authority, head(502, f"Content-Length: {len(page)}") + page)
    assert "502 Bad Gateway" in str(error)
    assert "<" not in str(error)
    assert len(str(error)) < MAX_EXTRACT_CHARS + 60


def test_a_refusal_with_an_endless_body_is_still_that_refusal(
    account: Path, authority: Authority
) -> None:
    endless = b"x" * (2 * MAX_ERROR_BYTES)
    error = failed(account, authority, head(404, "Connection: close") + endless)
    assert isinstance(error, NotFound)


def test_a_refusal_whose_body_breaks_off_is_still_that_refusal(
    account: Path, authority: Authority
) -> None:
    error = failed(
        account, authority, head(429, "Content-Length: 90", "Retry-After: 3") + b'{"kind":"St'
    )
    assert isinstance(error, Throttled)
    assert error.retry_after_s == 3.0


def test_the_token_is_not_in_the_error_of_a_server_that_repeats_it(
    account: Path, authority: Authority
) -> None:
    body = b"bad header: Authorization: Bearer token-1; token=token-1"
    error = failed(account, authority, head(400, f"Content-Length: {len(body)}") + body)
    assert "token-1" not in str(error)
    assert "bad header" in str(error)


def test_an_answer_over_the_limit_is_refused_before_it_is_read(
    account: Path, authority: Authority
) -> None:
    error = failed(account, authority, head(200, f"Content-Length: {MAX_BODY_BYTES + 1}") + b"{")
    assert isinstance(error, BadResponse)
    assert str(MAX_BODY_BYTES) in str(error)


def test_an_answer_that_does_not_say_how_long_it_is_is_cut_at_the_limit(
    account: Path, authority: Authority
) -> None:
    part = b"x" * (1 << 20)
    chunk = b"%x\r\n%s\r\n" % (len(part), part)
    error = failed(account, authority, head(200, "Transfer-Encoding: chunked"), *[chunk] * 17)
    assert isinstance(error, BadResponse)


def test_a_compressed_answer_that_was_not_requested_is_not_unpacked(
    account: Path, authority: Authority
) -> None:
    bomb = gzip.compress(b"\0" * (8 << 20))
    fields = ("Content-Encoding: gzip", f"Content-Length: {len(bomb)}")
    error = failed(account, authority, head(200, *fields) + bomb)
    assert isinstance(error, BadResponse)
    assert "compressed" in str(error)


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: minus\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"y" * 100_000 + b"\r\n\r\n",
        head(200, "Transfer-Encoding: chunked") + b"zz\r\n{}\r\n0\r\n\r\n",
    ],
)
def test_what_is_no_http_is_a_bad_answer_or_a_broken_one(
    account: Path, authority: Authority, garbage: bytes
) -> None:
    error = failed(account, authority, garbage)
    assert isinstance(error, BadResponse | Unreachable)
    assert len(str(error)) < 300


@pytest.mark.parametrize(
    "chunks",
    [
        [head(200, "Content-Length: 100") + b'{"kind":'],
        [head(200, "Transfer-Encoding: chunked") + b'8\r\n{"kind":\r\n'],
        [head(200, "Transfer-Encoding: chunked") + b'80\r\n{"kind":'],
        [b"HTTP/1.1 200 OK\r\nContent-Le"],
        [b""],
    ],
)
def test_an_answer_that_breaks_off_is_no_answer(
    account: Path, authority: Authority, chunks: list[bytes]
) -> None:
    assert isinstance(failed(account, authority, *chunks), Unreachable)
