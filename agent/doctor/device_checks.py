"""Checks of vendors and devices, with their remedies."""

from __future__ import annotations

from collections.abc import Iterator

from agent.doctor.check import Check, CheckGroup, CheckInputs, CheckResult, CheckStatus, ok
from agent.doctor.node_report import VendorReport
from agent.snapshot.device import Health, HealthState, VendorDevice

IN_KERNEL = "disk-sleep"  # psutil's name of the process state D
MAX_LISTED_DEVICES = 8  # devices in one line
MAX_LISTED_FAMILIES = 8
RESCAN_HINT = "run `xpu-agent rescan`; if it stays so, see the agent's log"
INSPECT_HINT = "see `xpu-agent devices`, and the kernel's log of that time"


def check_vendors(facts: CheckInputs) -> Iterator[CheckResult]:
    """Report each vendor with hardware here: whether its driver answers, and its problems."""
    discovered = (
        {vendor.vendor: vendor for vendor in facts.discovery.vendors} if facts.discovery else {}
    )
    for state in facts.node.vendors:
        yield _vendor_result(facts, state, discovered.get(state.vendor))
    if not facts.node.vendors:
        yield CheckResult(
            id="vendors", status=CheckStatus.OK, observation="no accelerator and no RDMA device"
        )


def _vendor_result(
    facts: CheckInputs, state: VendorReport, now: VendorReport | None
) -> CheckResult:
    name = f"vendor:{state.vendor}"
    problems = [(problem.reason, problem.message) for problem in state.problems]
    if state.state != "ready":
        problems = [(state.reason, state.message), *problems]
    elif not problems:
        inventory = state.inventory.value
        driver = inventory.driver_version if inventory is not None else None
        observation = f"{len(state.devices)} devices" + (f", driver {driver}" if driver else "")
        return CheckResult(id=name, status=CheckStatus.OK, observation=observation)
    words = "; ".join(f"{reason}: {message}".strip(": ") for reason, message in problems)
    released = state.state == "released"
    if facts.discovery is not None:
        words = f"{state.state}: {words}"
        if state.state != "ready" and now is not None and now.state == "ready":
            words += "; a new discovery gets an answer"
    remedies = [_remedy(facts, state.vendor, *problem, default="") for problem in problems]
    if state.is_silent and facts.process_states.get(state.pid or 0) == IN_KERNEL:
        words += f"; its process {state.pid} hangs in the kernel, and no signal can end it"
        remedies = ["reset the card that the kernel's log names, or reboot the node"]
    default = "install or load the vendor's driver; see `xpu-agent devices`"
    return CheckResult(
        id=name,
        status=CheckStatus.WARN if state.state == "ready" or released else CheckStatus.FAIL,
        observation=words,
        impact="devices whose driver does not answer are told as out of service, or not whole",
        remedy="; ".join(dict.fromkeys(filter(None, remedies))) or default,
        reason=problems[0][0],
        vendor=state.vendor,
        message=problems[0][1],
    )


def check_readings(facts: CheckInputs) -> Iterator[CheckResult]:
    """Report the families with implausible readings."""
    for state in facts.node.vendors:
        if state.rejections:
            families = [
                f"{rejection.family} ({rejection.count}, "
                f"first {rejection.value} of {rejection.device})"
                for rejection in state.rejections
            ]
            more = len(families) - MAX_LISTED_FAMILIES
            yield CheckResult(
                id=f"readings:{state.vendor}",
                status=CheckStatus.WARN,
                observation=f"answers that cannot be true: "
                f"{', '.join(families[:MAX_LISTED_FAMILIES])}"
                + (f" and {more} more" if more > 0 else ""),
                impact="these readings are left out of metrics, NodeMetric and averages",
                remedy="see the kernel's log for errors of the device; update its driver and "
                "firmware if it goes on",
            )
    if facts.node.vendors and not any(state.rejections for state in facts.node.vendors):
        yield ok("readings", "all readings are possible")


