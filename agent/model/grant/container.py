"""The container that a grant is for, as far as the decision looks at it."""

from __future__ import annotations

import msgspec

from agent.model.device import DeviceNode, Pairs


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """A container before it is created. All of its text was written by users."""

    name: str = ""
    pod_uid: str = ""
    env: Pairs = ()  # of image and spec together, in the order of the runtime
    mounts: tuple[str, ...] = ()  # destinations
    nodes: tuple[DeviceNode, ...] = ()  # character devices that it has already, by its own paths
    runtime_handler: str = ""  # of the pod's runtime class; empty: the runtime's default
    user: int | None = None  # user id of the first process; None: unknown
    privileged: bool = False
    protected: bool = False  # in a namespace that is left alone, or the agent's own
    given_elsewhere: bool = False  # another device plug-in gave it devices
    host_network: bool = False
    labels: Pairs = ()  # of the pod
    annotations: Pairs = ()  # of the pod

    def value(self, variable: str) -> str | None:
        """Return a variable's last value; `None` if it is not set."""
        return next((value for name, value in reversed(self.env) if name == variable), None)

    def label(self, key: str) -> str | None:
        """Return a label of the pod."""
        return next((value for name, value in self.labels if name == key), None)

    def annotation(self, key: str) -> str | None:
        """Return an annotation of the pod."""
        return next((value for name, value in self.annotations if name == key), None)
