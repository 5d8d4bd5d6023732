"""Requested resources of containers whose creation a hook changed: the values to restore."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TypeVar

import msgspec

from agent.cgroup import cpu
from agent.cgroup.cpu import Bandwidth, WeightFormula, weight_of_shares
from agent.cgroup.keys import CPUS, MEMORY, QUOTA, SHARES, UNLIMITED, CgroupValue
from agent.cgroup.ledger import ChangeLedger
from agent.cgroup.values import CgroupValues
from agent.cgroup.write_plan import DesiredValue
from agent.cgroup.writer import CgroupWriter
from agent.containers.dispatch import Answers, merge_answers
from agent.errors import ParseError
from agent.reconcile.desired_state import CONTAINER, DesiredState, HookAnswers, desired_writes
from agent.snapshot.container import NO_RESOURCES, LinuxResources
from agent.wire_formats.kernel_text import parse_cpu_list

MAX_REQUESTED = 4096  # containers that were adjusted and are not running yet


class _NewContainer(msgspec.Struct, frozen=True):
    """What a container requested that is not running yet, and what hooks answered."""

    requested: LinuxResources
    answers: Answers


class RequestedValues:
    """Requested resources by pod uid and container name, until the container runs.

    `add` and `renew` may be called from any thread.
    """

    def __init__(self) -> None:
        self._new: deque[tuple[str, str, _NewContainer]] = deque(maxlen=MAX_REQUESTED)
        self._renewed: deque[tuple[str, str, LinuxResources]] = deque(maxlen=MAX_REQUESTED)
        self._of: dict[tuple[str, str], _NewContainer] = {}
        # of containers that were resized in this cycle
        self._answered: Mapping[tuple[str, str], LinuxResources] = {}
        self._ran: set[str] = set()  # ids of containers in the cycle before

    def add(self, uid: str, container: str, requested: LinuxResources, answers: Answers) -> None:
        """Record the requested resources of a new container, and what hooks answered."""
        self._new.append((uid, container, _NewContainer(requested, answers)))

    def renew(self, uid: str, container: str, requested: LinuxResources) -> None:
        """Record the new requested resources of a running container, as after a resize."""
        self._renewed.append((uid, container, requested))

    def pending(self, uid: str, container: str) -> LinuxResources:
        """Return what a container requested whose original is not in the ledger yet."""
        self._collect()
        key = uid, container
        new = self._of.get(key)
        return self._answered.get(key) or (NO_RESOURCES if new is None else new.requested)

    def _collect(self) -> None:
        for uid, name, new in _drain(self._new):
            self._of[uid, name] = new
            if len(self._of) > MAX_REQUESTED:
                del self._of[next(iter(self._of))]

    def settle(
        self,
        states: Mapping[str, DesiredState],
        writer: CgroupWriter,
        formulas: dict[str, WeightFormula],
    ) -> bool:
        """Record the requests of containers that run now as originals in the ledger.

        Return whether a weight formula was detected meanwhile. A container that ran before the
        request is an earlier one of the same name.
        """
        before = dict(formulas)
        self._collect()
        self._answered = {(uid, name): request for uid, name, request in _drain(self._renewed)}
        self._record_resized(states, writer, formulas)
        ran, self._ran = (
            self._ran,
            {c.id for state in states.values() for c in state.managed_pod.containers},
        )
        if not self._of:
            return False
        for state in states.values():
            for container in state.managed_pod.containers:
                key = state.managed_pod.pod.uid, container.name
                if container.id not in ran and key in self._of:
                    _record_originals(container.cgroup, self._of.pop(key), writer, formulas)
        return formulas != before

    def resized(self, states: Mapping[str, DesiredState]) -> frozenset[str]:
        """Return the cgroups of pods with containers that were resized in this cycle."""
        uids = {uid for uid, _ in self._answered}
        return frozenset(
            cgroup for cgroup, state in states.items() if state.managed_pod.pod.uid in uids
        )

    def record_answers(
        self,
        states: Mapping[str, DesiredState],
        writer: CgroupWriter,
        formulas: Mapping[str, WeightFormula],
    ) -> None:
        """Record the values that the runtime writes to resized containers as the agent's.

        `states` follow from the new requests, as the answers to the runtime did.
        """
        self._record_resized(states, writer, formulas)  # a request may add a limit
        for desired, _ in _requested_fields(states, self._answered):
            writer.record_answer(desired)

    def _record_resized(
        self,
        states: Mapping[str, DesiredState],
        writer: CgroupWriter,
        formulas: Mapping[str, WeightFormula],
    ) -> None:
        """Record the requests of resized containers as originals.

        The runtime may not have written its answer yet: the value in force counts as the agent's.
        """
        for desired, requested in _requested_fields(states, self._answered):
            with suppress(ParseError):  # an invalid request: the runtime will refuse it too
                original = _requested_value(desired, requested, writer, formulas)
                in_force = writer.values.read_value(desired.cgroup, desired.key)
                if in_force is not None:
                    present = msgspec.structs.replace(desired, value=in_force)
                    writer.replace_original(present, original)


T = TypeVar("T")


def _drain(queue: deque[T]) -> list[T]:
    """Empty a queue that other threads fill."""
    return [queue.popleft() for _ in range(len(queue))]


def _requested_fields(
    states: Mapping[str, DesiredState], requests: Mapping[tuple[str, str], LinuxResources]
) -> Iterator[tuple[DesiredValue, LinuxResources]]:
    """Yield the desired values of files that these requests of containers name."""
    for state in states.values() if requests else ():
        for container in state.managed_pod.containers:
            requested = requests.get((state.managed_pod.pod.uid, container.name), NO_RESOURCES)
            for desired in state.writes if requested != NO_RESOURCES else ():
                if desired.cgroup == container.cgroup and _has_field(requested, desired):
                    yield desired, requested


def _has_field(requested: LinuxResources, desired: DesiredValue) -> bool:
    """Return whether a request has the field; a field that is absent stays unchanged."""
    has_field = {
        QUOTA: requested.quota_us is not None,
        MEMORY: requested.memory_bytes is not None,
        SHARES: requested.shares is not None,
        CPUS: bool(requested.cpus),
    }
    return has_field.get(desired.key, False)


def _record_originals(
    cgroup: str,
    new: _NewContainer,
    writer: CgroupWriter,
    formulas: dict[str, WeightFormula],
) -> None:
    """Record what a container requested as the originals of the values that hooks answered.

    The hooks of now may want other values, or none of the file: the answer depends on the node.
    """
    answers = HookAnswers(answers=new.answers, adjustment=merge_answers(new.answers)[0])
    formula = formulas.get(CONTAINER, WeightFormula.LINEAR)
    writes, _ = desired_writes(cgroup, CONTAINER, answers, writer.values.version, formula)
    for desired in writes:
        with suppress(ParseError):
            _learn_formula(desired, writer, formulas)
            original = _requested_value(desired, new.requested, writer, formulas)
            writer.adopt(desired, original)


def _requested_value(
    desired: DesiredValue,
    requested: LinuxResources,
    writer: CgroupWriter,
    formulas: Mapping[str, WeightFormula],
) -> CgroupValue:
    """Return the file's value without hooks; for an absent field the kernel's default."""
    if desired.key is QUOTA:
        quota_us = UNLIMITED if requested.quota_us is None else requested.quota_us
        return Bandwidth(quota_us, requested.period_us or cpu.PERIOD_US)
    if desired.key is MEMORY:
        return UNLIMITED if requested.memory_bytes is None else requested.memory_bytes
    if desired.key is SHARES:
        shares = requested.shares or 1024  # the kernel's default for a new group
        linear = formulas.get("container", WeightFormula.LINEAR)
        return shares if writer.values.version == 1 else weight_of_shares(shares, linear)
    if desired.key is CPUS and not requested.cpus and writer.values.version == 1:
        parent_cpus = writer.values.read_value(desired.cgroup.rpartition("/")[0], CPUS)
        return desired.value if parent_cpus is None else parent_cpus  # runc copies the parent's set
    return parse_cpu_list(requested.cpus or "")


def _learn_formula(
    desired: DesiredValue, writer: CgroupWriter, formulas: dict[str, WeightFormula]
) -> None:
    """Detect the runtime's weight formula from the weight that it wrote for known shares."""
    if (
        desired.key is not SHARES
        or len(desired.equivalents) != len(WeightFormula)
        or len(set(desired.equivalents)) == 1
    ):
        return
    weight = writer.values.read_value(desired.cgroup, SHARES)
    if weight in desired.equivalents:
        formulas["container"] = tuple(WeightFormula)[desired.equivalents.index(weight)]


def original_quota(
    values: CgroupValues,
    ledger: ChangeLedger,
    cgroup: str,
    pending: LinuxResources = NO_RESOURCES,
) -> LinuxResources:
    """Return the quota of a cgroup from before the agent's first write.

    `pending` is what a new or resized container requested: the runtime writes the quota that the
    agent answered.
    """
    if pending.quota_us is not None:
        return LinuxResources(quota_us=pending.quota_us, period_us=pending.period_us)
    entry = ledger.entries.get((values.hierarchy(QUOTA), cgroup, QUOTA.name))
    try:
        quota = (
            values.read_value(cgroup, QUOTA) if entry is None else QUOTA.from_ledger(entry.original)
        )
    except ParseError:
        return NO_RESOURCES
    quota_us, period_us = getattr(quota, "quota_us", None), getattr(quota, "period_us", None)
    return LinuxResources(quota_us=quota_us, period_us=period_us)
