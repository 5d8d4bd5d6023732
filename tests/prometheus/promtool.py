"""promtool, as `.ci/system-packages` fetches it: what it has to say to a page of metrics."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.patience import PATIENCE_S

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool: .ci/system-packages fetches it"
)
OWN_PREFIXES = ("xpu_", "process_")  # of our families
# lints about names, which are those of other exporters
NAME_LINTS = (
    "camelCase",
    "non-histogram and non-summary metrics should not have",
    'should have "_total" suffix',
    'non-counter metrics should not have "_total" suffix',
    "use base unit",
    "metric name should not include type",
    "abbreviated units",
)


def lint(page: str) -> list[tuple[str, str]]:
    """Return what promtool has to say: family and message."""
    run = subprocess.run(
        ["promtool", "check", "metrics"],
        input=page,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert run.returncode in (0, 3), run.stderr
    name_and_text = (line.partition(" ") for line in (run.stdout + run.stderr).splitlines())
    return [(name, text) for name, _, text in name_and_text]


def is_about_name(message: str) -> bool:
    """Return whether a message is about the name alone."""
    return any(text in message for text in NAME_LINTS)
