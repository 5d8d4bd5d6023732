"""DCMI calls for one chip. Skips unsupported calls, records errors and implausible values."""

from __future__ import annotations

import ctypes

from agent.errors import AgentError, CallSuspended, NotSupported
from plugins.vendors.ascend.library import codes
from plugins.vendors.ascend.library.codes import BadDriverAnswer
from plugins.vendors.ascend.library.dcmi import Dcmi
from plugins.vendors.ascend.library.layout import structure

MAX_ID = 255  # logic and physical ids


class Chip:
    """A chip by its card and its number in the card. Each call returns a value, or `None`.

    An unsupported call is not repeated. Errors are stored in `faults` by code, and values outside
    their bounds in `implausible`, until `begin_round`.
    """

    def __init__(self, dcmi: Dcmi, card: int, number: int) -> None:
        self.dcmi = dcmi
        self.card = card
        self.number = number
        self.faults: dict[int, str] = {}  # code: the call that returned it
        self.implausible: dict[str, int] = {}  # call or member: the value outside its bounds
        self._unsupported: set[tuple[str, object]] = set()

    def begin_round(self) -> None:
        """Start a round of calls: clear the errors of the last one."""
        self.faults.clear()
        self.implausible.clear()

    def try_call(
        self, symbol: str, variant: object = None, *args: object, lasting: bool = True
    ) -> bool:
        """Call `symbol(card, number, ...)`; return whether it succeeded.

        `variant` distinguishes calls of one symbol, each of which may be unsupported. `lasting`
        is false if "not supported" may concern one argument only: the call is then repeated.
        """
        if (symbol, variant) in self._unsupported:
            return False
        try:
            self.dcmi.call(symbol, *self._address(symbol), *args)
        except CallSuspended:
            return False  # for a limited time: the call is repeated
        except NotSupported:
            if lasting:
                self._unsupported.add((symbol, variant))
        except AgentError as error:
            self.faults[codes.code_of(error)] = symbol
        else:
            return True
        return False

    def _address(self, symbol: str) -> tuple[int, ...]:
        by_card = symbol in ("dcmi_get_card_elabel_v2", "dcmi_mcu_get_power_info")
        return (self.card,) if by_card else (self.card, self.number)

    def integer(
        self, symbol: str, *arguments: int, low: int, high: int, signed: bool = False
    ) -> int | None:
        """Return an integer from `low` to `high`; another value is recorded as implausible."""
        value = ctypes.c_int32() if signed else ctypes.c_uint32()
        if not self.try_call(symbol, arguments, *arguments, ctypes.byref(value)):
            return None
        return self.check_bounds(symbol, int(value.value), low, high)

    def check_bounds(self, source: str, value: int, low: int, high: int) -> int | None:
        """Return the value if it is within bounds; otherwise record it and return `None`."""
        if low <= value <= high:
            return value
        self.implausible[source] = value
        return None

    def read_structure(self, symbol: str, name: str, *arguments: int) -> ctypes.Structure | None:
        """Return the structure that the call fills; `None` if it fails."""
        record = structure(name)()
        result = self.try_call(symbol, arguments, *arguments, ctypes.byref(record))
        return record if result else None

    def fill_info(
        self, main: int, sub: int, record: ctypes.Structure, *, lasting: bool = True
    ) -> bool:
        """Fill a structure with `dcmi_get_device_info`; it may contain an id as an argument."""
        size = ctypes.c_uint32(ctypes.sizeof(record))
        command = (ctypes.c_int32(main), ctypes.c_uint32(sub))
        output = (ctypes.byref(record), ctypes.byref(size))
        variant = (main, sub)
        return self.try_call("dcmi_get_device_info", variant, *command, *output, lasting=lasting)

    def read_info(self, main: int, sub: int, name: str) -> ctypes.Structure | None:
        """Return the structure that a command of `dcmi_get_device_info` fills."""
        record = structure(name)()
        return record if self.fill_info(main, sub, record) else None


def logic_id(chip: Chip) -> int:
    """Return the chip's logic id, which is valid in this process; raises the call's errors."""
    value = ctypes.c_int32(-1)
    symbol = "dcmi_get_device_logic_id"
    chip.dcmi.call(symbol, ctypes.byref(value), chip.card, chip.number)
    return _id(symbol, int(value.value))


def physical_id(chip: Chip, logic: int) -> int:
    """Return the number of the chip's `/dev/davinci<N>`; raises the call's errors."""
    value = ctypes.c_uint32(codes.SUCCESS)
    symbol = "dcmi_get_device_phyid_from_logicid"
    chip.dcmi.call(symbol, ctypes.c_uint32(logic), ctypes.byref(value))
    return _id(symbol, int(value.value))


def _id(symbol: str, value: int) -> int:
    if not 0 <= value <= MAX_ID:
        raise BadDriverAnswer(symbol, f"id {value}")
    return value
