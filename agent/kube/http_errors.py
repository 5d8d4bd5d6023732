"""Turns HTTP statuses and errors of the HTTP library into `ApiError`s.

The edge to the HTTP library: its errors become ours, once, here.
"""

from __future__ import annotations

import contextlib
import http
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import msgspec

from agent.kube.endpoint import HttpProxy
from agent.kube.errors import (
    ApiError,
    BadResponse,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    ServerError,
    StatusCause,
    Throttled,
    TooLarge,
    Unauthorized,
    Unreachable,
)

if TYPE_CHECKING:
    import aiohttp

MAX_EXTRACT_CHARS = 200  # characters of the server's words in a message

MAX_CAUSES = 32

MAX_ERROR_BYTES = 64 << 10  # of the body of a failure; a Status is some hundred

MAX_WAIT_S = 300.0  # a server that asks for more is asked again sooner

_CLASSES: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    408: ServerError,
    409: Conflict,
    410: Expired,
    413: TooLarge,
    415: Invalid,
    422: Invalid,
    429: Throttled,
}

_TAG = re.compile(r"<[^>]{0,500}>")

_TOKEN = re.compile(r"(?i)\b(?:bearer|basic)\s+\S+|\beyJ[\w-]+(?:\.[\w-]*){1,2}")

_SECONDS = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,9})?")


def error_of_response(
    what: str,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    secrets: Iterable[str] = (),
    wall_s: float,
) -> ApiError:
    """Return the error that an answer means; never raise, whatever its body holds.

    Header names are in lower case. `secrets` are cut out of what the server says, should it
    repeat what we sent.
    """
    said = _status(body)
    words = _text(said.get("message")) if said else body.decode("utf-8", "replace")
    phrase = safe_extract(words, secrets) or _phrase(status)
    if 300 <= status < 400:
        where = safe_extract(headers.get("location", "nowhere"), secrets)
        return BadResponse(what, f"redirects are not followed: to {where}", code=status)
    details = _object(said.get("details"))
    wait_s = retry_after_s(headers.get("retry-after", ""), _date_s(headers, wall_s))
    if wait_s is None:
        wait_s = _bounded_s(details.get("retryAfterSeconds"))
    kind = _CLASSES.get(status, ServerError if status >= 500 else ApiError)
    return kind(
        what,
        phrase,
        code=status,
        reason=safe_extract(_text(said.get("reason")), secrets),
        retry_after_s=wait_s,
        causes=_causes(details, secrets),
    )


