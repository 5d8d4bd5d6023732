"""All strategies, in the order in which they are asked."""

from __future__ import annotations

from agent.qos.block_io import BlockIoStrategy
from agent.qos.cpu_burst import CpuBurstStrategy
from agent.qos.kernel_settings import KernelSettingsStrategy
from agent.qos.strategy import AnyStrategy


def strategies(*, scales_quota: bool = False) -> tuple[AnyStrategy, ...]:
    """Return the strategies that this agent has.

    `scales_quota`: the hook of CPU normalization is on.
    """
    return (
        CpuBurstStrategy(scales_quota=scales_quota),
        BlockIoStrategy(),
        KernelSettingsStrategy(),
    )
