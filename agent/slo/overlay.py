"""Overlays the defaults with the spec of a NodeSLO, part by part, with a bound on each part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from agent.errors import ParseError
from agent.slo.decoder import MAX_PART_BYTES, VALUE_READERS, SloDecoder, fold_names, wire_fields
from agent.snapshot.slo import (
    InvalidField,
    NodeSlo,
    QosClass,
    ResourceQos,
    ResourceThresholds,
    settle_classes,
)
from agent.wire_formats.annotations import AnnotationError
from agent.wire_formats.json_values import JSON_ERRORS

_S = TypeVar("_S", bound=msgspec.Struct)

EXTENSIONS = "extensions"
_PARTS_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY_DECODER = msgspec.json.Decoder()


def decode_spec(spec: msgspec.Raw) -> object:
    """Return the spec with every known part decoded; a value that is not an object stays unchanged.

    A part that is too large stays `Raw`, which `SloDecoder` refuses. So does a part that cannot be
    decoded; each extension is checked separately. Raises `ParseError` if the text is not JSON.
    """
    try:
        parts = _PARTS_DECODER.decode(spec)
    except msgspec.ValidationError:
        return None if bytes(spec).strip() == b"null" else spec
    except JSON_ERRORS as error:
        raise ParseError(f"spec: {type(error).__name__}", "") from error
    fields_by_name = wire_fields(NodeSlo)
    return {
        name: (_decode_extensions(part) if name == EXTENSIONS else _decode_part(part))
        if name in fields_by_name
        else part
        for name, part in parts.items()
    }


def _decode_part(part: msgspec.Raw) -> object:
    if len(memoryview(part)) > MAX_PART_BYTES:
        return part
    try:
        return _ANY_DECODER.decode(part)
    except JSON_ERRORS:
        return part


def _decode_extensions(part: msgspec.Raw) -> object:
    whole = _decode_part(part)
    if not isinstance(whole, msgspec.Raw) or len(memoryview(part)) > MAX_PART_BYTES:
        return whole
    try:
        return {name: _decode_part(one) for name, one in _PARTS_DECODER.decode(part).items()}
    except JSON_ERRORS:
        return whole


# a lower limit that is not below its threshold would evict nobody, or for ever
_LOWER_LIMITS = (
    ("memory_evict_lower_percent", "memory_evict_threshold_percent"),
    ("cpu_evict_lower_percent", "cpu_evict_threshold_percent"),
    ("memory_allocatable_evict_lower_percent", "memory_allocatable_evict_threshold_percent"),
    ("cpu_allocatable_evict_lower_percent", "cpu_allocatable_evict_threshold_percent"),
    ("cpu_evict_satisfaction_lower_percent", "cpu_evict_satisfaction_upper_percent"),
)

_USAGE_THRESHOLDS = ("memory_evict_threshold_percent", "cpu_evict_threshold_percent")

_DEFAULTED = ("memory_evict_lower_percent", "cpu_evict_lower_percent")

_MAY_BE_EQUAL = ("cpu_evict_satisfaction_lower_percent",)


class OverlayResult(msgspec.Struct, frozen=True, kw_only=True):
    """The spec in force, with its refused and unknown fields."""

    slo: NodeSlo
    refused: tuple[InvalidField, ...] = ()  # the first refused fields
    refused_count: int = 0
    unknown_fields: int = 0


def overlay_spec(spec: object) -> OverlayResult:
    """Overlay the defaults with the present fields, and set neutral values in disabled parts.

    Fields that are `null` count as absent. A value of a wrong type or out of range is refused
    alone, and all others apply. Never raises; the work is bounded, also for a hostile spec.
    """
    reading = SloDecoder(VALUE_READERS)
    laid = NodeSlo()
    if spec is not None:
        laid = _check_consistency(reading, reading.overlay(laid, spec, "spec"))
    return OverlayResult(
        slo=msgspec.structs.replace(laid, resource_qos=settle_classes(laid.resource_qos)),
        refused=tuple(reading.invalid_fields),
        refused_count=reading.invalid_count,
        unknown_fields=reading.unknown_fields,
    )


def _check_consistency(reading: SloDecoder, laid: NodeSlo) -> NodeSlo:
    """Refuse values that are valid alone but contradict another value."""
    defaults = ResourceQos()
    classes = {
        name: _check_cache_range(reading, getattr(laid.resource_qos, name), default, wire)
        for name, default, wire in _classes(defaults)
    }
    return msgspec.structs.replace(
        laid,
        thresholds=_check_limits(reading, laid.thresholds),
        resource_qos=msgspec.structs.replace(laid.resource_qos, **classes),
    )


def _check_limits(reading: SloDecoder, thresholds: ResourceThresholds) -> ResourceThresholds:
    """Disable rules whose lower limit is not below the threshold, as Koordinator does.

    A threshold of 0 disables its rule, too, where Koordinator evicts one pod after the other.
    A rule without a lower limit is disabled. If the limit has a default, both values stay although
    they contradict each other: with the default instead, pods would be evicted by a rule that
    nobody wrote.
    """
    wires = {field.name: field.wire for field in wire_fields(ResourceThresholds).values()}
    wrong = []
    for name in _USAGE_THRESHOLDS:
        if getattr(thresholds, name) == 0:
            place = f"spec.resourceUsedThresholdWithBE.{wires[name]}"
            reading.reject(place, "is 0, which would evict pods for ever: nobody is evicted for it")
    for lower, upper in _LOWER_LIMITS:
        low, high = getattr(thresholds, lower), getattr(thresholds, upper)
        if low is None or high is None or low < high + (lower in _MAY_BE_EQUAL):
            continue
        place = f"spec.resourceUsedThresholdWithBE.{wires[lower]}"
        reason = f"must be less than {wires[upper]} ({high}), is {low}: nobody is evicted for it"
        reading.reject(place, reason)
        if lower not in _DEFAULTED:
            wrong.append(lower)
    return msgspec.structs.replace(thresholds, **dict.fromkeys(wrong)) if wrong else thresholds


def _classes(defaults: ResourceQos) -> Iterator[tuple[str, QosClass, str]]:
    """Yield each class's name, its default and its name on the wire."""
    for field in wire_fields(ResourceQos).values():
        default = getattr(defaults, field.name)
        if isinstance(default, QosClass):
            yield field.name, default, field.wire


