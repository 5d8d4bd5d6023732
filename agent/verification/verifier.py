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
from agent.snapshot.node import ItemMemo, NodeSnapshot
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
from agent.verification.inspector import (
    RUNTIME_RECORDS,
    ContainerInspector,
    ContainerProcess,
)
from agent.verification.schedule import (
    IsExempt,
    VerificationSchedule,
    VerificationTarget,
    exempt_none,
    listed_targets,
    targets,
)

ALLOCATION_LATE = (
    "all that was granted: the grant was written after the pod's sandbox had been made"
)


class Verifier:
    """Verifies containers when they are due, on the collector thread; one run takes milliseconds.

    `hook` is the device hook. A verified container is compared again with the edits of its first
    verification: the host may have other edits for later containers.
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
        """Store the arguments.

        `exempt` returns whether a pod without an allocation is left out. `injection` is
        `device_plugin.injection`.
        """
        self._injection = injection
        self._host, self._hook, self._clock, self._is_exempt = host, hook, clock, exempt
        self._inspector = ContainerInspector(host, clock, proc=proc, records=records)
        self._listed_targets = ItemMemo(listed_targets)
        self._schedule = VerificationSchedule()
        self._index = AllocationIndex()
        self._results: dict[str, ContainerVerification] = {}
        self._verified_expectations: dict[str, Expectation] = {}  # of verified containers
        self._unconfirmed: set[str] = set()  # containers with one wrong verdict so far
        self._reload_times: tuple[
            object, ...
        ] = ()  # last starts or reloads of the runtime and systemd

    def run_once(self, snapshot: NodeSnapshot) -> VerificationView:
        """Verify the due containers; return the results of all existing containers."""
        existing = targets(snapshot, self._is_exempt, self._listed_targets)
        ids = {target.id for target in existing}
        self._results = {key: result for key, result in self._results.items() if key in ids}
        self._verified_expectations = {
            key: expectation
            for key, expectation in self._verified_expectations.items()
            if key in ids
        }
        self._unconfirmed &= ids
        self._inspector.forget(ids)
        now_s = self._clock.monotonic()
        self._schedule.make_due(self._containers_to_recheck(existing, snapshot), now_s)
        due = self._schedule.due(existing, now_s)
        if due:
            run = _VerificationRun(
                snapshot, detect_layout(self._host), self._index.tables(snapshot).kubelet_shares
            )
            for target in due:
                self._verify(target, run)
        return VerificationView(containers=MappingProxyType(dict(self._results)))

    def _containers_to_recheck(
        self, existing: Iterable[VerificationTarget], snapshot: NodeSnapshot
    ) -> tuple[str, ...]:
        """Return the containers whose device rules may have changed since the last check.

        A reload of systemd, and of some runtimes, rewrites the rules of running containers.
        """
        ids = tuple(target.id for target in existing if target.has_devices)
        reload_times = (
            (snapshot.runtime.value.turned_s, self._inspector.reload_stamp()) if ids else ()
        )
        before, self._reload_times = self._reload_times, reload_times
        return (
            ids
            if before and reload_times != before
            else self._inspector.containers_with_changed_rules(ids)
        )

    def _verify(self, target: VerificationTarget, run: _VerificationRun) -> None:
        result, now_s = self._check_container(target, run), self._clock.monotonic()
        verdict = result.verdict if result else VerificationStatus.VERIFIED
        if result is not None and self._awaits_confirmation(target.id, verdict):
            self._schedule.recheck_soon(target, now_s)
            if target.id in self._results:
                return
            result = replace(result, verdict=VerificationStatus.UNKNOWN)
        else:
            self._schedule.set_next(target, verdict, now_s)
        must_have = any(not device.is_optional for device in run.assigned_devices(target))
        is_reported = target.is_allocated or target.is_late or must_have
        if result is None or (result.verdict is not VerificationStatus.EXCESS and not is_reported):
            self._results.pop(target.id, None)
            return
        self._results[target.id] = ContainerVerification(
            container_id=target.id,
            container=target.name,
            pod_uid=target.pod.uid,
            namespace=target.pod.namespace,
            pod=target.pod.name,
            verdict=result.verdict,
            details=result.details,
            causes=result.causes,
            way=target.injection_path,
            looked_s=self._clock.wall(),
        )

    def _awaits_confirmation(self, container_id: str, verdict: VerificationStatus) -> bool:
        """Return whether a second check must confirm a wrong verdict before it is reported.

        A starting container, rules that systemd is writing, and a card that moves from one pod to
        the next look wrong for a moment.
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
        self, target: VerificationTarget, run: _VerificationRun
    ) -> VerificationResult | None:
        """Return the result; `None` if the container's allocation gives it nothing to check."""
        if target.is_late:
            return VerificationResult(
                verdict=VerificationStatus.MISSING, details=(ALLOCATION_LATE,)
            )
        process = ContainerProcess(absence_reason="this host has no cgroups")
        if run.layout is not None:
            process = self._inspector.find_process(run.layout, target.location)
        if process.absence_reason and self._is_reported_unknown(target):
            return _unknown_result(process.absence_reason)
        expected = self._expectation(target, run.snapshot) if target.is_allocated else Expectation()
        devices = (*expected.devices, *run.assigned_devices(target))
        if target.is_allocated and expected.is_empty:
            return None
        if run.layout is None:
            return _unknown_result(process.absence_reason)
        nodes = (node for device in devices for node in device.nodes)
        numbers = frozenset((node.major, node.minor) for node in nodes)
        observation = self._inspector.inspect(
            run.layout, target.id, process, expected.edits, numbers
        )
        if not target.is_allocated:
            cards = {} if is_privileged(observation) else run.allocated_cards
            return check_container(NO_EDITS, devices, cards, observation)
        result = check_container(expected.edits, devices, run.cards, observation, expected.problem)
        if result.verdict is VerificationStatus.VERIFIED:
            self._verified_expectations[target.id] = expected
        return result

    def _is_reported_unknown(self, target: VerificationTarget) -> bool:
        """Return whether the last verdict was that nothing is known.

        What the container must have is then computed once it has a process: a container in
        creation is checked often, and its pod's allocation costs more than all else.
        """
        reported = self._results.get(target.id)
        return reported is not None and reported.verdict is VerificationStatus.UNKNOWN

    def _expectation(self, target: VerificationTarget, snapshot: NodeSnapshot) -> Expectation:
        """Return what the container must have now.

        For a container that was verified before, these are the same edits and devices. The numbers
        of a device's nodes may have changed, as after a reload of its driver.
        """
        before = self._verified_expectations.get(target.id)
        if before is None:
            if target.injection_path == "kubelet":
                snapshot = with_kubelet_injection(snapshot, self._injection)
            return expectation_of(self._hook, snapshot, target.pod, target.name)
        try:
            allocated = allocated_devices(snapshot, target.pod.uid)
        except AllocationRefused:
            return before
        current = {one.name: one for one in allocated if one.nodes}
        return replace(
            before, devices=tuple(current.get(device.name, device) for device in before.devices)
        )


