"""What the HTTP side may ask of the agent; everything is answered from memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from agent.model.selfcheck import SelfReport
from agent.model.snapshot import NodeSnapshot

if TYPE_CHECKING:
    from agent.cgroup.writing.audit import Audit
    from agent.publish.series.cluster import ClusterStatus

T = TypeVar("T")


class PublishedObject(msgspec.Struct, frozen=True, kw_only=True):
    """One object as it was last published, as text for people."""

    kind: str
    text: str
    where: str  # the file, or the API server
    problem: str = ""  # why the last publishing failed


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """One event, newest last."""

    time: str
    reason: str
    about: str
    message: str
    count: int = 1


class AgentView(Protocol):
    """The agent as its HTTP server sees it."""

    notice: str  # which host is shown, and how another is chosen

    def snapshot(self) -> NodeSnapshot:
        """Return the current snapshot."""
        ...

    def now_s(self) -> tuple[float, float]:
        """Return monotonic and wall time."""
        ...

    def self_report(self) -> SelfReport:
        """Return the agent's checks on itself."""
        ...

    def objects(self) -> tuple[PublishedObject, ...]:
        """Return what was published last."""
        ...

    def events(self) -> tuple[EventLine, ...]:
        """Return the last events, a bounded number."""
        ...

    def cluster(self) -> ClusterStatus | None:
        """Say how the cluster side does; `None` in standalone mode."""
        ...

    def audit(self) -> tuple[Audit, ...]:
        """Return the last changes of files on this host, oldest first, a bounded number."""
        ...

    def metrics(self, *, openmetrics: bool) -> bytes:
        """Render the exposition; slow, never on the event loop's thread."""
        ...

    async def offload(self, work: Callable[[], T]) -> T:
        """Run something slow off the event loop's thread."""
        ...
