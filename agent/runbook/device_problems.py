"""Problems of devices, slices, vendors and the machine. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from agent.runbook.problem import Problem, ProblemContext, Severity, SubjectKind, name_some
from agent.snapshot.device import Device, DeviceCondition, Health, HealthState, short_name
from agent.snapshot.node import NodeSnapshot, VendorState, devices_by_vendor

HOST_VENDORS = ("host", "topology")  # vendors of problems of the machine itself
_STATE_REASONS = {
    "stalled": "VendorWorkerStalled",
    "restarting": "VendorWorkerRestarting",
    "quarantined": "VendorWorkerQuarantined",
    "released": "Released",
}


def device_problems(snapshot: NodeSnapshot, context: ProblemContext) -> Iterator[Problem]:
    """Yield the problems of all devices and slices."""
    owners = {
        (info.kind, info.key): vendor
        for vendor, infos in devices_by_vendor(snapshot).items()
        for info in infos
    }
    for device in snapshot.devices.value.devices:
        vendor = owners.get((device.info.kind, device.key), device.info.vendor)
        yield from _problems_of_device(device, vendor, context)
    yield from _gpudirect_problems(snapshot, context)


def _problems_of_device(device: Device, vendor: str, context: ProblemContext) -> Iterator[Problem]:
    info = device.info
    if problem := _health_problem(device, info.health, vendor, context):
        yield problem
    for condition in info.conditions:
        # a card that is cut into slices is not schedulable as a whole, and that is no fault
        if condition.is_notable and condition.type != "Schedulable":
            yield _condition_problem(device, condition, vendor, context)
    if device.place.link_degraded is not None:
        message = f"{device.place.link_degraded} of its PCIe link is reduced"
        yield context.problem(
            SubjectKind.DEVICE,
            device.key,
            Severity.WARNING,
            "SlowLink",
            message,
            name=short_name(device),
            vendor=vendor,
        )
    for part in info.partitions:
        if info.health.is_in_service and not _is_well(part.health):
            yield _slice_problem(device, part.uuid, part.health, vendor, context)


def _is_well(health: Health) -> bool:
    return health.state is HealthState.HEALTHY and health.certain


def _severity(health: Health) -> Severity:
    return Severity.WARNING if health.is_in_service else Severity.CRITICAL


def _health_problem(
    device: Device, health: Health, vendor: str, context: ProblemContext
) -> Problem | None:
    if _is_well(health):
        return None
    severity = _severity(health)
    if not device.info.managed:
        asks = context.has_action(vendor, health.reason, health.message)
        severity = Severity.WARNING if asks else Severity.INFO
    return context.problem(
        SubjectKind.DEVICE,
        device.key,
        severity,
        health.reason,
        health.message,
        name=short_name(device),
        vendor=vendor,
        since_s=health.since_s,
    )


def _slice_problem(
    device: Device, uuid: str, health: Health, vendor: str, context: ProblemContext
) -> Problem:
    return context.problem(
        SubjectKind.SLICE,
        uuid,
        _severity(health),
        health.reason,
        health.message,
        name=f"{short_name(device)}, slice {uuid}",
        vendor=vendor,
        since_s=health.since_s,
    )


def _condition_problem(
    device: Device, condition: DeviceCondition, vendor: str, context: ProblemContext
) -> Problem:
    return context.problem(
        SubjectKind.DEVICE,
        device.key,
        Severity.WARNING,
        condition.reason,
        condition.message,
        name=short_name(device),
        vendor=vendor,
        since_s=condition.since_s,
    )


def _gpudirect_problems(snapshot: NodeSnapshot, context: ProblemContext) -> Iterator[Problem]:
    """Yield one problem for each reason why GPUs and NICs do not exchange data directly."""
    pairs: dict[str, list[str]] = {}
    for pair in snapshot.devices.value.direct:
        for check in pair.checks:
            if context.has_action("", check.name, check.detail):
                pairs.setdefault(check.name, []).append(f"{pair.gpu} and {pair.nic}")
    for name, subjects in pairs.items():
        yield context.problem(
            SubjectKind.HOST, "gpudirect", Severity.INFO, name, name_some(subjects)
        )


def vendor_problems(snapshot: NodeSnapshot, context: ProblemContext) -> Iterator[Problem]:
    """Yield the problems of vendors and their workers, and of the machine."""
    for state in snapshot.vendors:
        if outage := _worker_problem(state, context):
            yield outage
        if state.rejections:
            families = [f"{one.family} ({one.count})" for one in state.rejections]
            yield context.problem(
                SubjectKind.VENDOR,
                state.vendor,
                Severity.INFO,
                "ImplausibleReadings",
                name_some(families),
                vendor=state.vendor,
            )
    for vendor, problem in snapshot.devices.value.problems:
        is_host = vendor in HOST_VENDORS
        asks = context.has_action(vendor, problem.reason, problem.message)
        yield context.problem(
            SubjectKind.HOST if is_host else SubjectKind.VENDOR,
            vendor,
            Severity.WARNING if asks else Severity.INFO,
            problem.reason,
            problem.message,
            vendor="" if is_host else vendor,
        )
    for reason, message in snapshot.host_devices.value.problems:
        yield context.problem(SubjectKind.HOST, "files", Severity.WARNING, reason, message)
    for shared in snapshot.sharing.value.problems:
        yield context.problem(
            SubjectKind.COLLECTOR, "sharing", Severity.INFO, shared.reason, shared.message
        )


def _worker_problem(state: VendorState, context: ProblemContext) -> Problem | None:
    """Return the problem of a worker that does not answer; one that starts has none."""
    if state.state not in _STATE_REASONS:
        return None
    answers_s = [s for s in (state.inventory.taken_s, state.samples.taken_s) if s is not None]
    return context.problem(
        SubjectKind.VENDOR,
        state.vendor,
        Severity.INFO if state.state == "released" else Severity.CRITICAL,
        state.reason or _STATE_REASONS[state.state],
        f"{state.state}: {state.message}".removesuffix(": "),
        vendor=state.vendor,
        since_s=context.wall_time(max(answers_s, default=None)),
    )
