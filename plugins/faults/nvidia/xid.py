"""Xid numbers by what they mean for the card, and what settings make of that. Pure.

Sources: NVIDIA's catalogue for numbers to 172, the driver's header for those to 176.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from agent.errors import BadConfig
from plugins.faults.nvidia.xid_words import ACTIONS, MEANINGS, REBOOT, RESET, SUPPORT

MAX_XID = 1_000_000  # of settings; a larger number is a mistake


class XidClass(enum.Enum):
    """What becomes of a card after an Xid."""

    APPLICATION = "A"  # the program failed, the card is fine
    WARNING = "W"
    RESET = "R"
    REBOOT = "B"
    NVLINK = "N"  # a warning, unless it is fatal or comes again
    INQUIRE = "I"  # the driver's recovery action decides
    FAULT = "F"  # unknown, or for the vendor's support


_LISTS: tuple[tuple[XidClass, str], ...] = (
    (
        XidClass.APPLICATION,
        "8 11 13 25 31 32 39 40 41 43 45 60 68 69 70-72 75-77 80 82-86 88 89 94 96-105 109"
        " 126-135 139 141 174",
    ),
    (
        XidClass.WARNING,
        "14 16 19 37 38 44 56 63 66 67 78 81 92 93 106-108 112-118 121 137 152 153 157 159-165"
        " 168 170 176",
    ),
    (
        XidClass.RESET,
        "46 48 62 64 95 110 119 120 136 140 143 151 155 156 158 166 167 169 171 172 173 175",
    ),
    (XidClass.REBOOT, "79"),
    (XidClass.NVLINK, "74 144-150"),
    (XidClass.INQUIRE, "154"),
)
# a message of a controller or of power management says nothing of the card's state
EVENT_ONLY = frozenset({106, 107, 162, 163})
UPSTREAM_IGNORED = frozenset({13, 31, 43, 45, 68, 109})  # as koordlet and NVIDIA's device plug-in
NVLINK_AGAIN_S = 600.0  # a second one of a number within that time is as bad as a fatal one

FAILING = frozenset({XidClass.RESET, XidClass.REBOOT, XidClass.FAULT})
_CLASS_ACTIONS = {
    XidClass.RESET: RESET,
    XidClass.REBOOT: REBOOT,
    XidClass.FAULT: SUPPORT,
}


def _spread(text: str) -> Iterable[int]:
    for word in text.split():
        first, _, last = word.partition("-")
        yield from range(int(first), int(last or first) + 1)


CLASSES: Mapping[int, XidClass] = MappingProxyType(
    {number: kind for kind, text in _LISTS for number in _spread(text)}
)


class XidRules(msgspec.Struct, frozen=True, kw_only=True):
    """The catalogue as this node's settings have it."""

    ignore: frozenset[int] = frozenset()
    fatal: frozenset[int] = frozenset()
    off: bool = False  # no Xid changes any card's health
    upstream: bool = False  # every number that upstream does not ignore fails the card

    def class_of(self, number: int) -> XidClass:
        """Return what the number means here; unknown ones are faults."""
        known = CLASSES.get(number, XidClass.FAULT)
        if number in self.fatal:
            return known if known in FAILING else XidClass.FAULT
        if self.off or number in self.ignore:
            return XidClass.APPLICATION
        if self.upstream:
            ignored = number in UPSTREAM_IGNORED
            return XidClass.APPLICATION if ignored else self._upstream(known)
        return known

    @staticmethod
    def _upstream(known: XidClass) -> XidClass:
        return known if known in FAILING else XidClass.RESET


def rules(settings: Mapping[str, object], environment: Mapping[str, str]) -> XidRules:
    """Read `xids` and `upstream_compatible`; raises `BadConfig` that names the key.

    The two variables of NVIDIA's device plug-in are what `xids` is unless it says otherwise:
    DP_DISABLE_HEALTHCHECKS holds `all`, `xids` or numbers, DP_ENABLE_HEALTHCHECKS wins over it.
    """
    given = settings.get("xids")
    # a worker gets plain data, who checks the settings before that has them as declared
    plain = msgspec.structs.asdict(given) if isinstance(given, msgspec.Struct) else given
    table: Mapping[str, object] = plain if isinstance(plain, Mapping) else {}
    ignore = _numbers(table.get("ignore"), "discovery.nvidia.xids.ignore")
    fatal = _numbers(table.get("fatal"), "discovery.nvidia.xids.fatal")
    if both := sorted(ignore & fatal):
        raise BadConfig(f"discovery.nvidia.xids: {both[0]} is in both ignore and fatal")
    disabled = _words(environment.get("DP_DISABLE_HEALTHCHECKS", ""))
    enabled = _words(environment.get("DP_ENABLE_HEALTHCHECKS", ""))
    wanted = _known_numbers(enabled)
    return XidRules(
        ignore=ignore | (_known_numbers(disabled) - wanted - fatal),
        fatal=fatal | (wanted - ignore),
        off=bool({"all", "xids"} & disabled) and not {"all", "xids"} & enabled,
        upstream=settings.get("upstream_compatible") is True,
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(word.strip().lower() for word in text.split(",") if word.strip())


def _known_numbers(words: Iterable[str]) -> frozenset[int]:
    # the variable is another program's: what is no number there is not for us
    return frozenset(int(word) for word in words if word.isdecimal() and len(word) < 7)


def _numbers(value: object, key: str) -> frozenset[int]:
    if value is None:
        return frozenset()
    found = value if isinstance(value, list | tuple) else (value,)
    numbers = set()
    for item in found:
        text = str(item).strip()
        if not (text.isascii() and text.isdecimal()) or int(text) > MAX_XID:
            raise BadConfig(f"{key}: {text[:20]!r} is not the number of an Xid")
        numbers.add(int(text))
    return frozenset(numbers)


def remedy(number: int) -> str:
    """Return what a person does about an Xid; empty for one that asks for nothing."""
    action = ACTIONS.get(number)
    return action or _CLASS_ACTIONS.get(CLASSES.get(number, XidClass.FAULT), "")


def message(number: int) -> str:
    """Return koordlet's text for an Xid, what it means, and what to do."""
    told = f"Xid error detected on device, error code: {number}"
    meaning, action = MEANINGS.get(number), remedy(number)
    return told + (f" ({meaning})" if meaning else "") + (f"; {action}" if action else "")
