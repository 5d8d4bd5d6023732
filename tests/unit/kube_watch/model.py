"""A server of the model check: a log of changes, lists and streams from it. No HTTP, no time."""

from __future__ import annotations

from agent.errors import ParseError
from agent.kube.watch.cache import DecodedObject
from agent.kube.watch.machine import (
    ListCommand,
    PageSummary,
    StreamCommand,
    WatchEvent,
    WatchFailure,
    WatchFailureReason,
)

State = dict[str, int]  # what the view must be: value by key
PAGE = 2


class Change:
    """One entry of the log."""

    def __init__(self, revision: int, type_: str, key: str, uid: str, value: int) -> None:
        self.revision, self.type, self.key, self.uid, self.value = revision, type_, key, uid, value


class Server:
    """Objects with values; every state that ever was is remembered, with the log from the start."""

    def __init__(self, *, opaque: bool) -> None:
        self.opaque = opaque  # versions without an order
        self.revision = 1
        self.oldest = 1  # older versions and tokens are 410
        self.objects: dict[str, tuple[str, int, int]] = {}  # key -> uid, revision, value
        self.log: list[Change] = []
        self.states: dict[int, dict[str, tuple[str, int, int]]] = {1: {}}

    def version(self, revision: int) -> str:
        return f"v{revision}x" if self.opaque else str(revision)

    def revision_of(self, version: str) -> int:
        return int(version.strip("vx"))

    def store(self, key: str, value: int) -> None:
        existing = self.objects.get(key)
        uid = existing[0] if existing else f"uid-{self.revision + 1}"
        self._write("MODIFIED" if existing else "ADDED", key, uid, value)

    def delete(self, key: str) -> None:
        if key in self.objects:
            uid, _, value = self.objects[key]
            self._write("DELETED", key, uid, value)

    def recreate(self, key: str, value: int) -> None:
        self.delete(key)
        self.store(key, value)

    def touch(self) -> None:
        """Let the revision move by another kind of object."""
        self.revision += 1
        self.states[self.revision] = dict(self.objects)

    def compact(self) -> None:
        self.oldest = self.revision

    def listed(
        self, command: ListCommand, stale: int
    ) -> tuple[PageSummary, list[DecodedObject[int]]] | WatchFailure:
        """Answer a list; a cache that is `stale` revisions behind may answer the first."""
        revision, start, limit = self.revision, 0, PAGE
        if command.token:
            first, _, at = command.token.partition("/")
            revision, start = int(first), int(at)
            if revision < self.oldest:
                return WatchFailure(reason=WatchFailureReason.EXPIRED)
        elif command.version is not None:
            floor = self.oldest
            if command.version != "0":  # nothing older, and no pages
                floor, limit = max(floor, self.revision_of(command.version)), len(self.objects) + 9
            revision = max(floor, self.revision - stale)
        state = sorted(self.states[revision].items())
        token = f"{revision}/{start + limit}" if start + limit < len(state) else ""
        decoded = [
            DecodedObject(key=key, uid=uid, version=self.version(at), body=value)
            for key, (uid, at, value) in state[start : start + limit]
        ]
        page = PageSummary(
            version=self.version(revision), token=token, objects=len(decoded), bytes=100
        )
        return page, decoded

    def stream(self, command: StreamCommand) -> list[Change] | WatchFailure:
        """Return what there is to send from a version on."""
        revision = self.revision_of(command.version)
        if revision < self.oldest:
            return WatchFailure(reason=WatchFailureReason.EXPIRED)
        return [change for change in self.log if change.revision > revision]

    def event(self, change: Change) -> tuple[WatchEvent, DecodedObject[int]]:
        version = self.version(change.revision)
        decoded = DecodedObject(key=change.key, uid=change.uid, version=version, body=change.value)
        return WatchEvent(type=change.type, version=version), decoded

    def was(self, state: State) -> bool:
        """Say whether all of the view was so at one moment."""
        return any({k: v[2] for k, v in past.items()} == state for past in self.states.values())

    def now(self) -> State:
        return {key: value for key, (_, _, value) in self.objects.items()}

    def _write(self, type_: str, key: str, uid: str, value: int) -> None:
        self.revision += 1
        self.log.append(Change(self.revision, type_, key, uid, value))
        if type_ == "DELETED":
            del self.objects[key]
        else:
            self.objects[key] = (uid, self.revision, value)
        self.states[self.revision] = dict(self.objects)


def make(value: int) -> int:
    """Read an object's body; none of the model's is malformed."""
    if value < 0:
        raise ParseError("value", str(value))
    return value
