"""Events for people, found as differences between two snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent.model.cluster.annotation import Refused
from agent.model.cluster.node_wishes import wishes
from agent.model.cluster.pod_cpus import scheduled_cpus
from agent.model.device import DEGRADED, Device, DeviceCondition, Health, HealthState
from agent.model.snapshot import NodeSnapshot, VendorState
from agent.publish.containers.events import container_events
from agent.publish.device import KIND
from agent.publish.device_view import short_name
from agent.publish.eventing.event import NORMAL, WARNING, Event, PodRef
from agent.publish.wire import sanitise

_HEALTH = {
    HealthState.HEALTHY: (NORMAL, "DeviceHealthy"),
    HealthState.SUSPECT: (WARNING, "DeviceSuspect"),
    HealthState.PROBING: (NORMAL, "DeviceProbing"),
    HealthState.FAILED: (WARNING, "DeviceUnhealthy"),
}
_WORKER = {
    "ready": (NORMAL, "VendorWorkerReady"),
    "stalled": (WARNING, "VendorWorkerStalled"),
    "restarting": (WARNING, "VendorWorkerRestarting"),
    "quarantined": (WARNING, "VendorWorkerQuarantined"),
    "released": (NORMAL, "VendorWorkerReleased"),
}


_UNKNOWN = (WARNING, "DeviceHealthUnknown")


def events_between(old: NodeSnapshot | None, new: NodeSnapshot, now_s: float) -> tuple[Event, ...]:
    """Return what happened from one snapshot to the next, in a fixed order.

    What is found at the first look has not happened, so it is no event; what is wrong at the
    first look is one.
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
    first_look = old is None or old.devices.taken_s is None
    before = {} if old is None or first_look else _by_key(old)
    after = _by_key(new)
    for key, device in after.items():
        earlier = before.get(key)
        if earlier is None and not first_look:
            yield _about_device(NORMAL, "DeviceAppeared", device, _place(device), now_s)
        yield from _passing(earlier, device, now_s)
        if _health_changed(earlier, device):
            health = device.info.health
            kind, reason = _HEALTH[health.state] if health.certain else _UNKNOWN
            yield _about_device(kind, reason, device, _words(health), now_s, _kin(health))
        if condition := _newly_degraded(earlier, device):
            text = f"{condition.reason}: {condition.message}"
            yield _about_device(WARNING, "DeviceDegraded", device, text, now_s)
    for key, device in before.items():
        if key not in after:
            text = "no longer there; pods that hold it have lost it"
            yield _about_device(WARNING, "DeviceGone", device, text, now_s)


def _by_key(snapshot: NodeSnapshot) -> Mapping[str, Device]:
    return {device.key: device for device in snapshot.devices.value.devices}


def _passing(earlier: Device | None, device: Device, now_s: float) -> Iterator[Event]:
    """Tell of a fault that came and went between the two snapshots, which shows in neither."""
    if earlier is None:
        return
    known, health = earlier.info.health, device.info.health
    to_be_well = known.changes + (known.state is not HealthState.HEALTHY)
    if health.state is HealthState.PROBING:
        again = known.state is HealthState.PROBING and health.changes > known.changes
        if again or known.in_service:
            kind, reason = _HEALTH[HealthState.FAILED]
            yield _about_device(kind, reason, device, _words(health), now_s, _kin(health))
    elif health.state is HealthState.HEALTHY and health.certain and health.changes > to_be_well:
        kind, reason = _HEALTH[HealthState.SUSPECT]
        cause = f"; last event {health.last_event}" if health.last_event else ""
        text = f"was not well for a moment, and is again{cause}"
        yield _about_device(kind, reason, device, text, now_s)


def _words(health: Health) -> str:
    return f"{health.reason}: {health.message}"


def _kin(health: Health) -> str:
    """Return what repeats share: how far a probing device has come is another text each time."""
    return health.reason if health.state is HealthState.PROBING else ""


