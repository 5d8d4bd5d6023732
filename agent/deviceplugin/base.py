"""The seam within the device plug-in: what is decided (pure), and who brings it to the kubelet."""

from __future__ import annotations

from typing import Protocol

import msgspec

from agent.errors import AgentError
from agent.model.device import Pairs
from agent.model.grant.edits import ContainerEdits
from agent.model.snapshot import NodeSnapshot

MAX_DETAIL = 300
EXCHANGE = "xpu-agent.io/exchange-"  # of an annotation: what is given for the kubelet's ids
UNSEEN = "PodUnknown"  # the reason where no pod is known that the kubelet can be asking for


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One device as the kubelet lists it."""

    id: str  # unique within its resource; the vendor's, so of no bound that anybody enforces
    healthy: bool = True
    numa_nodes: tuple[int, ...] = ()  # empty: no preference


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A resource that is offered now. Equal ones are told to the kubelet once."""

    name: str  # nvidia.com/gpu
    vendor: str  # as in `device_plugin.vendors`
    devices: tuple[Listed, ...] = ()
    check_start: bool = False  # have the kubelet ask before each start of a container
    choose: bool = True  # have the kubelet ask which devices are best
    withdrawn_ids: tuple[str, ...] = ()  # ids in use that the kubelet would give to another pod


class NotAllocated(AgentError):
    """The kubelet is refused, and the pod's admission fails; `reason` is CamelCase."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail[:MAX_DETAIL]}")
        self.reason = reason


class PodNotSeen(NotAllocated):
    """What is known of pods does not allow it: worth a new try with a newer snapshot."""


class Allocated(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one container. The kubelet keeps it for as long as its pod lives.

    What the kubelet cannot express is not in it: rlimits and file modes are of no effect here.
    `pod_uid` is whose it was taken to be, to be remembered as `Held` until the kubelet's own
    checkpoint says so; empty if that is not known. `exchanges` are those of `Held`; the kubelet
    keeps them with its account, in an annotation of the answer.
    """

    edits: ContainerEdits
    annotations: tuple[tuple[str, str], ...] = ()
    pod_uid: str = ""
    exchanges: Pairs = ()


class Decisions(Protocol):
    """What the kubelet is told. Every method is pure and quick: all they know is the snapshot.

    Resources are named by their name. `GrantRefused` and `NotAllocated` are refusals; anything
    else that is raised is a bug, which fails that one call.
    """

    def resources(self, snapshot: NodeSnapshot) -> tuple[Resource, ...]:
        """Return what is offered now, by name; of vendors that have not answered yet nothing."""
        ...

    def preferred(
        self,
        resource: str,
        available: tuple[str, ...],
        required: tuple[str, ...],
        size: int,
        snapshot: NodeSnapshot,
        *,
        last: bool = False,
    ) -> tuple[str, ...]:
        """Return the best `size` ids of those available, with all required ones.

        `PodNotSeen` asks for a new try; with `last` there is none, and it is not raised.
        """
        ...

    def allocate(
        self, resource: str, ids: tuple[str, ...], snapshot: NodeSnapshot, *, last: bool = False
    ) -> Allocated:
        """Return what a container with these ids gets, whichever container that is.

        `PodNotSeen` asks for a new try; with `last` there is none, and it is not raised.
        """
        ...

    def check_start(self, resource: str, ids: tuple[str, ...], snapshot: NodeSnapshot) -> None:
        """Raise a refusal if a container with these ids must not be started now."""
        ...
