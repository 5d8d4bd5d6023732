"""The file that lists the agent's sMLU instances over restarts."""

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
    """The file cannot be read or written; names it. Nothing is destroyed then."""


class OwnedSmlu(msgspec.Struct, frozen=True, kw_only=True):
    """One instance that we made, or (`instance` `None`) are about to make.

    `card_uuid` tells it from one of a card that was exchanged.
    """

    card_uuid: str
    card: int
    profile: int
    owner: str  # uid of the pod
    instance: int | None = None
    before: tuple[int, ...] = ()  # instances of the card before ours
    boot: str = ""  # id of the boot: an instance does not outlive it


class SmluOwnershipFile:
    """The list in one folder; every change is on the disk before it counts.

    What another boot wrote is not ours: its numbers may be somebody else's instances by now.
    """

    def __init__(self, folder: str, boot: str) -> None:
        self._path = str(Path(folder) / FILE)
        self._writer = StateWriter(FILE)
        self._file = self._writer.file(self._path)
        self.boot = boot

    def read(self) -> tuple[OwnedSmlu, ...]:
        """Return what is ours; without a file nothing is."""
        stored = self._writer.load(self._path, MAX_BYTES, _decode, sets_aside=False)
        if stored.error is not None:
            reason = str(stored.error)[:100]
            raise OwnershipUnknown(f"{self._path}: {reason}") from stored.error
        return tuple(item for item in stored.value or () if self.boot and item.boot == self.boot)

    def record_intent(self, coming: OwnedSmlu) -> None:
        """Write down what is about to be made; one at a time of a card."""
        others = (item for item in self.read() if not _same(item, coming))
        self._write((*others, coming))

    def record_made(self, intended: OwnedSmlu, instance: int) -> OwnedSmlu:
        """Claim what was made; one of the same number that is listed is long gone."""
        made = replace(intended, instance=instance, before=())
        others = (i for i in self.read() if not _same(i, made) and not _same(i, intended))
        self._write((*others, made))
        return made

    def remove(self, gone: OwnedSmlu) -> None:
        """Give an instance up."""
        self._write(tuple(item for item in self.read() if not _same(item, gone)))

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


def _same(one: OwnedSmlu, other: OwnedSmlu) -> bool:
    return (one.card, one.instance) == (other.card, other.instance)


def with_owners(
    devices: Iterable[VendorDevice], keys: Mapping[str, str], owned: SmluOwnershipFile | None
) -> tuple[VendorDevice, ...]:
    """Return the devices, each of our slices with the pod it was made for.

    `keys` are those of the devices by their cards' UUIDs. A list that cannot be read names nobody.
    """
    try:
        items = owned.read() if owned is not None else ()
    except OwnershipUnknown:
        items = ()
    bare = {uuid.removeprefix("MLU-"): key for uuid, key in keys.items()}
    pods: dict[tuple[str, int | None], str] = {
        (bare.get(item.card_uuid.removeprefix("MLU-"), ""), item.instance): item.owner
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
