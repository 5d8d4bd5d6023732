"""Which processes get, share or lose a core-scheduling cookie: the plan, without the calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from agent.model.runtime.adjustment import CoreGroup

DEFAULT = 0  # the cookie of all processes that have none


class Process(msgspec.Struct, frozen=True):
    """A process of a container with its cookie as the kernel tells it."""

    pid: int
    cookie: int


class KnownGroup(msgspec.Struct, frozen=True, kw_only=True):
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


NOTHING_TO_DO = CookiePlan()


def cookie_plan(
    group: CoreGroup,
    processes: Sequence[Process],
    known: Mapping[str, KnownGroup],
    living: Mapping[int, int],
) -> CookiePlan:
    """Plan one container's cookies; `living` has pid and cookie of other processes now.

    A group is joined by way of one living process that still has its cookie. One of which no
    process is left is made anew. A cookie found on the container's own processes is adopted for a
    group that nobody knows, as after a restart of the agent, unless it is another group's. Only
    cookies of known groups are taken away: a program may have given itself one.
    """
    if not processes:
        return NOTHING_TO_DO
    if not group.enabled:
        ours = {one.cookie for one in known.values()} - {DEFAULT}
        marked = tuple(process.pid for process in processes if process.cookie in ours)
        return CookiePlan(targets=marked, cookie=DEFAULT) if marked else NOTHING_TO_DO
    own = {process.pid: process.cookie for process in processes}
    source, cookie = _source(group.id, own, known, living)
    if source is None:
        first, *others = own
        return CookiePlan(create=first, source=first, targets=tuple(others))
    targets = tuple(pid for pid, has in own.items() if has != cookie)
    return CookiePlan(source=source if targets else None, targets=targets, cookie=cookie)


def _source(
    group_id: str,
    own: Mapping[int, int],
    known: Mapping[str, KnownGroup],
    living: Mapping[int, int],
) -> tuple[int | None, int]:
    """Return a process that has the group's cookie, and the cookie."""
    found = known.get(group_id)
    if found is not None and found.cookie != DEFAULT:
        now = {**living, **own}
        candidates = (*own, *found.pids)
        source = next((pid for pid in candidates if now.get(pid) == found.cookie), None)
        return source, found.cookie
    taken = {DEFAULT, *(one.cookie for name, one in known.items() if name != group_id)}
    return next(((pid, cookie) for pid, cookie in own.items() if cookie not in taken), (None, 0))
