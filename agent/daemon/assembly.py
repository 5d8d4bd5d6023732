"""Parts of the daemon that are loaded and built once the first Device is out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from agent.loop import Loop
from agent.model.selfcheck import Check
from agent.node.fleet import Fleet
from agent.node.parts import Parts

if TYPE_CHECKING:
    from agent.daemon.cluster.side import ClusterSide
    from agent.daemon.containers.side import ContainerSide, Tell
    from agent.daemon.loops import Loops
    from agent.daemon.view import DaemonView


def load_the_rest() -> None:
    """Load what takes longer than all that had to come before it; not for the loop thread."""
    import agent.daemon.containers.side  # noqa: PLC0415 - see above
    import agent.daemon.reactions.control  # noqa: PLC0415 - see above
    import agent.daemon.reactions.uevents  # noqa: PLC0415 - see above
    import agent.web.server  # noqa: F401, PLC0415 - see above


def build_containers(
    parts: Parts,
    fleet: Fleet,
    collector: Executor,
    tell: Tell,
    devices: Loop,
    clustered: ClusterSide | None,
) -> ContainerSide:
    """Return the service for containers; it is notified of changed pods and devices.

    `devices` is the loop that publishes devices; `clustered` is where pods come from.
    """
    from agent.daemon.containers.side import ContainerSide  # noqa: PLC0415 - loaded by now

    side = ContainerSide(
        parts,
        fleet,
        collector,
        tell,
        clustered=clustered is not None,
        wake_pods=clustered.wake_pods if clustered is not None else lambda: None,
    )
    if clustered is not None:
        clustered.known.pods_changed = side.pods_changed
    event_loop, publish = asyncio.get_running_loop(), devices.run_once

    def publish_and_tell() -> None:
        publish()
        event_loop.call_soon_threadsafe(side.devices_changed)

    devices.run_once = publish_and_tell
    return side


def build_view(
    parts: Parts,
    executor: Executor,
    notice: str,
    loops: Loops,
    beats: list[Loop],
    more_checks: list[Callable[[], Check]],
    clustered: ClusterSide | None,
    containers: ContainerSide | None,
) -> DaemonView:
    """Return what the HTTP server shows."""
    from agent.daemon.view import DaemonView  # noqa: PLC0415 - loaded by now

    return DaemonView(
        parts=parts,
        executor=executor,
        renderer=loops.renderer,
        own=loops.own,
        notice=notice,
        loops=beats,
        runs=loops.runs,
        more_checks=more_checks,
        clustered=clustered,
        containers=containers,
        recent=loops.recent,
    )
