"""What is remembered of a snapshot, and when it is made anew."""

from __future__ import annotations

from msgspec.structs import replace

from agent.snapshot.node import SnapshotMemo
from agent.snapshot.part import SnapshotPart
from tests.unit.containers.scene import scene


def test_a_rule_is_made_once_for_equal_parts_and_anew_for_a_replaced_one() -> None:
    calls: list[object] = []

    def count(now: object) -> int:
        calls.append(now)
        return len(calls)

    rule = SnapshotMemo(lambda now: (now.cpus.value, now.cluster.slo.value), count)
    first = scene()
    later = replace(first, cpus=SnapshotPart(first.cpus.value, 99.0))  # confirmed, not replaced
    other = scene()
    assert [rule(now) for now in (first, later, first, other, other)] == [1, 1, 1, 2, 2]
    assert calls == [first, other]