def check_devices(facts: CheckInputs) -> Iterator[CheckResult]:
    """Report each managed device that is out of service, suspect or degraded, and why."""
    managed = [one for one in facts.node.devices.values() if one.managed]
    for device in managed:
        yield from _device_results(facts, device)
    served = sum(one.health.is_in_service for one in managed)
    if managed and served == len(managed):
        yield CheckResult(id="devices", status=CheckStatus.OK, observation=f"{served} in service")


def _device_results(facts: CheckInputs, device: VendorDevice) -> Iterator[CheckResult]:
    vendor = facts.node.vendor_names.get(device.key, "")
    name = f"device:{device.key}"
    compared = _comparison(facts, device)
    if finding := _health_result(facts, name, vendor, device.health, compared):
        yield finding
    for condition in device.conditions:
        # a card cut into slices is not schedulable as a whole, and that is no fault
        if condition.is_notable and condition.type != "Schedulable":
            yield CheckResult(
                id=f"{name}/{condition.type}",
                status=CheckStatus.WARN,
                observation=f"{condition.type}={condition.status}: {condition.reason}: "
                f"{condition.message}",
                impact="it stays in service, and a person should look at it",
                remedy=_remedy(facts, vendor, condition.reason, condition.message),
                reason=condition.reason,
                vendor=vendor,
                message=condition.message,
            )
    for part in device.partitions:
        if part.health.is_in_service or device.health.is_in_service:
            slice_name = f"{name}/{part.uuid}"
            if finding := _health_result(facts, slice_name, vendor, part.health, ""):
                yield finding


def _health_result(
    facts: CheckInputs, name: str, vendor: str, verdict: Health, compared: str
) -> CheckResult | None:
    """Return the finding about a device or slice that is not healthy; `None` if it is."""
    if verdict.state is HealthState.HEALTHY and verdict.certain:
        return None
    remedy = _remedy(facts, vendor, verdict.reason, verdict.message)
    if verdict.state is HealthState.PROBING:
        remedy = f"wait until it has been healthy for long enough; if it fails again: {remedy}"
    state = verdict.state.value if verdict.certain else f"unknown, last {verdict.state.value}"
    reason = "the scheduler grants it to nobody"
    if verdict.is_in_service:
        reason = "it stays in service, and whether it works cannot be checked now"
        if verdict.certain:
            reason = "it stays in service, and counts as failed if further checks confirm it"
    return CheckResult(
        id=name,
        status=CheckStatus.WARN if verdict.is_in_service else CheckStatus.FAIL,
        observation=f"{state}: {verdict.reason}: {verdict.message}{compared}",
        impact=reason,
        remedy=remedy,
        reason=verdict.reason,
        vendor=vendor,
        message=verdict.message,
    )


def _comparison(facts: CheckInputs, device: VendorDevice) -> str:
    """Return the verdict of a new discovery on an unhealthy device, if it differs."""
    other = facts.discovery.devices.get(device.key) if facts.discovery is not None else None
    if other is None or other.health.state is device.health.state:
        return ""
    if other.health.state is HealthState.HEALTHY:
        return "; a new discovery finds it healthy, as events and earlier faults are unknown to it"
    return f"; a new discovery finds it {other.health.state.value}: {other.health.reason}"


def check_unmanaged_devices(facts: CheckInputs) -> Iterator[CheckResult]:
    """Report devices that are not published: without a driver, with another one, or unknown."""
    reasons: dict[tuple[str, str], list[VendorDevice]] = {}
    for device in facts.node.devices.values():
        if not device.managed:
            vendor = facts.node.vendor_names.get(device.key, "")
            reasons.setdefault((vendor, device.health.reason), []).append(device)
    for (vendor, reason), devices in reasons.items():
        first = devices[0].health
        failed = any(device.health.state is HealthState.FAILED for device in devices)
        yield CheckResult(
            id=f"unmanaged:{vendor}/{reason}",
            status=CheckStatus.FAIL if failed else CheckStatus.WARN,
            observation=f"{_list_devices([device.key for device in devices])}: "
            f"{first.message or reason}",
            impact="it is listed and not published: the scheduler does not know it",
            remedy=_remedy(facts, vendor, reason, first.message),
            reason=reason,
            vendor=vendor,
            message=first.message,
        )
    if facts.node.devices and not reasons:
        yield ok("unmanaged", "all devices here are published")