def _check_cache_range(
    reading: SloDecoder, qos: QosClass, default: QosClass, wire: str
) -> QosClass:
    """Give a class its default part of the cache if its range is empty."""
    start, end = qos.resctrl.cat_range_start_percent, qos.resctrl.cat_range_end_percent
    if start < end:
        return qos
    place = f"spec.resourceQOSStrategy.{wire}.resctrlQOS.catRangeStartPercent"
    reading.reject(place, f"must be less than catRangeEndPercent ({end}), is {start}")
    resctrl = msgspec.structs.replace(
        qos.resctrl,
        cat_range_start_percent=default.resctrl.cat_range_start_percent,
        cat_range_end_percent=default.resctrl.cat_range_end_percent,
    )
    return msgspec.structs.replace(qos, resctrl=resctrl)


def overlay_annotation(base: _S, members: Mapping[str, object], path: str) -> _S:
    """Overlay the node's values with the members of a pod's annotation.

    Names match regardless of case, as in Go's decoder, and unknown names are ignored. Raises
    `AnnotationError` for an invalid value: the annotation is then ignored.
    """
    decoder = SloDecoder(VALUE_READERS)
    result = decoder.overlay(base, fold_names(type(base), members), path)
    if decoder.invalid_fields:
        first = decoder.invalid_fields[0]
        raise AnnotationError(f"{first.path} {first.why}")
    return result
