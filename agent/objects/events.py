"""Events from the difference of two snapshots: devices, allocations, verification, services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent.allocation.cpus import scheduled_cpus
from agent.snapshot.allocation import (
    ContainerVerification,
    PodAllocation,
    RefusalReason,
    VerificationStatus,
)
from agent.snapshot.device import DEGRADED, Device, DeviceCondition, Health, HealthState, short_name
from agent.snapshot.node import NodeSnapshot, VendorState
from agent.snapshot.pod import PodRef
from agent.wire_formats import api_values
from agent.wire_formats.annotations import InvalidAnnotation, parse_node_annotations
from agent.wire_formats.device_object import DEVICE_KIND
from agent.wire_formats.event import NORMAL, WARNING, Event

_HEALTH_EVENTS = {
    HealthState.HEALTHY: (NORMAL, "DeviceHealthy"),
    HealthState.SUSPECT: (WARNING, "DeviceSuspect"),
    HealthState.PROBING: (NORMAL, "DeviceProbing"),
    HealthState.FAILED: (WARNING, "DeviceUnhealthy"),
}

_WORKER_EVENTS = {
    "ready": (NORMAL, "VendorWorkerReady"),
    "stalled": (WARNING, "VendorWorkerStalled"),
    "restarting": (WARNING, "VendorWorkerRestarting"),
    "quarantined": (WARNING, "VendorWorkerQuarantined"),
    "released": (NORMAL, "VendorWorkerReleased"),
}


_HEALTH_UNKNOWN = (WARNING, "DeviceHealthUnknown")


def events_between(old: NodeSnapshot | None, new: NodeSnapshot, now_s: float) -> tuple[Event, ...]:
    """Return the events between two snapshots, in a fixed order.

    The first snapshot has no predecessor: its faults are events, its normal states are not.
    """
    return (
        *_device_events(old, new, now_s),
        *_worker_events(old, new, now_s),
        *_annotation_events(old, new, now_s),
        *container_events(old, new, now_s),
    )


def _device_events(old: NodeSnapshot | None, new: NodeSnapshot, now_s: float) -> Iterator[Event]:
    if new.devices.taken_s is None:
        return
    is_first = old is None or old.devices.taken_s is None
    before = {} if old is None or is_first else _by_key(old)
    after = _by_key(new)
    for key, device in after.items():
        earlier = before.get(key)
        if earlier is None and not is_first:
            yield _device_event(NORMAL, "DeviceAppeared", device, _place_text(device), now_s)
        yield from _brief_fault_events(earlier, device, now_s)
        if _health_changed(earlier, device):
            health = device.info.health
            kind, reason = _HEALTH_EVENTS[health.state] if health.certain else _HEALTH_UNKNOWN
            yield _device_event(
                kind, reason, device, _health_text(health), now_s, _repeat_key(health)
            )
        if condition := _newly_degraded(earlier, device):
            text = f"{condition.reason}: {condition.message}"
            yield _device_event(WARNING, "DeviceDegraded", device, text, now_s)
    for key, device in before.items():
        if key not in after:
            text = "no longer there; pods that hold it have lost it"
            yield _device_event(WARNING, "DeviceGone", device, text, now_s)


def _by_key(snapshot: NodeSnapshot) -> Mapping[str, Device]:
    return {device.key: device for device in snapshot.devices.value.devices}


def _brief_fault_events(earlier: Device | None, device: Device, now_s: float) -> Iterator[Event]:
    """Yield a fault that came and went between the two snapshots, which shows in neither."""
    if earlier is None:
        return
    old_health, health = earlier.info.health, device.info.health
    expected_changes = old_health.changes + (old_health.state is not HealthState.HEALTHY)
    if health.state is HealthState.PROBING:
        failed_again = (
            old_health.state is HealthState.PROBING and health.changes > old_health.changes
        )
        if failed_again or old_health.is_in_service:
            kind, reason = _HEALTH_EVENTS[HealthState.FAILED]
            yield _device_event(
                kind, reason, device, _health_text(health), now_s, _repeat_key(health)
            )
    elif (
        health.state is HealthState.HEALTHY and health.certain and health.changes > expected_changes
    ):
        kind, reason = _HEALTH_EVENTS[HealthState.SUSPECT]
        cause = f"; last event {health.last_event}" if health.last_event else ""
        text = f"was not well for a moment, and is again{cause}"
        yield _device_event(kind, reason, device, text, now_s)


def _health_text(health: Health) -> str:
    return f"{health.reason}: {health.message}"


def _repeat_key(health: Health) -> str:
    """Return what repeats share: the text of a probing device has that of its last fault."""
    return health.reason if health.state is HealthState.PROBING else ""


def _health_changed(earlier: Device | None, device: Device) -> bool:
    health = device.info.health
    if earlier is None:
        return health.state is not HealthState.HEALTHY or not health.certain
    old_health = earlier.info.health
    if health.certain is not old_health.certain:
        return True
    if health.state is HealthState.HEALTHY:
        return old_health.state is not HealthState.HEALTHY
    return (old_health.state, old_health.reason) != (health.state, health.reason)


def _newly_degraded(earlier: Device | None, device: Device) -> DeviceCondition | None:
    """Return the degraded condition if it was not present before for this reason."""
    old_reasons = (
        {c.reason for c in earlier.info.conditions if c.type == DEGRADED} if earlier else set()
    )
    degraded = [c for c in device.info.conditions if c.type == DEGRADED and c.status]
    return next((c for c in degraded if c.reason not in old_reasons), None)


def _place_text(device: Device) -> str:
    node = device.place.numa_node
    place = f"NUMA node {node}" if node >= 0 else "NUMA node unknown"
    return f"{device.info.model or device.info.vendor}, {place}"


def _device_event(
    kind: str, reason: str, device: Device, text: str, now_s: float, repeat_key: str = ""
) -> Event:
    message = api_values.clean_text(
        f"{short_name(device)} ({device.key}): {text}", api_values.MAX_MESSAGE
    )
    return Event(
        type=kind,
        reason=reason,
        message=message,
        object_kind=DEVICE_KIND,
        at_s=now_s,
        device=device.key,
        repeat_key=repeat_key,
    )


def _worker_events(old: NodeSnapshot | None, new: NodeSnapshot, now_s: float) -> Iterator[Event]:
    before = {} if old is None else {vendor.vendor: vendor for vendor in old.vendors}
    for vendor in new.vendors:
        old_vendor = before.get(vendor.vendor)
        old_state = old_vendor.state if old_vendor is not None else "starting"
        if vendor.state == old_state or vendor.state not in _WORKER_EVENTS:
            continue
        if vendor.state == "ready" and old_state == "starting":
            continue  # a successful start
        yield _worker_event(vendor, now_s)


def _worker_event(vendor: VendorState, now_s: float) -> Event:
    kind, reason = _WORKER_EVENTS[vendor.state]
    cause = ": ".join(part for part in (vendor.reason, vendor.message) if part)
    text = f"worker of vendor {vendor.vendor} is {vendor.state}{f' ({cause})' if cause else ''}"
    message = api_values.clean_text(text, api_values.MAX_MESSAGE)
    return Event(type=kind, reason=reason, message=message, object_kind="Node", at_s=now_s)


def _annotation_events(
    old: NodeSnapshot | None, new: NodeSnapshot, now_s: float
) -> Iterator[Event]:
    """Report an unused annotation to its writer: at the Node, or at the pod."""
    if old is not None and _annotation_inputs(old) == _annotation_inputs(new):
        return
    refusals = _annotation_refusals(new)
    before = (
        {_refusal_key(refusal) for refusal in _annotation_refusals(old)}
        if refusals and old is not None
        else set()
    )
    for refusal in refusals:
        if _refusal_key(refusal) in before:
            continue
        text = api_values.clean_text(
            f"annotation {refusal.path}: {refusal.why}", api_values.MAX_MESSAGE
        )
        pod = refusal.pod
        ref = None if pod is None else PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid)
        object_kind = "Node" if ref is None else "Pod"
        kind, reason = WARNING, "AnnotationRefused"
        yield Event(
            type=kind, reason=reason, message=text, object_kind=object_kind, at_s=now_s, pod=ref
        )


def _annotation_inputs(snapshot: NodeSnapshot) -> tuple[object, ...]:
    """Return what the check of annotations depends on; it is slow and its inputs seldom change."""
    cluster = snapshot.cluster
    return snapshot.pods.value, cluster.node.value, snapshot.cpus.value.usable


def _annotation_refusals(snapshot: NodeSnapshot) -> tuple[InvalidAnnotation, ...]:
    node, cpus = snapshot.cluster.node.value, snapshot.cpus.value.usable
    # the reservation is checked against the CPUs of the node
    node_refusals = parse_node_annotations(node, cpus).invalid if cpus else ()
    return (*node_refusals, *scheduled_cpus(snapshot.pods.value)[1])


def _refusal_key(refusal: InvalidAnnotation) -> tuple[str, str, str]:
    return refusal.pod.uid if refusal.pod is not None else "", refusal.path, refusal.why


ALLOCATION_REFUSED = "GrantRefused"
NOT_VERIFIED = "AllocationNotVerified"
VERIFIED = "AllocationVerified"

_MISMATCH_TEXT = {
    VerificationStatus.MISSING: "is missing",
    VerificationStatus.EXCESS: "was not granted",
}

_SYNCHRONIZED = "synchronized"

_LOST_STATES = ("waiting", "refused")


def container_events(old: NodeSnapshot | None, new: NodeSnapshot, now_s: float) -> Iterator[Event]:
    """Yield the events between two snapshots, in a fixed order.

    A verdict is reported once while it lasts. VERIFIED is reported only after a bad verdict;
    otherwise each start of a pod would be an event.
    """
    yield from _allocation_events(old, new, now_s)
    yield from _verification_events(old, new, now_s)
    yield from _runtime_events(old, new, now_s)
    yield from _problem_events(old, new, now_s)


def _allocation_events(
    old: NodeSnapshot | None, new: NodeSnapshot, now_s: float
) -> Iterator[Event]:
    after = new.allocations.value.pods
    before = {} if old is None else old.allocations.value.pods
    if after is before:
        return
    for uid, allocation in sorted(after.items()):
        earlier = before.get(uid)
        if allocation.refusal == RefusalReason.REQUESTS_UNKNOWN.value:
            continue  # often a sandbox exists before its pod is listed
        if allocation.refusal and (earlier is None or earlier.refusal != allocation.refusal):
            yield _pod_event(
                WARNING, ALLOCATION_REFUSED, allocation.message, _pod_reference(allocation), now_s
            )


def _pod_reference(allocation: PodAllocation) -> PodRef:
    return PodRef(
        namespace=allocation.namespace or "default", name=allocation.name, uid=allocation.uid
    )


def _verification_events(
    old: NodeSnapshot | None, new: NodeSnapshot, now_s: float
) -> Iterator[Event]:
    after = new.verification.value.containers
    before = {} if old is None else old.verification.value.containers
    if after is before:
        return
    for key, verification in sorted(after.items()):
        earlier = before.get(key)
        old_verdict = earlier.verdict if earlier is not None else VerificationStatus.UNKNOWN
        if verification.verdict is old_verdict:
            continue
        ref = PodRef(
            namespace=verification.namespace or "default",
            name=verification.pod,
            uid=verification.pod_uid,
        )
        if verification.verdict in _MISMATCH_TEXT:
            yield _pod_event(WARNING, NOT_VERIFIED, _verification_text(verification), ref, now_s)
        elif verification.verdict is VerificationStatus.VERIFIED and old_verdict in _MISMATCH_TEXT:
            text = (
                f"container {verification.container} has what was granted again, and nothing else"
            )
            yield _pod_event(NORMAL, VERIFIED, text, ref, now_s)


def _verification_text(verification: ContainerVerification) -> str:
    mismatch = _MISMATCH_TEXT[verification.verdict]
    return f"container {verification.container}: {mismatch}: {'; '.join(verification.details)}"


def _pod_event(kind: str, reason: str, text: str, pod: PodRef, now_s: float) -> Event:
    message = api_values.clean_text(text, api_values.MAX_MESSAGE)
    return Event(type=kind, reason=reason, message=message, object_kind="Pod", at_s=now_s, pod=pod)


def _runtime_events(old: NodeSnapshot | None, new: NodeSnapshot, now_s: float) -> Iterator[Event]:
    """Report when containers stop getting adjustments, and when they get them again."""
    runtime, old_state = new.runtime.value, "off" if old is None else old.runtime.value.state
    if runtime.state == old_state:
        return
    if old_state == _SYNCHRONIZED and runtime.state in _LOST_STATES:
        text = f"the container runtime does not ask this agent any more: {runtime.message}"
        yield _node_event(WARNING, "RuntimeLost", text, now_s)
    elif runtime.state == _SYNCHRONIZED and runtime.lost:
        text = f"{runtime.runtime} {runtime.version} asks this agent again"
        yield _node_event(NORMAL, "RuntimeBack", text, now_s)
    elif runtime.state == "refused":
        text = (
            f"the container runtime does not take this agent: {runtime.reason}: {runtime.message}"
        )
        yield _node_event(WARNING, "RuntimeRefused", text, now_s)


def _problem_events(old: NodeSnapshot | None, new: NodeSnapshot, now_s: float) -> Iterator[Event]:
    after = new.host_devices.value.problems
    before = () if old is None else old.host_devices.value.problems
    if after is before:
        return
    for reason, message in after:
        if (reason, message) not in before:
            yield _node_event(WARNING, reason, message, now_s)


def _node_event(kind: str, reason: str, text: str, now_s: float) -> Event:
    message = api_values.clean_text(text, api_values.MAX_MESSAGE)
    return Event(type=kind, reason=reason, message=message, object_kind="Node", at_s=now_s)
