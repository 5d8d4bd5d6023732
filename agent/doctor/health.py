"""Checks of vendors and devices: their problems by the running agent's view, and the remedies."""

from __future__ import annotations

from collections.abc import Iterator

from agent.doctor.base import Facts, Finding, Result
from agent.doctor.node_report import VendorReport
from agent.model.device import Health, HealthState, VendorDevice

IN_KERNEL = "disk-sleep"  # psutil's name of the process state D
MAX_NAMED = 8  # devices in one line
ASK_AGAIN = "run `xpu-agent rescan`; if it stays so, see the agent's log"
LOOK = "see `xpu-agent devices`, and the kernel's log of that time"
# remedies by reason: of the agent's own reasons, and of those that several vendors share
_HANGS = "see why the driver hangs in the kernel's log (hung task, Xid)"
_CRASHES = "see the agent's log for the worker's last words; update the driver's library"
_REMEDIES = {
    "DriverStalled": f"{_HANGS}; reboot the node if it does not come back",
    "DriverReleased": "nothing, if somebody works on the driver; `xpu-agent rescan` ends it",
    "Released": "nothing, if somebody works on the driver; `xpu-agent rescan` ends it",
    "CallHung": f"{_HANGS}; drain the card and reset it; the agent makes the call again by itself",
    # of a worker that ended, or was ended
    "Late": _HANGS,
    "EventsStuck": _HANGS,
    "Unkillable": "reboot the node: a process of the driver cannot be ended any more",
    "Closed": _CRASHES,
    "Garbage": _CRASHES,
    "TooLong": _CRASHES,
    "Flood": _CRASHES,
    "MemoryLimit": "update the driver's library, which leaks; or raise "
    "discovery.worker_memory_bytes",
    "StartFailed": "see the agent's log: the worker's process could not be started",
    "LibraryReplaced": "nothing: the worker starts again with the new library",
    # of devices
    "Flapping": "see what changes in the agent's events; `xpu-agent clear DEVICE` ends the hold",
    "DeviceGone": "nothing, if it was taken out; else look at the slot and the kernel's log",
    "NoPermission": "give the agent's container access to the device nodes (privileged)",
    "PermissionDenied": "give the agent's container access to the device nodes (privileged)",
    "NotYetAsked": "wait for the first answer of the driver; if none comes, see the vendor",
    "DiscoveryPending": "wait for the first answer of the driver; if none comes, see the vendor",
    "BoundToVFIO": "nothing, if a virtual machine is to have it; else bind it to its driver",
    "NoVendorPlugin": "describe it under discovery.accelerators, or by device-info files",
    "DeviceNodeMissing": "load the driver's module, and let udev make its nodes again",
    "DriverMissing": "install or load the vendor's driver",
    "LibraryMissing": "install the driver's library, or name its folder in the settings of the "
    "vendor (library_dirs)",
}


def vendors(facts: Facts) -> Iterator[Finding]:
    """Report each vendor with hardware here: whether its driver answers, and its problems."""
    discovered = {one.vendor: one for one in facts.discovered.vendors} if facts.discovered else {}
    for state in facts.node.vendors:
        yield _vendor(facts, state, discovered.get(state.vendor))
    if not facts.node.vendors:
        yield Finding(id="vendors", result=Result.OK, seen="no accelerator and no RDMA device")


def _vendor(facts: Facts, state: VendorReport, now: VendorReport | None) -> Finding:
    name = f"vendor:{state.vendor}"
    problems = [(one.reason, one.message) for one in state.problems]
    if state.state != "ready":
        problems = [(state.reason, state.message), *problems]
    elif not problems:
        inventory = state.inventory.value
        driver = inventory.driver_version if inventory is not None else None
        seen = f"{len(state.devices)} devices" + (f", driver {driver}" if driver else "")
        return Finding(id=name, result=Result.OK, seen=seen)
    words = "; ".join(f"{reason}: {message}".strip(": ") for reason, message in problems)
    released = state.state == "released"
    if facts.discovered is not None:
        words = f"{state.state}: {words}"
        if state.state != "ready" and now is not None and now.state == "ready":
            words += "; a new discovery gets an answer"
    remedies = [_remedy(facts, state.vendor, *problem, default="") for problem in problems]
    if state.is_silent and facts.process_states.get(state.pid or 0) == IN_KERNEL:
        words += f"; its process {state.pid} hangs in the kernel, and no signal can end it"
        remedies = ["reset the card that the kernel's log names, or reboot the node"]
    default = "install or load the vendor's driver; see `xpu-agent devices`"
    return Finding(
        id=name,
        result=Result.WARN if state.state == "ready" or released else Result.FAIL,
        seen=words,
        why="devices whose driver does not answer are told as out of service, or not whole",
        do="; ".join(dict.fromkeys(filter(None, remedies))) or default,
    )


def health(facts: Facts) -> Iterator[Finding]:
    """Report each managed device that is out of service, in doubt or degraded, and why."""
    managed = [one for one in facts.node.devices.values() if one.managed]
    for device in managed:
        yield from _device(facts, device)
    served = sum(one.health.in_service for one in managed)
    if managed and served == len(managed):
        yield Finding(id="devices", result=Result.OK, seen=f"{served} in service")


