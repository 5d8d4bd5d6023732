from __future__ import annotations

import asyncio

from msgspec.structs import replace

from agent.clock import ManualClock
from agent.errors import WorkerError
from agent.model.cluster.facts import ClusterFacts
from agent.model.runtime.slices import SlicesKept, SliceUnmade, SliceWish
from agent.model.snapshot import NodeSnapshot
from agent.slicing.keeping import Slicer
from tests.unit.slicing.scene import NPU, PART, TEMPLATE, cut, node

GRACE_S = 60.0
Asked = tuple[str, tuple[str, ...], tuple[str, ...] | None]


class Rig:
    """A slicer, with workers that answer as they are told."""

    def __init__(self, snapshot: NodeSnapshot) -> None:
        self.snapshot = snapshot
        self.clock = ManualClock()
        self.asked: list[Asked] = []
        self.told: list[tuple[str, str]] = []
        self.answers: dict[str, SlicesKept | WorkerError] = {}
        self.slicer = Slicer(
            lambda: self.snapshot, self._cut, self._tell, self.clock, grace_s=GRACE_S
        )

    async def _cut(
        self, vendor: str, wishes: tuple[SliceWish, ...], pods: tuple[str, ...] | None
    ) -> SlicesKept:
        self.asked.append((vendor, tuple(wish.pod for wish in wishes), pods))
        answer = self.answers.get(vendor, SlicesKept())
        if isinstance(answer, WorkerError):
            raise answer
        return answer

    def _tell(self, pod: str, reason: str, message: str) -> None:
        assert message
        self.told.append((pod, reason))

    def step(self, after_s: float = 1.0) -> list[Asked]:
        """Let time pass and look once; return who was asked."""
        self.clock.advance(after_s)
        self.asked.clear()
        asyncio.run(self.slicer.step())
        return list(self.asked)


def test_a_slice_that_is_missing_is_asked_for_until_it_is_there() -> None:
    rig = Rig(node(("a", TEMPLATE)))
    assert ("ascend", ("a",), ("a",)) in rig.step()
    rig.snapshot = cut(rig.snapshot, "ascend", "a")
    assert rig.step() == []


def test_every_vendor_is_asked_once_at_the_start_to_tidy_up() -> None:
    rig = Rig(node())
    assert rig.step() == [("ascend", (), ()), ("cambricon", (), ())]
    assert rig.step() == []


def test_nothing_is_taken_back_before_the_pods_are_known() -> None:
    rig = Rig(replace(cut(node(), "ascend", "gone"), cluster=ClusterFacts(clustered=True)))
    assert rig.step() == []
    rig.snapshot = cut(node(), "ascend", "gone")
    first = rig.step()
    assert first[0] == ("ascend", (), ("gone",))  # it may be known to somebody yet
    assert rig.step(GRACE_S + 1)[0] == ("ascend", (), ())


def test_a_pod_that_comes_back_within_the_grace_keeps_its_slice() -> None:
    rig = Rig(cut(node(("a", TEMPLATE)), "ascend", "a"))
    rig.step()
    without = replace(rig.snapshot, cluster=replace(rig.snapshot.cluster, pods=()))
    with_it, rig.snapshot = rig.snapshot, replace(without, grants=node().grants)
    assert rig.step(GRACE_S - 1) == []
    rig.snapshot = with_it
    assert rig.step(GRACE_S) == []
    rig.snapshot = replace(without, grants=node().grants)
    assert rig.step(GRACE_S - 1) == []


def test_what_cannot_be_cut_is_told_once_and_tried_again_ever_more_rarely() -> None:
    rig = Rig(node(("a", TEMPLATE)))
    unmade = SliceUnmade(pod="a", device=NPU.key, reason="VnpuRefused", message="full")
    rig.answers["ascend"] = SlicesKept(unmade=(unmade,))
    tries = sum(("ascend", ("a",), ("a",)) in rig.step() for _ in range(300))
    assert rig.told == [("a", "VnpuRefused")]
    assert 8 <= tries <= 12


def test_a_pod_that_cannot_be_served_holds_up_no_other() -> None:
    rig = Rig(node(("a", TEMPLATE)))
    unmade = SliceUnmade(pod="a", device=NPU.key, reason="VnpuRefused", message="full")
    rig.answers["ascend"] = SlicesKept(unmade=(unmade,))
    for _ in range(60):
        rig.step()
    rig.snapshot = node(("a", TEMPLATE), ("b", TEMPLATE))
    assert [asked[1] for asked in rig.step(0.0)] == [("a", "b")]


def test_a_worker_that_fails_is_told_of_and_asked_again() -> None:
    rig = Rig(node(("m", PART)))
    rig.answers["cambricon"] = WorkerError("cambricon", "Late", "no answer")
    rig.step()
    assert rig.told == [("m", "Late")]
    rig.answers.clear()
    assert ("cambricon", ("m",), ("m",)) in rig.step(2.0)


def test_a_lost_slice_and_one_taken_back_are_told() -> None:
    rig = Rig(cut(node(), "cambricon", "gone"))
    rig.answers["cambricon"] = SlicesKept(
        reclaimed=("slice 1 of pod gone",), lost=("m",), failed=("slice 2: in use",), changed=True
    )
    rig.step()
    rig.step(GRACE_S + 1)
    assert ("", "SliceReclaimed") in rig.told
    assert ("m", "SliceLost") in rig.told
    assert ("", "SliceNotReclaimed") in rig.told
    assert rig.slicer.reclaimed >= 1
