"""The words of the watch machine: where it stands, what it is told, what it answers."""

from __future__ import annotations

import enum

import msgspec


class Phase(enum.Enum):
    """Where following one kind of object stands."""

    LISTING = "listing"
    WATCHING = "watching"
    WAITING = "waiting"  # until the next try
    ABSENT = "absent"  # the server does not know this kind; tried again slowly
    FORBIDDEN = "forbidden"  # the role does not allow it; tried again slowly


class State(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides what comes next."""

    phase: Phase = Phase.WAITING
    version: str = ""  # to watch from; empty: list first
    token: str = ""  # of the page to go on with
    pages: int = 0  # of the list under way
    objects: int = 0
    bytes: int = 0
    floor: str = ""  # the version that a list must not be older than; empty: any will do
    recent: bool = False  # list what is most recent
    doubt_s: float | None = (
        None  # quiet time since a stream broke; None: none broke since a version
    )
    failures: int = 0  # in a row; 410 apart
    expiries: int = 0  # 410 and what looks older than what we have, in a row


class Due(msgspec.Struct, frozen=True):
    """A wait is over; also what begins it all."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list came whole."""

    version: str  # never empty
    token: str  # empty: the last page
    objects: int
    bytes: int


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a stream, other than ERROR; an empty version could not be read."""

    type: str
    version: str


class Why(enum.Enum):
    """What a failure asks for."""

    EXPIRED = "expired"  # 410, wherever it came: list anew
    ABSENT = "absent"  # 404
    FORBIDDEN = "forbidden"  # 403
    REFUSED = "refused"  # 400 and the like: it will not take this version, or has yet to reach it
    ANSWERED = "answered"  # 429, 5xx, nonsense: try the same again
    UNREACHABLE = "unreachable"  # no answer, or a stream that broke


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A call failed, or a stream broke after so many seconds."""

    why: Why
    retry_after_s: float | None = None
    lasted_s: float = 0.0


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The server closed the stream in order; `early`: before the time that it was asked for."""

    lasted_s: float
    early: bool = False


Input = Due | Page | Event | Failure | Ended


class List(msgspec.Struct, frozen=True):
    """Ask for a page, or for all at once: what is not older than a version has no pages.

    `0` is any version; `None` the most recent one, or that of the token.
    """

    version: str | None
    token: str


class Follow(msgspec.Struct, frozen=True):
    """Open a stream from a version."""

    version: str
    timeout_s: int


class Read(msgspec.Struct, frozen=True):
    """Go on with the open stream."""


class Wait(msgspec.Struct, frozen=True):
    """Let go of what is open, do nothing for so long, then say `Due`."""

    seconds: float


Command = List | Follow | Read | Wait


class Effect(enum.Enum):
    """What the input that was just told means for the view."""

    NONE = "none"
    STAGE = "stage"  # keep the page aside
    REPLACE = "replace"  # keep it aside, and make all pages aside the view
    DROP = "drop"  # forget the pages aside; the view stays
    PUT = "put"
    REMOVE = "remove"


class Step(msgspec.Struct, frozen=True):
    """The answer to one input."""

    state: State
    command: Command
    effect: Effect = Effect.NONE
