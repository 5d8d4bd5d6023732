"""What reasons of refusals mean: there is a sentence for each that decisions give."""

from __future__ import annotations

import pytest

from plugins.scheduler.devices.allocator import NodeRefused, Rules, filter_node
from plugins.scheduler.devices.requests import InvalidRequest
from plugins.scheduler.reasons import MEANINGS, explain_reason
from tests.unit.scheduler import test_recorded_decisions as recorded
from tests.unit.scheduler import test_recorded_numa_decisions as recorded_numa


def device_reasons() -> set[str]:
    reasons: set[str] = set()
    for node, pod, result in recorded.decisions():
        if not result["bound"]:
            try:
                request = recorded.request_of(pod)
                assert request is not None
                filter_node(node, request)
            except (InvalidRequest, NodeRefused) as refused:
                reasons.add(str(refused))
    return reasons


def numa_reasons() -> set[str]:
    answers = (recorded_numa.decide(decision, Rules()) for decision in recorded_numa.decisions())
    return {answer for answer in answers if isinstance(answer, str)}


@pytest.mark.skipif(not recorded.RECORDED.exists(), reason="no recorded decisions here")
def test_every_reason_of_the_recorded_decisions_has_a_meaning() -> None:
    reasons = device_reasons() | numa_reasons()
    assert len(reasons) > 15
    assert [reason for reason in sorted(reasons) if not explain_reason(reason)] == []


def test_a_meaning_is_taken_by_the_first_beginning_that_fits() -> None:
    for number, (start, meaning) in enumerate(MEANINGS):
        earlier = [one for one, _ in MEANINGS[:number] if start.startswith(one)]
        assert earlier == [], f"{start!r} is never reached"
        assert explain_reason(start) == meaning
    assert explain_reason("something else") == ""
