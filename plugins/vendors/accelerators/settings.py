"""Cards that settings describe, with facts that no file of the kernel has.

    discovery:
      accelerators:
        cards:
        - {match: "9999:4001", model: C500, memory_mib: 65536, node: "/dev/dri/card{n}"}
        - {match: "1d22:*", memory_mib: 32768, node: "/dev/xpu{n}", minor: dev-number}

Without `memory_mib` a card stays unmanaged: the scheduler divides by its memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from agent.errors import BadConfig
from agent.snapshot.settings import SettingRule, SettingTable, VendorSettings

MAX_CARDS = 64
MAX_MEMORY_MIB = 1 << 24  # 16 TiB
MAX_CORE = 10_000
PCI_ORDER, DEV_NUMBER = "pci-order", "dev-number"
_KEYS = ("match", "model", "memory_mib", "core", "minor", "node")
_MATCH = re.compile(r"([0-9a-f]{4}):([0-9a-f]{4}|\*)")
_FOLDER, _FILE = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*/", r"([A-Za-z0-9_-][A-Za-z0-9_.-]*)"
_NODE = re.compile(rf"/dev/(?:{_FOLDER}){{0,2}}{_FILE}\{{n\}}")
_MODEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


class CardRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. `minor`: the source of a card's number."""

    vendor_id: int
    device_id: int | None = None  # None: all of the maker's
    model: str | None = None
    memory_mib: int | None = None
    core: int = 100
    minor: str = PCI_ORDER
    node: str | None = None  # path with {n} for the number

    @property
    def node_stem(self) -> str | None:
        """Return the node's name without its number, as sysfs has it below the card's function."""
        match = _NODE.fullmatch(self.node or "")
        return match[1] if match else None


def rule_for(
    cards: tuple[CardRule, ...], vendor_id: int | None, device_id: int | None
) -> CardRule | None:
    """Return the first rule that matches."""
    for card in cards:
        if card.vendor_id == vendor_id and card.device_id in (None, device_id):
            return card
    return None


def _card(row: Mapping[str, object], key: str) -> CardRule:
    for name in row:
        if name not in _KEYS:
            raise BadConfig(f"{key}: unknown key {str(name)[:64]!r}, known: {', '.join(_KEYS)}")
    match = _MATCH.fullmatch(str(row.get("match", "")).lower())
    if match is None:
        raise BadConfig(f"{key}.match: must be vendor:device in hexadecimal, or vendor:*")
    minor = row.get("minor", PCI_ORDER)
    if minor not in (PCI_ORDER, DEV_NUMBER):
        raise BadConfig(f"{key}.minor: must be {PCI_ORDER} or {DEV_NUMBER}")
    node = _text(row, "node", _NODE, f"{key}.node: must be a path below /dev that ends in {{n}}")
    if minor == DEV_NUMBER and node is None:
        raise BadConfig(f"{key}.minor: {DEV_NUMBER} needs `node`")
    return CardRule(
        vendor_id=int(match[1], 16),
        device_id=None if match[2] == "*" else int(match[2], 16),
        model=_text(row, "model", _MODEL, f"{key}.model: must be a label value"),
        memory_mib=_number(row, "memory_mib", MAX_MEMORY_MIB, key),
        core=_number(row, "core", MAX_CORE, key) or 100,
        minor=str(minor),
        node=node,
    )


def _text(
    row: Mapping[str, object], name: str, pattern: re.Pattern[str], refusal: str
) -> str | None:
    value = row.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise BadConfig(refusal)
    return value


def _number(row: Mapping[str, object], name: str, highest: int, key: str) -> int | None:
    value = row.get(name)
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= highest:
        raise BadConfig(f"{key}.{name}: must be a whole number from 1 to {highest}")
    return value


class AcceleratorsSettings(VendorSettings, frozen=True, kw_only=True):
    """Cards of other makers, as the settings describe them."""

    cards: Annotated[
        SettingTable,
        SettingRule(
            "cards to publish: {match: vendor:device, model, memory_mib, core, node: /dev/x{n}, "
            "minor: pci-order or dev-number}"
        ),
    ] = ()

    def check(self, *, is_forced: bool = False) -> None:  # noqa: ARG002 - see VendorSettings
        """Raise `BadConfig` that names the key of an invalid card."""
        self.rules()

    def rules(self) -> tuple[CardRule, ...]:
        """Return the decoded rules of `cards`; raises as `check`."""
        key = "discovery.accelerators.cards"
        if len(self.cards) > MAX_CARDS:
            raise BadConfig(f"{key}: must be a list of at most {MAX_CARDS} tables")
        return tuple(_card(row, f"{key}[{index}]") for index, row in enumerate(self.cards))