def safe_extract(text: str, secrets: Iterable[str] = ()) -> str:
    """Return foreign text as one short printable line, without tokens and HTML tags."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "…")
    text = _TOKEN.sub("…", _TAG.sub(" ", text))
    printable = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(printable.split())[:MAX_EXTRACT_CHARS]


def retry_after_s(text: str, now_s: float) -> float | None:
    """Return the wait that `Retry-After` asks for: seconds, or a date; `None` when it is neither.

    `now_s` is the wall clock of whoever wrote the date. Never below 0 nor above `MAX_WAIT_S`.
    """
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return _bounded_s(float(text))
    at_s = http_date_s(text)
    return None if at_s is None else _bounded_s(at_s - now_s)


def http_date_s(text: str) -> float | None:
    """Return an HTTP date as Unix seconds; `None` when it is none."""
    if not text or len(text) > 64:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _status(body: bytes) -> Mapping[object, object]:
    """Return a Status as far as it is one; empty when it is anything else."""
    if len(body) > MAX_ERROR_BYTES:
        return {}
    try:
        said = _object(msgspec.json.decode(body))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    return said if said.get("kind") == "Status" else {}


def _causes(details: Mapping[object, object], secrets: Iterable[str]) -> tuple[StatusCause, ...]:
    entries = details.get("causes")
    if not isinstance(entries, list):
        return ()
    secrets = tuple(secrets)
    return tuple(
        StatusCause(
            safe_extract(_text(entry.get("field")), secrets),
            safe_extract(_text(entry.get("message")), secrets),
            safe_extract(_text(entry.get("reason")), secrets),
        )
        for entry in map(_object, entries[:MAX_CAUSES])
        if entry
    )


def _object(value: object) -> Mapping[object, object]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _bounded_s(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(min(max(value, 0), MAX_WAIT_S))


def _date_s(headers: Mapping[str, str], wall_s: float) -> float:
    date_s = http_date_s(headers.get("date", ""))
    return wall_s if date_s is None else date_s


def _phrase(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "a status that HTTP does not know"


class RequestRoute(msgspec.Struct, frozen=True, kw_only=True):
    """How a request went, for messages."""

    server: str
    proxy: HttpProxy | None
    authority: str  # who must have signed the server's certificate

    def __str__(self) -> str:
        """Say where it went."""
        return f"{self.server} through {self.proxy}" if self.proxy else self.server


@contextlib.contextmanager
def translate_errors(what: str, way: RequestRoute, *, begun: bool = False) -> Iterator[None]:
    """Raise our error for one of the library's; `what` was done.

    `begun`: the head of an answer has come, so that what is wrong now is wrong with its body.
    """
    # imported here: 180 ms that only a session needs, and what is done here needs it anyway
    import aiohttp  # noqa: PLC0415 - aiohttp

    try:
        yield
    except (aiohttp.ClientResponseError, aiohttp.ClientPayloadError) as error:
        if begun:
            raise Unreachable(what, f"the answer of {way} broke off") from error
        raise translate_error(what, error, way) from error
    except (aiohttp.ClientError, OSError) as error:
        raise translate_error(what, error, way) from error
    except ValueError as error:  # a label of 64 characters, or of none
        raise Unreachable(what, f"{way}: no name that could be asked for") from error


def is_closed_connection(error: ApiError) -> bool:
    """Say whether the connection was gone when the request was sent, or before any answer."""
    import aiohttp  # noqa: PLC0415 - aiohttp

    cause = error.__cause__
    return isinstance(
        cause, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError
    ) and not isinstance(cause, aiohttp.ClientConnectorError)


def is_untrusted_certificate(error: ApiError) -> bool:
    """Say whether the server's certificate was not believed."""
    return getattr(error.__cause__, "certificate_error", None) is not None


def translate_error(what: str, error: Exception, way: RequestRoute) -> ApiError:
    """Return our error for one of the library's."""
    import aiohttp  # noqa: PLC0415 - aiohttp

    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientConnectorCertificateError):
        return Unreachable(what, _connect_error_text(error, way))
    match error:
        case aiohttp.ClientHttpProxyError():
            return Unreachable(what, f"the proxy {way.proxy} refused with {error.status}")
        case aiohttp.ServerDisconnectedError():
            return Unreachable(what, f"{way} closed the connection without an answer")
        case aiohttp.ClientResponseError():
            said = safe_extract(error.message)[:80]
            return BadResponse(what, f"{way} does not speak HTTP: {said}")
        case TimeoutError():
            return Unreachable(what, f"{way}: no connection in time")
        case OSError():
            return Unreachable(what, f"{way}: {_os_error_text(error)}")
    return Unreachable(what, f"{way}: {type(error).__name__}")


def _connect_error_text(
    error: aiohttp.ClientConnectorError | aiohttp.ClientConnectorCertificateError, way: RequestRoute
) -> str:
    import aiohttp  # noqa: PLC0415 - aiohttp

    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"{way} is not believed: {_certificate_error_text(error, way.authority)}"
        case aiohttp.ClientConnectorDNSError():
            return f"{error.host}: no such name ({_os_error_text(error.os_error)})"
        case aiohttp.ClientProxyConnectionError():
            return f"the proxy {way.proxy}: {_os_error_text(error.os_error)}"
        case aiohttp.ClientConnectorSSLError():
            return f"{way}: no TLS: {_tls_error_text(error.os_error)}"
    return f"{way}: {_os_error_text(error.os_error)}"


def _certificate_error_text(error: Exception, whose: str) -> str:
    cause = getattr(error, "certificate_error", None)
    words = getattr(cause, "verify_message", "") or str(cause)
    if "ostname mismatch" in words or "IP address mismatch" in words:
        return f"its certificate is for another name: {safe_extract(words)}"
    if "expired" in words or "not yet valid" in words:
        return f"{words}; if that cannot be, look at this node's clock"
    return f"its certificate is not signed by {whose}: {safe_extract(words)}"


def _tls_error_text(error: OSError) -> str:
    return safe_extract(str(getattr(error, "reason", "") or error))[:80]


def _os_error_text(error: OSError) -> str:
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return safe_extract(error.strerror or type(error).__name__)[:80]
