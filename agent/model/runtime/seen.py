"""Pods and containers as the runtime told of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from agent.model.device import Pairs
from agent.model.pod import PodView


class ContainerState(enum.Enum):
    """As the runtime says."""

    UNKNOWN = "unknown"
    CREATED = "created"
    PAUSED = "paused"
    RUNNING = "running"
    STOPPED = "stopped"


class SandboxSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's sandbox. Labels and annotations are those at its creation: later ones are unseen."""

    id: str
    uid: str = ""  # of the pod
    name: str = ""
    namespace: str = ""
    labels: Pairs = ()
    annotations: Pairs = ()
    cgroup_parent: str = ""  # as the runtime spells it; empty: it did not say
    runtime_handler: str = ""
    host_network: bool = False
    stopped: bool = False  # its end was told, it may be listed for a while: it holds nothing

    def label(self, key: str) -> str | None:
        """Return a label's value."""
        return next((v for k, v in self.labels if k == key), None)

    def annotation(self, key: str) -> str | None:
        """Return an annotation's value."""
        return next((v for k, v in self.annotations if k == key), None)


def sandbox_of(pod: PodView) -> SandboxSeen:
    """Return a sandbox for a pod that is known from a list and not from the runtime."""
    return SandboxSeen(
        id="",
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        labels=pod.labels,
        annotations=pod.annotations,
        host_network=pod.host_network,
    )


class ContainerSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A container; what of it changes is told again."""

    id: str
    sandbox_id: str
    name: str = ""
    state: ContainerState = ContainerState.UNKNOWN
    pid: int | None = None  # of its first process; None: not started, or not told


def _no_sandboxes() -> Mapping[str, SandboxSeen]:
    return MappingProxyType({})


def _no_containers() -> Mapping[str, ContainerSeen]:
    return MappingProxyType({})


def _none_missed() -> Mapping[str, str]:
    return MappingProxyType({})


class RuntimeView(msgspec.Struct, frozen=True, kw_only=True):
    """How the agent stands with the container runtime, and what that told so far.

    `state`: off (by a setting, or on a recorded host), waiting (no socket), refused, registered,
    synchronized. Sandboxes and containers are by id; those of an ended connection are kept, since
    their pods live on. `missed` are those of them that went on without what their hooks say.
    """

    state: str = "off"
    reason: str = ""  # CamelCase, why it is not synchronized
    message: str = ""
    runtime: str = ""  # containerd, cri-o
    version: str = ""
    nri_version: tuple[int, int, int] | None = None  # None: never connected
    takes_cdi: bool = False  # names of CDI devices, by this way
    sandboxes: Mapping[str, SandboxSeen] = msgspec.field(default_factory=_no_sandboxes)
    containers: Mapping[str, ContainerSeen] = msgspec.field(default_factory=_no_containers)
    missed: Mapping[str, str] = msgspec.field(default_factory=_none_missed)  # id: CamelCase reason

    turned_s: float | None = None  # wall clock, since when it is in force, or is not
    lost: int = 0  # how often it was in force and then was not

    @property
    def in_force(self) -> bool:
        """Say whether containers that are created now get what their hooks say."""
        return self.state == "synchronized"
