"""A NodeSLO's spec over the defaults."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from agent.model.slo.classes import QosClass, ResourceQos, settled
from agent.model.slo.reading import Reading, fields
from agent.model.slo.spec import NodeSlo
from agent.model.slo.special import READERS
from agent.model.slo.thresholds import Thresholds
from agent.model.slo.view import Refusal

# a lower limit that is not below its threshold would evict nobody, or for ever
_BELOW = (
    ("memory_evict_lower_percent", "memory_evict_threshold_percent"),
    ("cpu_evict_lower_percent", "cpu_evict_threshold_percent"),
    ("memory_allocatable_evict_lower_percent", "memory_allocatable_evict_threshold_percent"),
    ("cpu_allocatable_evict_lower_percent", "cpu_allocatable_evict_threshold_percent"),
    ("cpu_evict_satisfaction_lower_percent", "cpu_evict_satisfaction_upper_percent"),
)
_DEFAULTED = ("memory_evict_lower_percent", "cpu_evict_lower_percent")
_MAY_BE_EQUAL = ("cpu_evict_satisfaction_lower_percent",)


class Overlaid(msgspec.Struct, frozen=True, kw_only=True):
    """What a spec makes of the defaults, and what of it was not used."""

    slo: NodeSlo
    refused: tuple[Refusal, ...] = ()  # the first of them
    refused_count: int = 0
    unknown_fields: int = 0


def overlay(spec: object) -> Overlaid:
    """Lay the present fields over the defaults, then the values of switched off where they apply.

    Fields that are `null` are absent. A value of a wrong type or out of range is refused for
    itself, and all others stand. Never raises; the work is bounded, also of a hostile spec.
    """
    reading = Reading(READERS)
    laid = NodeSlo()
    if spec is not None:
        laid = _agreed(reading, reading.over(laid, spec, "spec"))
    return Overlaid(
        slo=msgspec.structs.replace(laid, resource_qos=settled(laid.resource_qos)),
        refused=tuple(reading.refused),
        refused_count=reading.refused_count,
        unknown_fields=reading.unknown_fields,
    )


def _agreed(reading: Reading, laid: NodeSlo) -> NodeSlo:
    """Refuse what is right alone but not beside another value."""
    defaults = ResourceQos()
    classes = {
        name: _range_agreed(reading, getattr(laid.resource_qos, name), default, wire)
        for name, default, wire in _classes(defaults)
    }
    return msgspec.structs.replace(
        laid,
        thresholds=_limits_agreed(reading, laid.thresholds),
        resource_qos=msgspec.structs.replace(laid.resource_qos, **classes),
    )


def _limits_agreed(reading: Reading, found: Thresholds) -> Thresholds:
    """Switch rules off whose lower limit is not below its threshold, as Koordinator does.

    Without a lower limit they are off. Where it has a default both values stay, and contradict
    each other: with the default in its place, pods were evicted by a rule that nobody wrote.
    """
    wires = {field.name: field.wire for field in fields(Thresholds).values()}
    wrong = []
    for lower, upper in _BELOW:
        low, high = getattr(found, lower), getattr(found, upper)
        if low is None or high is None or low < high + (lower in _MAY_BE_EQUAL):
            continue
        place = f"spec.resourceUsedThresholdWithBE.{wires[lower]}"
        why = f"must be less than {wires[upper]} ({high}), is {low}: nobody is evicted for it"
        reading.note(place, why)
        if lower not in _DEFAULTED:
            wrong.append(lower)
    return msgspec.structs.replace(found, **dict.fromkeys(wrong)) if wrong else found


def _classes(defaults: ResourceQos) -> Iterator[tuple[str, QosClass, str]]:
    """Yield each class's name, its default and its name on the wire."""
    for field in fields(ResourceQos).values():
        default = getattr(defaults, field.name)
        if isinstance(default, QosClass):
            yield field.name, default, field.wire


def _range_agreed(reading: Reading, found: QosClass, default: QosClass, wire: str) -> QosClass:
    """Give a class its default part of the cache where the range given is empty."""
    start, end = found.resctrl.cat_range_start_percent, found.resctrl.cat_range_end_percent
    if start < end:
        return found
    place = f"spec.resourceQOSStrategy.{wire}.resctrlQOS.catRangeStartPercent"
    reading.note(place, f"must be less than catRangeEndPercent ({end}), is {start}")
    resctrl = msgspec.structs.replace(
        found.resctrl,
        cat_range_start_percent=default.resctrl.cat_range_start_percent,
        cat_range_end_percent=default.resctrl.cat_range_end_percent,
    )
    return msgspec.structs.replace(found, resctrl=resctrl)
