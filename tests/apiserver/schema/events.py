"""Rules of events beyond their structure, as of events.k8s.io/v1 and of the older core/v1."""

from __future__ import annotations

from typing import Any

from tests.apiserver.refusal import Cause
from tests.apiserver.schema.metadata import check_key

Object = dict[str, Any]

MAX_SHORT = 128
MAX_NOTE = 1024
MIN_SERIES_COUNT = 2
_IMMUTABLE = (
    ("regarding", "involvedObject"),
    ("reason", "reason"),
    ("note", "message"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("deprecatedSource", "source"),
    ("eventTime", "eventTime"),
    ("action", "action"),
    ("type", "type"),
    ("related", "related"),
    ("reportingController", "reportingController"),
    ("reportingInstance", "reportingInstance"),
)


def check_event(group: str, body: Object, before: Object | None) -> list[Cause]:
    """Return what is wrong with an event that is created, or changed from `before`."""
    causes = _always(group, body)
    if not group:
        return causes
    if before is None:
        return causes + _series(body) + _new(body)
    if body.get("series") != before.get("series"):
        causes += _series(body)
    for own_values, reports in _IMMUTABLE:
        if body.get(own_values) != before.get(own_values):
            causes.append(_invalid(reports, body.get(own_values), "field is immutable"))
    return causes


def _always(group: str, body: Object) -> list[Cause]:
    namespace = body["metadata"].get("namespace", "")
    regarding = body.get("regarding", {}).get("namespace", "")
    mismatch = _invalid("involvedObject.namespace", regarding, "does not match event.namespace")
    if not body.get("eventTime"):
        agree = namespace == regarding if regarding else namespace in ("", "default")
        return [] if agree else [mismatch]
    causes = []
    if not regarding and namespace not in ("default", "kube-system"):
        causes.append(mismatch)
    controller = body.get("reportingController", "")
    if not controller or not check_key(controller):
        reports = "reportingController" if group else "reportingComponent"
        causes.append(_invalid(reports, controller, "") if controller else _required(reports))
    for name in ("reportingInstance", "action", "reason"):
        text = body.get(name, "")
        if not text:
            causes.append(_required(name))
        if len(text) > MAX_SHORT:
            causes.append(_invalid(name, "", f"can have at most {MAX_SHORT} characters"))
    if len(body.get("note", "").encode()) > MAX_NOTE:
        causes.append(_invalid("message", "", f"can have at most {MAX_NOTE} characters"))
    return causes


def _new(body: Object) -> list[Cause]:
    causes = [] if body.get("eventTime") else [_required("eventTime")]
    kind = body.get("type", "")
    if kind not in ("Normal", "Warning"):
        causes.append(_invalid("type", "", f"has invalid value: {kind}"))
    for own_values, reports in _IMMUTABLE:
        if own_values.startswith("deprecated") and body.get(own_values):
            causes.append(_invalid(reports, "", "needs to be unset"))
    return causes


def _series(body: Object) -> list[Cause]:
    series = body.get("series")
    if not series:
        return []
    causes = []
    if series.get("count", 0) < MIN_SERIES_COUNT:
        causes.append(_invalid("series.count", "", f"should be at least {MIN_SERIES_COUNT}"))
    if not series.get("lastObservedTime"):
        causes.append(_required("series.lastObservedTime"))
    return causes


def _required(path: str) -> Cause:
    return Cause("FieldValueRequired", "Required value", path)


def _invalid(path: str, value: object, message: str) -> Cause:
    return Cause("FieldValueInvalid", f'Invalid value: "{value or ""}": {message}', path)
