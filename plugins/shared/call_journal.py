"""The interface by which a binding reports each library call before and after it."""

from __future__ import annotations

from typing import Protocol


class LibraryCallJournal(Protocol):
    """Where the call in progress is noted; the worker provides it."""

    def enter(self, symbol: str, device: str) -> None:
        """Note that a call begins; raise `CallSuspended` if it hung before and is left out.

        `device` is the key of the device that it is about, or a name that the library has for it
        (see `assign`); empty if it is about no single one.
        """
        ...

    def leave(self) -> None:
        """Note that the call of this thread has returned."""
        ...

    def assign(self, name: str, device: str) -> None:
        """Note that calls about `name` are about the device with this key."""
        ...


class _NoJournal:
    def enter(self, symbol: str, device: str) -> None:
        """Note nothing."""

    def leave(self) -> None:
        """Note nothing."""

    def assign(self, name: str, device: str) -> None:
        """Note nothing."""


NO_JOURNAL = _NoJournal()
