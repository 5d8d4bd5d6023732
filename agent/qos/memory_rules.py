"""Formulas of memory QoS: the settings of a pod, and the values that follow from them. Pure.

They are those of Koordinator (`pkg/koordlet/qosmanager/plugins/cgreconcile`).
"""

from __future__ import annotations

import msgspec

from agent.cgroup.keys import (
    NO_LIMIT,
    OOM_GROUP,
    OOM_PRIORITY,
    PAGE_CACHE_ENABLE,
    PAGE_CACHE_SIZE,
    PAGE_CACHE_SYNC,
    USES_OOM_PRIORITY,
    WATERMARK_ADJUSTMENT,
    WATERMARK_RATIO,
    WATERMARK_SCALE,
    CgroupKey,
)
from agent.cgroup.usage_files import PAGE_BYTES
from agent.qos.strategy import QosContainer, QosPod
from agent.slo.overlay import overlay_annotation
from agent.snapshot.slo import (
    BE_DEFAULTS,
    LS_DEFAULTS,
    LSR_DEFAULTS,
    SYSTEM_DEFAULTS,
    MemoryQos,
    QosClass,
    ResourceQos,
)
from agent.wire_formats.annotations import parse_json_object

ANNOTATION = "koordinator.sh/memoryQOS"
DISABLED = MemoryQos()  # its values change nothing
UNLIMITED = -1

_CLASSES = {"LSE": "lsr_class", "LSR": "lsr_class", "LS": "ls_class", "BE": "be_class"}
_WIRE_NAMES = {
    "lsr_class": "lsrClass",
    "ls_class": "lsClass",
    "be_class": "beClass",
    "system_class": "systemClass",
}
_DEFAULTS = {
    "lsr_class": LSR_DEFAULTS,
    "ls_class": LS_DEFAULTS,
    "be_class": BE_DEFAULTS,
    "system_class": SYSTEM_DEFAULTS,
}

PRIORITY_KEYS = ((USES_OOM_PRIORITY, "priority_enable"), (OOM_PRIORITY, "priority"))
NUMBER_KEYS: tuple[tuple[CgroupKey, str], ...] = (
    (WATERMARK_RATIO, "wmark_ratio"),
    (WATERMARK_SCALE, "wmark_scale_permill"),
    (WATERMARK_ADJUSTMENT, "wmark_min_adj"),
    *PRIORITY_KEYS,
    (OOM_GROUP, "oom_kill_group"),
)


class PodMemoryQos(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one pod, and the field that asks for them."""

    memory: MemoryQos
    source: str


def class_memory_qos(strategy: ResourceQos, name: str) -> PodMemoryQos:
    """Return the settings of a class by its field's name; those of a disabled one do nothing."""
    part: QosClass = getattr(strategy, name)
    source = f"NodeSLO spec.resourceQOSStrategy.{_WIRE_NAMES[name]}.memoryQOS"
    return PodMemoryQos(memory=part.memory if part.memory.enable else DISABLED, source=source)


def pod_memory_qos(pod: QosPod, strategy: ResourceQos) -> PodMemoryQos:
    """Return the settings of a pod: of its class, or of its annotation over them.

    Raises `AnnotationError` for an annotation that is not used.
    """
    name = _CLASSES.get(pod.qos_class, "system_class")
    node = class_memory_qos(strategy, name)
    text = pod.view.annotation(ANNOTATION)
    if text is None:
        return node
    members = {key.casefold(): value for key, value in parse_json_object(text).items()}
    members.pop("enable", None)  # of a class only
    policy = members.get("policy")
    source = f"Pod {pod.view.namespace}/{pod.view.name} annotation {ANNOTATION}"
    if policy == "none":
        return PodMemoryQos(memory=DISABLED, source=source)
    base = _DEFAULTS[name].memory if policy == "auto" else node.memory
    return PodMemoryQos(memory=overlay_annotation(base, members, ANNOTATION), source=source)


class MemoryAmounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod or a container requests, and its limit in bytes; -1: it has no limit."""

    request: int = 0
    limit: int = UNLIMITED


def container_amounts(container: QosContainer, label: str) -> MemoryAmounts:
    """Return the amounts of a container; those of pods labelled BE are batch memory."""
    resources = container.resources
    if label == "BE":
        return MemoryAmounts(
            request=resources.batch_memory_bytes or 0,
            limit=resources.batch_memory_limit_bytes or UNLIMITED,
        )
    return MemoryAmounts(
        request=resources.memory_request_bytes or 0,
        limit=resources.memory_limit_bytes or UNLIMITED,
    )


def pod_amounts(pod: QosPod) -> MemoryAmounts | None:
    """Return the amounts of a pod; `None` while its spec is not known."""
    if pod.view.resources is None or pod.view.compute_request is None:
        return None
    running = [resource for resource in pod.view.resources if resource.runs_beside_others]
    if pod.label == "BE":
        request = sum(one.batch_memory_bytes or 0 for one in running)
        limits = [one.batch_memory_limit_bytes or 0 for one in running]
    else:
        request = int(pod.view.compute_request.memory_bytes)
        limits = [one.memory_limit_bytes or 0 for one in running]
    limit = sum(limits) if limits and all(limits) else UNLIMITED
    return MemoryAmounts(request=request, limit=limit)


def part_of(request: int, percent: int) -> int:
    """Return a percentage of a request."""
    return request * percent // 100


def protection(amounts: MemoryAmounts, memory: MemoryQos) -> tuple[int, int]:
    """Return `memory.min` and `memory.low`; a low that is not 0 is at least min."""
    minimum = part_of(amounts.request, memory.min_limit_percent)
    low = part_of(amounts.request, memory.low_limit_percent)
    return minimum, max(low, minimum) if low > 0 else low


def needs_allocatable(amounts: MemoryAmounts, memory: MemoryQos) -> bool:
    """Return whether `memory.high` depends on the node's allocatable memory."""
    return memory.throttling_percent > 0 and amounts.limit <= 0


def throttling_limit(amounts: MemoryAmounts, memory: MemoryQos, allocatable: int) -> int:
    """Return `memory.high`: between the request and the limit, in whole pages.

    It is never 0, which would stop the container: a base that is no amount limits nothing.
    """
    if memory.throttling_percent == 0:
        return NO_LIMIT
    base = amounts.limit if amounts.limit > 0 else allocatable
    span = (base - amounts.request) * memory.throttling_percent
    share = span // 100 if span >= 0 else -(-span // 100)  # Go's division
    high = (amounts.request + share) // PAGE_BYTES * PAGE_BYTES
    minimum, _ = protection(amounts, memory)
    return max(high, minimum) if high > 0 else NO_LIMIT


def page_cache_values(memory: MemoryQos, limit: int) -> tuple[tuple[CgroupKey, int], ...]:
    """Return the files of a pod's page-cache limit; none if nothing asks for it."""
    size: int | None = None
    if memory.page_cache_limit_size is not None:
        size = memory.page_cache_limit_size
        size = min(size, limit) if limit > 0 else size
    elif memory.page_cache_limit_percent and limit > 0:
        size = part_of(limit, memory.page_cache_limit_percent)
    is_enabled = memory.page_cache_enable
    if is_enabled is None and size is not None:
        is_enabled = size > 0
    values: list[tuple[CgroupKey, int]] = []
    if size is not None:
        values.append((PAGE_CACHE_SIZE, size))
        if size > 0:
            values.append((PAGE_CACHE_SYNC, int(bool(memory.page_cache_reclaim_sync))))
    if is_enabled is not None:
        values.append((PAGE_CACHE_ENABLE, int(is_enabled)))
    return tuple(values)
