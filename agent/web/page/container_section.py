"""The section of the status page about containers: runtime, allocations, verification."""

from __future__ import annotations

from collections.abc import Mapping

from agent.snapshot.allocation import (
    AllocatedDevice,
    ContainerVerification,
    PodAllocation,
    VerificationStatus,
)
from agent.snapshot.container import RuntimeView
from agent.snapshot.device_plugin import DevicePluginView, PluginResource
from agent.snapshot.node import NodeSnapshot
from agent.web.page.html import badge, grid, tag, text

MAX_POD_ROWS = 200  # rows; a node has fewer cards than that
_RUNTIME_STATES = {
    "synchronized": "healthy",
    "registered": "probing",
    "waiting": "suspect",
    "refused": "failed",
}
_RESOURCE_STATES = {
    "watched": "healthy",
    "conflict": "failed",
    "refused": "failed",
    "waiting": "suspect",
}
_VERDICT_STATES = {
    VerificationStatus.VERIFIED: "healthy",
    VerificationStatus.MISSING: "failed",
    VerificationStatus.EXCESS: "failed",
    VerificationStatus.UNKNOWN: "unmanaged",
}


def container_section(snapshot: NodeSnapshot) -> str:
    """Return the state of runtime and kubelet, and each pod's allocation and devices, errors first.

    Empty before the first check.
    """
    runtime, grants = snapshot.runtime, snapshot.allocations.value.pods
    if runtime.taken_s is None and snapshot.allocations.taken_s is None:
        return ""
    served = snapshot.served.value
    ways = [
        _runtime_row(runtime.value),
        *(_resource_row(resource, served) for resource in served.resources),
    ]
    problems = [[tag("code", text(r)), text(m)] for r, m in snapshot.host_devices.value.problems]
    of_pod = _verdicts_by_pod(snapshot)
    plain = (proofs[0] for uid, proofs in of_pod.items() if uid not in grants)
    without = (PodAllocation(uid=p.pod_uid, namespace=p.namespace, name=p.pod) for p in plain)

    def order(one: PodAllocation) -> tuple[bool, str, str]:
        wrong = one.refusal or any(p.verdict.is_wrong for p in of_pod.get(one.uid, ()))
        return not wrong, one.namespace, one.name

    allocations = sorted((*grants.values(), *without), key=order)
    rows = [_pod_row(grant, of_pod.get(grant.uid, ())) for grant in allocations[:MAX_POD_ROWS]]
    more = len(allocations) - len(rows)
    caption = "What pods were granted" + (f" (and {more} more)" if more > 0 else "")
    return (
        tag("h2", "Containers")
        + grid(("way", "state", "what it says"), ways, "How containers are reached")
        + (grid(("what", "why"), problems, "What is wrong on this host") if problems else "")
        + (grid(("pod", "granted", "in its containers"), rows, caption) if rows else "")
    )


def _runtime_row(view: RuntimeView) -> list[str]:
    description = f"{view.runtime} {view.version}".strip() or "container runtime"
    message = ": ".join(part for part in (view.reason, view.message) if part)
    if view.is_synchronized:
        count = len(view.containers)
        message = f"{count} {'container' if count == 1 else 'containers'} known"
    return [
        text(description),
        badge(_RUNTIME_STATES.get(view.state, "unmanaged"), view.state),
        text(message),
    ]


def _resource_row(resource: PluginResource, served: DevicePluginView) -> list[str]:
    message = f"{resource.healthy} of {resource.devices} devices healthy"
    if resource.withdrawn_ids:
        ids = ", ".join(resource.withdrawn_ids)
        message += f"; withdrawn, in use without the kubelet's knowledge: {ids}"
    pairs = served.exchanges(resource.name)
    if pairs:
        exchanged = ", ".join(f"{device} in place of {name}" for name, device in sorted(pairs))
        message += f"; exchanged: {exchanged}"
    if resource.reason:
        message = f"{resource.reason}: {resource.message}"
    tone = badge(_RESOURCE_STATES.get(resource.state, "probing"), resource.state)
    return [tag("code", text(resource.name)), tone, text(message)]


def _verdicts_by_pod(snapshot: NodeSnapshot) -> Mapping[str, tuple[ContainerVerification, ...]]:
    verdicts: dict[str, list[ContainerVerification]] = {}
    for _, proof in sorted(snapshot.verification.value.containers.items()):
        verdicts.setdefault(proof.pod_uid, []).append(proof)
    return {uid: tuple(proofs) for uid, proofs in verdicts.items()}


def _pod_row(grant: PodAllocation, proofs: tuple[ContainerVerification, ...]) -> list[str]:
    name = tag("strong", text(grant.name or grant.uid)) + tag(
        "div", text(grant.namespace), class_="quiet"
    )
    if grant.refusal:
        message = grant.message.removeprefix(f"{grant.refusal}: ")  # which is shown already
        devices = badge("failed", grant.refusal) + tag("div", text(message))
    else:
        devices = "".join(tag("div", text(_device_text(device))) for device in grant.grant.devices)
    return [name, devices or "–", "".join(map(_verdict_text, proofs)) or "–"]


def _device_text(one: AllocatedDevice) -> str:
    names = f"{one.type} {one.id or one.minor}"
    amounts = ", ".join(f"{name.rpartition('/')[2]} {value}" for name, value in one.resources)
    more = (amounts, one.template, ", ".join(one.vfs))
    return names + "".join(f"; {part}" for part in more if part)


def _verdict_text(proof: ContainerVerification) -> str:
    messages = f" {proof.container}" + "".join(f"; {detail}" for detail in proof.details)
    return tag("div", badge(_VERDICT_STATES[proof.verdict], proof.verdict.value) + text(messages))
