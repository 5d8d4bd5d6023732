"""The kernel of a second machine answers the sessions of `tests.resctrl` as the emulator does."""

from __future__ import annotations

import difflib
import json
from typing import Any

import pytest

from tests.guest.machine import Ended
from tests.guest.packages import CannotRun
from tests.guest.resctrl_machine import boot
from tests.resctrl import agent_session, session

PART = "resctrl"


@pytest.fixture(scope="module")
def resctrl() -> Any:
    """Boot once and return the lines of both sessions."""
    try:
        ended = boot((PART,))
    except CannotRun as error:
        pytest.skip(f"no virtual machine: {error}")
    return _facts(ended)


def _facts(ended: Ended) -> Any:
    path = ended.share / f"{PART}.json"
    result = json.loads(path.read_text()) if path.exists() else {"error": ended.console[-3000:]}
    if "error" in result:
        pytest.fail(f"the virtual machine failed:\n{result['error']}")
    return result["facts"]


@pytest.mark.parametrize(
    ("name", "recorded"), [("calls", session.RECORDED), ("agent", agent_session.RECORDED)]
)
def test_the_kernel_and_the_emulator_print_the_same(resctrl: Any, name: str, recorded: Any) -> None:
    emulated = recorded.read_text().splitlines()
    difference = difflib.unified_diff(emulated, resctrl[name], "emulator", "kernel", lineterm="")
    assert not list(difference), resctrl["release"]


def test_an_agent_that_is_killed_at_any_step_is_followed_by_one_that_finishes(
    resctrl: Any,
) -> None:
    killed = resctrl["killed"]
    assert killed == [None] * len(killed)
    assert len(killed) > 10


def test_the_whole_agent_makes_a_pods_group_and_restore_removes_it(resctrl: Any) -> None:
    whole = resctrl["whole"]
    assert whole["schemata"] == "    MB:0=100;1=100\n    L3:0=03f;1=03f\n"
    assert (whole["status"], whole["is_group_left"]) == (0, True)  # a stop changes nothing
    status, printed, errors = whole["restore"]
    assert (status, errors) == (0, "")
    assert "1 restored" in printed
    assert whole["groups"] == []
    assert whole["is_child_in_root"]
