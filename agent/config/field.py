"""One setting: its default and what a person may know and change about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_KEY = "rule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
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


def setting(default: object, doc: str, **rule: Any) -> Any:
    """Declare a setting of a section; keywords are those of `Rule`."""
    return dataclasses.field(default=default, metadata={_KEY: Rule(doc=doc, **rule)})


def section(cls: Callable[[], object], doc: str) -> Any:
    """Declare a group of settings inside another."""
    return dataclasses.field(default_factory=cls, metadata={_KEY: Rule(doc=doc)})


def rule_of(field: dataclasses.Field[Any]) -> Rule:
    """Return what was declared for a field."""
    rule = field.metadata[_KEY]
    assert isinstance(rule, Rule)  # noqa: S101 - every field is declared by the two above
    return rule
