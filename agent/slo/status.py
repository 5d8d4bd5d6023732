"""The NodeSLO in force, its age, and whether it is frozen."""

from __future__ import annotations

import enum

import msgspec

from agent.errors import ParseError
from agent.slo.overlay import decode_spec, overlay_spec
from agent.snapshot.part import SnapshotPart
from agent.snapshot.slo import NodeSloView


class SloFreshness(enum.Enum):
    """How the NodeSLO in force came to be known."""

    FRESH = "fresh"
    STALE = "stale"  # the API server has not confirmed it for too long
    NEVER = "never"  # it has not said anything since the start


def build_slo_view(raw: object, previous: NodeSloView) -> NodeSloView:
    """Return what is in force once the API server has said `raw`: an object, or `None` for none.

    Without an object the defaults stand. One that is no NodeSLO at all changes nothing but
    `problem`; a wrong value in it is left out alone. An object that is in force already is
    `previous` itself. A spec may be JSON (`msgspec.Raw`): one of the size that an API server takes
    costs up to ten milliseconds, which belong on no event loop's thread.
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
    """Return how sure of the part we are; `now_s` is monotonic."""
    age_s = part.age_s(now_s)
    if age_s is None:
        return SloFreshness.NEVER
    return SloFreshness.STALE if age_s > stale_s else SloFreshness.FRESH


def is_frozen(part: SnapshotPart[NodeSloView], now_s: float, stale_s: float) -> bool:
    """Return whether plans may only hold present values: the NodeSLO may have changed.

    That is so while it is stale, was never told since the start, or cannot be read: what was
    enforced last stays, nothing goes back to defaults. An object that was deleted is no such case,
    nor a cluster without NodeSLOs: an API server that does not know the kind has said that there
    is none. But a kind that vanishes is no word on an object that was in force: that goes stale.
    """
    return bool(part.value.problem) or freshness(part, now_s, stale_s) is not SloFreshness.FRESH