def _device(facts: Facts, device: VendorDevice) -> Iterator[Finding]:
    vendor = facts.node.vendor_names.get(device.key, "")
    name = f"device:{device.key}"
    compared = _comparison(facts, device)
    if finding := _health_finding(facts, name, vendor, device.health, compared):
        yield finding
    for condition in device.conditions:
        # a card cut into slices is not schedulable as a whole, and that is no fault
        if condition.notable and condition.type != "Schedulable":
            yield Finding(
                id=f"{name}/{condition.type}",
                result=Result.WARN,
                seen=f"{condition.type}={condition.status}: {condition.reason}: "
                f"{condition.message}",
                why="it stays in service, and a person should look at it",
                do=_remedy(facts, vendor, condition.reason, condition.message),
            )
    for part in device.partitions:
        if part.health.in_service or device.health.in_service:
            slice_name = f"{name}/{part.uuid}"
            if finding := _health_finding(facts, slice_name, vendor, part.health, ""):
                yield finding


def _health_finding(
    facts: Facts, name: str, vendor: str, verdict: Health, compared: str
) -> Finding | None:
    """Return the finding about a device or slice that is not healthy; `None` if it is."""
    if verdict.state is HealthState.HEALTHY and verdict.certain:
        return None
    remedy = _remedy(facts, vendor, verdict.reason, verdict.message)
    if verdict.state is HealthState.PROBING:
        remedy = f"wait until it has been healthy for long enough; if it fails again: {remedy}"
    state = verdict.state.value if verdict.certain else f"unknown, last {verdict.state.value}"
    why = "the scheduler grants it to nobody"
    if verdict.in_service:
        why = "it stays in service, and whether it works cannot be checked now"
        if verdict.certain:
            why = "it stays in service, and counts as failed if further checks confirm it"
    return Finding(
        id=name,
        result=Result.WARN if verdict.in_service else Result.FAIL,
        seen=f"{state}: {verdict.reason}: {verdict.message}{compared}",
        why=why,
        do=remedy,
    )


def _comparison(facts: Facts, device: VendorDevice) -> str:
    """Return how a new discovery judges a device that is not healthy, if it judges otherwise."""
    other = facts.discovered.devices.get(device.key) if facts.discovered is not None else None
    if other is None or other.health.state is device.health.state:
        return ""
    if other.health.state is HealthState.HEALTHY:
        return "; a new discovery finds it healthy, as events and earlier faults are unknown to it"
    return f"; a new discovery finds it {other.health.state.value}: {other.health.reason}"


def unmanaged(facts: Facts) -> Iterator[Finding]:
    """Report devices that are not published: of another driver, without a driver, unknown."""
    reasons: dict[tuple[str, str], list[VendorDevice]] = {}
    for device in facts.node.devices.values():
        if not device.managed:
            vendor = facts.node.vendor_names.get(device.key, "")
            reasons.setdefault((vendor, device.health.reason), []).append(device)
    for (vendor, reason), devices in reasons.items():
        first = devices[0].health
        failed = any(device.health.state is HealthState.FAILED for device in devices)
        yield Finding(
            id=f"unmanaged:{vendor}/{reason}",
            result=Result.FAIL if failed else Result.WARN,
            seen=f"{_list_devices([device.key for device in devices])}: {first.message or reason}",
            why="it is listed and not published: the scheduler does not know it",
            do=_remedy(facts, vendor, reason, first.message),
        )


def comparison(facts: Facts) -> Iterator[Finding]:
    """Report where a new discovery disagrees with the running agent for the worse."""
    if facts.discovered is None:
        return
    running, now = facts.node.devices, facts.discovered.devices
    ready = {one.vendor for one in facts.discovered.vendors if one.state == "ready"}
    silent = {one.vendor for one in facts.node.vendors if one.is_silent}
    omitted = silent - {one.vendor for one in facts.discovered.vendors}
    names = {**facts.node.vendor_names, **facts.discovered.vendor_names}
    differences = [
        *(f"{key}: found now, unknown to the agent" for key in now if key not in running),
        *(
            f"{key}: {device.health.state.value} by the agent, not found now"
            for key, device in running.items()
            if key not in now and device.health.in_service and names.get(key) not in omitted
        ),
        *(
            f"{key}: {running[key].health.state.value} by the agent, now "
            f"{device.health.state.value}: {device.health.reason}: {device.health.message}"
            for key, device in now.items()
            if key in running
            and names.get(key) in ready
            and running[key].health.in_service
            and not device.health.in_service
        ),
    ]
    if not differences:
        seen = f"a new discovery contradicts none of its {len(running)} devices"
        seen += f"; it did not ask {', '.join(sorted(omitted))}" if omitted else ""
        yield Finding(id="comparison", result=Result.OK, seen=seen)
        return
    yield Finding(
        id="comparison",
        result=Result.WARN,
        seen="; ".join(differences[:MAX_NAMED]),
        why="the agent publishes and grants by what it found earlier",
        do=ASK_AGAIN,
    )


def _list_devices(keys: list[str]) -> str:
    more = f" and {len(keys) - MAX_NAMED} more" if len(keys) > MAX_NAMED else ""
    return f"{len(keys)} device{'s' if len(keys) > 1 else ''}: {', '.join(keys[:MAX_NAMED])}{more}"


def _remedy(facts: Facts, vendor: str, reason: str, message: str, default: str = LOOK) -> str:
    """Return the remedy for a reason: the vendor's, else the agent's, else `default`."""
    return facts.remedy(vendor, reason, message) or _REMEDIES.get(reason, default)


CHECKS = (vendors, health, unmanaged, comparison)
