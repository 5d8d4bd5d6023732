"""The hook protocol, and the node's hooks except the one for devices."""

from __future__ import annotations

from typing import Protocol

from agent.config.containers import HookSettings
from agent.containers.batch import BatchHook
from agent.containers.core_scheduling import CoreSchedulingHook
from agent.containers.cpu_quota import NormalizationHook, node_ratio
from agent.containers.cpuset import CpusetHook
from agent.containers.identity import IdentityHook
from agent.containers.oom import OomHook
from agent.containers.resctrl import ResctrlHook
from agent.snapshot.container import Adjustment, HookRequest, HookStage
from agent.snapshot.node import NodeSnapshot


class Hook(Protocol):
    """Decides one concern. Equal arguments give an equal answer; only `SnapshotMemo` caches.

    A hook refuses by raising `AllocationRefused`, and ignores an invalid annotation by raising
    `AnnotationError`, which is reported. Any other exception is a bug: it is counted, and the
    hook's fields are left out; other hooks still apply. A container of a pod with an allocation
    does not start without the answer of a required hook.
    """

    @property
    def name(self) -> str:
        """Return the name, as in `enforce.hooks` if the hook has a switch there."""
        ...

    @property
    def stages(self) -> frozenset[HookStage]:
        """Return the stages at which it is called."""
        ...

    @property
    def required(self) -> bool:
        """Return whether a container must not start without this hook's answer."""
        ...

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return what this hook changes; `NO_ADJUSTMENT` for nothing. No I/O, no waiting."""
        ...


DEFAULT_SETTINGS = HookSettings()


def node_hooks(*, reads_kubelet: bool, hooks: HookSettings = DEFAULT_SETTINGS) -> tuple[Hook, ...]:
    """Return new hooks with empty caches; `reads_kubelet`: the agent reads the kubelet's settings.

    All threads share one set, and so the cached results.
    """
    ratio = node_ratio()
    return (
        BatchHook(ratio),
        NormalizationHook(ratio),
        CpusetHook(
            reads_kubelet=reads_kubelet,
            manages_be=hooks.best_effort_cpus,
            unsets_quota=hooks.unset_cpu_quota,
        ),
        IdentityHook(),
        ResctrlHook(),
        CoreSchedulingHook(),
        OomHook(),
    )
