"""Watches: what is there, what changes, bookmarks, and the version that is too old."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from tests.apiserver.refusal import Refusal, bad_request, expired
from tests.apiserver.schema.kinds import Kind
from tests.apiserver.schema.versions import Object, shown
from tests.apiserver.serve.reads import selector
from tests.apiserver.serve.route import ServedRequest
from tests.apiserver.store.history import Change
from tests.apiserver.store.objects import Store
from tests.apiserver.store.paging import read_version, too_new

Event = dict[str, Any]
MAX_TIMEOUT_S = 3600.0


class Watch:
    """One open watch. `wake` is called on the loop thread whenever something changed."""

    def __init__(
        self,
        store: Store,
        kind: Kind,
        served_request: ServedRequest,
        query: Mapping[str, str],
        *,
        bookmark_interval_s: float | None,
    ) -> None:
        self._store = store
        self.kind = kind
        self.asked = served_request
        self._matches = selector(kind, query)
        desired = query.get("allowWatchBookmarks", "") in ("true", "1")
        self._bookmarks = desired and bookmark_interval_s is not None
        self._bookmark_interval_s = bookmark_interval_s or math.inf
        self._initial = query.get("sendInitialEvents", "") in ("true", "1")
        timeout = query.get("timeoutSeconds", "")
        self._timeout_s = float(timeout) if timeout.isdigit() and int(timeout) else MAX_TIMEOUT_S
        self._wake = asyncio.Event()
        self.closing = False
        self._refusal: Refusal | None = None
        self._cursor = self._start(query)

    def wake(self) -> None:
        """Look again for changes."""
        self._wake.set()

    def close(self) -> None:
        """End the stream in order."""
        self.closing = True
        self._wake.set()

    def _start(self, query: Mapping[str, str]) -> int:
        """Return the version to start from; -1: begin with what is there.

        One that is too old is told in the stream, as the real server's cache does; one that is
        not reached yet is waited for, without a word. Only what cannot be parsed is refused.
        """
        text = query.get("resourceVersion", "")
        if self._initial and query.get("resourceVersionMatch") != "NotOlderThan":
            raise bad_request("resourceVersionMatch is required when sendInitialEvents is set")
        with self._store.lock:
            if text in ("", "0"):
                return -1
            version, history = read_version(text), self._store.history
            if self._initial:
                if version > history.version:
                    self._refusal = too_new(version, history.version)
                return -1
            if version < history.oldest:
                self._refusal = expired(f"too old resource version: {version} ({history.oldest})")
            return version

    async def events(self) -> AsyncIterator[Event]:
        """Yield events until the time is up, the resource is gone, or an ERROR was given."""
        if self._refusal is not None:
            yield error_event(self._refusal)
            return
        deadline = time.monotonic() + self._timeout_s
        if self._cursor < 0:
            for event in self._initial_events():
                yield event
        next_bookmark = time.monotonic() + self._bookmark_interval_s
        while not self.closing:
            self._wake.clear()
            events, removed = self._news()
            for event in events:
                yield event
            if removed or self._store.kinds.get(self.kind.plural) is not self.kind:
                return
            now = time.monotonic()
            if self._bookmarks and now >= min(next_bookmark, deadline):
                next_bookmark = now + self._bookmark_interval_s
                if self._cursor <= self._store.history.version:
                    yield self.bookmark()
            if now >= deadline:
                return
            await self._sleep(min(deadline, next_bookmark) if self._bookmarks else deadline)

    async def _sleep(self, until: float) -> None:
        """Wait for a change, but not beyond a time of the monotonic clock."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                await self._wake.wait()

    def bookmark(self, *, ends_initial: bool = False) -> Event:
        """Return a bookmark: nothing but the version is in it."""
        metadata: Object = {"resourceVersion": str(self._cursor), "creationTimestamp": None}
        if ends_initial:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        version = f"{self.asked.group}/{self.asked.version}".lstrip("/")
        body = {"kind": self.kind.kind, "apiVersion": version, "metadata": metadata}
        return {"type": "BOOKMARK", "object": body}

    def _initial_events(self) -> list[Event]:
        with self._store.lock:
            objects = self._store.of(self.kind)
            bodies = [objects[key] for key in sorted(objects) if self._here(key[0])]
            self._cursor = self._store.history.version
        events = [self._event("ADDED", body) for body in bodies if self._matches(body)]
        if self._initial:
            events.append(self.bookmark(ends_initial=True))
        return events

    def _news(self) -> tuple[list[Event], bool]:
        """Return the events since the last look, and whether the stream ends after them."""
        with self._store.lock:
            history = self._store.history
            if self._cursor < history.forgotten:
                refusal = expired(f"too old resource version: {self._cursor} ({history.oldest})")
                return [error_event(refusal)], True
            changes = list(history.since(self._cursor))
            self._cursor = max(self._cursor, history.version)
        events = [self._of(change) for change in changes if change.plural == self.kind.plural]
        return [event for event in events if event is not None], False

    def _of(self, change: Change) -> Event | None:
        if not self._here(change.key[0]):
            return None
        was = change.previous is not None and self._matches(change.previous)
        fits = not change.deleted and self._matches(change.body)
        if fits:
            return self._event("MODIFIED" if was else "ADDED", change.body)
        if not was or change.previous is None:
            return None
        last = change.previous
        version = {"resourceVersion": str(change.version)}
        return self._event("DELETED", {**last, "metadata": {**last["metadata"], **version}})

    def _here(self, namespace: str) -> bool:
        return not self.asked.namespace or self.asked.namespace == namespace

    def _event(self, kind: str, body: Object) -> Event:
        return {
            "type": kind,
            "object": shown(self.kind, self.asked.group, self.asked.version, body),
        }


def error_event(refusal: Refusal) -> Event:
    """Return the event by which a stream says what went wrong."""
    return {"type": "ERROR", "object": refusal.body()}
