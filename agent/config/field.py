"""What a person may know and change about one setting; stands in the setting's annotation."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

Table = tuple[Mapping[str, object], ...]  # a list of small mappings, checked by who uses it


class Rule(msgspec.Struct, frozen=True):
    """What a value must be; shown by `config reference`, enforced by `decode`."""

    doc: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    maturity: str = ""  # alpha, beta, stable; of settings that switch an ability

    @property
    def range_text(self) -> str:
        """Say which values are allowed, in a few words."""
        if self.choices:
            return " | ".join(self.choices)
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g}"
        return ""
