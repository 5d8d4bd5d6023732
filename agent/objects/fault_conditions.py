"""The conditions of the Node for each class of faults of its devices. Pure.

A condition is True while a device has a fault of the class, as node-problem-detector's are. Its
message begins with `action=` and the recommended action. `DeviceRepairRequired` is True while a
device is out of service and its fault does not end without an action; its reason is the action.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from agent.clock import rfc3339
from agent.devices.presence import READY_STATE
from agent.objects.condition_json import (
    FALSE,
    HEARTBEAT,
    TRANSITION,
    TRUE,
    UNKNOWN,
    condition_json,
    conditions_of,
    merge_condition_times,
)
from agent.runbook.entries import UNLISTED
from agent.runbook.entry import (
    ACTION_ORDER,
    FaultCategory,
    RecommendedAction,
    RunbookEntry,
    hardest_action,
)
from agent.runbook.runbook import EntryLookup
from agent.snapshot.device import Device, DeviceKind, Health, HealthState, short_name
from agent.snapshot.node import NodeSnapshot, devices_by_vendor
from agent.snapshot.publications import Json
from agent.wire_formats import api_values

CONDITION_TYPES: Mapping[FaultCategory, str] = MappingProxyType(
    {
        FaultCategory.MEMORY: "DeviceMemoryFault",
        FaultCategory.INTERCONNECT: "DeviceInterconnectFault",
        FaultCategory.PCIE: "DevicePCIeFault",
        FaultCategory.THERMAL: "DeviceThermalFault",
        FaultCategory.POWER: "DevicePowerFault",
        FaultCategory.DRIVER: "DeviceDriverFault",
        FaultCategory.PROCESSOR: "DeviceProcessorFault",
        FaultCategory.NETWORK: "DeviceNetworkFault",
    }
)
REPAIR_REQUIRED = "DeviceRepairRequired"
FAULT_TYPES = frozenset((*CONDITION_TYPES.values(), REPAIR_REQUIRED))
NO_FAULT, NO_REPAIR = "NoFault", "NoRepairRequired"
SEVERAL_REASONS = "SeveralReasons"
SUSPECT_S = 60.0  # a doubt that lasts so long is a fault of a device in service
_REPAIRS = ACTION_ORDER[ACTION_ORDER.index(RecommendedAction.RESET) :]


class DeviceFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of one device, or of a vendor as a whole."""

    name: str  # GPU 3
    reason: str
    entry: RunbookEntry
    since_s: float | None = None
    is_in_service: bool = False
    is_over: bool = False  # its checks are good again, and it is watched

    @property
    def action(self) -> RecommendedAction:
        """Return the recommended action; none for a device that is only watched."""
        return RecommendedAction.NONE if self.is_over else self.entry.action

    @property
    def text(self) -> str:
        """Return the device with reason and time."""
        since = "" if self.since_s is None else f" since {rfc3339(self.since_s)}"
        return f"{self.name} ({api_values.condition_reason(self.reason)}{since})"


def fault_conditions(snapshot: NodeSnapshot, lookup: EntryLookup, now_s: float) -> tuple[Json, ...]:
    """Return the conditions of all classes, in a fixed order; `now_s` is the wall clock."""
    devices = [one for one in snapshot.devices.value.devices if one.info.managed]
    if not devices:
        return ()
    owners = {
        (info.kind, info.key): vendor
        for vendor, infos in devices_by_vendor(snapshot).items()
        for info in infos
    }
    faults = [
        fault
        for device in devices
        for fault in _faults_of(
            device, owners.get((device.info.kind, device.key), ""), lookup, now_s
        )
    ]
    faults += _vendor_faults(snapshot, lookup)
    ready = {state.vendor for state in snapshot.vendors if state.state == READY_STATE}
    silent = [one for one in devices if _is_silent(one, owners, ready)]
    driverless = {
        fault.name
        for fault in faults
        if fault.entry.category is FaultCategory.DRIVER and not fault.is_in_service
    }
    # a device whose driver failed does not show its other faults
    hidden = [one for one in devices if one in silent or short_name(one) in driverless]
    boot_s = snapshot.node.boot_time_s
    last_s = max((d.info.health.since_s or boot_s for d in devices), default=boot_s)
    classes = [
        _class_condition(
            kind,
            [one for one in faults if one.entry.category is category],
            silent if category is FaultCategory.DRIVER else hidden,
            last_s,
            boot_s,
        )
        for category, kind in CONDITION_TYPES.items()
    ]
    return (*classes, _repair_condition(faults, hidden, last_s, boot_s))


def _is_silent(
    device: Device, owners: Mapping[tuple[DeviceKind, str], str], ready: Collection[str]
) -> bool:
    """Return whether the state is unknown: not certain, or the vendor has never answered."""
    health, vendor = device.info.health, owners.get((device.info.kind, device.key))
    is_doubt = health.state is HealthState.SUSPECT
    return not health.certain or (is_doubt and vendor not in ready)


