"""The hook protocol, and the node's hooks in the order in which they are called.

All hooks but those of devices, in the order they are asked.
"""

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
    """One concern. Equal arguments, equal answer: nothing is kept but what `Remembered` keeps.

    A hook says no by `GrantRefused`, and leaves an annotation that means nothing unused by
    `BadAnnotation`, which people are told. Whatever else it raises is a bug: it is counted, its
    fields are dropped, those of the others stay; a container of a pod with a grant does not start
    without what a required one sets.
    """

    @property
    def name(self) -> str:
        """Return the name, as in `enforce.hooks` where there is a switch for it."""
        ...

    @property
    def stages(self) -> frozenset[HookStage]:
        """Return when it is asked."""
        ...

    @property
    def required(self) -> bool:
        """Say whether a container that cannot get this must not start."""
        ...

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return what this hook changes; `NOTHING` where it has no say. No I/O, no waiting."""
        ...


DEFAULT_SETTINGS = HookSettings()


def node_hooks(*, reads_kubelet: bool, hooks: HookSettings = DEFAULT_SETTINGS) -> tuple[Hook, ...]:
    """Return them new, each with nothing remembered; `reads_kubelet`: the kubelet is asked.

    One set serves all threads: what one of them made of the snapshot the others need not make.
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
