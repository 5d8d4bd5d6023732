"""Cache masks and bandwidth values from percentages, as Koordinator computes them. Pure.

The formulas are those of Koordinator's `pkg/koordlet/util/system/resctrl.go`. Where its result is
refused by the kernel, the mask or value is the nearest one that the kernel accepts.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.containers.resctrl import ResctrlRequest
from agent.errors import AgentError
from agent.resctrl.capabilities import (
    BandwidthAllocation,
    BandwidthUnit,
    CacheAllocation,
    Capabilities,
)
from agent.resctrl.schemata import BANDWIDTH, Schemata
from agent.snapshot.slo import ResctrlQos

FULL_PERCENT = 100


class MaskError(AgentError, ValueError):
    """A percent range, or the mask that it divides, is invalid."""


def percent_mask(full_mask: int, start: int, end: int, min_bits: int = 1) -> int:
    """Return the ways of a percent range; `full_mask` must be a run of ones from bit 0.

    A range narrower than `min_bits` ways is widened to them, and shifted down where it reaches the
    top. Raise `MaskError` for another mask or range.
    """
    if full_mask <= 0 or full_mask & (full_mask + 1):
        raise MaskError(f"cache mask {full_mask:x}: not a run of ones from the lowest bit")
    if not 0 <= start < end <= FULL_PERCENT:
        raise MaskError(f"range {start}-{end}: must rise, from 0 to 100")
    ways = full_mask.bit_length()
    low, high = _ceil(ways * start, FULL_PERCENT), _ceil(ways * end, FULL_PERCENT)
    if high - low < min_bits:
        high = min(low + min_bits, ways)
        low = max(high - min_bits, 0)
    return (1 << high) - (1 << low)


def cache_mask(cache: CacheAllocation, start: int, end: int) -> int:
    """Return the mask of a percent range of this cache; raise `MaskError` for a bad range.

    Of a full mask with gaps, the kernel accepts either the longest run of ones only, or any bits
    where it has sparse masks. Counted from the highest bit, ranges overlap as they do from the
    lowest one.
    """
    if cache.has_sparse_masks:
        bits = [bit for bit in range(cache.full_mask.bit_length()) if cache.full_mask >> bit & 1]
    else:
        bits = _longest_run(cache.full_mask)
    if cache.starts_high:
        bits.reverse()
    chosen = percent_mask((1 << len(bits)) - 1, start, end, cache.min_bits)
    return sum(1 << bit for place, bit in enumerate(bits) if chosen >> place & 1)


def _longest_run(mask: int) -> list[int]:
    """Return the places of the longest run of ones; of equal ones the lowest."""
    best: list[int] = []
    run: list[int] = []
    for bit in range(mask.bit_length()):
        run = [*run, bit] if mask >> bit & 1 else []
        best = run if len(run) > len(best) else best
    return best


def bandwidth_value(bandwidth: BandwidthAllocation, percent: int) -> int | None:
    """Return the value of a percentage from 1 to 100, as the kernel keeps it.

    `None`: the value depends on a bandwidth that is unknown.
    """
    if bandwidth.unit is BandwidthUnit.PERCENT:
        step = bandwidth.granularity if bandwidth.is_linear else 1
        return min(max(bandwidth.minimum, _ceil(percent, step) * step), FULL_PERCENT)
    if percent == FULL_PERCENT:
        return bandwidth.unlimited
    if bandwidth.domain_units is None:
        return None
    value = max(bandwidth.minimum, bandwidth.domain_units * percent // FULL_PERCENT)
    return min(value, bandwidth.unlimited)


def class_values(capabilities: Capabilities, qos: ResctrlQos) -> Schemata:
    """Return the values of a class of the NodeSLO, of the resources that exist here."""
    values: dict[str, dict[int, int]] = {}
    cache, bandwidth = capabilities.cache, capabilities.bandwidth
    if cache is not None and qos.cat_range_start_percent < qos.cat_range_end_percent:
        mask = cache_mask(cache, qos.cat_range_start_percent, qos.cat_range_end_percent)
        for line in cache.lines:
            values[line] = dict.fromkeys(cache.domains, mask)
    if bandwidth is not None and 1 <= qos.mba_percent <= FULL_PERCENT:
        value = bandwidth_value(bandwidth, qos.mba_percent)
        if value is not None:
            values[BANDWIDTH] = dict.fromkeys(bandwidth.domains, value)
    return values


def pod_values(capabilities: Capabilities, request: ResctrlRequest) -> Schemata:
    """Return the values of a pod's annotation; single caches take precedence over all of them."""
    values: dict[str, dict[int, int]] = {}
    cache, bandwidth = capabilities.cache, capabilities.bandwidth
    if cache is not None:
        ranges = dict.fromkeys(cache.domains, request.cache) if request.cache else {}
        ranges |= {domain: one for domain, one in request.caches if domain in cache.domains}
        masks = {domain: cache_mask(cache, *one) for domain, one in ranges.items() if one}
        values |= {line: masks for line in cache.lines if masks}
    if bandwidth is not None:
        percents = dict.fromkeys(bandwidth.domains, request.bandwidth_percent or 0)
        percents |= {d: one for d, one in request.bandwidths_percent if d in bandwidth.domains}
        amounts = {d: bandwidth_value(bandwidth, one) for d, one in percents.items() if one}
        reached = {domain: one for domain, one in amounts.items() if one is not None}
        values |= {BANDWIDTH: reached} if reached else {}
    return values


def missing_parts(
    capabilities: Capabilities, request: ResctrlQos | ResctrlRequest
) -> Iterator[str]:
    """Yield the names of what a request limits, and what cannot be divided here."""
    if isinstance(request, ResctrlQos):
        start, end = request.cat_range_start_percent, request.cat_range_end_percent
        limits_cache = start < end and (start, end) != (0, FULL_PERCENT)
        percents: tuple[int | None, ...] = (request.mba_percent,)
    else:
        limits_cache = request.cache is not None or bool(request.caches)
        single = (one for _, one in request.bandwidths_percent)
        percents = (request.bandwidth_percent, *single)
    if capabilities.cache is None and limits_cache:
        yield "the last-level cache"
    if capabilities.bandwidth is None and any(0 < (one or 0) < FULL_PERCENT for one in percents):
        yield "memory bandwidth"


def needs_bandwidth(bandwidth: BandwidthAllocation | None, percents: tuple[int, ...]) -> bool:
    """Return whether one of these percentages cannot be converted, as a bandwidth is unknown."""
    if bandwidth is None:
        return False
    return any(
        bandwidth_value(bandwidth, percent) is None
        for percent in percents
        if 1 <= percent <= FULL_PERCENT
    )


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
