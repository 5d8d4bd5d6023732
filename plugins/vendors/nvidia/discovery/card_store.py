"""Stores known cards over restarts, in `nvidia-devices.json`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec.structs import replace

from agent.errors import ParseError
from agent.snapshot.inventory import Problem
from agent.snapshot.pci import parse_address
from plugins.shared.state_file import JsonStateFile

FILE_NAME = "nvidia-devices.json"
VERSION = 1
MAX_CARDS = 256
MAX_MINOR = 1 << 20
REFRESH_S = 600.0  # at most this often, the file is written for newer time stamps only

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
_Minor = Annotated[int, msgspec.Meta(ge=0, le=MAX_MINOR)]


class StoredCard(msgspec.Struct, frozen=True, kw_only=True):
    """The last known place of a card; `minor` is its published number."""

    bdf: _Text
    minor: _Minor | None = None
    last_seen_s: float  # wall time
    memory_bytes: int | None = None  # the card's own memory
    whole: bool = False  # the card could be allocated as a whole


class _CardStoreFile(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    boot_id: str = ""
    cards: dict[_Text, StoredCard] = {}  # by uuid; msgspec copies the default


class CardStore:
    """Cards by UUID. If the file cannot be used, `problem` says why and the store is empty."""

    def __init__(self, folder: str, boot_id: str) -> None:
        self._file = JsonStateFile(folder, FILE_NAME, _CardStoreFile)
        self._boot_id = boot_id
        document = self._file.load()
        is_usable = document is not None and document.version == VERSION
        self.cards: dict[str, StoredCard] = (
            _valid_cards(document.cards) if document and is_usable else {}
        )
        self._saved = dict(self.cards)
        self._must_write = not document or document.boot_id != boot_id
        # after another boot the cards may be different ones
        self.is_same_boot = document is not None and bool(boot_id) and document.boot_id == boot_id

    @property
    def problem(self) -> Problem | None:
        """The problem of the file, if there is one."""
        return self._file.problem

    def card_at(self, bus_id: str | None) -> tuple[str, StoredCard] | None:
        """Return UUID and record of the last card at an address."""
        candidates = [(uuid, card) for uuid, card in self.cards.items() if card.bdf == bus_id]
        return max(candidates, key=lambda item: item[1].last_seen_s, default=None)

    def record(
        self,
        uuid: str,
        bus_id: str,
        minor: int | None,
        wall_s: float,
        size: tuple[int, bool] | None = None,
    ) -> int | None:
        """Record a card; return its published minor if that differs from `minor`.

        The published minor stays until `renumber`, because pods may use the card under it. `size`
        is the memory in bytes and whether the card can be allocated whole; `None`: unchanged.
        """
        before = self.cards.get(uuid)
        published = before.minor if before is not None and before.minor is not None else minor
        for other, record in list(self.cards.items()):
            if record.bdf == bus_id and other != uuid:
                del self.cards[other]  # it was replaced by this card
        if size is None and before is not None and before.memory_bytes:
            size = before.memory_bytes, before.whole
        memory_bytes, whole = size or (None, False)
        self.cards[uuid] = StoredCard(
            bdf=bus_id, minor=published, last_seen_s=wall_s, memory_bytes=memory_bytes, whole=whole
        )
        return published if minor is not None and published != minor else None

    def renumber(self, uuid: str) -> bool:
        """Remove a card's published minor, so that the next discovery sets the new one."""
        before = self.cards.get(uuid)
        if before is None or before.minor is None:
            return False
        self.cards[uuid] = replace(before, minor=None)
        return True

    def prune(self, before_s: float) -> None:
        """Remove cards last seen before `before_s`, and the oldest beyond `MAX_CARDS`."""
        newest = sorted(self.cards.items(), key=lambda item: item[1].last_seen_s)[-MAX_CARDS:]
        self.cards = {uuid: card for uuid, card in newest if card.last_seen_s >= before_s}

    def save(self) -> None:
        """Write the file if a card was added, removed or moved, or if its times are old."""
        if not self._must_write and not _is_different(self._saved, self.cards):
            return
        cards = dict(sorted(self.cards.items()))
        written = self._file.save(
            _CardStoreFile(version=VERSION, boot_id=self._boot_id, cards=cards)
        )
        if written or self._file.problem is None:  # otherwise the next call tries again
            self._saved, self._must_write = cards, False


def _valid_cards(cards: dict[str, StoredCard]) -> dict[str, StoredCard]:
    valid: dict[str, StoredCard] = {}
    for uuid, card in list(cards.items())[:MAX_CARDS]:
        try:
            valid[uuid] = replace(card, bdf=parse_address(card.bdf))
        except ParseError:
            continue  # a record without a valid address is useless
    return valid


def _is_different(old: dict[str, StoredCard], new: dict[str, StoredCard]) -> bool:
    if old.keys() != new.keys():
        return True
    return any(
        replace(old[uuid], last_seen_s=card.last_seen_s) != card
        or card.last_seen_s - old[uuid].last_seen_s > REFRESH_S
        for uuid, card in new.items()
    )