def _faults_of(
    device: Device, vendor: str, lookup: EntryLookup, now_s: float
) -> Iterator[DeviceFault]:
    """Yield the faults of a device and its slices; what is not certain is none."""
    info, name = device.info, short_name(device)

    def fault(reason: str, message: str, since_s: float | None, **flags: bool) -> DeviceFault:
        entry = lookup(vendor, reason, message) or UNLISTED
        return DeviceFault(name=name, reason=reason, entry=entry, since_s=since_s, **flags)

    if _counts(info.health, now_s):
        yield fault(
            info.health.reason,
            info.health.message,
            info.health.since_s,
            is_in_service=info.health.is_in_service,
            is_over=info.health.state is HealthState.PROBING,
        )
    for condition in info.conditions:
        if condition.is_notable and condition.type != "Schedulable":
            yield fault(condition.reason, condition.message, condition.since_s, is_in_service=True)
    for part in info.partitions:
        if info.health.is_in_service and _counts(part.health, now_s):
            yield fault(
                part.health.reason,
                part.health.message,
                part.health.since_s,
                is_over=part.health.state is HealthState.PROBING,
                is_in_service=part.health.is_in_service,
            )


def _counts(health: Health, now_s: float) -> bool:
    """Return whether a health is a fault: certain, and no doubt of a moment."""
    if not health.certain or health.state is HealthState.HEALTHY:
        return False
    if health.state is not HealthState.SUSPECT:
        return True
    # a time ahead of now is from before the clock was set back
    return health.since_s is not None and not 0 <= now_s - health.since_s < SUSPECT_S


def _vendor_faults(snapshot: NodeSnapshot, lookup: EntryLookup) -> Iterator[DeviceFault]:
    """Yield the problems of vendors that are faults of their devices, such as a fabric's."""
    vendors = {state.vendor for state in snapshot.vendors}
    for vendor, problem in snapshot.devices.value.problems:
        entry = lookup(vendor, problem.reason, problem.message)
        if vendor in vendors and entry is not None:
            yield DeviceFault(name=vendor, reason=problem.reason, entry=entry, is_in_service=True)


def _class_condition(
    kind: str,
    faults: Sequence[DeviceFault],
    uncertain: Sequence[Device],
    last_s: float,
    boot_s: float,
) -> Json:
    if faults:
        since_s = min((one.since_s for one in faults if one.since_s is not None), default=None)
        return condition_json(
            kind, TRUE, _common_reason(one.reason for one in faults), _message(faults), since_s,
            boot_s,
        )  # fmt: skip
    if uncertain:
        return _unknown_condition(kind, uncertain, last_s, boot_s)
    message = "no device has a fault of this class"
    return condition_json(kind, FALSE, NO_FAULT, message, last_s, boot_s)


def _repair_condition(
    faults: Iterable[DeviceFault], uncertain: Sequence[Device], last_s: float, boot_s: float
) -> Json:
    repairs = [one for one in faults if not one.is_in_service and one.action in _REPAIRS]
    if repairs:
        action = hardest_action(one.action for one in repairs)
        reason = "".join(word.capitalize() for word in action.split("-"))
        since_s = min((one.since_s for one in repairs if one.since_s is not None), default=None)
        return condition_json(REPAIR_REQUIRED, TRUE, reason, _message(repairs), since_s, boot_s)
    if uncertain:
        return _unknown_condition(REPAIR_REQUIRED, uncertain, last_s, boot_s)
    message = "no device is out of service until it is repaired"
    return condition_json(REPAIR_REQUIRED, FALSE, NO_REPAIR, message, last_s, boot_s)


def _unknown_condition(
    kind: str, uncertain: Sequence[Device], last_s: float, boot_s: float
) -> Json:
    reason = _common_reason(device.info.health.reason for device in uncertain)
    names = ", ".join(short_name(device) for device in uncertain)
    message = f"action=look; the state of {names} is not known"
    return condition_json(kind, UNKNOWN, reason, message, last_s, boot_s)


def _common_reason(reasons: Iterable[str]) -> str:
    different = {api_values.condition_reason(reason) for reason in reasons}
    return different.pop() if len(different) == 1 else SEVERAL_REASONS


def _message(faults: Sequence[DeviceFault]) -> str:
    """Return the hardest action and as many devices as fit, those out of service first."""
    ordered = sorted(faults, key=lambda one: one.is_in_service)
    out = [one for one in ordered if not one.is_in_service]
    action = hardest_action(one.action for one in out or ordered)
    names = list(dict.fromkeys(one.text for one in ordered))
    text = f"action={action}; out of service: {len({one.name for one in out})}; "
    for index, name in enumerate(names):
        more = f" and {len(names) - index} more"
        if len(text) + len(name) + len(more) + 2 > api_values.MAX_MESSAGE:
            return text.removesuffix(", ") + more
        text += f"{name}, "
    return text.removesuffix(", ")


def merge_node_conditions(live: Json, desired: Json) -> Json:
    """Return the desired conditions with live times, and a fault that is unknown now as it was.

    A fault ends only when all devices are known again: a driver that does not answer for a minute
    must not end it for those who act on the Node.
    """
    merged = merge_condition_times(live, desired)
    live_faults = {
        str(one["type"]): one
        for one in conditions_of(live)
        if one["type"] in FAULT_TYPES and one.get("status") == TRUE
    }
    conditions = [
        _keep_fault(one, live_faults[str(one["type"])])
        if one.get("status") == UNKNOWN and one["type"] in live_faults
        else one
        for one in conditions_of(merged)
    ]
    return {**merged, "status": {"conditions": conditions}}


def _keep_fault(desired: Mapping[str, object], live: Mapping[str, object]) -> Json:
    names = ("status", "reason", "message", HEARTBEAT, TRANSITION)
    return {**desired, **{name: live[name] for name in names if isinstance(live.get(name), str)}}
