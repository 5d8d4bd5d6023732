"""One pod as the hooks saw it last: what its files are to hold. Pure, and made anew when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from agent.cgroup.ledger.processes import COOKIE, KEY
from agent.cgroup.values.shares import Formula
from agent.cgroup.writing.wish import Wish
from agent.hooks.base import Hook
from agent.hooks.merge import Failure
from agent.model.grant.container import Container
from agent.model.grant.edits import Note
from agent.model.runtime.adjustment import CoreGroup, Resources
from agent.model.runtime.request import HookRequest, Stage
from agent.model.snapshot import NodeSnapshot
from agent.reconcile.asking import Asked, ask
from agent.reconcile.places import ContainerPlace, PodPlace
from agent.reconcile.wishes import CONTAINER, POD, SANDBOX, wishes_of, without_files

NEEDS_RESTART = "ChangeNeedsNewContainer"


class OomWish(msgspec.Struct, frozen=True, kw_only=True):
    """The `oom_score_adj` of one container's processes."""

    cgroup: str
    value: int
    owner: str


class CoreWish(msgspec.Struct, frozen=True, kw_only=True):
    """Whose core-scheduling cookie one container's processes have."""

    cgroup: str
    group: CoreGroup


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of one pod."""

    place: PodPlace
    wishes: tuple[Wish, ...] = ()  # outermost first
    planned: tuple[Wish, ...] = ()  # of hooks in plan mode: compared, not written
    oom: tuple[OomWish, ...] = ()
    cores: tuple[CoreWish, ...] = ()
    notes: tuple[Note, ...] = ()
    failures: tuple[Failure, ...] = ()


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """What all questions of one cycle have in common."""

    hooks: tuple[Hook, ...]
    modes: Mapping[str, str]
    snapshot: NodeSnapshot
    version: int
    formulas: Mapping[str, Formula]  # by level
    base: Callable[[str], Resources]  # cgroup to what was asked for it, before any hook
    now_s: Callable[[], float]


def look(place: PodPlace, asking: Asking) -> Looked:
    """Ask the hooks about the pod, its sandbox and each container."""
    found = _Looking(asking)
    found.take(place, None)
    for container in place.containers:
        found.take(place, container)
    return Looked(
        place=place,
        wishes=tuple(found.wishes),
        planned=tuple(found.planned),
        oom=tuple(found.oom),
        cores=tuple(found.cores),
        notes=tuple(dict.fromkeys(found.notes)),
        failures=tuple(found.failures),
    )


class _Looking:
    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self.wishes: list[Wish] = []
        self.planned: list[Wish] = []
        self.oom: list[OomWish] = []
        self.cores: list[CoreWish] = []
        self.notes: list[Note] = []
        self.failures: list[Failure] = []

    def take(self, place: PodPlace, container: ContainerPlace | None) -> None:
        """Ask about one cgroup and add what is wanted of it."""
        cgroup = place.cgroup if container is None else container.cgroup
        level = POD if container is None else CONTAINER if container.name else SANDBOX
        asked = ask(
            self.asking.hooks,
            _request(place, container, self.asking.base(cgroup)),
            self.asking.snapshot,
            self.asking.modes,
            self.asking.now_s,
        )
        self._files(cgroup, level, asked, self.wishes)
        if asked.planned:
            self._files(cgroup, level, asked.as_planned(), self.planned)
        self.failures += asked.failures
        self.notes += asked.notes
        if container is not None:
            self._processes(container, asked)

    def _files(self, cgroup: str, level: str, asked: Asked, wishes: list[Wish]) -> None:
        formula = self.asking.formulas.get(level, Formula.LINEAR)
        found, notes = wishes_of(cgroup, level, asked, self.asking.version, formula)
        wishes += found
        self.notes += notes

    def _processes(self, container: ContainerPlace, asked: Asked) -> None:
        whole = asked.whole
        missing = without_files(whole)
        if missing:
            message = f"container {container.name}: {', '.join(missing)} come at its creation only"
            self.notes.append(Note(reason=NEEDS_RESTART, message=message))
        if whole.core_group is not None:
            self.cores.append(CoreWish(cgroup=container.cgroup, group=whole.core_group))
        if whole.oom_score_adj is not None and container.name:
            owner = asked.owner(lambda one: one.oom_score_adj)
            self.oom.append(
                OomWish(cgroup=container.cgroup, value=whole.oom_score_adj, owner=owner)
            )


def _request(place: PodPlace, container: ContainerPlace | None, base: Resources) -> HookRequest:
    pod = place.pod
    return HookRequest(
        stage=Stage.RECONCILE,
        pod=pod,
        container=None
        if container is None
        else Container(
            name=container.name,
            pod_uid=pod.uid,
            runtime_handler=pod.runtime_handler,
            host_network=pod.host_network,
            labels=pod.labels,
            annotations=pod.annotations,
        ),
        resources=base,
    )


def wanted_targets(all_of: Iterable[Looked]) -> frozenset[tuple[str, str]]:
    """Return what any of these pods wants written or compared."""
    return frozenset(wish.target for looked in all_of for wish in (*looked.wishes, *looked.planned))


def wanted_of_ons(all_of: Iterable[Looked]) -> frozenset[tuple[str, str]]:
    """Return what hooks that are on want: files, and what processes have."""
    return frozenset(
        target
        for one in all_of
        for target in (
            *(wish.target for wish in one.wishes),
            *((wish.cgroup, KEY) for wish in one.oom),
            *((wish.cgroup, COOKIE) for wish in one.cores if wish.group.enabled),
        )
    )
