"""The NodeSLO in force, its age, and whether it is frozen."""

from __future__ import annotations

import enum

import msgspec

from agent.errors import ParseError
from agent.slo.overlay import decode_spec, overlay_spec
from agent.snapshot.part import SnapshotPart
from agent.snapshot.slo import NodeSloView


class SloFreshness(enum.Enum):
    """How recent the NodeSLO in force is."""

    FRESH = "fresh"
    STALE = "stale"  # the API server has not confirmed it for too long
    NEVER = "never"  # the API server has not answered since the start


def build_slo_view(raw: object, previous: NodeSloView) -> NodeSloView:
    """Return the settings in force after the API server reported `raw`; `None`: no NodeSLO exists.

    Without an object the defaults apply. An object that is not a NodeSLO changes only `problem`; an
    invalid value in it is refused alone. For an object that is in force already, the result is
    `previous` itself. A spec may be JSON (`msgspec.Raw`): one of the largest size that an API
    server accepts takes up to ten milliseconds, so it must not be decoded on the event loop's
    thread.
    """
    if raw is None:
        return NodeSloView()
    if not isinstance(raw, dict):
        return msgspec.structs.replace(previous, problem="the object is not a mapping")
    metadata = raw.get("metadata")
    members = metadata if isinstance(metadata, dict) else {}
    version, generation = members.get("resourceVersion"), members.get("generation")
    version = version if isinstance(version, str) else ""
    if version and version == previous.resource_version and not previous.problem:
        return previous
    spec = raw.get("spec")
    try:
        spec = decode_spec(spec) if isinstance(spec, msgspec.Raw) else spec
    except ParseError as error:
        return msgspec.structs.replace(previous, problem=str(error))
    if spec is not None and not isinstance(spec, dict):
        return msgspec.structs.replace(previous, problem="its spec is not a mapping")
    laid = overlay_spec(spec)
    return NodeSloView(
        found=True,
        resource_version=version,
        generation=generation if type(generation) is int else None,
        slo=laid.slo,
        refused=laid.refused,
        refused_count=laid.refused_count,
        unknown_fields=laid.unknown_fields,
    )


def freshness(part: SnapshotPart[NodeSloView], now_s: float, stale_s: float) -> SloFreshness:
    """Return how recent this part is; `now_s` is monotonic."""
    age_s = part.age_s(now_s)
    if age_s is None:
        return SloFreshness.NEVER
    return SloFreshness.STALE if age_s > stale_s else SloFreshness.FRESH


def is_frozen(part: SnapshotPart[NodeSloView], now_s: float, stale_s: float) -> bool:
    """Return whether plans may only keep present values, because the NodeSLO may have changed.

    A NodeSLO is frozen while it is stale, was not received since the start, or cannot be read: the
    values in force stay, and no default replaces them. A deleted NodeSLO, or a cluster without the
    CRD, is not frozen: the defaults apply. But if the CRD disappears while an object is in force,
    that object becomes stale.
    """
    return bool(part.value.problem) or freshness(part, now_s, stale_s) is not SloFreshness.FRESH
