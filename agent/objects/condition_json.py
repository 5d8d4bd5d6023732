"""One condition of the Node as JSON, and what of the live conditions stays. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent.snapshot.publications import Json
from agent.wire_formats import api_values

HEARTBEAT, TRANSITION = "lastHeartbeatTime", "lastTransitionTime"
TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"


def condition_json(
    kind: str, status: str, reason: str, message: str, since_s: float | None, boot_s: float
) -> Json:
    """Return a condition; a change without a known time gets the time of the boot."""
    moment = api_values.format_first_time(since_s, boot_s)
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": api_values.clean_text(message, api_values.MAX_MESSAGE),
        HEARTBEAT: moment,
        TRANSITION: moment,
    }


def merge_condition_times(live: Json, desired: Json) -> Json:
    """Return the desired conditions with the times of the live ones, while the status is equal.

    The heartbeat is the time of the transition, not of the last update: as a clock it would cause a
    write a minute on every node.
    """
    live_conditions = {str(one.get("type")): one for one in conditions_of(live)}
    conditions = [
        _with_live_times({**one}, live_conditions[str(one["type"])])
        if one["type"] in live_conditions
        else one
        for one in conditions_of(desired)
    ]
    return {**desired, "status": {"conditions": conditions}}


def _with_live_times(desired: Json, live: Mapping[str, object]) -> Json:
    times = {name: str(live.get(name)) for name in (HEARTBEAT, TRANSITION)}
    valid = {name: time for name, time in times.items() if api_values.TIME_PATTERN.fullmatch(time)}
    if live.get("status") == desired["status"]:
        return {**desired, **valid}
    # times of this form compare as text; a change is never older than the one before
    moment = max(str(desired[TRANSITION]), valid.get(TRANSITION, ""))
    return {**desired, HEARTBEAT: moment, TRANSITION: moment}


def conditions_of(body: Json) -> Iterator[Mapping[str, object]]:
    """Yield the conditions of a Node that have a type."""
    status = body.get("status")
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    for entry in conditions if isinstance(conditions, list) else ():
        if isinstance(entry, Mapping) and isinstance(entry.get("type"), str):
            yield entry