def _health_changed(earlier: Device | None, device: Device) -> bool:
    health = device.info.health
    if earlier is None:
        return health.state is not HealthState.HEALTHY or not health.certain
    known = earlier.info.health
    if health.certain is not known.certain:
        return True
    if health.state is HealthState.HEALTHY:
        return known.state is not HealthState.HEALTHY
    return (known.state, known.reason) != (health.state, health.reason)


def _newly_degraded(earlier: Device | None, device: Device) -> DeviceCondition | None:
    """Return the condition that people should see to, if it was not there for this reason."""
    known = {c.reason for c in earlier.info.conditions if c.type == DEGRADED} if earlier else set()
    found = [c for c in device.info.conditions if c.type == DEGRADED and c.status]
    return next((c for c in found if c.reason not in known), None)


def _place(device: Device) -> str:
    node = device.place.numa_node
    where = f"NUMA node {node}" if node >= 0 else "NUMA node unknown"
    return f"{device.info.model or device.info.vendor}, {where}"


def _about_device(
    kind: str, reason: str, device: Device, text: str, now_s: float, kin: str = ""
) -> Event:
    message = sanitise.plain(f"{short_name(device)} ({device.key}): {text}", sanitise.MAX_MESSAGE)
    return Event(
        type=kind,
        reason=reason,
        message=message,
        about=KIND,
        at_s=now_s,
        device=device.key,
        kin=kin,
    )


def _worker_events(old: NodeSnapshot | None, new: NodeSnapshot, now_s: float) -> Iterator[Event]:
    before = {} if old is None else {vendor.vendor: vendor for vendor in old.vendors}
    for vendor in new.vendors:
        known = before.get(vendor.vendor)
        was = known.state if known is not None else "starting"
        if vendor.state == was or vendor.state not in _WORKER:
            continue
        if vendor.state == "ready" and was == "starting":
            continue  # a start that went well
        yield _about_worker(vendor, now_s)


def _about_worker(vendor: VendorState, now_s: float) -> Event:
    kind, reason = _WORKER[vendor.state]
    why = ": ".join(part for part in (vendor.reason, vendor.message) if part)
    text = f"worker of vendor {vendor.vendor} is {vendor.state}{f' ({why})' if why else ''}"
    message = sanitise.plain(text, sanitise.MAX_MESSAGE)
    return Event(type=kind, reason=reason, message=message, about="Node", at_s=now_s)


def _annotation_events(
    old: NodeSnapshot | None, new: NodeSnapshot, now_s: float
) -> Iterator[Event]:
    """Tell whoever wrote an annotation why it is not used: at the Node, or at the pod."""
    if old is not None and _written(old) == _written(new):
        return
    found = _refused(new)
    before = {_of(one) for one in _refused(old)} if found and old is not None else set()
    for one in found:
        if _of(one) in before:
            continue
        text = sanitise.plain(f"annotation {one.path}: {one.why}", sanitise.MAX_MESSAGE)
        pod = one.pod
        ref = None if pod is None else PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid)
        about = "Node" if ref is None else "Pod"
        kind, reason = WARNING, "AnnotationRefused"
        yield Event(type=kind, reason=reason, message=text, about=about, at_s=now_s, pod=ref)


def _written(snapshot: NodeSnapshot) -> tuple[object, ...]:
    """Return what the annotations are judged by; it seldom changes, and the judging takes time."""
    cluster = snapshot.cluster
    return snapshot.pods.value, cluster.node.value, snapshot.cpus.value.usable


def _refused(snapshot: NodeSnapshot) -> tuple[Refused, ...]:
    node, cpus = snapshot.cluster.node.value, snapshot.cpus.value.usable
    # the reservation is judged by the CPUs that there are
    of_node = wishes(node, cpus).refused if cpus else ()
    return (*of_node, *scheduled_cpus(snapshot.pods.value)[1])


def _of(one: Refused) -> tuple[str, str, str]:
    return one.pod.uid if one.pod is not None else "", one.path, one.why
