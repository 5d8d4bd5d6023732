"""Errors of the wire protocol, with the gRPC status codes that ttrpc shares."""

from __future__ import annotations

from agent.errors import AgentError

INVALID_ARGUMENT = 3
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
UNIMPLEMENTED = 12
INTERNAL = 13

MAX_MESSAGE = 1024  # characters of an error message that are sent or stored


class FrameError(AgentError):
    """The peer sent an invalid frame, or does not read: the connection cannot be used any more."""


class ConnectionClosed(AgentError):
    """The connection ended; `reason` is CamelCase and says who ended it and why."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail[:200]}" if detail else reason)
        self.reason = reason


class CallError(AgentError):
    """A call failed or could not be made; `code` is a gRPC status code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"code {code}: {message[:MAX_MESSAGE]}")
        self.code = code
        self.message = message[:MAX_MESSAGE]
