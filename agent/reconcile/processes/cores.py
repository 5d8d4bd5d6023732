"""Core-scheduling cookies kept as the hooks say: whose processes may share a core with whose."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from agent.cgroup.cookies import CookieRefused, Cookies
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger.entry import CORE, Entry
from agent.cgroup.ledger.journal import Ledger
from agent.cgroup.ledger.processes import COOKIE, directory
from agent.cgroup.writing.kernel import KernelFiles
from agent.errors import HostFileError
from agent.hooks.cpu.cookies import CookiePlan, KnownGroup, Process, cookie_plan
from agent.reconcile.looked import CoreWish

INTERVAL_S = 10.0  # children inherit; what the runtime adds to a container has none until then
FORGOTTEN_S = 300.0  # a group that nobody wants: its cookie lives on in its processes
MAX_PIDS = 256  # of a group by way of which its cookie can be shared
OWNER = "core_scheduling"


class Cores:
    """Looks at the cookies of all containers that a hook speaks of, every ten seconds."""

    def __init__(self, files: KernelFiles, ledger: Ledger, kernel: Callable[[], Cookies]) -> None:
        """Load nothing; `kernel` is asked for when a hook speaks for the first time."""
        self._files = files
        self._ledger = ledger
        self._make = kernel
        self._kernel: Cookies | None = None
        self._known: dict[str, tuple[KnownGroup, float]] = {}
        self._due_s = 0.0
        self.problem = ""  # why cookies are not as wanted

    def remember(self, wishes: Iterable[CoreWish], layout: CgroupLayout) -> None:
        """Put containers that get a cookie into the ledger, which the caller flushes."""
        for wish in wishes:
            place = directory(layout, wish.cgroup)
            known = (CORE, wish.cgroup, COOKIE) in self._ledger.entries
            if place is None or known or not wish.group.enabled:
                continue
            try:
                inode = self._files.inode(place)
            except HostFileError:
                continue
            self._ledger.set(
                Entry(
                    hierarchy=CORE,
                    path=wish.cgroup,
                    inode=inode,
                    key=COOKIE,
                    owner=OWNER,
                    original="0",
                )
            )

    def apply(self, wishes: Iterable[CoreWish], layout: CgroupLayout, now_s: float) -> int:
        """Give, share and take cookies where the time has come; return how many processes."""
        wanted = tuple(wishes)
        if not wanted or now_s < self._due_s:
            return 0
        self._due_s = now_s + INTERVAL_S
        kernel = self._kernel = self._kernel or self._make()
        self._known = {
            name: (group, touched_s)
            for name, (group, touched_s) in self._known.items()
            if now_s - touched_s < FORGOTTEN_S
        }
        self.problem, changed = "", 0
        for wish in wanted:
            try:
                changed += self._one(kernel, wish, layout, now_s)
            except CookieRefused as error:
                self.problem = f"core scheduling: {os.strerror(error.errno)}"  # of whatever process
                if error.unsupported:
                    break
        return changed

    def _one(self, kernel: Cookies, wish: CoreWish, layout: CgroupLayout, now_s: float) -> int:
        place = directory(layout, wish.cgroup)
        pids = () if place is None else self._files.pids(place)
        processes = tuple(_cookies(kernel, pids))
        known = {name: group for name, (group, _) in self._known.items()}
        group = known.get(wish.group.id)
        living = {one.pid: one.cookie for one in _cookies(kernel, group.pids if group else ())}
        plan = cookie_plan(wish.group, processes, known, living)
        changed = _make(kernel, plan)
        if wish.group.enabled and processes:
            self._touch(kernel, wish.group.id, processes, changed, now_s)
        return len(changed)

    def _touch(
        self,
        kernel: Cookies,
        name: str,
        processes: tuple[Process, ...],
        changed: tuple[int, ...],
        now_s: float,
    ) -> None:
        """Remember the group's cookie and who of it has it, of this container and of others."""
        now = tuple(_cookies(kernel, [one.pid for one in processes]))
        cookie = next(
            (one.cookie for one in now if one.pid in changed), now[0].cookie if now else 0
        )
        if cookie == 0:
            return
        before = self._known.get(name)
        others = before[0].pids if before is not None and before[0].cookie == cookie else ()
        own = tuple(one.pid for one in now if one.cookie == cookie)
        pids = tuple(dict.fromkeys((*own, *others)))
        self._known[name] = KnownGroup(cookie=cookie, pids=pids[:MAX_PIDS]), now_s


def _cookies(kernel: Cookies, pids: Iterable[int]) -> Iterable[Process]:
    for pid in pids:
        try:
            yield Process(pid, kernel.get(pid))
        except CookieRefused as error:
            if not error.ended:
                raise


def _make(kernel: Cookies, plan: CookiePlan) -> tuple[int, ...]:
    """Do what is planned; return the processes whose cookie is another now."""
    if plan.create is not None:
        kernel.create(plan.create)
    shared = kernel.share(plan.source, plan.targets) if plan.targets else ()
    return shared if plan.create is None else (plan.create, *shared)
