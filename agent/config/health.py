"""Settings of the health machine: what it takes to change a device's state, for each vendor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from agent.config.field import Rule, Table
from agent.errors import BadConfig

VENDOR = "vendor"  # the key of a row that says whose it is


class HealthPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to change a device's state."""

    failed_looks: Annotated[
        int, Rule("looks in a row that must fail before a device is out of service", low=1, high=10)
    ] = 1
    suspect_looks: Annotated[
        int, Rule("looks in a row that must find something before it is suspect", low=1, high=10)
    ] = 1
    clear_looks: Annotated[
        int, Rule("looks in a row that must find nothing before it is so no more", low=1, high=100)
    ] = 2
    clean_probes: Annotated[
        int,
        Rule("looks in a row without a fault before a failed one serves again", low=1, high=1000),
    ] = 3
    clean_s: Annotated[
        float,
        Rule("and time since its last fault; nvidia 60, ascend 15", unit="s", low=0, high=86400),
    ] = 0.0
    flap_changes: Annotated[
        int, Rule("turns for the worse and back in the window; then it is held", low=1, high=1000)
    ] = 3
    flap_window_s: Annotated[
        float, Rule("window in which turns are counted", unit="s", low=1, high=86400)
    ] = 3600.0
    flap_hold_s: Annotated[
        float, Rule("a flapping device is held after its last fault", unit="s", low=0, high=86400)
    ] = 3600.0


class HealthSettings(HealthPolicy, frozen=True, kw_only=True):
    """What it takes to change a device's state, and how the agent looks at devices in doubt."""

    look_again_s: Annotated[
        float,
        Rule("a device in doubt is looked at again after that", unit="s", low=1, high=300),
    ] = 5.0
    stalled_unknown_s: Annotated[
        float,
        Rule("a vendor that does not answer: its devices are unknown", unit="s", low=1, high=86400),
    ] = 60.0
    stalled_failed_s: Annotated[
        float,
        Rule("a vendor that does not answer: its devices have failed", unit="s", low=1, high=86400),
    ] = 300.0
    vendors: Annotated[
        Table,
        Rule("of one vendor: {vendor, failed_looks ... flap_hold_s}; known makers have their own"),
    ] = ()

    def __post_init__(self) -> None:
        """Raise `BadConfig` for rows that are none."""
        for index, row in enumerate(self.vendors):
            values_of(row, f"health.vendors[{index}]")


def values_of(row: Mapping[str, object], where: str) -> dict[str, object]:
    """Return the values of a row of `vendors`, each of its type and in its range."""
    from agent.config.decode import (  # noqa: PLC0415 - it knows all sections, this one too
        declared,
        decode_value,
        nearest,
    )

    if not isinstance(row.get(VENDOR), str) or not row[VENDOR]:
        raise BadConfig(f"{where}.{VENDOR}: must name a vendor")
    rules = declared(HealthPolicy)
    values: dict[str, object] = {}
    for name, value in row.items():
        if name == VENDOR:
            continue
        if name not in rules:
            raise BadConfig(f"{where}.{name}: unknown key{nearest(str(name), rules)}")
        kind, rule = rules[name]
        values[name] = decode_value(value, kind, f"{where}.{name}", rule)
    return values
