"""NVML calls for one card. Skips unsupported calls, records errors and implausible values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from agent.clock import SYSTEM_CLOCK, Clock
from agent.errors import CallSuspended, DeviceGone, NotSupported
from agent.snapshot.inventory import Bounds, Rejection
from plugins.vendors.nvidia.library import bounds as library_bounds
from plugins.vendors.nvidia.library import codes
from plugins.vendors.nvidia.library.codes import GarbledAnswer, NvmlFault
from plugins.vendors.nvidia.library.nvml import MemorySizes, Nvml
from plugins.vendors.nvidia.library.structures import read_fields

SLOW_CALL_S = 1.0
MAX_REJECTIONS = 64  # between two samples
SLOW_CYCLE_S = 10.0
Number = TypeVar("Number", int, float)


class CardUnavailable(Exception):
    """The card returned a code after which no further call is useful; see `NvmlCard.faults`."""


class NvmlCard:
    """A card's NVML handle. Each call returns a value, or `None` if the card has none.

    A call that returned "not supported" is skipped until `reset`. A code that makes the card
    unusable raises `CardUnavailable`; other codes stay in `faults` until `begin_cycle`. A value
    outside its bounds counts as no value: it is counted in `implausible`, and the first one of
    each call is put into `unreported`.
    """

    def __init__(
        self, nvml: Nvml, bus_id: str, handle: object, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.nvml = nvml
        self.bus_id = bus_id
        self.handle = handle
        self.faults: dict[int, str] = {}  # code: the call that returned it
        self.is_garbled = False
        self.is_call_denied = False  # NVML refused a call; normal for an agent without rights
        self.is_call_suspended = False  # a call that hung earlier is skipped
        self.is_last_answer_empty = False  # the last call succeeded with an empty result
        self.unknown_cycles = 0  # consecutive cycles with code 999
        self.slow_until_s = 0.0  # monotonic; a slow card is polled less often
        self.is_late = False  # in this cycle
        self.implausible: Counter[str] = Counter()  # count by call or field
        self.unreported: list[tuple[str, float]] = []  # the first such value of each
        self.memory_bytes: int | None = None  # the last total that NVML reported
        self.newest_stamps_us: dict[str, int] = {}  # newest time stamp of a ring, microseconds
        self._clock = clock
        self._skipped_calls: set[tuple[object, ...]] = set()
        self._unsupported_calls: set[tuple[object, ...]] = set()
        self._rejections: list[Rejection] = []

    def begin_cycle(self) -> None:
        """Start a cycle: clear the faults of the last one."""
        self.unknown_cycles = self.unknown_cycles + 1 if codes.UNKNOWN in self.faults else 0
        self.faults = {}
        self.is_garbled = False
        self.is_late = False

    def reset(self) -> None:
        """Enable skipped calls again, for example after a change of the card or its driver."""
        self._skipped_calls.clear()
        self._unsupported_calls.clear()
        self.is_call_denied = self.is_call_suspended = False

    def is_unsupported(self, name: str) -> bool:
        """Return whether the driver answered a call since `reset` with "not supported"."""
        return (name,) in self._unsupported_calls

    def is_slow(self, now_s: float) -> bool:
        """Return whether the card is skipped in this cycle because it was slow."""
        return now_s < self.slow_until_s

    def call(self, name: str, *args: object) -> object | None:
        """Call a function of the binding with this card's handle."""
        return self.attempt((name, *args), lambda: self.nvml.call(name, self.handle, *args))

    def attempt(self, key: tuple[object, ...], call: Callable[[], object]) -> object | None:
        """Run the call `key` under the rules of this class; an unknown error is retried once."""
        self.is_last_answer_empty = False
        if key in self._skipped_calls:
            return None
        started_s = self._clock.monotonic()
        try:
            try:
                return call()
            except NvmlFault as error:
                if error.code != codes.UNKNOWN:
                    raise
                return call()
        except CallSuspended:
            self.is_call_suspended = True  # for a limited time, which the call journal decides
        except NotSupported:
            self._skipped_calls.add(key)
            self._unsupported_calls.add(key)
        except GarbledAnswer:
            self.is_garbled = True
        except (NvmlFault, DeviceGone) as error:
            self._note(key, codes.code_of(error))
        finally:
            ended_s = self._clock.monotonic()
            if ended_s - started_s > SLOW_CALL_S:
                self.slow_until_s, self.is_late = ended_s + SLOW_CYCLE_S, True
        return None

    def _note(self, key: tuple[object, ...], code: int) -> None:
        if code in codes.HARMLESS:
            self.is_last_answer_empty = True
            return
        if code == codes.NO_PERMISSION:
            self.is_call_denied = True
            self._skipped_calls.add(key)
            return
        self.faults.setdefault(code, " ".join(map(str, key)))
        if code == codes.GPU_IS_LOST or code in codes.CARD_UNAVAILABLE:
            raise CardUnavailable(f"{self.bus_id}: {codes.reason_of(code)}")

    def text(self, name: str) -> str | None:
        """Read a text; `None` if it is blank."""
        answer = self.call(name)
        return answer.strip() or None if isinstance(answer, str) else None

    def number(self, name: str, *args: object) -> int | None:
        """Read an integer."""
        answer = self.call(name, *args)
        return answer if isinstance(answer, int) else None

    def check_bounds(self, source: str, value: Number | None, bounds: Bounds) -> Number | None:
        """Return the value if it is within bounds; otherwise count it and return `None`."""
        low, high = bounds
        if value is None or low <= value <= high:
            return value
        if not self.implausible[source]:
            self.unreported.append((source, value))
        self.implausible[source] += 1
        if len(self._rejections) < MAX_REJECTIONS:
            self._rejections.append(Rejection(family=source, value=str(value)))
        return None

    def take_rejections(self) -> tuple[Rejection, ...]:
        """Return the implausible values since the last call."""
        rejections, self._rejections = tuple(self._rejections), []
        return rejections

    def measure(self, name: str, bounds: Bounds, *args: object) -> int | None:
        """Read an integer and check its bounds."""
        return self.check_bounds(name, self.number(name, *args), bounds)

    def numbers(self, name: str, *args: object) -> tuple[int, ...] | None:
        """Read several integers with one call."""
        answer = self.call(name, *args)
        return tuple(int(n) for n in answer) if isinstance(answer, list | tuple) else None

    def flags(self, name: str) -> tuple[int, ...] | None:
        """Read several flags; `None` if one of them is neither 0 nor 1."""
        values = self.numbers(name)
        if values is None:
            return None
        plausible = all(
            self.check_bounds(name, value, library_bounds.FLAG) is not None for value in values
        )
        return values if plausible else None

    def memory(self) -> MemorySizes | None:
        """Return the card's memory; the total is 0 if the card has no memory of its own.

        With drivers before 510, `used` contains the memory that the driver reserves.
        """
        sizes = self._memory()
        if sizes is None or sizes.total == 0:
            return sizes
        total = self.check_bounds("memory total", sizes.total, library_bounds.MEMORY_BYTES)
        if total is None:
            return None
        self.memory_bytes = total
        bounds = (0, total)
        return MemorySizes(
            total,
            self.check_bounds("memory used", sizes.used, bounds),
            self.check_bounds("memory free", sizes.free, bounds),
            self.check_bounds("memory reserved", sizes.reserved, bounds),
        )

    def _memory(self) -> MemorySizes | None:
        for version2 in (True, False):
            sizes = self.attempt(
                ("memory", version2),
                lambda v=version2: self.nvml.memory(self.handle, version2=v),  # type: ignore[misc]
            )
            if isinstance(sizes, MemorySizes):
                return sizes
        return None

    def fields(self, fields: Iterable[tuple[int, int]]) -> dict[tuple[int, int], float]:
        """Read fields by (id, scope) with one call.

        Fields without a value, and values outside `bounds.FIELDS`, are left out.
        """
        keys = tuple(i for i in fields if ("field", i) not in self._skipped_calls)
        if not keys:
            return {}
        answers = self.attempt(("fields",), lambda: read_fields(self.nvml, self.handle, keys))
        if not isinstance(answers, list):
            return {}
        values: dict[tuple[int, int], float] = {}
        for key, (value, code) in zip(keys, answers, strict=True):
            if value is None:
                self._field_fault(key, code)
                continue
            plausible = self.check_bounds(
                f"field {key[0]}", value, library_bounds.FIELDS.get(key[0], library_bounds.COUNTER)
            )
            if plausible is not None:
                values[key] = plausible
        return values

    def _field_fault(self, key: tuple[int, int], code: int) -> None:
        error = codes.error_of("nvmlDeviceGetFieldValues", code)
        if isinstance(error, NotSupported) or code == codes.INVALID_ARGUMENT:
            self._skipped_calls.add(("field", key))  # older drivers do not have this field
        else:
            self._note(("field", key), code)
