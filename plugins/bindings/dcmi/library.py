"""libdcmi, loaded and initialised: every call by its symbol, its code turned into our errors."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable

from agent.errors import AgentError
from plugins.bindings.dcmi import codes, symbols
from plugins.bindings.dcmi.locate import LibraryAbsent

SLOW_CALL_S = 1.0
VERSION_LENGTH = 33


class Dcmi:
    """The library of this process; there is no way to let go of it but to end the process.

    `missing` are the symbols that it lacks: what they would tell is absent, which is no error.
    `slow` is told of calls that took longer than a second, by symbol and duration.
    """

    def __init__(
        self,
        path: str,
        clock: Callable[[], float] = time.monotonic,
        slow: Callable[[str, float], None] | None = None,
    ) -> None:
        self.path = path
        self._clock = clock
        self._slow = slow
        try:
            self._dll = ctypes.CDLL(path, mode=os.RTLD_LAZY | os.RTLD_GLOBAL)
        except OSError as error:
            told = f"{path} cannot be loaded: {str(error)[:120]}"
            raise LibraryAbsent("LibraryMissing", told) from error
        self.missing = frozenset(
            name for name in (*symbols.MANDATORY, *symbols.OPTIONAL) if not self.has(name)
        )
        self._refuse_if_unfit()
        self._start()

    def has(self, symbol: str) -> bool:
        """Say whether the library exports a symbol."""
        return getattr(self._dll, symbol, None) is not None

    def _refuse_if_unfit(self) -> None:
        if self.has(symbols.SECOND_INIT) and "dcmi_init" in self.missing:
            return  # a generation of its own, which `_start` tells apart
        lacking = [name for name in symbols.MANDATORY if name in self.missing]
        if all(name in self.missing for name in symbols.CHIP_INFO):
            lacking.append(symbols.CHIP_INFO[0])
        if lacking:
            told = f"{self.path} lacks {lacking[0]}: install a newer driver"
            raise LibraryAbsent("LibraryUnfit", told)

    def _start(self) -> None:
        try:
            self.call("dcmi_init")
        except AgentError as error:
            if self.has(symbols.SECOND_INIT) and self._second_generation():
                told = "chips of the 950 generation: known from sysfs only"
                raise LibraryAbsent("UnsupportedGeneration", told) from error
            told = f"{error}; check that the driver is loaded and no container holds the chips"
            raise LibraryAbsent("DriverNotLoaded", told) from error

    def _second_generation(self) -> bool:
        try:
            self.call(symbols.SECOND_INIT)
        except AgentError:
            return False
        return True

    def call(self, symbol: str, *args: object) -> None:
        """Call a function; raise what `codes.error_of` makes of its answer.

        A symbol that the library lacks is `NotSupported`.
        """
        function = getattr(self._dll, symbol, None)
        if function is None:
            raise codes.error_of(symbol, codes.SYMBOL_MISSING)
        began_s = self._clock()
        code = int(function(*args))
        elapsed_s = self._clock() - began_s
        if elapsed_s > SLOW_CALL_S and self._slow is not None:
            self._slow(symbol, elapsed_s)
        if code != codes.SUCCESS:
            raise codes.error_of(symbol, code)

    def version(self) -> str | None:
        """Return the version of the driver's interface."""
        room = ctypes.create_string_buffer(VERSION_LENGTH)
        try:
            self.call("dcmi_get_dcmi_version", room, len(room))
        except AgentError:
            return None
        return room.value.decode("ascii", "ignore").strip() or None
