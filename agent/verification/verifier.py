"""Verifies running containers against their device allocations, a few at a time."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from types import MappingProxyType

from msgspec.structs import replace

from agent.allocation.index import AllocationIndex
from agent.allocation.injection_mode import AUTO, with_kubelet_injection
from agent.cgroup.layout import CgroupLayout, detect_layout
from agent.clock import Clock
from agent.containers.hooks import Hook
from agent.snapshot.allocation import (
    AllocationRefused,
    ContainerVerification,
    VerificationStatus,
    VerificationView,
)
from agent.snapshot.edits import NO_EDITS
from agent.snapshot.host_files import HostFiles
from agent.snapshot.node import NodeSnapshot
from agent.verification.container_check import (
    CardNames,
    DeviceNodes,
    VerificationResult,
    check_container,
    is_privileged,
)
from agent.verification.expectation import (
    Expectation,
    KubeletAllocations,
    allocated_devices,
    assigned_devices,
    card_names,
    expectation_of,
    pods_with_cards,
)
from agent.verification.inspector import RUNTIME_RECORDS, ContainerInspector
from agent.verification.schedule import (
    IsExempt,
    VerificationSchedule,
    VerificationTarget,
    exempt_none,
    targets,
)

ALLOCATION_LATE = (
    "all that was granted: the grant was written after the pod's sandbox had been made"
)


class Verifier:
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
        records: tuple[str, ...] = RUNTIME_RECORDS,
        exempt: IsExempt = exempt_none,
        injection: str = AUTO,
    ) -> None:
        """`exempt` returns whether a pod without a grant is not looked at.

        `injection` is `device_plugin.injection`.
        """
        self._injection = injection
        self._host, self._hook, self._clock, self._is_exempt = host, hook, clock, exempt
        self._inspector = ContainerInspector(host, clock, proc=proc, records=records)
        self._schedule = VerificationSchedule()
        self._index = AllocationIndex()
        self._results: dict[str, ContainerVerification] = {}
        self._verified_expectations: dict[
            str, Expectation
        ] = {}  # what verified containers were compared with
        self._unconfirmed: set[str] = set()  # containers that were found wrong once
        self._reload_times: tuple[
            object, ...
        ] = ()  # last starts or reloads of the runtime and systemd

    def run_once(self, snapshot: NodeSnapshot) -> VerificationView:
        """Look at what is due and return all proofs; those of containers that are gone, no more."""
        here = targets(snapshot, self._is_exempt)
        known = {target.id for target in here}
        self._results = {key: proof for key, proof in self._results.items() if key in known}
        self._verified_expectations = {
            key: one for key, one in self._verified_expectations.items() if key in known
        }
        self._unconfirmed &= known
        self._inspector.forget(known)
        now_s = self._clock.monotonic()
        self._schedule.make_due(self._containers_to_recheck(here, snapshot), now_s)
        due = self._schedule.due(here, now_s)
        if due:
            look = _VerificationRun(
                snapshot, detect_layout(self._host), self._index.tables(snapshot).kubelet_shares
            )
            for target in due:
                self._verify(target, look)
        return VerificationView(containers=MappingProxyType(dict(self._results)))

    def _containers_to_recheck(
        self, here: Iterable[VerificationTarget], snapshot: NodeSnapshot
    ) -> tuple[str, ...]:
        """Return the containers whose device rules may have changed since the last look.

        A reload of systemd, and some of the runtime, write the rules of running containers anew.
        """
        granted = tuple(target.id for target in here if target.has_devices)
        loads = (snapshot.runtime.value.turned_s, self._inspector.reload_stamp()) if granted else ()
        before, self._reload_times = self._reload_times, loads
        return (
            granted
            if before and loads != before
            else self._inspector.containers_with_changed_rules(granted)
        )

    def _verify(self, target: VerificationTarget, look: _VerificationRun) -> None:
        found, now_s = self._check_container(target, look), self._clock.monotonic()
        verdict = found.verdict if found else VerificationStatus.VERIFIED
        if found is not None and self._awaits_confirmation(target.id, verdict):
            self._schedule.recheck_soon(target, now_s)
            if target.id in self._results:
                return
            found = replace(found, verdict=VerificationStatus.UNKNOWN)
        else:
            self._schedule.set_next(target, verdict, now_s)
        must_have = any(not device.is_optional for device in look.assigned_devices(target))
        shown = target.is_allocated or target.is_late or must_have
        if found is None or (found.verdict is not VerificationStatus.EXCESS and not shown):
            self._results.pop(target.id, None)
            return
        self._results[target.id] = ContainerVerification(
            container_id=target.id,
            container=target.name,
            pod_uid=target.pod.uid,
            namespace=target.pod.namespace,
            pod=target.pod.name,
            verdict=found.verdict,
            details=found.details,
            way=target.injection_path,
            looked_s=self._clock.wall(),
        )

    def _awaits_confirmation(self, container_id: str, verdict: VerificationStatus) -> bool:
        """Return whether a second look must find a container wrong before it is reported.

        A container that starts, a rule list that systemd is writing, and a card that goes from one
        pod to the next look wrong for a moment.
        """
        published = self._results.get(container_id)
        if not verdict.is_wrong or (published is not None and published.verdict.is_wrong):
            self._unconfirmed.discard(container_id)
            return False
        if container_id in self._unconfirmed:
            self._unconfirmed.remove(container_id)
            return False
        self._unconfirmed.add(container_id)
        return True

    def _check_container(
        self, target: VerificationTarget, look: _VerificationRun
    ) -> VerificationResult | None:
        """Return what is found; `None` if the container's grant gives it nothing to be found."""
        if target.is_late:
            return VerificationResult(
                verdict=VerificationStatus.MISSING, details=(ALLOCATION_LATE,)
            )
        expected = (
            self._expectation(target, look.snapshot) if target.is_allocated else Expectation()
        )
        devices = (*expected.devices, *look.assigned_devices(target))
        if target.is_allocated and expected.is_empty:
            return None
        if look.layout is None:
            return VerificationResult(
                verdict=VerificationStatus.UNKNOWN, details=("this host has no cgroups",)
            )
        nodes = (node for device in devices for node in device.nodes)
        numbers = frozenset((node.major, node.minor) for node in nodes)
        evidence = self._inspector.inspect(look.layout, target.location, expected.edits, numbers)
        if not target.is_allocated:
            cards = {} if is_privileged(evidence) else look.allocated_cards
            return check_container(NO_EDITS, devices, cards, evidence)
        judged = check_container(expected.edits, devices, look.cards, evidence, expected.problem)
        if judged.verdict is VerificationStatus.VERIFIED:
            self._verified_expectations[target.id] = expected
        return judged

    def _expectation(self, target: VerificationTarget, snapshot: NodeSnapshot) -> Expectation:
        """Return what the container must have now.

        For a container that was verified before, these are the same edits and devices. The numbers
        of a device's nodes may have changed since, as after its driver was loaded again.
        """
        before = self._verified_expectations.get(target.id)
        if before is None:
            if target.injection_path == "kubelet":
                snapshot = with_kubelet_injection(snapshot, self._injection)
            return expectation_of(self._hook, snapshot, target.pod, target.name)
        try:
            granted = allocated_devices(snapshot, target.pod.uid)
        except AllocationRefused:
            return before
        now = {one.name: one for one in granted if one.nodes}
        return replace(before, devices=tuple(now.get(one.name, one) for one in before.devices))


class _VerificationRun:
    """What all looks of one run use; each part is computed when it is first used."""

    def __init__(
        self, snapshot: NodeSnapshot, layout: CgroupLayout | None, given: KubeletAllocations
    ) -> None:
        """`given` is what the kubelet has assigned."""
        self.snapshot, self.layout, self._given = snapshot, layout, given

    @cached_property
    def cards(self) -> CardNames:
        """Return which device each node belongs to."""
        return card_names(self.snapshot)

    def assigned_devices(self, target: VerificationTarget) -> tuple[DeviceNodes, ...]:
        """Return the devices that the kubelet has assigned to a container's pod."""
        return assigned_devices(self.snapshot, self._given, target)

    @cached_property
    def allocated_cards(self) -> CardNames:
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
