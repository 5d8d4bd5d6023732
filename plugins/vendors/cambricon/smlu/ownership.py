"""The file with the sMLU instances that the agent created."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from agent.errors import AgentError
from agent.snapshot.device import VendorDevice
from agent.state_writer import NO_ANSWER, StateWriter
from agent.wire_formats.json_values import JSON_ERRORS

FILE = "smlu-owned.json"
MAX_BYTES = 1 << 20
MAX_OWNED = 4096


class OwnershipUnknown(AgentError):
    """The file cannot be read or written; nothing is destroyed then."""


class OwnedSmlu(msgspec.Struct, frozen=True, kw_only=True):
    """One instance that the agent created, or is about to create (`instance` is `None`).

    `card_uuid` shows whether the card was replaced by another one.
    """

    card_uuid: str
    card: int
    profile: int
    owner: str  # uid of the pod
    instance: int | None = None
    before: tuple[int, ...] = ()  # the card's instances before the creation
    boot: str = ""  # id of the boot; a reboot removes instances


class SmluOwnershipFile:
    """The list in one folder; each change is written to disk before it takes effect.

    Entries of another boot are ignored: their numbers may now belong to other instances.
    """

    def __init__(self, folder: str, boot: str) -> None:
        self._path = str(Path(folder) / FILE)
        self._writer = StateWriter(FILE)
        self._file = self._writer.file(self._path)
        self.boot = boot

    def read(self) -> tuple[OwnedSmlu, ...]:
        """Return the entries of this boot; empty without a file."""
        stored = self._writer.load(self._path, MAX_BYTES, _decode, sets_aside=False)
        if stored.error is not None:
            reason = str(stored.error)[:100]
            raise OwnershipUnknown(f"{self._path}: {reason}") from stored.error
        return tuple(item for item in stored.value or () if self.boot and item.boot == self.boot)

    def record_intent(self, intent: OwnedSmlu) -> None:
        """Write an entry for an instance to create; a card has one such entry at most."""
        others = (item for item in self.read() if not _same(item, intent))
        self._write((*others, intent))

    def record_created(self, intent: OwnedSmlu, instance: int) -> OwnedSmlu:
        """Write the number of a created instance; replaces an old entry with that number."""
        entry = replace(intent, instance=instance, before=())
        others = (i for i in self.read() if not _same(i, entry) and not _same(i, intent))
        self._write((*others, entry))
        return entry

    def remove(self, entry: OwnedSmlu) -> None:
        """Remove an entry."""
        self._write(tuple(item for item in self.read() if not _same(item, entry)))

    def _write(self, owned: tuple[OwnedSmlu, ...]) -> None:
        if len(owned) > MAX_OWNED:
            raise OwnershipUnknown(f"{self._path}: more than {MAX_OWNED} instances")
        if not self._file.save(msgspec.json.encode(owned)):
            raise OwnershipUnknown(self._file.error or f"{self._path}: {NO_ANSWER}")


def _decode(data: bytes) -> tuple[OwnedSmlu, ...]:
    try:
        return msgspec.json.decode(data, type=tuple[OwnedSmlu, ...])
    except JSON_ERRORS as error:
        raise AgentError(str(error)) from error


def _same(entry: OwnedSmlu, other: OwnedSmlu) -> bool:
    return (entry.card, entry.instance) == (other.card, other.instance)


def with_owners(
    devices: Iterable[VendorDevice], keys: Mapping[str, str], owned: SmluOwnershipFile | None
) -> tuple[VendorDevice, ...]:
    """Return the devices; each instance of the agent has its pod as owner.

    `keys` are device keys by card UUID. If the file cannot be read, there are no owners.
    """
    try:
        items = owned.read() if owned is not None else ()
    except OwnershipUnknown:
        items = ()
    plain_keys = {uuid.removeprefix("MLU-"): key for uuid, key in keys.items()}
    pods: dict[tuple[str, int | None], str] = {
        (plain_keys.get(item.card_uuid.removeprefix("MLU-"), ""), item.instance): item.owner
        for item in items
        if item.instance is not None
    }
    return tuple(
        replace(
            device,
            partitions=tuple(
                replace(part, owner=pods.get((device.key, part.instance), ""))
                for part in device.partitions
            ),
        )
        for device in devices
    )
