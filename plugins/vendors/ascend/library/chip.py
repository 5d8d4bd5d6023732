"""Calls about one chip: unsupported calls are remembered, errors are noted."""

from __future__ import annotations

import ctypes

from agent.errors import AgentError, CallSuspended, NotSupported
from plugins.vendors.ascend.library import codes
from plugins.vendors.ascend.library.codes import BadDriverAnswer
from plugins.vendors.ascend.library.dcmi import Dcmi
from plugins.vendors.ascend.library.layout import structure

MAX_ID = 255  # logic and physical ids


class Chip:
    """A chip by its card and its number in the card. An answer is a value, or `None`.

    What is not supported is not asked for again. Faults are kept in `faults` by code, and answers
    outside of what can be in `refused`, until `begin`.
    """

    def __init__(self, dcmi: Dcmi, card: int, number: int) -> None:
        self.dcmi = dcmi
        self.card = card
        self.number = number
        self.faults: dict[int, str] = {}  # code: what was asked
        self.refused: dict[str, int] = {}  # what was asked: the answer that cannot be
        self._never: set[tuple[str, object]] = set()

    def begin_round(self) -> None:
        """Start a round: what went wrong before is the past."""
        self.faults.clear()
        self.refused.clear()

    def try_call(self, symbol: str, of: object = None, *args: object, lasting: bool = True) -> bool:
        """Call `symbol(card, number, ...)`; say whether it answered. `of` tells its kinds apart.

        Where "not supported" may be about one argument, `lasting` is false: it is asked again.
        """
        if (symbol, of) in self._never:
            return False
        try:
            self.dcmi.call(symbol, *self._address(symbol), *args)
        except CallSuspended:
            return False  # for a while only: it is asked again
        except NotSupported:
            if lasting:
                self._never.add((symbol, of))
        except AgentError as error:
            self.faults[codes.code_of(error)] = symbol
        else:
            return True
        return False

    def _address(self, symbol: str) -> tuple[int, ...]:
        by_card = symbol in ("dcmi_get_card_elabel_v2", "dcmi_mcu_get_power_info")
        return (self.card,) if by_card else (self.card, self.number)

    def integer(
        self, symbol: str, *before: int, low: int, high: int, signed: bool = False
    ) -> int | None:
        """Return a whole number from `low` to `high`; another one is refused and noted."""
        value = ctypes.c_int32() if signed else ctypes.c_uint32()
        if not self.try_call(symbol, before, *before, ctypes.byref(value)):
            return None
        return self.within(symbol, int(value.value), low, high)

    def within(self, what: str, value: int, low: int, high: int) -> int | None:
        """Return the value if it can be true."""
        if low <= value <= high:
            return value
        self.refused[what] = value
        return None

    def read_structure(self, symbol: str, name: str, *before: int) -> ctypes.Structure | None:
        """Return a structure that the call fills."""
        record = structure(name)()
        result = self.try_call(symbol, before, *before, ctypes.byref(record))
        return record if result else None

    def fill_info(
        self, main: int, sub: int, record: ctypes.Structure, *, lasting: bool = True
    ) -> bool:
        """Have `dcmi_get_device_info` fill a structure, in which the caller may have put an id."""
        size = ctypes.c_uint32(ctypes.sizeof(record))
        command = (ctypes.c_int32(main), ctypes.c_uint32(sub))
        room = (ctypes.byref(record), ctypes.byref(size))
        of = (main, sub)
        return self.try_call("dcmi_get_device_info", of, *command, *room, lasting=lasting)

    def read_info(self, main: int, sub: int, name: str) -> ctypes.Structure | None:
        """Return what a command of `dcmi_get_device_info` fills."""
        record = structure(name)()
        return record if self.fill_info(main, sub, record) else None


def logic_id(chip: Chip) -> int:
    """Return the chip's place in this process's view; raise what the call raises."""
    value = ctypes.c_int32(-1)
    symbol = "dcmi_get_device_logic_id"
    chip.dcmi.call(symbol, ctypes.byref(value), chip.card, chip.number)
    return _id(symbol, int(value.value))


def physical_id(chip: Chip, logic: int) -> int:
    """Return the number of the chip's `/dev/davinci<N>`; raise what the call raises."""
    value = ctypes.c_uint32(codes.SUCCESS)
    symbol = "dcmi_get_device_phyid_from_logicid"
    chip.dcmi.call(symbol, ctypes.c_uint32(logic), ctypes.byref(value))
    return _id(symbol, int(value.value))


def _id(symbol: str, value: int) -> int:
    if not 0 <= value <= MAX_ID:
        raise BadDriverAnswer(symbol, f"id {value}")
    return value
