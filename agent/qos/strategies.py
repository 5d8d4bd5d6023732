"""All strategies, in the order in which they are asked."""

from __future__ import annotations

from agent.config.containers import ENFORCE_MODES, EnforceSettings
from agent.qos.block_io import BlockIoStrategy
from agent.qos.cpu_burst import CpuBurstStrategy
from agent.qos.cpu_suppression import CpuSuppression
from agent.qos.eviction.memory_reclaim import MemoryReclaimStrategy
from agent.qos.eviction.strategies import eviction_strategies
from agent.qos.kernel_settings import KernelSettingsStrategy
from agent.qos.memory_qos import MemoryQosStrategy
from agent.qos.strategy import AnyStrategy

ON = ENFORCE_MODES[-1]


def strategies(
    enforce: EnforceSettings, own_uid: str, *, scales_quota: bool = False
) -> tuple[AnyStrategy, ...]:
    """Return the strategies that this agent has.

    `own_uid` is that of the agent's own pod. `scales_quota`: the hook of CPU normalization is on.
    """
    reclaims_first = (enforce.mode, enforce.strategies.memory_reclaim) == (ON, ON)
    return (
        CpuSuppression(enforce.cpu_suppression),
        CpuBurstStrategy(scales_quota=scales_quota),
        MemoryQosStrategy(),
        BlockIoStrategy(uses_latency_targets=enforce.block_io.latency_targets),
        KernelSettingsStrategy(),
        MemoryReclaimStrategy(),
        *eviction_strategies(
            enforce.eviction,
            own_uid,
            protected_namespaces=enforce.protected_namespaces,
            reclaims_first=reclaims_first,
        ),
    )
