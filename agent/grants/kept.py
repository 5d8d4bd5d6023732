"""Pods, sandboxes and devices as grants look them up, and what the kubelet gave away of them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.grants.allocations import Allocation, allocations
from agent.grants.claims import Claim, claim_text
from agent.grants.known import KnownDevices
from agent.grants.remember import Remembered
from agent.model.foreign.device_allocated import KEY
from agent.model.grant.checked import GrantsView
from agent.model.pod import PodView
from agent.model.runtime.seen import SandboxSeen
from agent.model.snapshot import NodeSnapshot

Parts = tuple[object, ...]


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """All that a check of every pod's grant goes by: of equal ones the second need not be done."""

    known: KnownDevices
    claims: tuple[Claim, ...]
    given: Mapping[str, tuple[Allocation, ...]]


class Kept:
    """Look-ups of a snapshot, made anew only where the parts they are made of were replaced.

    So a request costs what was granted, not what is on the node. May be used by several threads;
    with a new one everything is looked at, and found to be the same.
    """

    def __init__(self) -> None:
        """Begin with nothing made."""
        self.checked: tuple[Heard, GrantsView] | None = None
        self.known = Remembered(_of_devices, _known)
        self.pods = Remembered(_of_pods, _pods)  # by uid
        self.boxes = Remembered(_of_boxes, _boxes)  # by the pod's uid, without those that stopped
        self._noted = Remembered(_of_pods, _noted)
        self._made_with = Remembered(_of_boxes, lambda now, _: self._annotated(now))
        self.claiming = Remembered(
            lambda now: (*_of_pods(now), *_of_boxes(now)),
            lambda now, _: self._claiming(now),
        )
        self.new = Remembered(
            lambda now: (*_of_pods(now), *_of_boxes(now), now.grants.value.looked),
            lambda now, _: self._new(now),
        )
        self.allocations: Remembered[Mapping[str, tuple[Allocation, ...]]] = Remembered(
            lambda now: (
                now.served.value.held,
                now.cluster.pods_known,
                *_of_pods(now),
                *_of_devices(now),
            ),
            lambda now, _: allocations(now, self.pods(now), self.known(now)),
        )

    def _annotated(self, now: NodeSnapshot) -> frozenset[str]:
        return frozenset(uid for uid, box in self.boxes(now).items() if claim_text(box) is not None)

    def _claiming(self, now: NodeSnapshot) -> frozenset[str]:
        """Return the uids of pods that have the annotation; that of a sandbox counts first."""
        of_pods = self._noted(now) - self.boxes(now).keys()
        return of_pods | self._made_with(now)

    def _new(self, now: NodeSnapshot) -> frozenset[str]:
        """Return those of them that came since the last check, or whose sandbox did."""
        pods, boxes, looked = self.pods(now), self.boxes(now), now.grants.value.looked
        return frozenset(
            uid
            for uid in self.claiming(now)
            if (uid in pods and uid not in looked) or (uid in boxes and boxes[uid].id not in looked)
        )


def _of_devices(now: NodeSnapshot) -> Parts:
    return now.devices.value, now.devices.taken_s is None


def _of_pods(now: NodeSnapshot) -> Parts:
    return (now.cluster.pods,)


def _of_boxes(now: NodeSnapshot) -> Parts:
    return (now.runtime.value.sandboxes,)


def _known(now: NodeSnapshot, _: KnownDevices | None) -> KnownDevices:
    part = now.devices
    complete = part.taken_s is not None and not part.value.awaited
    final = not part.value.provisional_minors
    return KnownDevices(part.value.devices, complete=complete and final, final_minors=final)


def _pods(now: NodeSnapshot, _: Mapping[str, PodView] | None) -> Mapping[str, PodView]:
    return {pod.uid: pod for pod in now.cluster.pods}


def _noted(now: NodeSnapshot, _: object) -> frozenset[str]:
    # written out: all pods are looked through, each time that one of them changes
    return frozenset(
        [pod.uid for pod in now.cluster.pods for name, _ in pod.annotations if name == KEY]
    )


def _boxes(now: NodeSnapshot, _: Mapping[str, SandboxSeen] | None) -> Mapping[str, SandboxSeen]:
    return {box.uid: box for box in now.runtime.value.sandboxes.values() if not box.stopped}
