"""What the daemon calls: all of it on the collector thread."""

from __future__ import annotations

from typing import Protocol

from agent.cgroup.layout import CgroupLayout
from agent.model.runtime.adjustment import Resources
from agent.model.runtime.request import HookRequest
from agent.model.snapshot import NodeSnapshot
from agent.reconcile.report import CycleReport, PodReport


class Reconciling(Protocol):
    """Keeps files as the hooks say. Raises nothing for what a kernel, a disk or a pod may do."""

    def cycle(self, snapshot: NodeSnapshot, layout: CgroupLayout | None) -> CycleReport:
        """Compare and write once. `layout` is the host's; without one nothing is done."""
        ...

    def apply_pod(
        self, request: HookRequest, snapshot: NodeSnapshot, layout: CgroupLayout | None
    ) -> PodReport:
        """Write a new pod's own files before its sandbox runs; awaited for 200 ms at most.

        The hooks are asked here again, each by itself: the ledger must know who wants what.
        """
        ...

    def given(self, uid: str, container: str, asked: Resources) -> None:
        """Learn what was asked for a container whose answer changed it: undoing gives that back.

        Also from the loop thread.
        """
        ...

    def mark(self, uid: str) -> None:
        """Have a pod looked at first in the next cycle: its answer came late. From any thread."""
        ...

    def close(self) -> None:
        """Let go of all descriptors; nothing is undone."""
        ...
