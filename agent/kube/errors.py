"""How a call to the API server fails: one class for each thing a caller does differently."""

from __future__ import annotations

import msgspec

from agent.errors import AgentError

MAX_DETAIL = 480  # characters: our words, and at most 200 of the server's


class NoApiServer(AgentError):
    """Nothing leads to an API server: no pod's account, no usable kubeconfig; says what to do."""


class StatusCause(msgspec.Struct, frozen=True):
    """One entry of `details.causes` of a Status: which field, and why."""

    field: str
    message: str
    reason: str = ""


class ApiError(AgentError):
    """The API server did not do what it was asked. `code` is `None` when it did not answer.

    `retry_after_s` is what the server asked us to wait, already within sane bounds.
    """

    def __init__(
        self,
        what: str,
        detail: str,
        *,
        code: int | None = None,
        reason: str = "",
        retry_after_s: float | None = None,
        causes: tuple[StatusCause, ...] = (),
    ) -> None:
        """Say what was called, and why it failed; where a person must act, what to do."""
        status = f" {code}" if code is not None else ""
        super().__init__(f"{what}:{status} {detail[:MAX_DETAIL]}")
        self.code = code
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.causes = causes


class Unreachable(ApiError):
    """No answer: no connection, no trust (CA), a deadline that passed, a stream that broke."""


class Unauthorized(ApiError):
    """401: the token is missing, expired or of another cluster."""


class Forbidden(ApiError):
    """403: RBAC does not allow it."""


class NotFound(ApiError):
    """404: no such object, or no such resource (a CRD that is not there)."""


class Conflict(ApiError):
    """409: somebody else's field, or a resourceVersion that is not current."""


class Expired(ApiError):
    """410: the version or the continue token is too old; list again."""


class TooLarge(ApiError):
    """413: the object is larger than the server takes."""


class Invalid(ApiError):
    """400, 415 or 422: the server refuses the body; `causes` name the fields."""


class Throttled(ApiError):
    """429: too many requests; wait `retry_after_s`."""


class ServerError(ApiError):
    """5xx: the server, or etcd behind it, is in trouble."""


class BadResponse(ApiError):
    """The answer is not what the API promises: no JSON, wrong types, beyond the size limit."""
