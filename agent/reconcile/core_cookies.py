"""Core-scheduling cookies: plans and applies which processes share a cookie.

Processes with the same cookie may share a physical core.
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
    """A process of a container with the cookie that the kernel reports for it."""

    pid: int
    cookie: int


class CookieGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group's cookie, and the processes that had it in the last cycle."""

    cookie: int
    pids: tuple[int, ...] = ()


class CookiePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The changes for one container, in the order of the fields.

    `create`: make a cookie on the thread group of this process. `source`: the process whose cookie
    is shared with the targets. With targets and without a source the targets get the default
    cookie.
    """

    create: int | None = None
    source: int | None = None
    targets: tuple[int, ...] = ()
    cookie: int | None = None  # the group's cookie, if it has one already


EMPTY_PLAN = CookiePlan()


def plan_cookies(
    group: CoreSchedulingGroup,
    processes: Sequence[CookieProcess],
    recorded: Mapping[str, CookieGroup],
    living: Mapping[int, int],
) -> CookiePlan:
    """Plan one container's cookies; `living` has pid and cookie of other processes now.

    A container joins a group through a living process that still has the group's cookie. If no such
    process is left, the group gets a new cookie. If the group has no recorded cookie, as after a
    restart of the agent, a cookie of the container's own processes is adopted, unless it belongs to
    another group. Only cookies of recorded groups are removed: a program may have set its own.
    """
    if not processes:
        return EMPTY_PLAN
    if not group.enabled:
        recorded_cookies = {one.cookie for one in recorded.values()} - {DEFAULT_COOKIE}
        targets_to_clear = tuple(
            process.pid for process in processes if process.cookie in recorded_cookies
        )
        return (
            CookiePlan(targets=targets_to_clear, cookie=DEFAULT_COOKIE)
            if targets_to_clear
            else EMPTY_PLAN
        )
    own = {process.pid: process.cookie for process in processes}
    source, cookie = _cookie_source(group.id, own, recorded, living)
    if source is None:
        first, *others = own
        return CookiePlan(create=first, source=first, targets=tuple(others))
    targets = tuple(pid for pid, has in own.items() if has != cookie)
    return CookiePlan(source=source if targets else None, targets=targets, cookie=cookie)


def _cookie_source(
    group_id: str,
    own: Mapping[int, int],
    recorded: Mapping[str, CookieGroup],
    living: Mapping[int, int],
) -> tuple[int | None, int]:
    """Return a process that has the group's cookie, and the cookie."""
    recorded_group = recorded.get(group_id)
    if recorded_group is not None and recorded_group.cookie != DEFAULT_COOKIE:
        now = {**living, **own}
        candidates = (*own, *recorded_group.pids)
        source = next((pid for pid in candidates if now.get(pid) == recorded_group.cookie), None)
        return source, recorded_group.cookie
    excluded = {DEFAULT_COOKIE, *(one.cookie for name, one in recorded.items() if name != group_id)}
    return next(((pid, cookie) for pid, cookie in own.items() if cookie not in excluded), (None, 0))


INTERVAL_S = 10.0  # children inherit; a process that the runtime adds has no cookie until then
GROUP_LIFETIME_S = 300.0  # of an unused group; its processes keep the cookie
MAX_PIDS = 256  # of a group, as possible sources of its cookie
OWNER = "core_scheduling"


class CookieReconciler:
    """Applies the cookies of all containers that a hook puts into a group, every ten seconds."""

    def __init__(
        self, files: KernelFiles, ledger: ChangeLedger, kernel: Callable[[], CoreCookies]
    ) -> None:
        """Open nothing.

        `kernel` is called when a hook sets a core-scheduling group for the first time.
        """
        self._files = files
        self._ledger = ledger
        self._open_kernel = kernel
        self._kernel: CoreCookies | None = None
        self._groups: dict[str, tuple[CookieGroup, float]] = {}
        self._due_s = 0.0
        self.problem = ""  # why the cookies differ from the desired ones

    def record_originals(self, desired: Iterable[DesiredCoreGroup], layout: CgroupLayout) -> None:
        """Put containers that get a cookie into the ledger, which the caller flushes."""
        for desired_group in desired:
            place = process_directory(layout, desired_group.cgroup)
            is_recorded = (
                CORE_HIERARCHY,
                desired_group.cgroup,
                CORE_COOKIE,
            ) in self._ledger.entries
            if place is None or is_recorded or not desired_group.group.enabled:
                continue
            try:
                inode = self._files.inode(place)
            except HostFileError:
                continue
            self._ledger.set(
                LedgerEntry(
                    hierarchy=CORE_HIERARCHY,
                    path=desired_group.cgroup,
                    inode=inode,
                    key=CORE_COOKIE,
                    owner=OWNER,
                    original="0",
                )
            )

    def apply(self, desired: Iterable[DesiredCoreGroup], layout: CgroupLayout, now_s: float) -> int:
        """Create, share and remove cookies if they are due; return how many processes changed."""
        desired_groups = tuple(desired)
        if not desired_groups or now_s < self._due_s:
            return 0
        self._due_s = now_s + INTERVAL_S
        kernel = self._kernel = self._kernel or self._open_kernel()
        self._groups = {
            name: (group, touched_s)
            for name, (group, touched_s) in self._groups.items()
            if now_s - touched_s < GROUP_LIFETIME_S
        }
        self.problem, changed = "", 0
        for desired_group in desired_groups:
            try:
                changed += self._apply_one(kernel, desired_group, layout, now_s)
            except CookieError as error:
                self.problem = f"core scheduling: {os.strerror(error.errno)}"  # of any process
                if error.is_unsupported:
                    break
        return changed

    def _apply_one(
        self, kernel: CoreCookies, desired: DesiredCoreGroup, layout: CgroupLayout, now_s: float
    ) -> int:
        place = process_directory(layout, desired.cgroup)
        pids = () if place is None else self._files.pids(place)
        processes = tuple(_read_cookies(kernel, pids))
        recorded = {name: group for name, (group, _) in self._groups.items()}
        group = recorded.get(desired.group.id)
        living = {
            cookie.pid: cookie.cookie
            for cookie in _read_cookies(kernel, group.pids if group else ())
        }
        plan = plan_cookies(desired.group, processes, recorded, living)
        changed = _apply_plan(kernel, plan)
        if desired.group.enabled and processes:
            self._touch(kernel, desired.group.id, processes, changed, now_s)
        return len(changed)

    def _touch(
        self,
        kernel: CoreCookies,
        name: str,
        processes: tuple[CookieProcess, ...],
        changed: tuple[int, ...],
        now_s: float,
    ) -> None:
        """Record the group's cookie and the processes that have it, of all containers."""
        now = tuple(_read_cookies(kernel, [process.pid for process in processes]))
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
    """Apply the plan; return the processes whose cookie changed."""
    if plan.create is not None:
        kernel.create(plan.create)
    shared = kernel.share(plan.source, plan.targets) if plan.targets else ()
    return shared if plan.create is None else (plan.create, *shared)
