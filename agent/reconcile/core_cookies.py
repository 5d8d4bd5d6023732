"""Core-scheduling cookies: plans and applies which processes share a cookie.

Core-scheduling cookies kept as the hooks say: whose processes may share a core with whose.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import CORE_HIERARCHY, ChangeLedger, LedgerEntry
from agent.cgroup.processes import CORE_COOKIE, CookieError, CoreCookies, process_directory
from agent.cgroup.values import KernelFiles
from agent.errors import HostFileError
from agent.reconcile.desired_state import DesiredCoreGroup
from agent.snapshot.container import CoreSchedulingGroup

DEFAULT_COOKIE = 0  # the cookie of all processes that have none


class CookieProcess(msgspec.Struct, frozen=True):
    """A process of a container with its cookie as the kernel tells it."""

    pid: int
    cookie: int


class CookieGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group's cookie, and processes that had it when looked at last."""

    cookie: int
    pids: tuple[int, ...] = ()


class CookiePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, in this order.

    `create`: make a cookie on the thread group of this process. `source`: the process whose
    cookie is shared; `None` with targets: the default, which takes theirs away.
    """

    create: int | None = None
    source: int | None = None
    targets: tuple[int, ...] = ()
    cookie: int | None = None  # the group's, where it is known before


EMPTY_PLAN = CookiePlan()


def plan_cookies(
    group: CoreSchedulingGroup,
    processes: Sequence[CookieProcess],
    known: Mapping[str, CookieGroup],
    living: Mapping[int, int],
) -> CookiePlan:
    """Plan one container's cookies; `living` has pid and cookie of other processes now.

    A group is joined by way of one living process that still has its cookie. One of which no
    process is left is made anew. A cookie found on the container's own processes is adopted for a
    group that nobody knows, as after a restart of the agent, unless it is another group's. Only
    cookies of known groups are taken away: a program may have given itself one.
    """
    if not processes:
        return EMPTY_PLAN
    if not group.enabled:
        ours = {one.cookie for one in known.values()} - {DEFAULT_COOKIE}
        marked = tuple(process.pid for process in processes if process.cookie in ours)
        return CookiePlan(targets=marked, cookie=DEFAULT_COOKIE) if marked else EMPTY_PLAN
    own = {process.pid: process.cookie for process in processes}
    source, cookie = _cookie_source(group.id, own, known, living)
    if source is None:
        first, *others = own
        return CookiePlan(create=first, source=first, targets=tuple(others))
    targets = tuple(pid for pid, has in own.items() if has != cookie)
    return CookiePlan(source=source if targets else None, targets=targets, cookie=cookie)


def _cookie_source(
    group_id: str,
    own: Mapping[int, int],
    known: Mapping[str, CookieGroup],
    living: Mapping[int, int],
) -> tuple[int | None, int]:
    """Return a process that has the group's cookie, and the cookie."""
    found = known.get(group_id)
    if found is not None and found.cookie != DEFAULT_COOKIE:
        now = {**living, **own}
        candidates = (*own, *found.pids)
        source = next((pid for pid in candidates if now.get(pid) == found.cookie), None)
        return source, found.cookie
    taken = {DEFAULT_COOKIE, *(one.cookie for name, one in known.items() if name != group_id)}
    return next(((pid, cookie) for pid, cookie in own.items() if cookie not in taken), (None, 0))


INTERVAL_S = 10.0  # children inherit; what the runtime adds to a container has none until then

GROUP_LIFETIME_S = 300.0  # a group that nobody wants: its cookie lives on in its processes

MAX_PIDS = 256  # of a group by way of which its cookie can be shared

OWNER = "core_scheduling"


