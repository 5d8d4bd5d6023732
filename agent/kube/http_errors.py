"""Turns HTTP statuses and errors of the HTTP library into `ApiError`s."""

from __future__ import annotations

import contextlib
import http
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from email.utils import parsedate_to_datetime

import aiohttp
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

MAX_EXTRACT_CHARS = 200  # characters of the server's text in a message
MAX_CAUSES = 32
MAX_ERROR_BYTES = 64 << 10  # of an error's body; a Status has some hundred
MAX_WAIT_S = 300.0  # upper bound of the server's requested wait

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
    description: str,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    secrets: Iterable[str] = (),
    wall_s: float,
) -> ApiError:
    """Return the error for a response; never raise, whatever its body contains.

    Header names are in lower case. `secrets` are removed from the server's text, in case it repeats
    what was sent.
    """
    status_object = _status(body)
    message = (
        _text(status_object.get("message")) if status_object else body.decode("utf-8", "replace")
    )
    phrase = safe_extract(message, secrets) or _phrase(status)
    if 300 <= status < 400:
        location = safe_extract(headers.get("location", "nowhere"), secrets)
        return BadResponse(description, f"redirects are not followed: to {location}", code=status)
    details = _object(status_object.get("details"))
    wait_s = retry_after_s(headers.get("retry-after", ""), _date_s(headers, wall_s))
    if wait_s is None:
        wait_s = _bounded_s(details.get("retryAfterSeconds"))
    kind = _CLASSES.get(status, ServerError if status >= 500 else ApiError)
    return kind(
        description,
        phrase,
        code=status,
        reason=safe_extract(_text(status_object.get("reason")), secrets),
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
    """Return the wait of a `Retry-After` header, in seconds or as a date; `None` if it is neither.

    `now_s` is the wall clock of the machine that wrote the date. The result is between 0 and
    `MAX_WAIT_S`.
    """
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return _bounded_s(float(text))
    at_s = http_date_s(text)
    return None if at_s is None else _bounded_s(at_s - now_s)


def http_date_s(text: str) -> float | None:
    """Return an HTTP date as Unix seconds; `None` if it is invalid."""
    if not text or len(text) > 64:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _status(body: bytes) -> Mapping[object, object]:
    """Return the body as a Status; empty if it is anything else."""
    if len(body) > MAX_ERROR_BYTES:
        return {}
    try:
        status = _object(msgspec.json.decode(body))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    return status if status.get("kind") == "Status" else {}


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
    """The way of a request to its server, for messages."""

    server: str
    proxy: HttpProxy | None
    authority: str  # which authority must have signed the server's certificate

    def __str__(self) -> str:
        """Return server and proxy, for messages."""
        return f"{self.server} through {self.proxy}" if self.proxy else self.server


@contextlib.contextmanager
def translate_errors(
    description: str, route: RequestRoute, *, begun: bool = False
) -> Iterator[None]:
    """Raise an `ApiError` for an error of the library; `what` names the call.

    `begun`: the head of a response has arrived, so that the error concerns its body.
    """
    try:
        yield
    except (aiohttp.ClientResponseError, aiohttp.ClientPayloadError) as error:
        if begun:
            raise Unreachable(description, f"the answer of {route} broke off") from error
        raise translate_error(description, error, route) from error
    except (aiohttp.ClientError, OSError) as error:
        raise translate_error(description, error, route) from error
    except ValueError as error:  # a label of a host name with 64 characters or none
        raise Unreachable(description, f"{route}: no name that could be asked for") from error


def is_closed_connection(error: ApiError) -> bool:
    """Return whether the connection was closed before any answer."""
    cause = error.__cause__
    return isinstance(
        cause, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError
    ) and not isinstance(cause, aiohttp.ClientConnectorError)


def is_untrusted_certificate(error: ApiError) -> bool:
    """Return whether the server's certificate was not trusted."""
    return getattr(error.__cause__, "certificate_error", None) is not None


def translate_error(description: str, error: Exception, route: RequestRoute) -> ApiError:
    """Return the `ApiError` for an error of the library."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientConnectorCertificateError):
        return Unreachable(description, _connect_error_text(error, route))
    match error:
        case aiohttp.ClientHttpProxyError():
            return Unreachable(description, f"the proxy {route.proxy} refused with {error.status}")
        case aiohttp.ServerDisconnectedError():
            return Unreachable(description, f"{route} closed the connection without an answer")
        case aiohttp.ClientResponseError():
            message = safe_extract(error.message)[:80]
            return BadResponse(description, f"{route} does not speak HTTP: {message}")
        case TimeoutError():
            return Unreachable(description, f"{route}: no connection in time")
        case OSError():
            return Unreachable(description, f"{route}: {_os_error_text(error)}")
    return Unreachable(description, f"{route}: {type(error).__name__}")


def _connect_error_text(
    error: aiohttp.ClientConnectorError | aiohttp.ClientConnectorCertificateError,
    route: RequestRoute,
) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"{route} is not believed: {_certificate_error_text(error, route.authority)}"
        case aiohttp.ClientConnectorDNSError():
            return f"{error.host}: no such name ({_os_error_text(error.os_error)})"
        case aiohttp.ClientProxyConnectionError():
            return f"the proxy {route.proxy}: {_os_error_text(error.os_error)}"
        case aiohttp.ClientConnectorSSLError():
            return f"{route}: no TLS: {_tls_error_text(error.os_error)}"
    return f"{route}: {_os_error_text(error.os_error)}"


def _certificate_error_text(error: Exception, authority: str) -> str:
    cause = getattr(error, "certificate_error", None)
    message = getattr(cause, "verify_message", "") or str(cause)
    if "ostname mismatch" in message or "IP address mismatch" in message:
        return f"its certificate is for another name: {safe_extract(message)}"
    if "expired" in message or "not yet valid" in message:
        return f"{message}; if that cannot be, look at this node's clock"
    return f"its certificate is not signed by {authority}: {safe_extract(message)}"


def _tls_error_text(error: OSError) -> str:
    return safe_extract(str(getattr(error, "reason", "") or error))[:80]


def _os_error_text(error: OSError) -> str:
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return safe_extract(error.strerror or type(error).__name__)[:80]