def compare_with_discovery(facts: CheckInputs) -> Iterator[CheckResult]:
    """Report devices that a new discovery judges worse than the running agent does."""
    if facts.discovery is None:
        return
    running, now = facts.node.devices, facts.discovery.devices
    ready = {vendor.vendor for vendor in facts.discovery.vendors if vendor.state == "ready"}
    silent = {vendor.vendor for vendor in facts.node.vendors if vendor.is_silent}
    omitted = silent - {vendor.vendor for vendor in facts.discovery.vendors}
    names = {**facts.node.vendor_names, **facts.discovery.vendor_names}
    differences = [
        *(f"{key}: found now, unknown to the agent" for key in now if key not in running),
        *(
            f"{key}: {device.health.state.value} by the agent, not found now"
            for key, device in running.items()
            if key not in now and device.health.is_in_service and names.get(key) not in omitted
        ),
        *(
            f"{key}: {running[key].health.state.value} by the agent, now "
            f"{device.health.state.value}: {device.health.reason}: {device.health.message}"
            for key, device in now.items()
            if key in running
            and names.get(key) in ready
            and running[key].health.is_in_service
            and not device.health.is_in_service
        ),
    ]
    if not differences:
        observation = f"a new discovery contradicts none of its {len(running)} devices"
        observation += f"; it did not ask {', '.join(sorted(omitted))}" if omitted else ""
        yield CheckResult(id="comparison", status=CheckStatus.OK, observation=observation)
        return
    yield CheckResult(
        id="comparison",
        status=CheckStatus.WARN,
        observation="; ".join(differences[:MAX_LISTED_DEVICES]),
        impact="the agent publishes and grants by what it found earlier",
        remedy=RESCAN_HINT,
    )


def _list_devices(keys: list[str]) -> str:
    more = f" and {len(keys) - MAX_LISTED_DEVICES} more" if len(keys) > MAX_LISTED_DEVICES else ""
    plural = "s" if len(keys) > 1 else ""
    return f"{len(keys)} device{plural}: {', '.join(keys[:MAX_LISTED_DEVICES])}{more}"


def _remedy(
    facts: CheckInputs, vendor: str, reason: str, message: str, default: str = INSPECT_HINT
) -> str:
    """Return the remedy of the runbook for a reason, else `default`."""
    entry = facts.runbook.find(vendor, reason, message)
    return default if entry is None else entry.remedy


CHECKS = (
    Check(
        id="vendors",
        group=CheckGroup.DRIVERS,
        question="Does the driver of each vendor answer, without problems?",
        run=check_vendors,
    ),
    Check(
        id="devices",
        group=CheckGroup.DEVICES,
        question="Is each device in service and without a warning?",
        run=check_devices,
        absence="no device here is published",
    ),
    Check(
        id="readings",
        group=CheckGroup.DEVICES,
        question="Are all readings of devices possible?",
        run=check_readings,
        absence="no device is here",
    ),
    Check(
        id="unmanaged",
        group=CheckGroup.DEVICES,
        question="Is each device that is here published?",
        run=check_unmanaged_devices,
        absence="no device is here",
    ),
    Check(
        id="comparison",
        group=CheckGroup.DEVICES,
        question="Does a new discovery find what the running agent publishes?",
        run=compare_with_discovery,
        absence="no agent answers",
    ),
)
