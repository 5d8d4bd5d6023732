"""What was asked for containers that the runtime made by our word: undoing gives that back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress

from agent.cgroup.values import bandwidth
from agent.cgroup.values.bandwidth import Bandwidth
from agent.cgroup.values.keys import CPUS, MEMORY, QUOTA, SHARES, UNLIMITED, Value
from agent.cgroup.values.shares import Formula, weight
from agent.cgroup.writing.wish import Wish
from agent.cgroup.writing.writer import Writer
from agent.errors import ParseError
from agent.model.runtime.adjustment import NO_RESOURCES, Resources
from agent.reconcile.looked import Looked
from agent.topology.text import parse_cpu_list

MAX_GIVEN = 4096  # containers that were answered and are not running yet


class Givens:
    """Answers by pod uid and container name, until the container runs.

    `add` and `renew` may come from any thread.
    """

    def __init__(self) -> None:
        self._new: deque[tuple[str, str, Resources]] = deque(maxlen=MAX_GIVEN)
        self._renewed: deque[tuple[str, str, Resources]] = deque(maxlen=MAX_GIVEN)
        self._of: dict[tuple[str, str], Resources] = {}
        self._ran: set[str] = set()  # ids of containers in the cycle before

    def add(self, uid: str, container: str, asked: Resources) -> None:
        """Remember what a container was asked to have."""
        self._new.append((uid, container, asked))

    def renew(self, uid: str, container: str, asked: Resources) -> None:
        """Take over what a running container was asked to have from now on, as by a resize."""
        self._renewed.append((uid, container, asked))

    def settle(
        self, looked: Mapping[str, Looked], writer: Writer, formulas: dict[str, Formula]
    ) -> bool:
        """Put those that run by now into the ledger; say whether a formula was learned by that.

        A container that ran before the answer is an earlier one of the same name.
        """
        before = dict(formulas)
        for uid, name, asked in _taken(self._new):
            self._of[uid, name] = asked
            if len(self._of) > MAX_GIVEN:
                del self._of[next(iter(self._of))]
        self._settle_renewed(looked, writer, formulas)
        ran, self._ran = self._ran, {c.id for one in looked.values() for c in one.place.containers}
        if not self._of:
            return False
        for one in looked.values():
            for container in one.place.containers:
                key = one.place.pod.uid, container.name
                if container.id not in ran and key in self._of:
                    _adopt(one, container.cgroup, self._of.pop(key), writer, formulas)
        return formulas != before

    def _settle_renewed(
        self, looked: Mapping[str, Looked], writer: Writer, formulas: Mapping[str, Formula]
    ) -> None:
        """Have the ledger give back what was asked last, of what was asked at all."""
        asked = {(uid, name): said for uid, name, said in _taken(self._renewed)}
        if not asked:
            return
        for one in looked.values():
            for container in one.place.containers:
                said = asked.get((one.place.pod.uid, container.name), NO_RESOURCES)
                for wish in one.wishes if said != NO_RESOURCES else ():
                    if wish.cgroup == container.cgroup and _speaks_of(said, wish):
                        with suppress(ParseError):  # no value: the runtime will refuse it, too
                            writer.renew(wish, _asked(wish, said, writer, formulas))


def _taken(queue: deque[tuple[str, str, Resources]]) -> list[tuple[str, str, Resources]]:
    """Empty a queue that other threads fill."""
    return [queue.popleft() for _ in range(len(queue))]


def _speaks_of(asked: Resources, wish: Wish) -> bool:
    """Say whether a request has the field; one that it leaves out stays as it is."""
    said = {
        QUOTA: asked.quota_us is not None,
        MEMORY: asked.memory_bytes is not None,
        SHARES: asked.shares is not None,
        CPUS: bool(asked.cpus),
    }
    return said.get(wish.key, False)


def _adopt(
    one: Looked, cgroup: str, asked: Resources, writer: Writer, formulas: dict[str, Formula]
) -> None:
    for wish in one.wishes:
        if wish.cgroup == cgroup:
            with suppress(ParseError):
                _learn(wish, writer, formulas)
                writer.adopt(wish, _asked(wish, asked, writer, formulas))


def _asked(wish: Wish, asked: Resources, writer: Writer, formulas: Mapping[str, Formula]) -> Value:
    """Return what the file would hold without us; what was not asked is the kernel's default."""
    if wish.key is QUOTA:
        quota_us = UNLIMITED if asked.quota_us is None else asked.quota_us
        return Bandwidth(quota_us, asked.period_us or bandwidth.PERIOD_US)
    if wish.key is MEMORY:
        return UNLIMITED if asked.memory_bytes is None else asked.memory_bytes
    if wish.key is SHARES:
        held = asked.shares or 1024  # what kernels give a new group
        linear = formulas.get("container", Formula.LINEAR)
        return held if writer.values.version == 1 else weight(held, linear)
    if wish.key is CPUS and not asked.cpus and writer.values.version == 1:
        above = writer.values.value(wish.cgroup.rpartition("/")[0], CPUS)
        return wish.value if above is None else above  # runc copies the set above
    return parse_cpu_list(asked.cpus or "")


def _learn(wish: Wish, writer: Writer, formulas: dict[str, Formula]) -> None:
    """Tell by a weight that the runtime made of our shares which formula it uses."""
    if wish.key is not SHARES or len(wish.also) != len(Formula) or len(set(wish.also)) == 1:
        return
    found = writer.values.value(wish.cgroup, SHARES)
    if found in wish.also:
        formulas["container"] = tuple(Formula)[wish.also.index(found)]
