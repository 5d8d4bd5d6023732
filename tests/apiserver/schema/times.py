"""Times of built-in kinds, decoded as strictly as a real server does: a wrong one is a 400."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.apiserver.refusal import bad_request

_ZONE = r"(Z|[+-]\d\d:\d\d)"
_SECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?" + _ZONE)
_MICROSECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}" + _ZONE)
_MICRO_FIELDS = {"eventTime", "lastObservedTime", "acquireTime", "renewTime"}
_FIELDS = {
    "deprecatedFirstTimestamp",
    "deprecatedLastTimestamp",
    "lastHeartbeatTime",
    "lastTransitionTime",
    "lastProbeTime",
    "startTime",
    "startedAt",
    "finishedAt",
    "timeAdded",
    "creationTimestamp",
    "deletionTimestamp",
}
_FREE = {"labels", "annotations", "managedFields"}  # their keys are anybody's


def check_times(kind: str, version: str, body: dict[str, Any]) -> None:
    """Refuse an object with a time that does not parse."""
    for name, value in _times(body):
        micro = name in _MICRO_FIELDS
        layout = "2006-01-02T15:04:05.000000Z07:00" if micro else "2006-01-02T15:04:05Z07:00"
        pattern = _MICROSECONDS if micro else _SECONDS
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise bad_request(
                f'{kind} in version "{version}" cannot be handled as a {kind}: parsing time '
                f'"{value}" as "{layout}": cannot parse'
            )


def _times(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            if name in _FIELDS or name in _MICRO_FIELDS:
                if item is not None:
                    yield name, item
            elif name not in _FREE:
                yield from _times(item)
    elif isinstance(value, list):
        for item in value:
            yield from _times(item)
