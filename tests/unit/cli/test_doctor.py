"""The list of checks that the doctor prints."""

from __future__ import annotations

import json

import pytest

from agent.cli.doctor import list_checks
from agent.doctor.report import CHECKS


def test_the_checks_are_listed_with_their_groups(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert list_checks("table") == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert lines[0].split() == ["GROUP", "ID", "QUESTION"]
    assert [line.split()[:2] for line in lines[1:]] == [[c.group.value, c.id] for c in CHECKS]
    assert list_checks("json") == 0
    rows = json.loads(capfdbinary.readouterr().out)["checks"]
    assert [(row["group"], row["id"]) for row in rows] == [(c.group.value, c.id) for c in CHECKS]
