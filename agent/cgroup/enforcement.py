"""What the strategies of one cycle want of the node's files: plain data."""

from __future__ import annotations

import msgspec

from agent.cgroup.write_plan import DesiredValue, WriteTarget
from agent.snapshot.pod import EvictionRequest
from agent.snapshot.self_check import EnforcementView


class StrategyValues(msgspec.Struct, frozen=True, kw_only=True):
    """The desired values of one strategy; the same object as before while they are equal."""

    owner: str
    values: tuple[DesiredValue, ...]
    targets: frozenset[WriteTarget]


class MemoryReclaim(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a cgroup that the kernel should reclaim now."""

    cgroup: str
    size_bytes: int


class EnforcementPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The desired values of all strategies.

    A file that hooks want, too, gets the strategy's value. A file that a strategy of `decided`
    changed before and does not want any more gets its original value back; those of a strategy
    that could not decide stay as they are.
    """

    enforced: tuple[StrategyValues, ...] = ()  # of strategies that are on
    planned: tuple[StrategyValues, ...] = ()  # of those in plan mode: compared, not written
    owners: frozenset[str] = frozenset()  # names of all strategies
    decided: frozenset[str] = frozenset()  # names of those that decided in this cycle
    evictions: tuple[EvictionRequest, ...] = ()
    reclaims: tuple[MemoryReclaim, ...] = ()  # of strategies that are on
    view: EnforcementView = EnforcementView()


NO_ENFORCEMENT = EnforcementPlan()
