"""What every part of the plug-in shares: whom to ask and to tell, and how long to wait."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import msgspec

from agent.clock import Clock
from agent.deviceplugin.base import Decisions
from agent.model.grant.edits import ContainerEdits
from agent.model.runtime.served import ServedView
from agent.model.snapshot import NodeSnapshot
from agent.state_writer import StateWriter


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Every wait of the plug-in, in seconds."""

    look_s: float = 1.0  # at what is offered, beside being told of changes
    poll_s: float = 5.0  # at the kubelet's folder, beside the kernel's news
    absent_s: float = 1.0  # the same, while the kubelet is not there
    register_s: float = 15.0  # for an answer; the kubelet takes up to 10 to dial back
    stream_s: float = 5.0  # for the stream that must follow it
    rest_s: float = 1.0  # from the end of a server to the next one's registration, in one life
    again_s: float = 1.0  # after a failure; doubled each time
    max_again_s: float = 30.0
    refused_s: float = 300.0  # after a refusal that will not pass by itself
    jitter_ratio: float = 0.1
    list_s: float = 1.0  # between two lists in which nothing became better or worse
    # advice and an allocation, each, wait for news of a pod: the kubelet admits nothing meanwhile
    pod_s: float = 2.0
    pod_look_s: float = 0.02  # between two tries with what is known by then
    wake_s: float = 0.5  # between two requests to the source of pods for a fresh list
    prepare_s: float = 5.0  # for what an answer refers to
    inventory_s: float = 10.0  # an allocation waits for a vendor's first answer
    kept_s: float = 300.0  # then devices are unhealthy whose vendor has not answered since a start
    stop_s: float = 1.0  # for answers in progress
    losses: int = 3  # streams that the same kubelet ended: another plug-in has the resource
    losses_s: float = 600.0  # within that

    def after(self, failures: int, uniform: Callable[[float, float], float]) -> float:
        """Return the wait after so many failures in a row."""
        wait_s = min(self.max_again_s, self.again_s * 2.0 ** min(max(failures - 1, 0), 16))
        return wait_s * uniform(1 - self.jitter_ratio, 1 + self.jitter_ratio)

    def when_refused(self, uniform: Callable[[float, float], float]) -> float:
        """Return the wait after a refusal."""
        return self.refused_s * uniform(1 - self.jitter_ratio, 1 + self.jitter_ratio)


async def nothing(edits: ContainerEdits) -> None:
    """Prepare nothing."""
    del edits


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Given by who wires the plug-in; all of it is used on the loop thread alone.

    `prepare` makes what an answer refers to, folders above all, off the loop; it raises an
    `AgentError` if that cannot be. `tell` takes the reason and message of an event for people.
    `wake` has the source of pods, which is the kubelet's list, read again soon; it returns at once.
    """

    folder: str  # the kubelet's, for device plug-ins
    current: Callable[[], NodeSnapshot]
    decide: Decisions
    clock: Clock
    state_dir: str = ""  # empty: nothing is kept
    boot_id: str = ""  # empty: nothing that was kept is believed
    state_writer: StateWriter = msgspec.field(default_factory=StateWriter)
    served: Callable[[ServedView], None] = lambda _: None
    tell: Callable[[str, str], None] = lambda _, __: None
    prepare: Callable[[ContainerEdits], Awaitable[None]] = nothing
    wake: Callable[[], None] = lambda: None
    uniform: Callable[[float, float], float] = random.uniform
    pace: Pace = Pace()
