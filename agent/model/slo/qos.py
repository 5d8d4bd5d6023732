"""What one QoS class gets of CPU, memory, caches and network.

The defaults here are those of a class that is switched off; `classes` has those of each class.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from agent.model.slo.ranges import Bandwidth, Flag, Percent, Whole


class CpuQos(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How the scheduler of CPUs treats the class; the first needs the policy `groupIdentity`."""

    enable: bool = False
    group_identity: Annotated[int, Meta(ge=-1, le=2)] = 0
    sched_idle: Flag = 0  # of the policy `coreSched`, as the next one
    core_expeller: bool = False


class MemoryQos(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How memory is protected and reclaimed; most of it by Anolis kernels only.

    The first three are percent of a pod's request, of its request and of what is between its
    request and its limit.
    """

    enable: bool = False
    min_limit_percent: Percent = 0
    low_limit_percent: Percent = 0
    throttling_percent: Percent = 0
    wmark_ratio: Percent = 0
    wmark_scale_permill: Annotated[int, Meta(ge=1, le=1000)] = 50
    wmark_min_adj: Annotated[int, Meta(ge=-25, le=50)] = 0
    priority_enable: Flag = 0
    priority: Annotated[int, Meta(ge=0, le=12)] = 0
    oom_kill_group: Flag = 0
    page_cache_enable: bool | None = None
    page_cache_limit_percent: Percent | None = None  # of the pod's limit
    page_cache_limit_size: Whole | None = None  # bytes; wins over the percentage
    page_cache_reclaim_sync: bool | None = None


class ResctrlQos(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which part of the last-level cache, and how much memory bandwidth."""

    enable: bool = False
    cat_range_start_percent: Percent = 0
    cat_range_end_percent: Percent = 100
    mba_percent: Percent = 100


class NetworkQos(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Bandwidth. The CRD fills in limits of 100 % where this part is given, we 0 where it is not.

    A limit of 0 is no more than the request.
    """

    enable: bool = False
    ingress_request: Bandwidth = 0
    ingress_limit: Bandwidth = 0
    egress_request: Bandwidth = 0
    egress_limit: Bandwidth = 0
