"""What goes wrong on the wire, and the codes by which calls fail: gRPC's, which ttrpc shares."""

from __future__ import annotations

from agent.errors import AgentError

INVALID_ARGUMENT = 3
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
UNIMPLEMENTED = 12
INTERNAL = 13

MAX_MESSAGE = 1024  # characters of an error's message that are sent or taken over


class FrameError(AgentError):
    """The peer sent what no frame is, or does not read: the connection is of no use any more."""


class ConnectionClosed(AgentError):
    """The connection ended; `reason` is CamelCase, of who ended it and why."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail[:200]}" if detail else reason)
        self.reason = reason


class CallError(AgentError):
    """The peer answered a call with an error, or could not be asked; `code` is gRPC's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"code {code}: {message[:MAX_MESSAGE]}")
        self.code = code
        self.message = message[:MAX_MESSAGE]
