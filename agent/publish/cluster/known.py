"""What a writer remembers of the server; all of it can be lost, the server is the truth."""

from __future__ import annotations

import msgspec

from agent.kube.apply.managed import managers, metadata_of
from agent.kube.apply.pruned import MAX_PLACES, Place
from agent.kube.apply.requests import MANAGER
from agent.kube.watch.machine import older
from agent.publish.base import Desired
from agent.publish.cluster.decide import Clean, Sight, Write
from agent.publish.cluster.intent import Dict
from agent.publish.cluster.rivals import MAX_TAKEN, Claims
from agent.publish.cluster.site import Site

TRY_AGAIN_S = 21600.0  # what the server could not do: it or a CRD may have been upgraded

replace = msgspec.structs.replace


class Known:
    """The object as it was last answered, and what was learnt of those who write it."""

    def __init__(self, kind: str, site: Site) -> None:
        self._kind = kind
        self._site = site
        self.sight: Sight | None = None  # None: not known, to be read
        self.claims = Claims()
        self.dropped: frozenset[Place] = frozenset()
        self.lacks_apply = False
        self.cleaned: object = None
        self._seen_s = self._able_s = site.clock.monotonic()
        self._jitter = site.about(1.0)
        self._reported: tuple[str | None] | None = None
        self._left: tuple[Desired, object] | None = None

    def see(self, stored: Dict | None, server_s: float | None) -> None:
        """Take what the server answered."""
        self.sight = Sight(stored=stored, server_s=server_s)
        self._seen_s = self._site.clock.monotonic()
        self._jitter = self._site.about(1.0)

    def observe(self, version: str | None) -> None:
        """Take the version that a watch reports; `None`: there is no object."""
        self._reported = (version,)

    def begin_read(self) -> None:
        """Forget the version that a watch reported: the answer to a read is at least as new."""
        self._reported = None

    @property
    def is_outdated(self) -> bool:
        """Return whether a watch reported a newer version than the last answer of the server.

        The event of our own write may arrive after the answers to that write and to later ones.
        """
        if self._reported is None or self.sight is None:
            return False
        (version,), stored = self._reported, self.sight.stored
        have = None if stored is None else str(metadata_of(stored).get("resourceVersion") or "")
        late = version is not None and have is not None and older(version, have)
        return version != have and not late

    def forget(self) -> None:
        """Know no more what the server has."""
        self.sight = None

    @property
    def lacks_object(self) -> bool:
        """Say whether there was no object when it was last looked for."""
        return self.sight is not None and self.sight.stored is None

    def due_in_s(self) -> float:
        """Return the seconds until the object is to be read again."""
        if self.is_outdated:
            return 0.0
        pace = self._site.pace
        watched = self._site.is_watched(self._kind)
        interval_s = max(pace.resync_s, pace.watched_resync_s if watched else 0.0)
        return max(0.0, self._seen_s + interval_s * self._jitter - self._site.clock.monotonic())

    def rest_s(self) -> float:
        """Return the seconds until the next comparison, with or without a new read."""
        return min(self.due_in_s(), self._site.about(self._site.pace.resync_s))

    def now(self, sight: Sight) -> Sight:
        """Return a sight with the server's clock at this moment."""
        if sight.server_s is None:
            return sight
        passed_s = self._site.clock.monotonic() - self._seen_s
        return replace(sight, server_s=sight.server_s + passed_s)

    def meet(self, before: Sight | None, subresource: str) -> None:
        """Find out whether an agent that is not us wrote in our name since `before`."""
        if before is None or self.sight is None or before.stored is None:
            return
        written_s = _own_time(self.sight.stored, subresource)
        if written_s is not None and written_s != _own_time(before.stored, subresource):
            self.claims = replace(self.claims, twin_s=written_s)

    def accuse(self, names: frozenset[str]) -> None:
        """Take in whom a conflict named."""
        self.claims = replace(self.claims, accused=self.claims.accused | names)

    def took(self, step: Write | Clean) -> None:
        """Remember whose fields became ours; what remains after a cleaning is still theirs."""
        new = tuple((rival.name, rival.time_s) for rival in step.taken)
        before = self.claims if isinstance(step, Clean) else Claims()
        taken = tuple(dict.fromkeys(self.claims.taken + new))[-MAX_TAKEN:]
        self.claims = replace(before, taken=taken)

    def agree(self) -> None:
        """Forget accusations: the server has what is wanted."""
        self.claims = Claims(taken=self.claims.taken)

    def doubt_limits(self) -> None:
        """Forget now and then what the server could not do, so that an upgrade is noticed."""
        now_s = self._site.clock.monotonic()
        if now_s - self._able_s >= TRY_AGAIN_S:
            self._able_s = now_s
            self.dropped, self.lacks_apply, self._left = frozenset(), False, None

    def drop(self, places: frozenset[Place]) -> frozenset[Place]:
        """Leave fields out from now on; return those that are new."""
        new = frozenset(list(places - self.dropped)[: MAX_PLACES - len(self.dropped)])
        self.dropped |= new
        return new

    def leave(self, desired: Desired, residue: object) -> None:
        """Remember what the server did not take over of a content, so that it is not sent again."""
        self._left = (desired, residue)

    def is_left(self, desired: Desired, residue: object) -> bool:
        """Say whether no more than that differs."""
        return (
            self._left is not None
            and residue is not None
            and self._left[0] is desired
            and self._left[1] == residue
        )


def _own_time(stored: Dict | None, subresource: str) -> float | None:
    times = [
        writer.time_s
        for writer in managers(stored)
        if writer.name == MANAGER and writer.subresource == subresource
    ]
    return max((time_s for time_s in times if time_s is not None), default=None)
