"""What was asked for containers that the runtime made by our word: undoing gives that back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress

from agent.cgroup import cpu
from agent.cgroup.cpu import Bandwidth, WeightFormula, weight_of_shares
from agent.cgroup.keys import CPUS, MEMORY, QUOTA, SHARES, UNLIMITED, CgroupValue
from agent.cgroup.write_plan import DesiredValue
from agent.cgroup.writer import CgroupWriter
from agent.errors import ParseError
from agent.reconcile.desired_state import DesiredState
from agent.snapshot.container import NO_RESOURCES, LinuxResources
from agent.wire_formats.kernel_text import parse_cpu_list

MAX_REQUESTED = 4096  # containers that were answered and are not running yet


class RequestedValues:
    """Answers by pod uid and container name, until the container runs.

    `add` and `renew` may come from any thread.
    """

    def __init__(self) -> None:
        self._new: deque[tuple[str, str, LinuxResources]] = deque(maxlen=MAX_REQUESTED)
        self._renewed: deque[tuple[str, str, LinuxResources]] = deque(maxlen=MAX_REQUESTED)
        self._of: dict[tuple[str, str], LinuxResources] = {}
        self._ran: set[str] = set()  # ids of containers in the cycle before

    def add(self, uid: str, container: str, asked: LinuxResources) -> None:
        """Remember what a container was asked to have."""
        self._new.append((uid, container, asked))

    def renew(self, uid: str, container: str, asked: LinuxResources) -> None:
        """Take over what a running container was asked to have from now on, as by a resize."""
        self._renewed.append((uid, container, asked))

    def settle(
        self,
        looked: Mapping[str, DesiredState],
        writer: CgroupWriter,
        formulas: dict[str, WeightFormula],
    ) -> bool:
        """Put those that run by now into the ledger; say whether a formula was learned by that.

        A container that ran before the answer is an earlier one of the same name.
        """
        before = dict(formulas)
        for uid, name, asked in _drain(self._new):
            self._of[uid, name] = asked
            if len(self._of) > MAX_REQUESTED:
                del self._of[next(iter(self._of))]
        self._settle_renewed(looked, writer, formulas)
        ran, self._ran = (
            self._ran,
            {c.id for one in looked.values() for c in one.managed_pod.containers},
        )
        if not self._of:
            return False
        for one in looked.values():
            for container in one.managed_pod.containers:
                key = one.managed_pod.pod.uid, container.name
                if container.id not in ran and key in self._of:
                    _record_original(one, container.cgroup, self._of.pop(key), writer, formulas)
        return formulas != before

    def _settle_renewed(
        self,
        looked: Mapping[str, DesiredState],
        writer: CgroupWriter,
        formulas: Mapping[str, WeightFormula],
    ) -> None:
        """Have the ledger give back what was asked last, of what was asked at all."""
        asked = {(uid, name): said for uid, name, said in _drain(self._renewed)}
        if not asked:
            return
        for one in looked.values():
            for container in one.managed_pod.containers:
                said = asked.get((one.managed_pod.pod.uid, container.name), NO_RESOURCES)
                for wish in one.writes if said != NO_RESOURCES else ():
                    if wish.cgroup == container.cgroup and _has_field(said, wish):
                        with suppress(ParseError):  # no value: the runtime will refuse it, too
                            writer.replace_original(
                                wish, _requested_value(wish, said, writer, formulas)
                            )


def _drain(queue: deque[tuple[str, str, LinuxResources]]) -> list[tuple[str, str, LinuxResources]]:
    """Empty a queue that other threads fill."""
    return [queue.popleft() for _ in range(len(queue))]


def _has_field(asked: LinuxResources, wish: DesiredValue) -> bool:
    """Say whether a request has the field; one that it leaves out stays as it is."""
    said = {
        QUOTA: asked.quota_us is not None,
        MEMORY: asked.memory_bytes is not None,
        SHARES: asked.shares is not None,
        CPUS: bool(asked.cpus),
    }
    return said.get(wish.key, False)


def _record_original(
    one: DesiredState,
    cgroup: str,
    asked: LinuxResources,
    writer: CgroupWriter,
    formulas: dict[str, WeightFormula],
) -> None:
    for wish in one.writes:
        if wish.cgroup == cgroup:
            with suppress(ParseError):
                _learn_formula(wish, writer, formulas)
                writer.adopt(wish, _requested_value(wish, asked, writer, formulas))


def _requested_value(
    wish: DesiredValue,
    asked: LinuxResources,
    writer: CgroupWriter,
    formulas: Mapping[str, WeightFormula],
) -> CgroupValue:
    """Return what the file would hold without us; what was not asked is the kernel's default."""
    if wish.key is QUOTA:
        quota_us = UNLIMITED if asked.quota_us is None else asked.quota_us
        return Bandwidth(quota_us, asked.period_us or cpu.PERIOD_US)
    if wish.key is MEMORY:
        return UNLIMITED if asked.memory_bytes is None else asked.memory_bytes
    if wish.key is SHARES:
        held = asked.shares or 1024  # what kernels give a new group
        linear = formulas.get("container", WeightFormula.LINEAR)
        return held if writer.values.version == 1 else weight_of_shares(held, linear)
    if wish.key is CPUS and not asked.cpus and writer.values.version == 1:
        above = writer.values.read_value(wish.cgroup.rpartition("/")[0], CPUS)
        return wish.value if above is None else above  # runc copies the set above
    return parse_cpu_list(asked.cpus or "")


def _learn_formula(
    wish: DesiredValue, writer: CgroupWriter, formulas: dict[str, WeightFormula]
) -> None:
    """Tell by a weight that the runtime made of our shares which formula it uses."""
    if (
        wish.key is not SHARES
        or len(wish.equivalents) != len(WeightFormula)
        or len(set(wish.equivalents)) == 1
    ):
        return
    found = writer.values.read_value(wish.cgroup, SHARES)
    if found in wish.equivalents:
        formulas["container"] = tuple(WeightFormula)[wish.equivalents.index(found)]
