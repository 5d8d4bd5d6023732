"""Errors of calls to the API server: one class for each reaction of a caller."""

from __future__ import annotations

import msgspec

from agent.errors import AgentError

MAX_DETAIL = 480  # characters: the agent's text, and at most 200 of the server's


class NoApiServer(AgentError):
    """No API server is configured: no pod account, no usable kubeconfig. Says what to do."""


class StatusCause(msgspec.Struct, frozen=True):
    """One entry of `details.causes` of a Status: which field, and why."""

    field: str
    message: str
    reason: str = ""


class ApiError(AgentError):
    """The API server did not do what was requested. `code` is `None` if it did not answer.

    `retry_after_s` is the wait that the server requested, already bounded.
    """

    def __init__(
        self,
        description: str,
        detail: str,
        *,
        code: int | None = None,
        reason: str = "",
        retry_after_s: float | None = None,
        causes: tuple[StatusCause, ...] = (),
    ) -> None:
        """Take the call, and why it failed; where a person must act, what to do."""
        status = f" {code}" if code is not None else ""
        super().__init__(f"{description}:{status} {detail[:MAX_DETAIL]}")
        self.code = code
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.causes = causes


class Unreachable(ApiError):
    """No answer: no connection, an untrusted certificate, a missed deadline, a broken stream."""


class Unauthorized(ApiError):
    """401: the token is missing, expired or of another cluster."""


class Forbidden(ApiError):
    """403: RBAC does not allow it."""


class NotFound(ApiError):
    """404: the object does not exist, or the resource does not (a missing CRD)."""


class Conflict(ApiError):
    """409: a field of another manager, or a resourceVersion that is not current."""


class Expired(ApiError):
    """410: the version or the continue token is too old; list again."""


class TooLarge(ApiError):
    """413: the object is larger than the server accepts."""


class Invalid(ApiError):
    """400, 415 or 422: the server refuses the body; `causes` name the fields."""


class Throttled(ApiError):
    """429: too many requests; wait `retry_after_s`."""


class ServerError(ApiError):
    """5xx: the server, or etcd behind it, fails."""


class BadResponse(ApiError):
    """The response violates the API: no JSON, wrong types, beyond the size limit."""
