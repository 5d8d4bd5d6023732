"""The agent's data as the HTTP server reads it; everything is in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from agent.config.sources import LoadedSettings
from agent.runbook.runbook import Runbook
from agent.snapshot.edits import ContainerInjection
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import PodEvictionView
from agent.snapshot.self_check import FileExplanation

T = TypeVar("T")


class ExplanationSource(Protocol):
    """Explains facts that the snapshot lacks; runs on the thread of `AgentView.offload`."""

    def explain_file(self, path: str) -> FileExplanation | None:
        """Return the requested values of a file; `None` if the agent does not manage it."""
        ...

    def explain_group(self, cgroup: str) -> tuple[FileExplanation, ...]:
        """Return the explanations of all files of a cgroup and those below that someone wants."""
        ...

    def explain_eviction(self, pod_uid: str) -> PodEvictionView | None:
        """Return which rules may evict a pod; `None`: no strategy knows the pod."""
        ...

    def explain_injection(self, pod_uid: str) -> tuple[ContainerInjection, ...]:
        """Return the edits for each container of a pod at its creation."""
        ...


class AgentView(Protocol):
    """The agent as its HTTP server sees it."""

    notice: str  # which host is shown, and how another is chosen
    settings: LoadedSettings

    @property
    def runbook(self) -> Runbook:
        """Return the entries of the agent and of its vendors."""
        ...

    @property
    def explanations(self) -> ExplanationSource:
        """Return the source of explanations for files and containers."""
        ...

    def snapshot(self) -> NodeSnapshot:
        """Return the current snapshot with the state of the agent's services."""
        ...

    def now_s(self) -> tuple[float, float]:
        """Return monotonic and wall time."""
        ...

    def metrics(self, *, openmetrics: bool) -> Iterator[bytes]:
        """Render the exposition in chunks; slow, so never on the event loop's thread."""
        ...

    async def offload(self, work: Callable[[], T]) -> T:
        """Run slow work on another thread than the event loop's."""
        ...
