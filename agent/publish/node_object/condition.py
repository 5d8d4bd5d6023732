"""Conditions of the Node, for whoever drains, repairs or alerts by them.

`AcceleratorsHealthy` stands for accelerators only: a NIC that is down is told in the Device
object. `DeviceInjectionReady` says whether containers that are created now get what their pods
were granted. The texts name what is wrong and nothing that changes by itself, so that a node where
nothing happens is not written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from agent.model.cluster.bare import all_told
from agent.model.device import Device, DeviceKind
from agent.model.runtime.seen import RuntimeView
from agent.model.snapshot import NodeSnapshot
from agent.publish.base import Desired, Json
from agent.publish.device_view import short_name
from agent.publish.wire import sanitise
from agent.publish.wire.owner import node_uid

TYPE = "AcceleratorsHealthy"
INJECTION = "DeviceInjectionReady"
ASKED, NOT_ASKED = "RuntimeAsks", "RuntimeDoesNotAsk"
GRACE_S = 30.0  # a runtime, or an agent, that is started anew is no news
ALL_HEALTHY = "AllHealthy"
OFF = "off"  # state of a runtime that is not dialled
SEVERAL = "SeveralReasons"
MAX_NAMED = 16  # devices in the message

HEARTBEAT, TRANSITION = "lastHeartbeatTime", "lastTransitionTime"


class NodeConditionPublisher(msgspec.Struct, frozen=True):
    """Publishes the conditions: False with a failed card, Unknown where nobody can tell."""

    interval_s: float = 3.0
    name: str = "node_condition"

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[Desired, ...]:
        """Return the Node with its conditions, or without them where there are no accelerators.

        Nothing outside a cluster, before the devices are known, while none is listed and that is
        not certain, or while a runtime that is started anew is waited for.
        """
        view = snapshot.devices
        in_cluster = snapshot.cluster.clustered and node_uid(snapshot)
        if not in_cluster or view.taken_s is None or view.value.awaited:
            return ()
        cards = [
            device
            for device in view.value.devices
            if device.info.kind is not DeviceKind.RDMA and device.info.managed
        ]
        if not cards and not all_told(snapshot):
            return ()
        found = [condition(cards, snapshot.node.boot_time_s)] if cards else []
        if cards and snapshot.runtime.value.state != OFF:
            told = injection(snapshot.runtime.value, now_s)
            if told is None:
                return ()
            found.append(told)
        name = snapshot.node.name
        return (
            Desired(
                file_name="node-condition.yaml",
                api_version="v1",
                kind="Node",
                name=name,
                body={
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name},
                    "status": {"conditions": found},
                },
                status_only=True,
                merge=keep_times,
            ),
        )


def condition(cards: Sequence[Device], boot_s: float) -> Json:
    """Return the condition of these accelerators; a change that nobody saw is dated `boot_s`."""
    failed = [card for card in cards if card.info.health.certain and not _serves(card)]
    unknown = [card for card in cards if not card.info.health.certain]
    if failed:
        why = f"{len(failed)} of {len(cards)} accelerators are out of service: {_names(failed)}"
        return _told("False", _reason(failed), why, min(_since(failed), default=None), boot_s)
    if unknown:
        why = f"the state of {len(unknown)} of {len(cards)} is not known: {_names(unknown)}"
        return _told("Unknown", _reason(unknown), why, min(_since(unknown), default=None), boot_s)
    why = f"all {len(cards)} accelerators are in service"
    return _told("True", ALL_HEALTHY, why, max(_since(cards), default=None), boot_s)


def injection(runtime: RuntimeView, now_s: float) -> Json | None:
    """Return whether the runtime asks this agent; `None` while that is not decided."""
    since_s = runtime.turned_s
    if since_s is None or (not runtime.in_force and now_s - since_s < GRACE_S):
        return None
    if runtime.in_force:
        why = "the container runtime asks this agent what containers get"
        return _told("True", ASKED, why, since_s, since_s, INJECTION)
    why = "containers that are created now do not get the devices of their pods' grants"
    if runtime.reason:
        why += f": {sanitise.reason(runtime.reason)}"
    return _told("False", NOT_ASKED, why, since_s, since_s, INJECTION)


def _serves(card: Device) -> bool:
    return card.info.health.in_service


def _since(cards: Iterable[Device]) -> Iterator[float]:
    return (card.info.health.since_s for card in cards if card.info.health.since_s is not None)


def _reason(cards: Iterable[Device]) -> str:
    reasons = {sanitise.reason(card.info.health.reason) for card in cards}
    return reasons.pop() if len(reasons) == 1 else SEVERAL


def _names(cards: list[Device]) -> str:
    """Name devices with their reasons, in their order; many only in part."""
    shown = (f"{short_name(c)} ({sanitise.reason(c.info.health.reason)})" for c in cards)
    listed = ", ".join(islice(shown, MAX_NAMED))
    more = len(cards) - MAX_NAMED
    return f"{listed} and {more} more" if more > 0 else listed


def _told(
    status: str,
    reason: str,
    message: str,
    since_s: float | None,
    boot_s: float,
    kind: str = TYPE,
) -> Json:
    moment = sanitise.time_text(since_s, boot_s)
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": sanitise.plain(message, sanitise.MAX_MESSAGE),
        HEARTBEAT: moment,
        TRANSITION: moment,
    }


def keep_times(live: Json, wanted: Json) -> Json:
    """Return what is wanted with the times that stand, while the statuses are those that stand.

    The heartbeat says when the condition turned, not that the agent lives: as a clock it would
    be a write a minute on every node.
    """
    stood = {one.get("type"): one for one in _ours(live)}
    conditions = [
        _dated({**one}, stood[one["type"]]) if one["type"] in stood else one
        for one in _ours(wanted)
    ]
    return {**wanted, "status": {"conditions": conditions}}


def _dated(wanted: Json, stood: Mapping[str, object]) -> Json:
    times = {name: str(stood.get(name)) for name in (HEARTBEAT, TRANSITION)}
    valid = {name: time for name, time in times.items() if sanitise.TIME.fullmatch(time)}
    if stood.get("status") == wanted["status"]:
        return {**wanted, **valid}
    # of this form times compare as text; a change that nobody saw is no older than the last one
    moment = max(str(wanted[TRANSITION]), valid.get(TRANSITION, ""))
    return {**wanted, HEARTBEAT: moment, TRANSITION: moment}


def _ours(body: Json) -> Iterator[Mapping[str, object]]:
    status = body.get("status")
    listed = status.get("conditions") if isinstance(status, Mapping) else None
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, Mapping) and entry.get("type") in (TYPE, INJECTION):
            yield entry
