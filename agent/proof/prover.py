"""The proofs of all containers of the node, kept up to date a few at a time."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from types import MappingProxyType

from msgspec.structs import replace

from agent.cdi.way import AUTO, by_kubelet
from agent.cgroup.layout import CgroupLayout, detect
from agent.clock import Clock
from agent.grants.kept import Kept
from agent.hooks.base import Hook
from agent.host.files import HostFiles
from agent.model.grant.edits import NONE
from agent.model.grant.proof import Proof, ProofView, Verdict
from agent.model.grant.refusal import GrantRefused
from agent.model.snapshot import NodeSnapshot
from agent.proof.expected import (
    Allocations,
    Expected,
    assigned_devices,
    cards_of,
    expected_of,
    granted_devices,
    pods_with_cards,
)
from agent.proof.judge import Cards, DeviceNodes, Judgement, is_privileged, judge
from agent.proof.look import RECORDS, Looker
from agent.proof.watching import Exempt, Schedule, Target, never, targets

LATE = "all that was granted: the grant was written after the pod's sandbox had been made"


class Prover:
    """Looks at containers when they are due. Of the collector thread; one run takes milliseconds.

    `hook` is that of the devices. What it gives beside device nodes is compared as it was when the
    container first had all of it: the host may have more for later containers.
    """

    def __init__(
        self,
        host: HostFiles,
        hook: Hook,
        clock: Clock,
        *,
        proc: str = "/proc",
        records: tuple[str, ...] = RECORDS,
        exempt: Exempt = never,
        injection: str = AUTO,
    ) -> None:
        """`exempt` returns whether a pod without a grant is not looked at.

        `injection` is `device_plugin.injection`.
        """
        self._injection = injection
        self._host, self._hook, self._clock, self._exempt = host, hook, clock, exempt
        self._looker = Looker(host, clock, proc=proc, records=records)
        self._schedule = Schedule()
        self._kept = Kept()
        self._proofs: dict[str, Proof] = {}
        self._complete: dict[str, Expected] = {}  # what verified containers were compared with
        self._unconfirmed: set[str] = set()  # containers that were found wrong once
        self._loads: tuple[object, ...] = ()  # last starts or reloads of the runtime and systemd

    def run_once(self, snapshot: NodeSnapshot) -> ProofView:
        """Look at what is due and return all proofs; those of containers that are gone, no more."""
        here = targets(snapshot, self._exempt)
        known = {target.id for target in here}
        self._proofs = {key: proof for key, proof in self._proofs.items() if key in known}
        self._complete = {key: one for key, one in self._complete.items() if key in known}
        self._unconfirmed &= known
        self._looker.forget(known)
        now_s = self._clock.monotonic()
        self._schedule.hasten(self._suspected(here, snapshot), now_s)
        due = self._schedule.due(here, now_s)
        if due:
            look = _Run(snapshot, detect(self._host), self._kept.allocations(snapshot))
            for target in due:
                self._prove(target, look)
        return ProofView(containers=MappingProxyType(dict(self._proofs)))

    def _suspected(self, here: Iterable[Target], snapshot: NodeSnapshot) -> tuple[str, ...]:
        """Return the containers whose device rules may have changed since the last look.

        A reload of systemd, and some of the runtime, write the rules of running containers anew.
        """
        granted = tuple(target.id for target in here if target.has_devices)
        loads = (snapshot.runtime.value.turned_s, self._looker.units_loaded()) if granted else ()
        before, self._loads = self._loads, loads
        return granted if before and loads != before else self._looker.changed(granted)

    def _prove(self, target: Target, look: _Run) -> None:
        found, now_s = self._judge_container(target, look), self._clock.monotonic()
        verdict = found.verdict if found else Verdict.VERIFIED
        if found is not None and self._awaits_confirmation(target.id, verdict):
            self._schedule.confirm(target, now_s)
            if target.id in self._proofs:
                return
            found = replace(found, verdict=Verdict.UNKNOWN)
        else:
            self._schedule.looked(target, verdict, now_s)
        must_have = any(not device.optional for device in look.assigned(target))
        shown = target.granted or target.late or must_have
        if found is None or (found.verdict is not Verdict.EXCESS and not shown):
            self._proofs.pop(target.id, None)
            return
        self._proofs[target.id] = Proof(
            container_id=target.id,
            container=target.name,
            pod_uid=target.pod.uid,
            namespace=target.pod.namespace,
            pod=target.pod.name,
            verdict=found.verdict,
            details=found.details,
            way=target.way,
            looked_s=self._clock.wall(),
        )

    def _awaits_confirmation(self, container_id: str, verdict: Verdict) -> bool:
        """Return whether a second look must find a container wrong before it is reported.

        A container that starts, a rule list that systemd is writing, and a card that goes from one
        pod to the next look wrong for a moment.
        """
        published = self._proofs.get(container_id)
        if not verdict.is_wrong or (published is not None and published.verdict.is_wrong):
            self._unconfirmed.discard(container_id)
            return False
        if container_id in self._unconfirmed:
            self._unconfirmed.remove(container_id)
            return False
        self._unconfirmed.add(container_id)
        return True

    def _judge_container(self, target: Target, look: _Run) -> Judgement | None:
        """Return what is found; `None` if the container's grant gives it nothing to be found."""
        if target.late:
            return Judgement(verdict=Verdict.MISSING, details=(LATE,))
        expected = self._expected(target, look.snapshot) if target.granted else Expected()
        devices = (*expected.devices, *look.assigned(target))
        if target.granted and expected.nothing:
            return None
        if look.layout is None:
            return Judgement(verdict=Verdict.UNKNOWN, details=("this host has no cgroups",))
        nodes = (node for device in devices for node in device.nodes)
        numbers = frozenset((node.major, node.minor) for node in nodes)
        evidence = self._looker.look(look.layout, target.where, expected.edits, numbers)
        if not target.granted:
            cards = {} if is_privileged(evidence) else look.granted_cards
            return judge(NONE, devices, cards, evidence)
        judged = judge(expected.edits, devices, look.cards, evidence, expected.problem)
        if judged.verdict is Verdict.VERIFIED:
            self._complete[target.id] = expected
        return judged

    def _expected(self, target: Target, snapshot: NodeSnapshot) -> Expected:
        """Return what the container must have now.

        For a container that was verified before, these are the same edits and devices. The numbers
        of a device's nodes may have changed since, as after its driver was loaded again.
        """
        before = self._complete.get(target.id)
        if before is None:
            if target.way == "kubelet":
                snapshot = by_kubelet(snapshot, self._injection)
            return expected_of(self._hook, snapshot, target.pod, target.name)
        try:
            granted = granted_devices(snapshot, target.pod.uid)
        except GrantRefused:
            return before
        now = {one.name: one for one in granted if one.nodes}
        return replace(before, devices=tuple(now.get(one.name, one) for one in before.devices))


class _Run:
    """What all looks of one run use; each part is computed when it is first used."""

    def __init__(
        self, snapshot: NodeSnapshot, layout: CgroupLayout | None, given: Allocations
    ) -> None:
        """`given` is what the kubelet has assigned."""
        self.snapshot, self.layout, self._given = snapshot, layout, given

    @cached_property
    def cards(self) -> Cards:
        """Return which device each node belongs to."""
        return cards_of(self.snapshot)

    def assigned(self, target: Target) -> tuple[DeviceNodes, ...]:
        """Return the devices that the kubelet has assigned to a container's pod."""
        return assigned_devices(self.snapshot, self._given, target)

    @cached_property
    def granted_cards(self) -> Cards:
        """Return the nodes of cards that are granted, with the names of card and pod.

        The kubelet's account does not count here: a card that it has assigned to a pod without a
        grant is granted to no other pod, except where the account is wrong.
        """
        holders = pods_with_cards(self.snapshot)
        return {
            numbers: f"{name} of {pod.namespace}/{pod.name}"
            for numbers, name in self.cards.items()
            if (pod := holders.get(name)) is not None
        }
