"""Settings of the health machine: thresholds for the states of a device, per vendor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from agent.config.decoder import decode_value, field_rules, spelling_hint
from agent.errors import BadConfig
from agent.snapshot.settings import HealthPolicy, SettingRule, SettingTable

VENDOR_KEY = "vendor"  # key of a row that names its vendor


class HealthSettings(HealthPolicy, frozen=True, kw_only=True):
    """Thresholds of the health machine, and the checks of suspect devices."""

    look_again_s: Annotated[
        float,
        SettingRule("a suspect device is checked again after that", unit="s", low=1, high=300),
    ] = 5.0
    stalled_unknown_s: Annotated[
        float,
        SettingRule(
            "a vendor that does not answer: its devices are unknown", unit="s", low=1, high=86400
        ),
    ] = 60.0
    stalled_failed_s: Annotated[
        float,
        SettingRule(
            "a vendor that does not answer: its devices have failed", unit="s", low=1, high=86400
        ),
    ] = 300.0
    vendors: Annotated[
        SettingTable,
        SettingRule(
            "of one vendor: {vendor, failed_looks ... flap_hold_s}; known makers have their own"
        ),
    ] = ()

    def __post_init__(self) -> None:
        """Raise `BadConfig` for invalid rows."""
        for index, row in enumerate(self.vendors):
            decode_policy_row(row, f"health.vendors[{index}]")


def decode_policy_row(row: Mapping[str, object], path: str) -> dict[str, object]:
    """Return the values of a row of `vendors`, with their types and ranges checked."""
    if not isinstance(row.get(VENDOR_KEY), str) or not row[VENDOR_KEY]:
        raise BadConfig(f"{path}.{VENDOR_KEY}: must name a vendor")
    rules = field_rules(HealthPolicy)
    values: dict[str, object] = {}
    for name, value in row.items():
        if name == VENDOR_KEY:
            continue
        if name not in rules:
            raise BadConfig(f"{path}.{name}: unknown key{spelling_hint(str(name), rules)}")
        kind, rule = rules[name]
        values[name] = decode_value(value, kind, f"{path}.{name}", rule)
    return values
