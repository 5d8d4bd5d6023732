"""The fake of version 2 answers as the kernel did."""

from __future__ import annotations

from tests.cgroup_v2.fake import FakeGroups, FakeKernel
from tests.cgroup_v2.session import RECORDED, answers


def test_the_fake_answers_every_step_of_the_session_as_the_kernel_did() -> None:
    assert (
        list(answers(FakeGroups(FakeKernel("/session"), "/session")))
        == RECORDED.read_text().splitlines()
    )
