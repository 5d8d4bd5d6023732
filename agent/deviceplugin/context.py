"""What all parts of the device plug-in share: a condition, the timing, and the services it uses."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

import msgspec

from agent.clock import Clock
from agent.deviceplugin.resources import AllocationBackend
from agent.messages import MessageQueue
from agent.snapshot.node import SnapshotStore
from agent.state_writer import StateWriter


class ChangeCondition:
    """Wakes all waiting tasks at each notification. Belongs to the loop thread."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify_all(self) -> None:
        """Make all waiting tasks check their condition again."""
        previous, self._changed = self._changed, asyncio.Event()
        previous.set()

    async def wait_for(self, holds: Callable[[], bool], limit_s: float | None = None) -> bool:
        """Return true as soon as `holds()` is true, checked at each notification.

        False at the limit.
        """
        try:
            async with asyncio.timeout(limit_s):
                while not holds():
                    await self._changed.wait()
        except TimeoutError:
            return holds()
        return True


class PluginTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Every wait of the plug-in, in seconds."""

    offer_check_s: float = 1.0  # how often resources are built, besides changes
    poll_s: float = 5.0  # how often the kubelet's folder is scanned, besides inotify events
    absent_s: float = 1.0  # the same while the kubelet is away
    register_s: float = 15.0  # for an answer; the kubelet takes up to 10 s to connect back
    stream_s: float = 5.0  # for the stream that must follow the registration
    server_pause_s: float = 1.0  # between the end of a server and the next registration
    retry_s: float = 1.0  # after a failure; doubled each time
    max_retry_s: float = 30.0
    refused_retry_s: float = 300.0  # after a refusal that a retry alone does not resolve
    jitter_ratio: float = 0.1
    list_interval_s: float = 1.0  # between two lists without a change of health
    # a request waits so long for an unknown pod; the kubelet admits no pod meanwhile
    pod_wait_s: float = 2.0
    pod_retry_s: float = 0.02  # between two tries with newer snapshots
    pod_refresh_s: float = 0.5  # between two requests for a fresh list of pods
    prepare_s: float = 5.0  # for the folders of an answer, and for the first checkpoint
    inventory_wait_s: float = 10.0  # an allocation waits for a vendor's first answer
    cache_lifetime_s: float = 300.0  # then the devices of a vendor without an answer are unhealthy
    stop_s: float = 1.0  # for open requests
    max_losses: int = 3  # streams ended by the same kubelet: another plug-in serves the resource
    loss_window_s: float = 600.0  # the losses count within this time

    def retry_delay_s(self, failures: int, uniform: Callable[[float, float], float]) -> float:
        """Return the pause after so many failures in a row."""
        wait_s = min(self.max_retry_s, self.retry_s * 2.0 ** min(max(failures - 1, 0), 16))
        return wait_s * uniform(1 - self.jitter_ratio, 1 + self.jitter_ratio)

    def refused_delay_s(self, uniform: Callable[[float, float], float]) -> float:
        """Return the pause after a refusal."""
        return self.refused_retry_s * uniform(1 - self.jitter_ratio, 1 + self.jitter_ratio)


class PluginContext(msgspec.Struct, frozen=True, kw_only=True):
    """The services that the device plug-in uses, all on the loop thread only.

    The plug-in sets `pods_wanted` when it needs a new list of the kubelet's pods.
    """

    folder: str  # the kubelet's folder for device plug-ins
    store: SnapshotStore  # gets `served`
    backend: AllocationBackend
    clock: Clock
    # by vendor: prefixes of socket names of the vendor's own device plug-in
    socket_prefixes: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    state_dir: str = ""  # empty: nothing is stored
    boot_id: str = ""  # empty: stored data are not used
    state_writer: StateWriter = msgspec.field(default_factory=StateWriter)
    messages: MessageQueue = msgspec.field(default_factory=MessageQueue)
    pods_wanted: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    random_uniform: Callable[[float, float], float] = random.uniform
    timing: PluginTiming = PluginTiming()