def _unknown_result(reason: str) -> VerificationResult:
    return VerificationResult(verdict=VerificationStatus.UNKNOWN, details=(reason,))


class _VerificationRun:
    """Data that all checks of one run share; each part is computed at its first use."""

    def __init__(
        self,
        snapshot: NodeSnapshot,
        layout: CgroupLayout | None,
        kubelet_shares: KubeletAllocations,
    ) -> None:
        """`kubelet_shares` are the devices that the kubelet has assigned."""
        self.snapshot, self.layout, self._kubelet_shares = snapshot, layout, kubelet_shares

    @cached_property
    def cards(self) -> CardNames:
        """Return which device each node belongs to."""
        return card_names(self.snapshot)

    def assigned_devices(self, target: VerificationTarget) -> tuple[DeviceNodes, ...]:
        """Return the devices that the kubelet has assigned to a container's pod."""
        return assigned_devices(self.snapshot, self._kubelet_shares, target)

    @cached_property
    def allocated_cards(self) -> CardNames:
        """Return the nodes of allocated cards, with the names of card and pod.

        Cards that the kubelet assigned do not count here: such a card is allocated to no other pod,
        except where the kubelet's account is wrong.
        """
        pods = pods_with_cards(self.snapshot)
        return {
            numbers: f"{name} of {pod.namespace}/{pod.name}"
            for numbers, name in self.cards.items()
            if (pod := pods.get(name)) is not None
        }
