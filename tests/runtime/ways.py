"""How the runtime behaves towards plug-ins: in order, until a test says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from tests.runtime.gobuf import BUFFER, HEADER

Way = Literal["answer", "hang", "refuse", "drop"]
Cut = Callable[[bytes], Iterator[bytes]]


def as_go(message: bytes) -> Iterator[bytes]:
    """Cut as Go's buffered writer does: 4,096 bytes, then all the rest."""
    yield message[:BUFFER]
    if len(message) > BUFFER:
        yield message[BUFFER:]


def whole(message: bytes) -> Iterator[bytes]:
    """One frame for one message."""
    yield message


def header_first(message: bytes) -> Iterator[bytes]:
    """The ten bytes of the header in a frame of their own."""
    yield message[:HEADER]
    if len(message) > HEADER:
        yield message[HEADER:]


def by_bytes(message: bytes) -> Iterator[bytes]:
    """One byte a frame."""
    for at in range(len(message)):
        yield message[at : at + 1]


@dataclass(slots=True, kw_only=True)
class Ways:
    """What the runtime does; a test changes it at any time.

    A way `hang` says nothing for ever, `refuse` answers (or takes the answer) with an error and
    closes, `drop` closes at once.
    """

    registration: Way = "answer"  # to RegisterPlugin
    configure: Way = "answer"
    synchronize: Way = "answer"
    configure_first: bool = False
    pieces: Cut = as_go
    dribble: int = 0
    part_objects: int = 0
    extra: bytes = b""
