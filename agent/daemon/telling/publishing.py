"""Runs one publisher: renders, applies, remembers how it went; a failure is said once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from agent.clock import Clock
from agent.errors import AgentError
from agent.model.selfcheck import Check
from agent.node.store import SnapshotStore
from agent.publish.base import Desired, Publisher
from agent.publish.files import Applied
from agent.publish.status import PublisherStatus
from agent.publish.wire.yaml_text import to_yaml
from agent.web.base import PublishedObject

log = logging.getLogger(__name__)


class Applier(Protocol):
    """Makes objects exist as desired: as files, or at an API server."""

    def apply(self, desired: Iterable[Desired]) -> Applied:
        """Say what was written; raise `PublishError` for what could not be."""
        ...

    def where(self, desired: Desired) -> str:
        """Say where an object is written to."""
        ...


class PublisherRun:
    """One publisher with its applier. `run_once` belongs to one thread, the applier to the same."""

    def __init__(
        self,
        publisher: Publisher,
        applier: Applier,
        store: SnapshotStore,
        clock: Clock,
        before: Callable[[], None] | None = None,
    ) -> None:
        """`before` prepares the snapshot for a rendering, as computing the report does."""
        self.publisher = publisher
        self.status = PublisherStatus(name=publisher.name)
        self._shown: tuple[Desired, ...] = ()
        self._applier = applier
        self._store = store
        self._clock = clock
        self._before = before

    @property
    def reports(self) -> bool:
        """Say whether this publisher tells of usage, which is known only after two cycles."""
        return self._before is not None

    def run_once(self) -> None:
        """Publish what is desired now; a failure stays in `status` until a run succeeds."""
        began_s = self._clock.monotonic()
        try:
            written, unchanged = self._publish()
        except AgentError as error:
            if self.status.success:
                log.error(
                    "publish_failed",
                    extra={"publisher": self.publisher.name, "error": str(error)},
                )
            changes: dict[str, object] = {
                "success": False,
                "failed": self.status.failed + 1,
                "error": str(error),
            }
        else:
            if not self.status.success:
                log.info("publish_recovered", extra={"publisher": self.publisher.name})
            changes = {
                "success": True,
                "error": "",
                "last_success_s": self._clock.wall(),
                "written": self.status.written + written,
                "unchanged": self.status.unchanged + unchanged,
            }
        duration_s = self._clock.monotonic() - began_s
        self.status = msgspec.structs.replace(
            self.status,
            duration_s=duration_s,
            **changes,
        )

    def check(self) -> Check:
        """Return whether the last run went well; part of being ready."""
        return Check(
            name=f"publisher:{self.publisher.name}",
            ok=self.status.success and self.status.duration_s is not None,
            message=self.status.error or f"{self.status.written} written",
        )

    def objects(self) -> tuple[PublishedObject, ...]:
        """Return what is desired now, as it is written; made when it is asked for."""
        return tuple(
            PublishedObject(
                kind=desired.kind,
                text=to_yaml(desired.body).decode(),
                where=self._applier.where(desired),
                problem=self.status.error,
            )
            for desired in self._shown
        )

    def _publish(self) -> tuple[int, int]:
        if self._before is not None:
            self._before()
        self._shown = self.publisher.render(self._store.current, self._clock.wall())
        applied = self._applier.apply(self._shown)
        return len(applied.written), len(applied.unchanged)
