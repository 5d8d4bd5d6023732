"""libcndev's return codes, mapped to the agent's errors."""

from __future__ import annotations

from agent.errors import AgentError, NotSupported, VendorFault

OK = 0
NO_DRIVER = 1
BAD_VERSION = 3
BAD_HANDLE = 6
INSUFFICIENT_SPACE = 9
BAD_LINK = 11
NO_DEVICES = 12
NO_PERMISSION = 13
NOT_FOUND = 14
IN_USE = 15
TIMED_OUT = 17
DEVICE_IN_PROBLEM = 18
GARBLED = -1  # the agent's own code: success with an implausible answer
NOT_LOADED = frozenset({NO_DRIVER, NO_DEVICES})

_WORDS: dict[int, str] = {
    GARBLED: "an answer that cannot be",
    NO_DRIVER: "the driver is not loaded",
    2: "the driver is too old",
    BAD_VERSION: "the version of a structure is unknown",
    4: "not initialised",
    5: "bad argument",
    BAD_HANDLE: "bad handle",
    7: "unknown error",
    8: "out of memory",
    INSUFFICIENT_SPACE: "insufficient space",
    BAD_LINK: "bad link",
    NO_DEVICES: "no devices",
    NO_PERMISSION: "no permission",
    NOT_FOUND: "not found",
    IN_USE: "in use",
    16: "exists already",
    TIMED_OUT: "timed out",
    DEVICE_IN_PROBLEM: "the device is in problem",
}


class CndevFault(VendorFault):
    """libcndev answered with a code that is neither a value nor `not supported`."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: CNDev error {code} ({_WORDS.get(code, 'unknown code')})")
        self.code = code


def error_of(call: str, code: int) -> AgentError:
    """Return the typed error of a code; code 10 means that the call is not supported."""
    if code == 10:
        return NotSupported(f"{call}: CNDev error 10")
    return CndevFault(call, code)
