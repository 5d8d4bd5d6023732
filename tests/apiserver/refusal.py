"""How the server says no: a `Status`, in the words and with the reasons of a real one."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

import msgspec


class Cause(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of `details.causes`."""

    reason: str
    message: str
    field: str = ""


class Refusal(Exception):
    """An answer other than 2xx."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: dict[str, object] | None = None,
        causes: Iterable[Cause] = (),
        continue_token: str = "",
        retry_after_s: float | None = None,
        plain: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = dict(details or {})
        self.causes = tuple(causes)
        self.continue_token = continue_token
        self.retry_after_s = retry_after_s
        self.plain = plain  # text instead of a Status

    def body(self) -> dict[str, object]:
        """Return the `Status` object."""
        details = dict(self.details)
        if self.causes:
            details["causes"] = [msgspec.to_builtins(cause) for cause in self.causes]
        if self.retry_after_s is not None:
            details["retryAfterSeconds"] = int(self.retry_after_s)
        metadata = {"continue": self.continue_token} if self.continue_token else {}
        status: dict[str, object] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if details:
            status["details"] = details
        status["code"] = self.code
        return status


def bad_request(message: str) -> Refusal:
    """The request makes no sense."""
    return Refusal(400, "BadRequest", message)


def unauthorized() -> Refusal:
    """No token, or one that is not known (any more)."""
    return Refusal(401, "Unauthorized", "Unauthorized")


def not_found(plural: str, group: str, name: str) -> Refusal:
    """No such object."""
    return _of_object(404, "NotFound", plural, group, name, "not found")


def no_resource() -> Refusal:
    """No such resource: what a cluster without the CRD says. It is no Status."""
    return Refusal(404, "", "404 page not found", plain=True)


def already_exists(plural: str, group: str, name: str) -> Refusal:
    """A POST of a name that is taken."""
    return _of_object(409, "AlreadyExists", plural, group, name, "already exists")


def _of_object(code: int, reason: str, plural: str, group: str, name: str, message: str) -> Refusal:
    return Refusal(
        code,
        reason,
        f'{qualified(plural, group)} "{name}" {message}',
        details={"name": name, "group": group, "kind": plural},
    )


def stale(plural: str, group: str, name: str) -> Refusal:
    """The writer's resourceVersion is not the current one."""
    return conflict(
        plural,
        group,
        name,
        "the object has been modified; please apply your changes to the latest version and "
        "try again",
    )


def conflict(plural: str, group: str, name: str, why: str) -> Refusal:
    """A precondition of the writer does not hold."""
    return Refusal(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {why}',
        details={"name": name, "group": group, "kind": plural},
    )


def invalid(kind: str, group: str, name: str, causes: Iterable[Cause]) -> Refusal:
    """The object breaks rules of its schema or of its kind."""
    listed = tuple(causes)
    words = [f"{cause.field}: {cause.message}" for cause in listed]
    reports = words[0] if len(words) == 1 else "[" + ", ".join(words) + "]"
    return Refusal(
        422,
        "Invalid",
        f'{qualified(kind, group)} "{name}" is invalid: {reports}',
        details={"name": name, "group": group, "kind": kind},
        causes=listed,
    )


def expired(message: str = "", continue_token: str = "") -> Refusal:
    """The version or the continue token is older than what is kept."""
    return Refusal(
        410,
        "Expired",
        message or "The resourceVersion for the provided watch is too old.",
        continue_token=continue_token,
    )


def internal(message: str) -> Refusal:
    """What a real server answers where it has no Status of its own: 500 without a reason."""
    return Refusal(500, "", message)


def of_status(code: int, message: str = "", reason: str = "") -> Refusal:
    """An answer of this code in the usual words; for faults.

    Who is throttled is told so in plain text: priority and fairness answers before anything that
    could make a Status.
    """
    if code == 429 and not message and not reason:
        return Refusal(429, "", "Too many requests, please try again later.", plain=True)
    words = {
        401: "Unauthorized",
        403: "Forbidden",
        404: "NotFound",
        409: "Conflict",
        410: "Expired",
        413: "RequestEntityTooLarge",
        415: "UnsupportedMediaType",
        422: "Invalid",
        429: "TooManyRequests",
        500: "InternalError",
        503: "ServiceUnavailable",
        504: "Timeout",
    }
    return Refusal(code, reason or words.get(code, ""), message or HTTPStatus(code).phrase)


def qualified(plural: str, group: str) -> str:
    """Return `devices.scheduling.koordinator.sh`; core has no group."""
    return f"{plural}.{group}" if group else plural
