"""Calls about one card: unsupported calls are remembered, errors are noted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from agent.errors import CallSuspended, DeviceGone, NotSupported
from plugins.vendors.nvidia.library import bounds as library_bounds
from plugins.vendors.nvidia.library import codes
from plugins.vendors.nvidia.library.bounds import Range
from plugins.vendors.nvidia.library.codes import GarbledAnswer, NvmlFault
from plugins.vendors.nvidia.library.nvml import Nvml
from plugins.vendors.nvidia.library.structures import read_fields

SLOW_CALL_S = 1.0
SLOW_CYCLE_S = 10.0
Clock = Callable[[], float]
Number = TypeVar("Number", int, float)


class CardUnavailable(Exception):
    """The card answers with a code after which nothing more is asked; see `Card.faults`."""


class NvmlCard:
    """A handle with its answers. An answer is a value, or `None` if the card cannot tell.

    Codes that mean "not supported" are not asked for again until `forget`. Codes that end all
    answers raise `CardStopped`; the others are kept in `faults` until `begin`. A reading outside
    its bounds is no answer: it is counted in `implausible`, and noted once in `unreported`.
    """

    def __init__(
        self, nvml: Nvml, bus_id: str, handle: object, clock: Clock = time.monotonic
    ) -> None:
        self.nvml = nvml
        self.bus_id = bus_id
        self.handle = handle
        self.faults: dict[int, str] = {}  # code: what was asked
        self.garbled = False
        self.denied = False  # some call is not allowed to us; normal without rights
        self.suspended = False  # some call hung before and is left out
        self.nothing = False  # the last call had nothing to tell, which is an answer
        self.unknown_cycles = 0  # in a row with code 999
        self.slow_until_s = 0.0  # monotonic; a late card is asked less often
        self.late = False  # in this cycle
        self.implausible: Counter[str] = Counter()  # by the call or field that answered so
        self.unreported: list[tuple[str, float]] = []  # the first such answer of each
        self.memory_bytes: int | None = None  # as last told
        self.seen: dict[str, int] = {}  # newest time stamp of a ring, microseconds
        self._clock = clock
        self._mute: set[tuple[object, ...]] = set()

    def begin_cycle(self) -> None:
        """Start a cycle: what went wrong before is over unless it shows again."""
        self.unknown_cycles = self.unknown_cycles + 1 if codes.UNKNOWN in self.faults else 0
        self.faults = {}
        self.garbled = False
        self.late = False

    def forget(self) -> None:
        """Ask everything again, as after a change of the card or its driver."""
        self._mute.clear()
        self.denied = self.suspended = False

    def is_slow(self, now_s: float) -> bool:
        """Say whether the card is to be left alone in this cycle."""
        return now_s < self.slow_until_s

    def ask(self, name: str, *args: object) -> object | None:
        """Call a function of the binding on this card."""
        return self.attempt((name, *args), lambda: self.nvml.call(name, self.handle, *args))

    def attempt(self, what: tuple[object, ...], call: Callable[[], object]) -> object | None:
        """Run a call named `what`, with the rules of this class; unknown errors are tried twice."""
        self.nothing = False
        if what in self._mute:
            return None
        started_s = self._clock()
        try:
            try:
                return call()
            except NvmlFault as error:
                if error.code != codes.UNKNOWN:
                    raise
                return call()
        except CallSuspended:
            self.suspended = True  # for a while only: the journal says when it is over
        except NotSupported:
            self._mute.add(what)
        except GarbledAnswer:
            self.garbled = True
        except (NvmlFault, DeviceGone) as error:
            self._note(what, codes.code_of(error))
        finally:
            ended_s = self._clock()
            if ended_s - started_s > SLOW_CALL_S:
                self.slow_until_s, self.late = ended_s + SLOW_CYCLE_S, True
        return None

    def _note(self, what: tuple[object, ...], code: int) -> None:
        if code in codes.HARMLESS:
            self.nothing = True
            return
        if code == codes.NO_PERMISSION:
            self.denied = True
            self._mute.add(what)
            return
        self.faults.setdefault(code, " ".join(map(str, what)))
        if code == codes.GPU_IS_LOST or code in codes.CARD_UNAVAILABLE:
            raise CardUnavailable(f"{self.bus_id}: {codes.reason_of(code)}")

    def text(self, name: str) -> str | None:
        """Ask for a text; blank is no answer."""
        found = self.ask(name)
        return found.strip() or None if isinstance(found, str) else None

    def number(self, name: str, *args: object) -> int | None:
        """Ask for a number."""
        found = self.ask(name, *args)
        return found if isinstance(found, int) else None

    def within(self, what: str, value: Number | None, bounds: Range) -> Number | None:
        """Return the value if it can be true; else `None`, and it is counted."""
        low, high = bounds
        if value is None or low <= value <= high:
            return value
        if not self.implausible[what]:
            self.unreported.append((what, value))
        self.implausible[what] += 1
        return None

    def measure(self, name: str, bounds: Range, *args: object) -> int | None:
        """Ask for a number that has bounds."""
        return self.within(name, self.number(name, *args), bounds)

    def numbers(self, name: str, *args: object) -> tuple[int, ...] | None:
        """Ask for several numbers at once."""
        found = self.ask(name, *args)
        return tuple(int(n) for n in found) if isinstance(found, list | tuple) else None

    def flags(self, name: str) -> tuple[int, ...] | None:
        """Ask for several numbers that are 0 or 1 each."""
        values = self.numbers(name)
        if values is None:
            return None
        sound = all(self.within(name, value, library_bounds.FLAG) is not None for value in values)
        return values if sound else None

    def memory(self) -> tuple[int, int | None] | None:
        """Return (total, used) bytes, 0 if the card counts no memory of its own.

        `used` of drivers before 510 contains their reserve.
        """
        found = self._memory()
        if found is None or found[0] == 0:
            return found
        total = self.within("memory total", found[0], library_bounds.MEMORY_BYTES)
        if total is None:
            return None
        self.memory_bytes = total
        return total, self.within("memory used", found[1], (0, total))

    def _memory(self) -> tuple[int, int] | None:
        for version2 in (True, False):
            found = self.attempt(
                ("memory", version2),
                lambda v=version2: self.nvml.memory(self.handle, version2=v),  # type: ignore[misc]
            )
            if isinstance(found, tuple):
                return found
        return None

    def fields(self, ids: Iterable[tuple[int, int]]) -> dict[tuple[int, int], float]:
        """Ask fields by (id, scope) in one call; those that the card cannot tell are missing.

        So are values outside their bounds, see `bounds.FIELDS`.
        """
        wanted = tuple(i for i in ids if ("field", i) not in self._mute)
        if not wanted:
            return {}
        found = self.attempt(("fields",), lambda: read_fields(self.nvml, self.handle, wanted))
        if not isinstance(found, list):
            return {}
        values: dict[tuple[int, int], float] = {}
        for key, (value, code) in zip(wanted, found, strict=True):
            if value is None:
                self._field_fault(key, code)
                continue
            told = self.within(
                f"field {key[0]}", value, library_bounds.FIELDS.get(key[0], library_bounds.COUNTER)
            )
            if told is not None:
                values[key] = told
        return values

    def _field_fault(self, key: tuple[int, int], code: int) -> None:
        error = codes.error_of("nvmlDeviceGetFieldValues", code)
        if isinstance(error, NotSupported) or code == codes.INVALID_ARGUMENT:
            self._mute.add(("field", key))  # older drivers do not know the number
        else:
            self._note(("field", key), code)
