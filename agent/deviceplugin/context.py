"""Waiting for something that several things may bring about, in one thread.

What every part of the plug-in shares: whom to ask and to tell, and how long to wait.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from agent.clock import Clock
from agent.deviceplugin.resources import AllocationBackend
from agent.messages import MessageQueue
from agent.snapshot.device_plugin import DevicePluginView
from agent.snapshot.edits import ContainerEdits
from agent.snapshot.node import NodeSnapshot
from agent.state_writer import StateWriter


class ChangeCondition:
    """Wakes all who wait, each time it is rung. Belongs to the loop thread."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify_all(self) -> None:
        """Have everybody look again."""
        rung, self._changed = self._changed, asyncio.Event()
        rung.set()

    async def wait_for(self, holds: Callable[[], bool], limit_s: float | None = None) -> bool:
        """Return true as soon as it holds, which is looked at whenever rung; false at the limit."""
        try:
            async with asyncio.timeout(limit_s):
                while not holds():
                    await self._changed.wait()
        except TimeoutError:
            return holds()
        return True


class PluginTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Every wait of the plug-in, in seconds."""

    offer_check_s: float = 1.0  # at what is offered, beside being told of changes
    poll_s: float = 5.0  # at the kubelet's folder, beside the kernel's news
    absent_s: float = 1.0  # the same, while the kubelet is not there
    register_s: float = 15.0  # for an answer; the kubelet takes up to 10 to dial back
    stream_s: float = 5.0  # for the stream that must follow it
    server_pause_s: float = (
        1.0  # from the end of a server to the next one's registration, in one life
    )
    retry_s: float = 1.0  # after a failure; doubled each time
    max_retry_s: float = 30.0
    refused_retry_s: float = 300.0  # after a refusal that will not pass by itself
    jitter_ratio: float = 0.1
    list_interval_s: float = 1.0  # between two lists in which nothing became better or worse
    # advice and an allocation, each, wait for news of a pod: the kubelet admits nothing meanwhile
    pod_wait_s: float = 2.0
    pod_retry_s: float = 0.02  # between two tries with what is known by then
    pod_refresh_s: float = 0.5  # between two requests to the source of pods for a fresh list
    prepare_s: float = 5.0  # for what an answer refers to
    inventory_wait_s: float = 10.0  # an allocation waits for a vendor's first answer
    cache_lifetime_s: float = (
        300.0  # then devices are unhealthy whose vendor has not answered since a start
    )
    stop_s: float = 1.0  # for answers in progress
    max_losses: int = 3  # streams that the same kubelet ended: another plug-in has the resource
    loss_window_s: float = 600.0  # within that

    def retry_delay_s(self, failures: int, uniform: Callable[[float, float], float]) -> float:
        """Return the wait after so many failures in a row."""
        wait_s = min(self.max_retry_s, self.retry_s * 2.0 ** min(max(failures - 1, 0), 16))
        return wait_s * uniform(1 - self.jitter_ratio, 1 + self.jitter_ratio)

    def refused_delay_s(self, uniform: Callable[[float, float], float]) -> float:
        """Return the wait after a refusal."""
        return self.refused_retry_s * uniform(1 - self.jitter_ratio, 1 + self.jitter_ratio)


async def prepare_nothing(edits: ContainerEdits) -> None:
    """Prepare nothing."""
    del edits


class PluginContext(msgspec.Struct, frozen=True, kw_only=True):
    """Given by who wires the plug-in; all of it is used on the loop thread alone.

    `prepare` makes what an answer refers to, folders above all, off the loop; it raises an
    `AgentError` if that cannot be.
    `wake` has the source of pods, which is the kubelet's list, read again soon; it returns at once.
    """

    folder: str  # the kubelet's, for device plug-ins
    current_snapshot: Callable[[], NodeSnapshot]
    backend: AllocationBackend
    clock: Clock
    # by vendor: how sockets of its own device plug-in are named
    socket_prefixes: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    state_dir: str = ""  # empty: nothing is kept
    boot_id: str = ""  # empty: nothing that was kept is believed
    state_writer: StateWriter = msgspec.field(default_factory=StateWriter)
    publish_view: Callable[[DevicePluginView], None] = lambda _: None
    messages: MessageQueue = msgspec.field(default_factory=MessageQueue)
    prepare: Callable[[ContainerEdits], Awaitable[None]] = prepare_nothing
    refresh_pods: Callable[[], None] = lambda: None
    random_uniform: Callable[[float, float], float] = random.uniform
    timing: PluginTiming = PluginTiming()
