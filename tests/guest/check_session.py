"""The session of `tests.cgroup_v2` on the machine's kernel, against what is recorded of one."""

from __future__ import annotations

from typing import Any

from tests.cgroup_v2.session import RECORDED


def test_the_kernel_answers_every_step_of_the_session_as_recorded(facts: dict[str, Any]) -> None:
    session = facts["session"]
    assert session["lines"] == RECORDED.read_text().splitlines(), session["release"]
