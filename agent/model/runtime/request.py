"""What a hook is asked: a pod or container at one stage of its life."""

from __future__ import annotations

import enum

import msgspec

from agent.model.grant.container import Container
from agent.model.runtime.adjustment import NO_RESOURCES, Resources
from agent.model.runtime.seen import SandboxSeen


class Stage(enum.Enum):
    """When a hook is asked; the values are Koordinator's names, which people know."""

    RUN_POD = "PreRunPodSandbox"
    CREATE = "PreCreateContainer"
    UPDATE = "PreUpdateContainerResources"
    REMOVE_POD = "PreRemoveRunPodSandbox"
    RECONCILE = "Reconcile"


class HookRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One question. `container` is `None` where it is about the pod itself.

    One without a name is the pod's sandbox, which has CPUs and a cookie as the others do.
    `resources` are those asked for: of a new container those of its spec, of an update those of
    the update (never what is in force: a hook that scales would scale again each time), at
    `RECONCILE` those of the pod's object, as far as they are known.
    """

    stage: Stage
    pod: SandboxSeen
    container: Container | None = None
    resources: Resources = NO_RESOURCES
