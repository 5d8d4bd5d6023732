"""The interface by which a binding reports each library call before and after it."""

from __future__ import annotations

from typing import Protocol


class LibraryCallJournal(Protocol):
    """Records the library call in progress; the worker provides it."""

    def enter(self, symbol: str, device: str) -> None:
        """Record the start of a call; raises `CallSuspended` for a call that hung before.

        `device` is the key of the call's device, or a name that the library has for it (see
        `assign`); empty if the call is about no single device.
        """
        ...

    def leave(self) -> None:
        """Record that the call of this thread has returned."""
        ...

    def assign(self, name: str, device: str) -> None:
        """Record that calls about `name` are about the device with this key."""
        ...


class _NoJournal:
    def enter(self, symbol: str, device: str) -> None:
        """Note nothing."""

    def leave(self) -> None:
        """Note nothing."""

    def assign(self, name: str, device: str) -> None:
        """Note nothing."""


NO_JOURNAL = _NoJournal()
