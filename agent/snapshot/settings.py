"""Settings that vendors declare: `VendorSettings`, `SettingRule`, and health thresholds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

import msgspec
from msgspec import UNSET, UnsetType

SettingTable = tuple[Mapping[str, object], ...]  # a list of small mappings, which their user checks


class SettingRule(msgspec.Struct, frozen=True):
    """The rule for a setting; `config reference` shows it, `decode` enforces it."""

    doc: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    maturity: str = ""  # alpha, beta, stable; for settings that switch an ability

    @property
    def range_text(self) -> str:
        """Return the allowed values, in a few words."""
        if self.choices:
            return " | ".join(self.choices)
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g}"
        return ""


class HealthPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds for changes of a device's state."""

    failed_looks: Annotated[
        int,
        SettingRule("failed checks in a row before a device is out of service", low=1, high=10),
    ] = 1
    suspect_looks: Annotated[
        int,
        SettingRule("odd checks in a row before a device is suspect", low=1, high=10),
    ] = 1
    clear_looks: Annotated[
        int,
        SettingRule("good checks in a row before a device is suspect no more", low=1, high=100),
    ] = 2
    clean_probes: Annotated[
        int,
        SettingRule(
            "good checks in a row before a failed device is in service again", low=1, high=1000
        ),
    ] = 3
    clean_s: Annotated[
        float,
        SettingRule("and time since its last fault", unit="s", low=0, high=86400),
    ] = 0.0
    flap_changes: Annotated[
        int,
        SettingRule(
            "turns for the worse and back in the window; then it is held", low=1, high=1000
        ),
    ] = 3
    flap_window_s: Annotated[
        float, SettingRule("window in which turns are counted", unit="s", low=1, high=86400)
    ] = 3600.0
    flap_hold_s: Annotated[
        float,
        SettingRule("a flapping device is held after its last fault", unit="s", low=0, high=86400),
    ] = 3600.0


class HealthOverrides(msgspec.Struct, frozen=True, kw_only=True):
    """Values of `HealthPolicy` that a vendor's driver requires; `UNSET`: the agent's own."""

    failed_looks: int | UnsetType = UNSET
    suspect_looks: int | UnsetType = UNSET
    clear_looks: int | UnsetType = UNSET
    clean_probes: int | UnsetType = UNSET
    clean_s: float | UnsetType = UNSET
    flap_changes: int | UnsetType = UNSET
    flap_window_s: float | UnsetType = UNSET
    flap_hold_s: float | UnsetType = UNSET

    def values(self) -> dict[str, int | float]:
        """Return the values that are set, by name."""
        values = msgspec.structs.asdict(self)
        return {name: value for name, value in values.items() if value is not UNSET}


class VendorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Base of a vendor's section of `discovery`: `Annotated` fields, each with a `SettingRule`."""

    def check(self, *, is_forced: bool = False) -> None:
        """Raise `BadConfig` that names the key of a value that the field's rule cannot check.

        The agent calls it for each vendor that is not switched off; `is_forced`: the vendor is
        switched on. Reads no file.
        """

    def with_injection(self, mode: str) -> Self:  # noqa: ARG002 - for vendors with several modes
        """Return the settings by which `edits` injects devices in this mode.

        `mode`: `cdi`, `nodes`, or `env` for the vendor's own runtime. A vendor without these modes
        ignores it.
        """
        return self

    @property
    def is_complete(self) -> bool:
        """Return whether the vendor can work with these settings; else it is left out."""
        return True

    @property
    def library_folders(self) -> tuple[str, ...]:
        """Return the folders that the dynamic linker searches first in the vendor's worker."""
        return ()
