"""Conditions of a device, and how a time stamp outlives a rendering that does not know it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from agent.model.device import Device, DeviceKind, Health, HealthState
from agent.publish.base import Json
from agent.publish.wire import sanitise

Dict = dict[str, object]
_Condition = tuple[tuple[str, str], str]  # of which device, of which type

HEALTHY = "Healthy"
SCHEDULABLE = "Schedulable"
UNSCHEDULABLE = "unschedulable"  # the fact by which a vendor says why a card has no resources
MAX_CONDITIONS = 16  # of one device
_TYPE = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)"
)
_MAX_TYPE = 128  # the schema allows 316
_WHY = {
    "MIGEnabled": "the card is partitioned; its instances are granted by the kubelet",
    "HostVGPU": "the card serves virtual machines",
    "MemoryUnknown": "the driver does not tell how much memory the card has",
}


def conditions(device: Device, boot_time_s: float) -> list[Dict]:
    """Return a device's conditions, one of a type, `Healthy` first, then the vendor's own.

    A NIC has `Healthy` only while there is something to say. Without a seen change the transition
    is the node's start, so that two renderings are equal. A type that an API server would refuse
    is left out: it names nothing that anybody could wait for.
    """
    health = device.info.health
    well = health.state is HealthState.HEALTHY and health.certain
    found: dict[str, Dict] = {}

    def tell(kind: str, status: str, why: tuple[str, str], since_s: float | None) -> None:
        found.setdefault(
            kind,
            {
                "type": kind,
                "status": status,
                "reason": sanitise.reason(why[0]),
                "message": sanitise.message(why[1], why[0]),
                "lastTransitionTime": sanitise.time_text(since_s, boot_time_s),
            },
        )

    if device.info.kind is not DeviceKind.RDMA or not well:
        tell(HEALTHY, _status(health), (health.reason, health.message), health.since_s)
    why = dict(device.info.facts).get(UNSCHEDULABLE)
    if why:
        text = _WHY.get(why, "nothing of this device can be granted")
        tell(SCHEDULABLE, "False", (why, text), None)
    for own in device.info.conditions:
        if own.type != HEALTHY and len(own.type) <= _MAX_TYPE and _TYPE.fullmatch(own.type):
            tell(own.type, str(own.status), (own.reason, own.message), own.since_s)
    return list(found.values())[:MAX_CONDITIONS]


def _status(health: Health) -> str:
    if not health.certain:
        return "Unknown"
    return "True" if health.in_service else "False"


def carry_over(previous: object, body: Json, now_s: float) -> Json:
    """Return `body` with the transition times of `previous` where a status did not change.

    To be done before two bodies are compared, else any condition looks like a change for ever. A
    change that nobody saw, for instance while no agent ran, is dated `now_s` (wall clock) rather
    than before the last one. `previous` is whatever stands at the destination: anything
    unexpected in it is passed over.
    """
    spec = body.get("spec")
    known = _Known(previous)
    if not known.moments or not isinstance(spec, Mapping) or "devices" not in spec:
        return body
    now = sanitise.time_text(now_s)
    return {**body, "spec": {**spec, "devices": [_carried(d, known, now) for d in _devices(body)]}}


class _Known:
    """Statuses and transition times of an object that was published before."""

    def __init__(self, previous: object) -> None:
        self.moments: dict[_Condition, tuple[str, str]] = {}
        self.last: dict[tuple[str, str], str] = {}  # of each device
        for device in _devices(previous):
            name = _identity(device)
            for condition in _entries(device.get("conditions")):
                moment = condition.get("lastTransitionTime")
                if isinstance(moment, str) and sanitise.TIME.fullmatch(moment):
                    kind, status = str(condition.get("type")), str(condition.get("status"))
                    self.moments[name, kind] = (status, moment)
                    self.last[name] = max(moment, self.last.get(name, ""))


def _carried(device: Mapping[str, object], known: _Known, now: str) -> Dict:
    if "conditions" not in device:
        return dict(device)
    name = _identity(device)
    renewed: list[Dict] = []
    for condition in _entries(device["conditions"]):
        # one that is new was not there yet when the device's last change was published
        unknown = ("", known.last.get(name, ""))
        status, moment = known.moments.get((name, str(condition.get("type"))), unknown)
        own = str(condition.get("lastTransitionTime"))
        if status == condition.get("status"):
            own = moment
        elif moment and own <= moment:  # of this form times compare as text
            own = now
        renewed.append({**condition, "lastTransitionTime": own})
    return {**device, "conditions": renewed}


def _identity(device: Mapping[str, object]) -> tuple[str, str]:
    """Name a device: by its id, else by its number. Text, because the source may hold anything."""
    name = device.get("id") or device.get("minor")
    return str(device.get("type")), str(name)


def _devices(body: object) -> Iterator[Mapping[str, object]]:
    spec = body.get("spec") if isinstance(body, Mapping) else None
    return _entries(spec.get("devices") if isinstance(spec, Mapping) else None)


def _entries(listed: object) -> Iterator[Mapping[str, object]]:
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, Mapping):
            yield entry
