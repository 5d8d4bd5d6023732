"""What a Cambricon card's vital signs mean: one verdict, the gravest cause first."""

from __future__ import annotations

from collections.abc import Iterator

from agent.model.device import Health, HealthState
from plugins.bindings.cndev.card import Vitals
from plugins.bindings.cndev.codes import DEVICE_IN_PROBLEM, NO_PERMISSION

RUNNING = 4  # of the driver
MAX_FAILING = 3  # calls in a row
_DRIVER: dict[int, tuple[str, str]] = {
    0: ("DriverStarting", "early start"),
    1: ("DriverStarting", "bring-up"),
    2: ("DriverStarting", "booting"),
    3: ("DriverStarting", "late start"),
    5: ("DriverFault", "boot error"),
    6: ("Resetting", "resetting"),
    7: ("DriverFault", "reset error"),
    8: ("DriverFault", "unknown"),
}
_PROHIBITED = 2
_WARN, _FAIL = 10, 20
# gravest first; a card that starts or resets says little that is true of anything else
PRECEDENCE = ("Resetting", "DriverFault", "DriverStarting", "DeviceInProblem")
INCIDENTS: dict[int, str] = {
    1: "unknown",
    3: "Xid",
    9: "MLULink down",
    15: "double-bit error",
    22: "memory repair failed",
    26: "temperature",
    29: "driver",
    30: "device system",
}


def judge(found: Vitals, xid: int | None = None) -> Health:
    """Return the verdict of one look; `xid` is the last one, which is worth a word if it is bad."""
    causes = sorted(_causes(found), key=lambda cause: _rank(cause[0]))
    if causes:
        reason, message = causes[0]
        told = message if xid is None else f"{message}; last Xid {xid:#018x}"
        return Health(state=HealthState.FAILED, reason=reason, message=told)
    if found.overall == _WARN:
        told = f"the card warns{_incident_words(found)}"
        return Health(state=HealthState.SUSPECT, reason="SubHealth", message=told)
    return Health()


def _causes(found: Vitals) -> Iterator[tuple[str, str]]:
    if found.driver is not None and found.driver != RUNNING:
        reason, words = _DRIVER.get(found.driver, ("DriverFault", "unknown"))
        yield reason, f"the card's driver is in state {found.driver} ({words})"
    if found.device is not None and found.device != 1:
        yield "DeviceInProblem", f"the card reports device state {found.device}"
    if found.overall == _FAIL:
        code = found.incidents[0][0] if found.incidents else 1
        yield f"Incident{max(0, code)}", f"the card fails{_incident_words(found)}"
    elif found.health is not None and found.health != 1:
        yield "DeviceInProblem", f"the card reports health {found.health}"
    if found.compute == _PROHIBITED:
        yield "ComputeProhibited", "the card's compute mode is prohibited"


def _rank(reason: str) -> int:
    if reason in PRECEDENCE:
        return PRECEDENCE.index(reason)
    return len(PRECEDENCE) + (reason == "ComputeProhibited")


def _incident_words(found: Vitals) -> str:
    words = [text or INCIDENTS.get(code, f"incident {code}") for code, text in found.incidents[:3]]
    return ": " + ", ".join(words) if words else ""


def not_answering(calls: int, code: int) -> Health | None:
    """Return the verdict on a card whose health could not be read that often in a row.

    One failing call says nothing yet; that the device is in problem is said at once. That we may
    not ask is no fault of the card.
    """
    if code == NO_PERMISSION:
        told = "its health cannot be read: the agent lacks the permission (CNDev error 13)"
        return Health(state=HealthState.SUSPECT, reason="PermissionDenied", message=told)
    if code == DEVICE_IN_PROBLEM:
        told = f"its health cannot be read (CNDev error {code})"
        return Health(state=HealthState.FAILED, reason="DeviceInProblem", message=told)
    if calls < MAX_FAILING:
        return None
    told = f"its health could not be read {MAX_FAILING} times in a row or more (CNDev error {code})"
    return Health(state=HealthState.FAILED, reason="DriverError", message=told)


_SUPPORT = "drain the card, and ask the vendor's support"
_RESET = "reset the card (`cnmon reset -c CARD`) when nothing runs on it"
REMEDIES: dict[str, str] = {
    "DriverStarting": "wait; if it takes minutes, see the kernel's log",
    "DriverFault": "reload the card's driver, or reboot the node",
    "Resetting": "wait until the reset is over",
    "DeviceInProblem": _RESET,
    "ComputeProhibited": "set the compute mode back (`cnmon set -c CARD -cm default`)",
    "SubHealth": "see `cnmon info -c CARD`; the card works on",
    "DriverError": "see the kernel's log, and `cnmon info`",
    "DriverNotLoaded": "install or load Cambricon's driver",
    "ToolOnly": "install libcndev, or name its folder in discovery.cambricon.library_dirs",
    "MIMMode": "nothing: the card is cut into instances",
    "Incident3": _RESET,
    "Incident9": "check the MLULink cables and connectors",
    "Incident15": _RESET,
    "Incident22": _SUPPORT,
    "Incident26": "look at airflow and temperature",
    "Incident29": "reload the card's driver, or reboot the node",
}


def remedy(reason: str, _message: str) -> str:
    """Return what to do about a reason; empty if there is nothing to say."""
    return REMEDIES.get(reason) or (_SUPPORT if reason.startswith("Incident") else "")
