"""All hooks but those of devices, in the order they are asked."""

from __future__ import annotations

from agent.config.containers import HookSettings
from agent.hooks.base import Hook
from agent.hooks.cpu.batch import BatchHook
from agent.hooks.cpu.core_scheduling import CoreSchedulingHook
from agent.hooks.cpu.cpuset import CpusetHook
from agent.hooks.cpu.identity import IdentityHook
from agent.hooks.cpu.normalisation import NormalisationHook
from agent.hooks.cpu.ratio import node_ratio
from agent.hooks.oom import OomHook
from agent.hooks.resctrl import ResctrlHook

DEFAULTS = HookSettings()


def node_hooks(*, asks_kubelet: bool, hooks: HookSettings = DEFAULTS) -> tuple[Hook, ...]:
    """Return them new, each with nothing remembered; `asks_kubelet`: the kubelet is asked.

    One set serves all threads: what one of them made of the snapshot the others need not make.
    """
    ratio = node_ratio()
    return (
        BatchHook(ratio),
        NormalisationHook(ratio),
        CpusetHook(
            asks_kubelet=asks_kubelet,
            manages_be=hooks.best_effort_cpus,
            unsets_quota=hooks.unset_cpu_quota,
        ),
        IdentityHook(),
        ResctrlHook(),
        CoreSchedulingHook(),
        OomHook(),
    )
