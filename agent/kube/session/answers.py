"""What an answer that is no success means: its class, the server's words, how long to wait."""

from __future__ import annotations

import http
import re
from collections.abc import Iterable, Mapping

import msgspec

from agent.kube.errors import (
    ApiError,
    BadAnswer,
    Cause,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    ServerError,
    Throttled,
    TooLarge,
    Unauthorized,
    UnsupportedMedia,
)

MAX_FOREIGN = 200  # characters of the server's words in a message
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
    415: UnsupportedMedia,
    422: Invalid,
    429: Throttled,
}
_TAG = re.compile(r"<[^>]{0,500}>")
_TOKEN = re.compile(r"(?i)\b(?:bearer|basic)\s+\S+|\beyJ[\w-]+(?:\.[\w-]*){1,2}")
_SECONDS = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,9})?")


def failure(
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
    phrase = extract(words, secrets) or _phrase(status)
    if 300 <= status < 400:
        where = extract(headers.get("location", "nowhere"), secrets)
        return BadAnswer(what, f"redirects are not followed: to {where}", code=status)
    details = _object(said.get("details"))
    wait_s = retry_after_s(headers.get("retry-after", ""), _date_s(headers, wall_s))
    if wait_s is None:
        wait_s = _bounded_s(details.get("retryAfterSeconds"))
    kind = _CLASSES.get(status, ServerError if status >= 500 else ApiError)
    return kind(
        what,
        phrase,
        code=status,
        reason=extract(_text(said.get("reason")), secrets),
        retry_after_s=wait_s,
        causes=_causes(details, secrets),
    )


def extract(text: str, secrets: Iterable[str] = ()) -> str:
    """Return foreign text as one short printable line, without tokens and HTML tags."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "…")
    text = _TOKEN.sub("…", _TAG.sub(" ", text))
    printable = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(printable.split())[:MAX_FOREIGN]


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
    # imported here: it comes with the HTTP library, which is not loaded yet at the start
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - see above

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


def _causes(details: Mapping[object, object], secrets: Iterable[str]) -> tuple[Cause, ...]:
    entries = details.get("causes")
    if not isinstance(entries, list):
        return ()
    secrets = tuple(secrets)
    return tuple(
        Cause(
            extract(_text(entry.get("field")), secrets),
            extract(_text(entry.get("message")), secrets),
            extract(_text(entry.get("reason")), secrets),
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