class CookieReconciler:
    """Looks at the cookies of all containers that a hook speaks of, every ten seconds."""

    def __init__(
        self, files: KernelFiles, ledger: ChangeLedger, kernel: Callable[[], CoreCookies]
    ) -> None:
        """Load nothing; `kernel` is asked for when a hook speaks for the first time."""
        self._files = files
        self._ledger = ledger
        self._open_kernel = kernel
        self._kernel: CoreCookies | None = None
        self._groups: dict[str, tuple[CookieGroup, float]] = {}
        self._due_s = 0.0
        self.problem = ""  # why cookies are not as wanted

    def record_originals(self, wishes: Iterable[DesiredCoreGroup], layout: CgroupLayout) -> None:
        """Put containers that get a cookie into the ledger, which the caller flushes."""
        for wish in wishes:
            place = process_directory(layout, wish.cgroup)
            known = (CORE_HIERARCHY, wish.cgroup, CORE_COOKIE) in self._ledger.entries
            if place is None or known or not wish.group.enabled:
                continue
            try:
                inode = self._files.inode(place)
            except HostFileError:
                continue
            self._ledger.set(
                LedgerEntry(
                    hierarchy=CORE_HIERARCHY,
                    path=wish.cgroup,
                    inode=inode,
                    key=CORE_COOKIE,
                    owner=OWNER,
                    original="0",
                )
            )

    def apply(self, wishes: Iterable[DesiredCoreGroup], layout: CgroupLayout, now_s: float) -> int:
        """Give, share and take cookies where the time has come; return how many processes."""
        wanted = tuple(wishes)
        if not wanted or now_s < self._due_s:
            return 0
        self._due_s = now_s + INTERVAL_S
        kernel = self._kernel = self._kernel or self._open_kernel()
        self._groups = {
            name: (group, touched_s)
            for name, (group, touched_s) in self._groups.items()
            if now_s - touched_s < GROUP_LIFETIME_S
        }
        self.problem, changed = "", 0
        for wish in wanted:
            try:
                changed += self._apply_one(kernel, wish, layout, now_s)
            except CookieError as error:
                self.problem = f"core scheduling: {os.strerror(error.errno)}"  # of whatever process
                if error.is_unsupported:
                    break
        return changed

    def _apply_one(
        self, kernel: CoreCookies, wish: DesiredCoreGroup, layout: CgroupLayout, now_s: float
    ) -> int:
        place = process_directory(layout, wish.cgroup)
        pids = () if place is None else self._files.pids(place)
        processes = tuple(_read_cookies(kernel, pids))
        known = {name: group for name, (group, _) in self._groups.items()}
        group = known.get(wish.group.id)
        living = {one.pid: one.cookie for one in _read_cookies(kernel, group.pids if group else ())}
        plan = plan_cookies(wish.group, processes, known, living)
        changed = _apply_plan(kernel, plan)
        if wish.group.enabled and processes:
            self._touch(kernel, wish.group.id, processes, changed, now_s)
        return len(changed)

    def _touch(
        self,
        kernel: CoreCookies,
        name: str,
        processes: tuple[CookieProcess, ...],
        changed: tuple[int, ...],
        now_s: float,
    ) -> None:
        """Remember the group's cookie and who of it has it, of this container and of others."""
        now = tuple(_read_cookies(kernel, [one.pid for one in processes]))
        cookie = next(
            (one.cookie for one in now if one.pid in changed), now[0].cookie if now else 0
        )
        if cookie == 0:
            return
        before = self._groups.get(name)
        others = before[0].pids if before is not None and before[0].cookie == cookie else ()
        own = tuple(one.pid for one in now if one.cookie == cookie)
        pids = tuple(dict.fromkeys((*own, *others)))
        self._groups[name] = CookieGroup(cookie=cookie, pids=pids[:MAX_PIDS]), now_s


def _read_cookies(kernel: CoreCookies, pids: Iterable[int]) -> Iterable[CookieProcess]:
    for pid in pids:
        try:
            yield CookieProcess(pid, kernel.get(pid))
        except CookieError as error:
            if not error.has_process_ended:
                raise


def _apply_plan(kernel: CoreCookies, plan: CookiePlan) -> tuple[int, ...]:
    """Do what is planned; return the processes whose cookie is another now."""
    if plan.create is not None:
        kernel.create(plan.create)
    shared = kernel.share(plan.source, plan.targets) if plan.targets else ()
    return shared if plan.create is None else (plan.create, *shared)
