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
REFRESH_S = 600.0  # a time stamp alone is written that seldom

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
_Minor = Annotated[int, msgspec.Meta(ge=0, le=MAX_MINOR)]


class StoredCard(msgspec.Struct, frozen=True, kw_only=True):
    """Where a card was; `minor` is the number under which it is published."""

    bdf: _Text
    minor: _Minor | None = None
    last_seen_s: float  # wall time
    memory_bytes: int | None = None  # of its own
    whole: bool = False  # it could be granted as one


class _CardStoreFile(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    boot_id: str = ""
    cards: dict[_Text, StoredCard] = {}  # by uuid; msgspec copies the default


class CardStore:
    """Cards by uuid. A file that cannot be used stops nothing; `problem` tells of it."""

    def __init__(self, folder: object, boot_id: str) -> None:
        self._file = JsonStateFile(folder, FILE_NAME, _CardStoreFile)
        self._boot_id = boot_id
        document = self._file.load()
        usable = document is not None and document.version == VERSION
        self.cards: dict[str, StoredCard] = (
            _valid_cards(document.cards) if document and usable else {}
        )
        self._saved = dict(self.cards)
        self._moved = not document or document.boot_id != boot_id
        # of another boot nobody knows whether the cards are the same
        self.same_boot = document is not None and bool(boot_id) and document.boot_id == boot_id

    @property
    def problem(self) -> Problem | None:
        """Say what is wrong with the file, if anything is."""
        return self._file.problem

    def card_at(self, bus_id: str | None) -> tuple[str, StoredCard] | None:
        """Return the card that was last seen at an address."""
        here = [(uuid, card) for uuid, card in self.cards.items() if card.bdf == bus_id]
        return max(here, key=lambda item: item[1].last_seen_s, default=None)

    def record(
        self,
        uuid: str,
        bus_id: str,
        minor: int | None,
        wall_s: float,
        size: tuple[int, bool] | None = None,
    ) -> int | None:
        """Note a card; return the minor that it was published under before, if that was another.

        The old number stays until `renumber`: pods may hold the card under it. `size` is its
        memory in bytes and whether it can be granted whole; `None`: as before.
        """
        before = self.cards.get(uuid)
        kept = before.minor if before is not None and before.minor is not None else minor
        for other, record in list(self.cards.items()):
            if record.bdf == bus_id and other != uuid:
                del self.cards[other]  # another card is in its place
        if size is None and before is not None and before.memory_bytes:
            size = before.memory_bytes, before.whole
        memory_bytes, whole = size or (None, False)
        self.cards[uuid] = StoredCard(
            bdf=bus_id, minor=kept, last_seen_s=wall_s, memory_bytes=memory_bytes, whole=whole
        )
        return kept if minor is not None and kept != minor else None

    def renumber(self, uuid: str) -> bool:
        """Forget the number of a card, so that its next sighting gives it the new one."""
        before = self.cards.get(uuid)
        if before is None or before.minor is None:
            return False
        self.cards[uuid] = replace(before, minor=None)
        return True

    def forget(self, before_s: float) -> None:
        """Drop what was last seen before a moment, and what is too much."""
        newest = sorted(self.cards.items(), key=lambda item: item[1].last_seen_s)[-MAX_CARDS:]
        self.cards = {uuid: card for uuid, card in newest if card.last_seen_s >= before_s}

    def save(self) -> None:
        """Write the file if a card came, went or moved, or if its times have grown old."""
        if not self._moved and not _differ(self._saved, self.cards):
            return
        cards = dict(sorted(self.cards.items()))
        written = self._file.save(
            _CardStoreFile(version=VERSION, boot_id=self._boot_id, cards=cards)
        )
        if written or self._file.problem is None:  # else it is tried again the next time
            self._saved, self._moved = cards, False


def _valid_cards(cards: dict[str, StoredCard]) -> dict[str, StoredCard]:
    found: dict[str, StoredCard] = {}
    for uuid, card in list(cards.items())[:MAX_CARDS]:
        try:
            found[uuid] = replace(card, bdf=parse_address(card.bdf))
        except ParseError:
            continue  # a card without a place is no help
    return found


def _differ(old: dict[str, StoredCard], new: dict[str, StoredCard]) -> bool:
    if old.keys() != new.keys():
        return True
    return any(
        replace(old[uuid], last_seen_s=card.last_seen_s) != card
        or card.last_seen_s - old[uuid].last_seen_s > REFRESH_S
        for uuid, card in new.items()
    )
