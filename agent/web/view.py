"""What the HTTP server reads of the agent; everything is answered from memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from agent.snapshot.node import NodeSnapshot

T = TypeVar("T")


class AgentView(Protocol):
    """The agent as its HTTP server sees it."""

    notice: str  # which host is shown, and how another is chosen

    def snapshot(self) -> NodeSnapshot:
        """Return the current snapshot with the state of the agent's services."""
        ...

    def now_s(self) -> tuple[float, float]:
        """Return monotonic and wall time."""
        ...

    def metrics(self, *, openmetrics: bool) -> Iterator[bytes]:
        """Render the exposition in chunks; slow, never on the event loop's thread."""
        ...

    async def offload(self, work: Callable[[], T]) -> T:
        """Run something slow off the event loop's thread."""
        ...
