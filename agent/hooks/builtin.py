"""All hooks but those of devices, in the order they are asked."""

from __future__ import annotations

from agent.hooks.base import Hook
from agent.hooks.cpu.batch import BatchHook
from agent.hooks.cpu.core_scheduling import CoreSchedulingHook
from agent.hooks.cpu.cpuset import CpusetHook
from agent.hooks.cpu.identity import IdentityHook
from agent.hooks.cpu.normalisation import NormalisationHook
from agent.hooks.cpu.ratio import node_ratio
from agent.hooks.oom import OomHook
from agent.hooks.resctrl import ResctrlHook


def node_hooks(
    *, asks_kubelet: bool, manages_be: bool = False, unsets_quota: bool = True
) -> tuple[Hook, ...]:
    """Return them new, each with nothing remembered. For arguments see `CpusetHook`."""
    ratio = node_ratio()
    return (
        BatchHook(ratio),
        NormalisationHook(ratio),
        CpusetHook(asks_kubelet=asks_kubelet, manages_be=manages_be, unsets_quota=unsets_quota),
        IdentityHook(),
        ResctrlHook(),
        CoreSchedulingHook(),
        OomHook(),
    )
