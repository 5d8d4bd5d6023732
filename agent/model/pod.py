"""Pods and containers of this node as cgroups and the kubelet's list show them."""

from __future__ import annotations

import enum

import msgspec

from agent.model.device import Pairs


class KubeQos(enum.Enum):
    """Kubernetes' own classes; the value is the kubelet's spelling."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class ContainerView(msgspec.Struct, frozen=True, kw_only=True):
    """One container. A cgroup alone tells its id only."""

    id: str  # without the runtime's scheme
    name: str = ""  # empty: known by its cgroup alone
    cgroup: str = ""  # path below the hierarchy, "/kubepods/…"; empty: not running
    image: str = ""


class PodView(msgspec.Struct, frozen=True, kw_only=True):
    """One pod; name and namespace are empty while only its cgroup is known."""

    uid: str
    qos: KubeQos
    name: str = ""
    namespace: str = ""
    cgroup: str = ""
    labels: Pairs = ()
    annotations: Pairs = ()
    priority: int | None = None
    containers: tuple[ContainerView, ...] = ()  # by id

    def label(self, key: str) -> str | None:
        """Return a label's value."""
        return next((v for k, v in self.labels if k == key), None)
