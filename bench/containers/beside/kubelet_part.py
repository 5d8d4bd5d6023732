"""Serves eight cards to a kubelet from within the busy agent: on its loop, beside all its work.

The agent's own cards are simulated, and no kubelet is told of such. These are decided as real ones
are, by the agent's decisions from a snapshot; a pod is not looked for.
"""

from __future__ import annotations

import asyncio

from agent.clock import SystemClock
from agent.daemon import serve
from agent.deviceplugin.kubelet.plugin import DevicePlugin
from agent.deviceplugin.serve.site import Site
from tests.unit.deviceplugin.made import deciding, node

NAME = "kubelet's part of the bench"


def attach(folder: str) -> None:
    """Have the next daemon of this process serve to the kubelet with that folder."""
    snapshot, decide = node(clustered=False), deciding()

    class Serving(serve.Daemon):
        """The daemon, and the plug-in on the same loop."""

        async def run(self) -> int:
            """Serve both until SIGTERM."""
            site = Site(folder=folder, current=lambda: snapshot, decide=decide, clock=SystemClock())
            task = asyncio.create_task(DevicePlugin(site).run(), name=NAME)
            try:
                return await super().run()
            finally:
                task.cancel()
                await asyncio.wait({task})

    setattr(serve, "Daemon", Serving)  # noqa: B010 - the daemon has no seam for guests
