"""Serves eight cards to a kubelet from within the busy agent: on its loop, beside all its work.

The agent's own cards are simulated, and no kubelet is told of such. These are decided as real ones
are, by the agent's decisions from a snapshot; a pod is not looked for.
"""

from __future__ import annotations

import asyncio

from agent.app import application
from agent.clock import SystemClock
from agent.deviceplugin.context import PluginContext
from agent.deviceplugin.plugin import DevicePlugin
from agent.snapshot.node import SnapshotStore
from tests.unit.deviceplugin.made import deciding, node

NAME = "kubelet's part of the bench"


def attach(folder: str) -> None:
    """Have the next daemon of this process serve to the kubelet with that folder."""
    snapshot, decide = node(clustered=False), deciding()

    class Serving(application.Application):
        """The daemon, and the plug-in on the same loop."""

        async def run(self) -> int:
            """Serve both until SIGTERM."""
            site = PluginContext(
                folder=folder,
                store=SnapshotStore(snapshot),
                backend=decide,
                clock=SystemClock(),
            )
            task = asyncio.create_task(DevicePlugin(site).run(), name=NAME)
            try:
                return await super().run()
            finally:
                task.cancel()
                await asyncio.wait({task})

    setattr(application, "Application", Serving)  # noqa: B010 - the daemon has no seam for guests
