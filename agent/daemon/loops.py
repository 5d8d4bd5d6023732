"""The periodic work of the agent: what runs, how often, and what it fills."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from agent.daemon.publishing import PublisherRun
from agent.daemon.recounting import Recounting
from agent.loop import Loop
from agent.model.selfcheck import Check
from agent.node.parts import Parts
from agent.node.publishers import wanted_publishers
from agent.publish.exposition import MetricsRenderer
from agent.publish.files import FileApplier
from agent.web.base import EventLine

REPORT_DELAY_S = 0.5  # after the second cycle: rates are known then
EVENTS_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class Timed:
    """A loop and when it runs first."""

    loop: Loop
    first_in_s: float = 0.0


class Loops:
    """Builds every loop. All of their work belongs to the collector thread."""

    def __init__(self, parts: Parts, out: str) -> None:
        self._parts = parts
        settings = parts.settings
        applier = FileApplier(out)
        publishers = wanted_publishers(settings)
        self.renderer = MetricsRenderer(parts.families(), pods=settings.metrics.pods)
        self._by_name = {
            name: PublisherRun(
                publisher,
                applier,
                parts.store,
                parts.clock,
                before=parts.measuring.report if name == "nodemetric" else None,
            )
            for name, publisher in publishers.items()
        }
        self._recounting = Recounting(parts.store, parts.clock, out)
        self.timed = tuple(self._timed())

    def check_events(self) -> Check:
        """Return whether events can be written."""
        return self._recounting.check()

    @property
    def recent(self) -> deque[EventLine]:
        """The last events, for the page."""
        return self._recounting.recent

    @property
    def runs(self) -> list[PublisherRun]:
        """All publishers."""
        return list(self._by_name.values())

    def devices_changed(self) -> None:
        """Join the devices again, publish them, and tell what changed."""
        self._parts.facts.join()
        for name in ("device", "topology"):
            if name in self._by_name:
                self._by_name[name].run_once()
        self._recounting.run_once()

    def host_changed(self) -> None:
        """Read the host again and join the devices with what is found."""
        self._parts.facts.read()
        self._parts.facts.join()

    def _timed(self) -> Iterator[Timed]:
        """Return all loops, in the order in which they first run."""
        settings = self._parts.settings
        cycle_s = settings.collect.interval_s
        yield Timed(Loop("collect", cycle_s, self._parts.measuring.cycle))
        for name, run in self._by_name.items():
            first_in_s = cycle_s + REPORT_DELAY_S if name == "nodemetric" else 0.0
            loop = Loop(f"publish-{name}", run.publisher.interval_s, run.run_once)
            yield Timed(loop, first_in_s)
        yield Timed(Loop("events", EVENTS_INTERVAL_S, self._recounting.run_once))
        host_s = settings.discovery.host_interval_s
        yield Timed(Loop("host", host_s, self.host_changed), host_s)
