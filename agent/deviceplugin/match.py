"""Whose an allocation is: the kubelet says how many of what, and not for which pod. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from agent.grants.check import grant_of
from agent.grants.kept import Kept
from agent.model.cluster.pods import ENDED
from agent.model.device import VendorDevice
from agent.model.foreign.device_allocated import KEY
from agent.model.grant.checked import PodGrant
from agent.model.grant.granted import Grant, Match, matches
from agent.model.grant.refusal import GrantRefused
from agent.model.pod import PodView, ResourceAsk
from agent.model.runtime.seen import sandbox_of
from agent.model.runtime.served import Held
from agent.model.snapshot import NodeSnapshot


class Asker(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that the kubelet may be asking for, with what the scheduler granted it of this.

    `refusal` is why its grant does not hold.
    """

    pod: PodView
    container: str = ""  # whose turn it is; empty: not known
    grant: Grant = Grant()
    found: tuple[Match, ...] = ()  # what of the grant is of this vendor's devices
    refusal: str = ""
    message: str = ""

    @property
    def granted(self) -> bool:
        """Say whether a scheduler decided for it, well or not."""
        return bool(self.found or self.refusal)


def askers(
    resource: str,
    count: int,
    devices: Sequence[VendorDevice],
    snapshot: NodeSnapshot,
    kept: Kept | None = None,
) -> tuple[Asker, ...]:
    """Return the pods for which the kubelet may ask for `count` of a resource now, by uid.

    They are on this node, not ended, not begun, ask for so many in a container, and the kubelet
    did not get an answer for each such container yet. `devices` are the vendor's. The deletion of
    a pod does not cancel a question about it: pods that are being deleted are returned where no
    other can be meant. `kept` saves time and changes nothing.
    """
    waiting = [
        pod
        for pod in snapshot.cluster.pods
        if any(ask.resource == resource and ask.count == count for ask in pod.asks)
        and pod.phase not in ENDED
    ]
    if not waiting:
        return ()
    begun = _Begun(snapshot)
    turns = [
        (pod, turn)
        for pod in sorted(waiting, key=lambda pod: pod.uid)
        if not begun(pod)
        and (turn := _turn(pod, resource, count, snapshot.served.value.held)) is not None
    ]
    staying = [(pod, turn) for pod, turn in turns if not pod.terminating]
    kept = kept or Kept()
    return tuple(_asker(pod, turn, devices, snapshot, kept) for pod, turn in staying or turns)


class _Begun:
    """Says whether a pod was admitted before: the kubelet made its cgroup, the runtime its sandbox.

    Where neither is looked at, a pod has begun once its status says so.
    """

    def __init__(self, snapshot: NodeSnapshot) -> None:
        runtime = snapshot.runtime.value
        self._uids = {pod.uid for pod in snapshot.pods.value if pod.cgroup}
        self._uids.update(one.uid for one in runtime.sandboxes.values() if not one.stopped)
        self._looked = snapshot.pods.taken_s is not None or runtime.in_force

    def __call__(self, pod: PodView) -> bool:
        if self._looked:
            return pod.uid in self._uids
        return bool(pod.containers) or pod.phase not in ("", "Pending")


def _turn(pod: PodView, resource: str, count: int, held: Iterable[Held]) -> ResourceAsk | None:
    """Return the container whose turn it is: the kubelet asks in their order, init ones first."""
    asks = [ask for ask in pod.asks if ask.resource == resource and ask.count == count]
    given = [one for one in held if one.pod_uid == pod.uid and one.resource == resource]
    answered = sum(1 for one in given if len(one.ids) == count)
    return asks[answered] if answered < len(asks) else None


def _asker(
    pod: PodView,
    turn: ResourceAsk,
    devices: Sequence[VendorDevice],
    snapshot: NodeSnapshot,
    kept: Kept,
) -> Asker:
    checked = _checked(pod, snapshot, kept)
    if checked is None:
        return Asker(pod=pod, container=turn.container)
    if checked.refusal:
        return Asker(
            pod=pod, container=turn.container, refusal=checked.refusal, message=checked.message
        )
    try:
        found = matches(checked.grant, devices)
    except GrantRefused as error:
        return Asker(pod=pod, container=turn.container, refusal=error.reason, message=str(error))
    return Asker(pod=pod, container=turn.container, grant=checked.grant, found=found)


def _checked(pod: PodView, snapshot: NodeSnapshot, kept: Kept) -> PodGrant | None:
    """Return the pod's grant; a refused one is checked again: other holders may have ended."""
    checked = snapshot.grants.value.pods.get(pod.uid)
    if pod.annotation(KEY) is None or checked is None or not checked.refusal:
        return checked
    return grant_of(snapshot, sandbox_of(pod), kept)


def places(found: Iterable[Match]) -> frozenset[tuple[str, str, str]]:
    """Return what of the hardware a grant means, as `Unit.place`: device, slice, function."""
    return frozenset(
        (match.device.key, match.partition.uuid if match.partition else "", function)
        for match in found
        for function in (match.entry.vfs or ("",))
    )


def holders_of(devices: Sequence[VendorDevice], snapshot: NodeSnapshot) -> Mapping[str, None]:
    """Return the uids of pods that were granted something of these devices, in a fixed order."""
    keys = {device.key for device in devices}
    held = snapshot.grants.value.held.items()
    return dict.fromkeys(uid for key, pods in held if key in keys for uid in pods)


def granted_places(
    devices: Sequence[VendorDevice], snapshot: NodeSnapshot
) -> Mapping[tuple[str, str, str], str]:
    """Return what pods hold by a grant, each with the uid of one of them."""
    grants = snapshot.grants.value
    keys = {device.key for device in devices}
    uids = holders_of(devices, snapshot)
    held: dict[tuple[str, str, str], str] = {}
    for uid in uids:
        pod = grants.pods.get(uid)
        if pod is None or pod.refusal:
            continue
        try:
            found = matches(pod.grant, devices)
        except GrantRefused:
            # its slice is gone, and is made anew or taken back: no other has the card meanwhile
            theirs = [key for key in keys if uid in grants.held.get(key, ())]
            held.update(dict.fromkeys(((key, "", "") for key in theirs), uid))
            continue
        held.update(dict.fromkeys(places(found), uid))
    return held
