"""What changed, in order: watches resume from it, and pages of a list are cut at one version."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

Key = tuple[str, str]  # namespace, name
Object = dict[str, Any]
MAX_CHANGES = 2_000  # bodies of thousands of bytes each: a watch that lags more is told 410


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One write. `body` of a deletion is the last state with the deletion's version."""

    version: int
    plural: str
    group: str
    key: Key
    body: Object
    previous: Object | None  # None: it was not there before
    deleted: bool = False


class History:
    """The latest changes; older ones are forgotten by `compact` or beyond `MAX_CHANGES`."""

    def __init__(self, first_version: int) -> None:
        self.version = first_version
        self.oldest = first_version  # the oldest version that a new watch may start from
        self.forgotten = first_version  # of the newest change that is no longer known
        self._changes: deque[Change] = deque()

    def next_version(self) -> int:
        """Return the version of the next write."""
        self.version += 1
        return self.version

    def add(self, change: Change) -> None:
        """Keep a change."""
        self._changes.append(change)
        if len(self._changes) > MAX_CHANGES:
            self.forgotten = self.oldest = self._changes.popleft().version

    def compact(self) -> None:
        """Forget everything up to now. Open watches that have seen it all go on."""
        self._changes.clear()
        self.forgotten = self.version
        self.version += 1  # so that the version of the latest write is too old as well
        self.oldest = self.version

    def since(self, version: int) -> Iterator[Change]:
        """Yield the changes after a version, oldest first."""
        newer = []
        for change in reversed(self._changes):
            if change.version <= version:
                break
            newer.append(change)
        return reversed(newer)

    def rewind(self, objects: dict[Key, Object], plural: str, version: int) -> dict[Key, Object]:
        """Return the objects of one resource as they were at a version."""
        past = dict(objects)
        for change in reversed(self._changes):
            if change.version <= version:
                break
            if change.plural != plural:
                continue
            if change.previous is None:
                past.pop(change.key, None)
            else:
                past[change.key] = change.previous
        return past
