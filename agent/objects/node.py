"""The labels and conditions of the Node that describe its accelerators.

`AcceleratorsHealthy` covers accelerators only; the Device object shows a NIC that is down.
`DeviceInjectionReady` says whether a new container gets its allocated devices, and
`EnforcementHealthy` whether what NodeSLO and pods ask for is in the files. The conditions of faults
are those of `agent.objects.fault_conditions`. The texts contain
nothing that changes by itself, so that a quiet node is not written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from agent.devices.presence import is_inventory_complete
from agent.objects.condition_json import FALSE, TRUE, UNKNOWN, condition_json
from agent.objects.device import accelerator_labels
from agent.objects.fault_conditions import (
    FAULT_TYPES,
    SEVERAL_REASONS,
    fault_conditions,
    merge_node_conditions,
)
from agent.runbook.runbook import OWN_RUNBOOK, Runbook
from agent.snapshot.container import RuntimeView
from agent.snapshot.device import Device, DeviceKind, short_name
from agent.snapshot.node import NodeSnapshot, node_uid
from agent.snapshot.publications import DesiredObject, Json
from agent.snapshot.self_check import EnforcementView
from agent.wire_formats import api_values
from agent.wire_formats.device_object import select_devices

ACCELERATORS_HEALTHY = "AcceleratorsHealthy"
DEVICE_INJECTION_READY = "DeviceInjectionReady"
ENFORCEMENT_HEALTHY = "EnforcementHealthy"
PUBLISHED_CONDITIONS = FAULT_TYPES | {
    ACCELERATORS_HEALTHY,
    DEVICE_INJECTION_READY,
    ENFORCEMENT_HEALTHY,
}
RUNTIME_ASKS, RUNTIME_DOES_NOT_ASK = "RuntimeAsks", "RuntimeDoesNotAsk"
GRACE_S = 30.0  # a restart of the runtime or of the agent is not reported
ALL_HEALTHY, ALL_SET = "AllHealthy", "AllSet"
RUNTIME_OFF = "off"  # state of a runtime that the agent does not connect to
MAX_NAMED = 16  # devices in the message


class NodeConditionPublisher(msgspec.Struct, frozen=True):
    """Publishes the conditions: False with a failed card, Unknown for an unknown state."""

    interval_s: float = 3.0
    name: str = "node_condition"
    runbook: Runbook = OWN_RUNBOOK

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[DesiredObject, ...]:
        """Return the Node with its conditions, or without them if there are no accelerators.

        Nothing is returned outside of a cluster, before the devices are known, while it is
        uncertain that there are none, or while the agent waits for a restarted runtime.
        """
        view = snapshot.devices
        in_cluster = snapshot.cluster.is_clustered and node_uid(snapshot)
        if not in_cluster or view.taken_s is None or view.value.awaited:
            return ()
        cards = [
            device
            for device in view.value.devices
            if device.info.kind is not DeviceKind.RDMA and device.info.managed
        ]
        if not cards and not is_inventory_complete(snapshot):
            return ()
        conditions = [accelerators_condition(cards, snapshot.node.boot_time_s)] if cards else []
        if cards and snapshot.runtime.value.state != RUNTIME_OFF:
            condition = injection_condition(snapshot.runtime.value, now_s)
            if condition is None:
                return ()
            conditions.append(condition)
        enforcement = snapshot.enforcement.value
        if enforcement.has_requests or enforcement.conditions:
            conditions.append(enforcement_condition(enforcement))
        conditions += fault_conditions(snapshot, self.runbook.find, now_s)
        name = snapshot.node.name
        return (
            DesiredObject(
                file_name="node-condition.yaml",
                api_version="v1",
                kind="Node",
                name=name,
                body={
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name},
                    "status": {"conditions": conditions},
                },
                status_only=True,
                merge=merge_node_conditions,
            ),
        )


def accelerators_condition(cards: Sequence[Device], boot_s: float) -> Json:
    """Return the condition of these accelerators; a change without a known time gets `boot_s`."""
    failed = [card for card in cards if card.info.health.certain and not _is_in_service(card)]
    unknown = [card for card in cards if not card.info.health.certain]
    if failed:
        message = f"{len(failed)} of {len(cards)} accelerators are out of service: {_names(failed)}"
        return condition_json(
            ACCELERATORS_HEALTHY,
            FALSE,
            _common_reason(failed),
            message,
            min(_change_times(failed), default=None),
            boot_s,
        )
    if unknown:
        message = f"the state of {len(unknown)} of {len(cards)} is not known: {_names(unknown)}"
        return condition_json(
            ACCELERATORS_HEALTHY,
            UNKNOWN,
            _common_reason(unknown),
            message,
            min(_change_times(unknown), default=None),
            boot_s,
        )
    message = f"all {len(cards)} accelerators are in service"
    changed_s = max(_change_times(cards), default=None)
    return condition_json(ACCELERATORS_HEALTHY, TRUE, ALL_HEALTHY, message, changed_s, boot_s)


def injection_condition(runtime: RuntimeView, now_s: float) -> Json | None:
    """Return whether the runtime calls this agent; `None` while that is undecided."""
    since_s = runtime.turned_s
    # a time ahead of now is from before the clock was set back
    if since_s is None or (not runtime.is_synchronized and 0 <= now_s - since_s < GRACE_S):
        return None
    if runtime.is_synchronized:
        message = "the container runtime asks this agent what containers get"
        return condition_json(DEVICE_INJECTION_READY, TRUE, RUNTIME_ASKS, message, since_s, since_s)
    message = "containers that are created now do not get the devices of their pods' grants"
    if runtime.reason:
        message += f": {api_values.condition_reason(runtime.reason)}"
    return condition_json(
        DEVICE_INJECTION_READY, FALSE, RUNTIME_DOES_NOT_ASK, message, since_s, since_s
    )


def enforcement_condition(view: EnforcementView) -> Json:
    """Return whether what a NodeSLO and pods ask for is done, as far as files show."""
    since_s = view.turned_s
    if not view.conditions:
        message = "what the NodeSLO and pods ask for is set"
        return condition_json(ENFORCEMENT_HEALTHY, TRUE, ALL_SET, message, since_s, since_s or 0.0)
    reasons = sorted({condition.reason for condition in view.conditions})
    reason = api_values.condition_reason(reasons[0]) if len(reasons) == 1 else SEVERAL_REASONS
    texts = [
        condition.message if len(reasons) == 1 else condition.reason
        for condition in view.conditions
    ]
    listed = "; ".join(dict.fromkeys(texts[:MAX_NAMED]))
    return condition_json(ENFORCEMENT_HEALTHY, FALSE, reason, listed, since_s, since_s or 0.0)


def _is_in_service(card: Device) -> bool:
    return card.info.health.is_in_service


def _change_times(cards: Iterable[Device]) -> Iterator[float]:
    return (card.info.health.since_s for card in cards if card.info.health.since_s is not None)


def _common_reason(cards: Iterable[Device]) -> str:
    reasons = {api_values.condition_reason(card.info.health.reason) for card in cards}
    return reasons.pop() if len(reasons) == 1 else SEVERAL_REASONS


def _names(cards: list[Device]) -> str:
    """Return devices with their reasons, in their order; at most `MAX_NAMED`."""
    texts = (
        f"{short_name(c)} ({api_values.condition_reason(c.info.health.reason)})" for c in cards
    )
    listed = ", ".join(islice(texts, MAX_NAMED))
    more = len(cards) - MAX_NAMED
    return f"{listed} and {more} more" if more > 0 else listed


CLIQUE_LABEL = "nvidia.com/gpu.clique"  # cards of several nodes that one NVLink fabric joins

_CLIQUE_FACT = "clique"  # the fact of a card


class NodeLabelsPublisher(msgspec.Struct, frozen=True):
    """Publishes vendor, model, driver and NVLink domain of the accelerators as labels of the Node.

    Koordinator's manager copies the first three from the Device object. A cluster without this
    manager gets them from here.
    """

    interval_s: float = 3.0
    name: str = "node_labels"

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[DesiredObject, ...]:  # noqa: ARG002 - see Publisher
        """Return the Node with the labels; nothing outside of a cluster, or while uncertain."""
        view = snapshot.devices
        if not _has_node(snapshot) or view.taken_s is None or view.value.awaited:
            return ()
        published = select_devices(view.value.devices).published
        cards = tuple(device for device in published if device.info.kind is not DeviceKind.RDMA)
        if not cards and not is_inventory_complete(snapshot):
            return ()
        name = snapshot.node.name
        metadata = {
            "name": name,
            "labels": accelerator_labels(snapshot, published) | _clique_label(cards),
        }
        return (
            DesiredObject(
                file_name="node-labels.yaml",
                api_version="v1",
                kind="Node",
                name=name,
                body={"apiVersion": "v1", "kind": "Node", "metadata": metadata},
            ),
        )


def _has_node(snapshot: NodeSnapshot) -> bool:
    return snapshot.cluster.is_clustered and bool(node_uid(snapshot))


def _clique_label(cards: tuple[Device, ...]) -> dict[str, str]:
    """Return the domain that all cards with a fabric share; nothing if they differ."""
    cliques = {clique for card in cards if (clique := dict(card.info.facts).get(_CLIQUE_FACT))}
    value = api_values.label_value(cliques.pop()) if len(cliques) == 1 else ""
    return {CLIQUE_LABEL: value} if value else {}
