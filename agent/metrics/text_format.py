"""Text of the two exposition formats: labels, numbers, headers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from agent.metrics.families import ExportedFamily

LabelKey = tuple[tuple[str, ...], tuple[str, ...]]  # names and values
# family name and its lines; a family with many lines comes in parts, one after the other
SeriesLines = Iterator[tuple[str, list[str]]]

_LABEL = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP = str.maketrans({"\\": "\\\\", "\n": "\\n"})
_SUFFIXES = {"counter": "_total", "info": "_info"}  # removed from the family's name by OpenMetrics


def label_pairs(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Return `a="b",c="d"` with escaped values; a label without a value is left out."""
    return ",".join(
        f'{name}="{value.translate(_LABEL)}"'
        for name, value in zip(names, values, strict=True)
        if value
    )


class LabelCache:
    """Cache of label texts; `used` has those of this page, from which the next page starts.

    So it never holds more than the texts of one page.
    """

    def __init__(self, previous: Mapping[LabelKey, str]) -> None:
        self._previous = previous
        self.used: dict[LabelKey, str] = {}

    def prefix(self, names: tuple[str, ...], values: tuple[str, ...]) -> str:
        """Return `{a="b",c="d"` without the closing brace, so that a sample can add labels.

        At least the first label must have a value.
        """
        key = (names, values)
        text = self._previous.get(key)
        if text is None:
            text = "{" + label_pairs(names, values)
        self.used[key] = text
        return text

    def suffix(self, names: tuple[str, ...], values: tuple[str, ...]) -> str:
        """Return `,a="b"` to append to a label prefix."""
        key = (names, values)
        text = self._previous.get(key)
        if text is None:
            text = "".join(f",{pair}" for pair in (label_pairs(names, values),) if pair)
        self.used[key] = text
        return text


def format_value(value: float) -> str:
    """Return a value as in both formats: the shortest text that parses to the same value."""
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def sample_line(name: str, label_prefix: str, value: float, extra: str = "") -> str:
    """Return one sample; `extra` are further labels from `label_pairs`."""
    return f"{name}{label_prefix}{',' if extra else ''}{extra}}} {format_value(value)}\n"


def sample_lines(
    name: str, label_prefix: str, values: Iterable[tuple[str, float | None]]
) -> list[str]:
    """Return a sample for each known value; further labels come before each value."""
    return [
        sample_line(name, label_prefix, value, extra)
        for extra, value in values
        if value is not None
    ]


class LastRun(Protocol):
    """The outcome of the last run of something that runs again and again."""

    @property
    def success(self) -> bool:
        """Whether it succeeded."""
        ...

    @property
    def duration_s(self) -> float | None:
        """Its duration; `None` before the first run has ended."""
        ...

    @property
    def last_success_s(self) -> float | None:
        """The wall-clock time of the last success."""
        ...


def last_run_series(
    family_prefix: str, runs: Sequence[tuple[str, LastRun]], label_prefix: str
) -> SeriesLines:
    """Yield success, duration and last success of runs; further labels come before each run."""
    name = f"{family_prefix}_success"
    yield name, [sample_line(name, label_prefix, int(run.success), extra) for extra, run in runs]
    name = f"{family_prefix}_duration_seconds"
    yield name, sample_lines(name, label_prefix, ((x, run.duration_s) for x, run in runs))
    name = f"{family_prefix}_last_success_timestamp_seconds"
    yield name, sample_lines(name, label_prefix, ((x, run.last_success_s) for x, run in runs))


def family_header(family: ExportedFamily, *, openmetrics: bool) -> str:
    """Return the lines before a family's samples."""
    text = family.help.translate(_HELP)
    if not openmetrics:
        kind = "gauge" if family.type == "info" else family.type
        return f"# HELP {family.name} {text}\n# TYPE {family.name} {kind}\n"
    suffix = _SUFFIXES.get(family.type, "")
    # other exporters have counters without the suffix, which this format does not allow
    kind = family.type if family.name.endswith(suffix) else "unknown"
    name = family.name.removesuffix(suffix)
    unit = f"# UNIT {name} {family.unit}\n" if family.unit else ""
    help_text = text.replace('"', '\\"')
    return f"# TYPE {name} {kind}\n{unit}# HELP {name} {help_text}\n"
