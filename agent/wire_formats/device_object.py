"""The format of the Device object, as far as several packages need it.

Which devices it can list, its health annotation, and the transition times of an earlier object.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.snapshot.device import (
    Device,
)
from agent.snapshot.publications import Json
from agent.wire_formats import api_values
from agent.wire_formats.api_values import TIME_PATTERN
from agent.wire_formats.json_values import JsonDict, compact_json

DEVICE_API_VERSION = "scheduling.koordinator.sh/v1alpha1"
DEVICE_KIND = "Device"
VENDORS_WITHOUT_MIXED_MODELS = ("nvidia",)  # whose cards of several models have no model label
NODE_RESOURCE_PREFIX = "huawei.com/npu-"  # resources that the Node has from the Device object
UNMANAGED = "Unmanaged"
NO_MINOR = "NoMinor"
MINOR_OUT_OF_RANGE = "MinorOutOfRange"
SAME_MINOR = "SameMinor"
SAME_UUID = "SameUUID"


class DeviceSelection(msgspec.Struct, frozen=True):
    """The devices that the object lists, by type and number, and why others are left out."""

    published: tuple[Device, ...]
    omissions: tuple[tuple[Device, str], ...]


def select_devices(devices: Iterable[Device]) -> DeviceSelection:
    """Choose the devices that can be published; the order of the input has no effect.

    A device without a number crashes the scheduler, one of two devices with the same number is
    lost, and of two devices with the same id one would be allocated instead of the other. So of two
    devices with one number or id, the one with the smaller bus id is chosen.
    """
    devices = tuple(devices)
    times_seen = Counter(device.key for device in devices)

    def order(device: Device) -> tuple[str, str]:
        return device.key, repr(device) if times_seen[device.key] > 1 else ""

    selected: dict[tuple[str, int], Device] = {}
    ids: set[tuple[str, str]] = set()
    left_out: list[tuple[Device, str]] = []
    for device in sorted(devices, key=order):
        kind, minor, uuid = device.info.kind.wire_type, device.info.minor, device_id(device)
        if not device.info.managed:
            left_out.append((device, UNMANAGED))
        elif minor is None:
            left_out.append((device, NO_MINOR))
        elif minor < 0 or api_values.as_int32(minor) is None:
            left_out.append((device, MINOR_OUT_OF_RANGE))
        elif uuid and (kind, uuid) in ids:
            left_out.append((device, SAME_UUID))
        elif selected.setdefault((kind, minor), device) is not device:
            left_out.append((device, SAME_MINOR))
        else:
            ids.add((kind, uuid))
    return DeviceSelection(tuple(selected[key] for key in sorted(selected)), tuple(left_out))


def device_id(device: Device) -> str:
    """Return the id of a device in the Device object."""
    return api_values.clean_text(device.info.uuid or "")


_ConditionKey = tuple[tuple[str, str], str]  # of which device, of which type


def keep_transition_times(previous: object, body: Json, now_s: float) -> Json:
    """Return `body` with the transition times of `previous` where a status did not change.

    This comes before two bodies are compared, because otherwise every condition would look changed.
    A change that nobody observed, for instance while no agent ran, gets the time `now_s` (wall
    clock) and not a time before the last change. `previous` is the object at the destination;
    unexpected content in it is ignored.
    """
    spec = body.get("spec")
    previous_conditions = _PreviousConditions(previous)
    if not previous_conditions.moments or not isinstance(spec, Mapping) or "devices" not in spec:
        return body
    now = api_values.format_first_time(now_s)
    return {
        **body,
        "spec": {
            **spec,
            "devices": [_keep_times_of_device(d, previous_conditions, now) for d in _devices(body)],
        },
    }


class _PreviousConditions:
    """Statuses and transition times of the object that was published before."""

    def __init__(self, previous: object) -> None:
        self.moments: dict[_ConditionKey, tuple[str, str]] = {}
        self.last_times: dict[tuple[str, str], str] = {}  # of each device
        for device in _devices(previous):
            name = _identity(device)
            for condition in _entries(device.get("conditions")):
                moment = condition.get("lastTransitionTime")
                if isinstance(moment, str) and api_values.TIME_PATTERN.fullmatch(moment):
                    kind, status = str(condition.get("type")), str(condition.get("status"))
                    self.moments[name, kind] = (status, moment)
                    self.last_times[name] = max(moment, self.last_times.get(name, ""))


def _keep_times_of_device(
    device: Mapping[str, object], previous_conditions: _PreviousConditions, now: str
) -> JsonDict:
    if "conditions" not in device:
        return dict(device)
    name = _identity(device)
    renewed: list[JsonDict] = []
    for condition in _entries(device["conditions"]):
        # one that is new was not there yet when the device's last change was published
        unknown = ("", previous_conditions.last_times.get(name, ""))
        status, moment = previous_conditions.moments.get(
            (name, str(condition.get("type"))), unknown
        )
        own = str(condition.get("lastTransitionTime"))
        if status == condition.get("status"):
            own = moment
        elif moment and own <= moment:  # of this form times compare as text
            own = now
        renewed.append({**condition, "lastTransitionTime": own})
    return {**device, "conditions": renewed}


def _identity(device: Mapping[str, object]) -> tuple[str, str]:
    """Return a device's id, else its number; as text, because the source may contain anything."""
    name = device.get("id") or device.get("minor")
    return str(device.get("type")), str(name)


def _devices(body: object) -> Iterator[Mapping[str, object]]:
    spec = body.get("spec") if isinstance(body, Mapping) else None
    return _entries(spec.get("devices") if isinstance(spec, Mapping) else None)


def _entries(listed: object) -> Iterator[Mapping[str, object]]:
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, Mapping):
            yield entry


TOPOLOGY_ANNOTATION = "xpu-agent.io/topology"
HEALTH_ANNOTATION = "xpu-agent.io/health"

MAX_ANNOTATION_BYTES = 64 * 1024


def keep_health_times(previous: object, body: Json) -> Json:
    """Return `body` with the health times of `previous`, for devices in the same state.

    An agent that has just started has observed no change, and would remove the time of the last
    one.
    """
    previous_entries, entries = _health_entries(previous), _health_entries(body)
    for key, entry in entries.items():
        old = previous_entries.get(key, {})
        since = old.get("since")
        same = old.get("state") == entry.get("state")
        if (
            same
            and "since" not in entry
            and isinstance(since, str)
            and TIME_PATTERN.fullmatch(since)
        ):
            entry["since"] = since
    text = compact_json(entries)
    if not entries or entries == _health_entries(body) or len(text.encode()) > MAX_ANNOTATION_BYTES:
        return body
    metadata = body["metadata"]
    assert isinstance(metadata, Mapping)  # noqa: S101 - its annotations were read just now
    annotations = {**metadata["annotations"], HEALTH_ANNOTATION: text}
    return {**body, "metadata": {**metadata, "annotations": annotations}}


def _health_entries(body: object) -> dict[str, JsonDict]:
    """Return the entries of an object's health annotation; none if it is invalid."""
    metadata = body.get("metadata") if isinstance(body, Mapping) else None
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    text = annotations.get(HEALTH_ANNOTATION) if isinstance(annotations, Mapping) else None
    try:
        document = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    return {key: entry for key, entry in document.items() if isinstance(entry, dict)}
