"""One look at a host: what a command needs of the snapshot, then gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from agent.model.snapshot import NodeSnapshot
from agent.node.crew import journal_folder
from agent.node.fleet import with_vendor
from agent.node.parts import Parts
from agent.node.published_minors import PublishedMinors
from agent.node.vendors import forced, vendor_settings
from agent.probe.life import Timing
from agent.probe.survey import survey
from agent.probe.tape import TapeWriter


def look(
    parts: Parts,
    *,
    samples: int = 1,
    usage: bool = False,
    tapes: Mapping[str, TapeWriter] = {},
    minors: PublishedMinors | None = None,
) -> NodeSnapshot:
    """Read the host, ask every vendor once, measure usage twice if wanted; return the picture.

    With `usage`, vendors are sampled twice as well, and rates span one collector interval.
    """
    settings = parts.settings
    facts = parts.facts(minors)
    facts.read()
    measuring = parts.measuring() if usage else None
    if measuring is not None:
        measuring.cycle()
    interval_s = settings.collect.interval_s
    states = asyncio.run(
        survey(
            parts.vendors.values(),
            parts.opened,
            vendor_settings(settings),
            samples=2 if usage else samples,
            timing=Timing(
                sample_every_s=0.0 if parts.opened.spec else interval_s,
                discover_deadline_s=settings.discovery.discover_deadline_s,
                sample_deadline_s=settings.discovery.sample_deadline_s,
            ),
            forced=[name for name in parts.vendors if forced(settings, name)],
            tapes=tapes,
            clock=parts.clock,
            journals=journal_folder(settings),
        )
    )
    for state in states:
        parts.store.change(lambda snapshot, state=state: with_vendor(snapshot, state))  # type: ignore[misc]
    facts.join()
    if measuring is not None:
        if not parts.opened.spec and not states:
            time.sleep(interval_s)  # no vendor's second sample has taken that long
        measuring.cycle()
        measuring.report()
        measuring.close()
    return parts.store.current
