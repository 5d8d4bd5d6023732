from __future__ import annotations

import asyncio
from typing import TypeVar

import pytest
from msgspec.structs import replace

from agent.allocation.slices import SliceManager
from agent.clock import ManualClock
from agent.errors import WorkerError
from agent.messages import EventReported, MessageQueue
from agent.snapshot.cluster import ClusterView
from agent.snapshot.inventory import SliceFailure, SliceReport, SliceRequest
from agent.snapshot.node import NodeSnapshot, SnapshotStore
from agent.workers.client import RestartHistory
from agent.workers.in_process_worker import InProcessWorker
from agent.workers.lifecycle import RestartPolicy, WorkerRequest
from agent.workers.manager import VendorManager
from tests.unit.allocation_slices.scene import NPU, PART, SLICERS, TEMPLATE, cut, node

GRACE_S = 60.0
T = TypeVar("T")
ServedRequest = tuple[str, tuple[str, ...], tuple[str, ...] | None]


class SliceWorker(InProcessWorker):
    """The worker of one vendor, which answers as the rig says."""

    def __init__(self, rig: Rig, vendor: str) -> None:
        self._rig, self._vendor = rig, vendor

    async def slices(
        self, requests: tuple[SliceRequest, ...], pods: tuple[str, ...] | None, deadline_s: float
    ) -> SliceReport:
        del deadline_s
        return await self._rig.make_slices(self._vendor, requests, pods)


class Workers(VendorManager):
    """Runs requests at once."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    async def request(self, vendor: str, request: WorkerRequest[T]) -> T:
        return await request.run(SliceWorker(self._rig, vendor))


class Rig:
    """A slicer, with workers that answer as they are told."""

    def __init__(self, snapshot: NodeSnapshot) -> None:
        self.store = SnapshotStore(snapshot)
        self.clock = ManualClock()
        self.calls: list[ServedRequest] = []
        self.messages = MessageQueue()
        self._events: list[EventReported] = []
        self.answers: dict[str, SliceReport | WorkerError] = {}
        self.slicer = SliceManager(
            self.store,
            Workers(self),
            self.messages,
            self.clock,
            slicers=SLICERS,
            grace_s=GRACE_S,
        )

    async def make_slices(
        self, vendor: str, wishes: tuple[SliceRequest, ...], pods: tuple[str, ...] | None
    ) -> SliceReport:
        self.calls.append((vendor, tuple(wish.pod for wish in wishes), pods))
        answer = self.answers.get(vendor, SliceReport())
        if isinstance(answer, WorkerError):
            raise answer
        return answer

    @property
    def snapshot(self) -> NodeSnapshot:
        """What the slicer reads."""
        return self.store.current

    @snapshot.setter
    def snapshot(self, snapshot: NodeSnapshot) -> None:
        self.store.current = snapshot

    @property
    def reported_events(self) -> list[tuple[str, str]]:
        """Pod and reason of each event so far; the pod is empty for an event of the node."""
        self._events += self.messages.drain_events()
        assert all(event.message for event in self._events)
        return [(_pod_of(event), event.reason) for event in self._events]

    def step(self, after_s: float = 1.0) -> list[ServedRequest]:
        """Let time pass and look once; return who was asked."""
        self.clock.advance(after_s)
        self.calls.clear()
        asyncio.run(self.slicer.step())
        return list(self.calls)


def _pod_of(event: EventReported) -> str:
    if event.pod is not None:
        return event.pod.uid
    before, _, _ = event.message.partition(": ")
    return before.removeprefix("pod ") if before.startswith("pod ") else ""


def test_a_missing_slice_is_requested_until_it_exists() -> None:
    rig = Rig(node(("a", TEMPLATE)))
    assert ("ascend", ("a",), ("a",)) in rig.step()
    rig.snapshot = cut(rig.snapshot, "ascend", "a")
    assert rig.step() == []


@pytest.mark.parametrize("state", ["starting", "stalled", "restarting", "quarantined", "released"])
def test_a_worker_that_does_not_answer_gets_no_request(state: str) -> None:
    rig = Rig(node(("a", TEMPLATE)))
    away = tuple(replace(vendor, state=state) for vendor in rig.snapshot.vendors)
    rig.snapshot = replace(rig.snapshot, vendors=away)
    assert rig.step() == []
    assert rig.reported_events == []


def test_every_vendor_is_asked_once_at_the_start_to_clean_up() -> None:
    rig = Rig(node())
    assert rig.step() == [("ascend", (), ()), ("cambricon", (), ())]
    assert rig.step() == []


def test_a_vendor_without_slices_is_asked_once() -> None:
    rig = Rig(node())
    for vendor in ("ascend", "cambricon"):
        rig.answers[vendor] = WorkerError(vendor, "NotSupported", "no slices")
    assert sum(len(rig.step()) for _ in range(300)) == 2
    assert rig.reported_events == []


def test_nothing_is_taken_back_before_the_pods_are_known() -> None:
    rig = Rig(replace(cut(node(), "ascend", "gone"), cluster=ClusterView(is_clustered=True)))
    assert rig.step() == []
    rig.snapshot = cut(node(), "ascend", "gone")
    first = rig.step()
    assert first[0] == ("ascend", (), ("gone",))  # it may be known to somebody yet
    assert rig.step(GRACE_S + 1)[0] == ("ascend", (), ())


def test_a_pod_that_comes_back_within_the_grace_keeps_its_slice() -> None:
    rig = Rig(cut(node(("a", TEMPLATE)), "ascend", "a"))
    rig.step()
    without = replace(rig.snapshot, cluster=replace(rig.snapshot.cluster, pods=()))
    with_it, rig.snapshot = rig.snapshot, replace(without, allocations=node().allocations)
    assert rig.step(GRACE_S - 1) == []
    rig.snapshot = with_it
    assert rig.step(GRACE_S) == []
    rig.snapshot = replace(without, allocations=node().allocations)
    assert rig.step(GRACE_S - 1) == []


def test_while_nobody_knows_the_pods_no_grace_runs() -> None:
    rig = Rig(cut(node(), "ascend", "gone"))
    rig.step()
    snapshots, rig.snapshot = (
        rig.snapshot,
        replace(rig.snapshot, cluster=ClusterView(is_clustered=True)),
    )
    assert rig.step(GRACE_S - 1) == []
    rig.snapshot = snapshots
    assert rig.step(2.0) == []
    assert rig.step(GRACE_S) == [("ascend", (), ())]


def test_a_slice_that_cannot_be_created_is_reported_once_and_retried_ever_more_rarely() -> None:
    rig = Rig(node(("a", TEMPLATE)))
    unmade = SliceFailure(pod="a", device=NPU.key, reason="VnpuRefused", message="full")
    rig.answers["ascend"] = SliceReport(unmade=(unmade,))
    tries = sum(("ascend", ("a",), ("a",)) in rig.step() for _ in range(300))
    assert rig.reported_events == [("a", "VnpuRefused")]
    assert 8 <= tries <= 12


def test_a_pod_that_cannot_be_served_holds_up_no_other() -> None:
    rig = Rig(node(("a", TEMPLATE)))
    unmade = SliceFailure(pod="a", device=NPU.key, reason="VnpuRefused", message="full")
    rig.answers["ascend"] = SliceReport(unmade=(unmade,))
    for _ in range(60):
        rig.step()
    rig.snapshot = node(("a", TEMPLATE), ("b", TEMPLATE))
    assert [request[1] for request in rig.step(0.0)] == [("a", "b")]


def test_a_failing_worker_is_reported_and_asked_again() -> None:
    rig = Rig(node(("m", PART)))
    rig.answers["cambricon"] = WorkerError("cambricon", "OwnershipUnknown", "no list")
    rig.step()
    assert rig.reported_events == [("m", "OwnershipUnknown")]
    rig.answers.clear()
    assert ("cambricon", ("m",), ("m",)) in rig.step(2.0)


@pytest.mark.parametrize("reason", ["Late", "Closed"])
def test_a_driver_that_dies_of_the_question_is_not_put_into_quarantine_by_it(reason: str) -> None:
    rig, policy = Rig(node(("m", PART))), RestartPolicy()
    rig.answers["cambricon"] = WorkerError("cambricon", reason, "no answer")
    history = RestartHistory()
    deaths = 0
    for second in range(0, 4000, 5):
        others = ((f"n{second}", PART),)  # also while new pods come, which are tried at once
        rig.snapshot = node(("m", PART), *others)
        if any(request[0] == "cambricon" for request in rig.step(5.0)):
            history, deaths = history.with_death(rig.clock.monotonic(), policy), deaths + 1
            assert not history.is_quarantined
    assert deaths >= 12
    rig.answers["cambricon"] = SliceReport(changed=True)
    assert any(rig.step(300.0))
    rig.answers["cambricon"] = WorkerError("cambricon", reason, "no answer")
    assert any(rig.step())
    assert any(rig.step(61.0))  # it was well in between: the waits begin anew


def test_a_slice_that_is_created_but_not_listed_is_not_requested_each_second() -> None:
    rig = Rig(node(("a", TEMPLATE)))
    tries = sum(("ascend", ("a",), ("a",)) in rig.step() for _ in range(300))
    assert 8 <= tries <= 12
    assert rig.reported_events == []


def test_nothing_is_cut_for_a_pod_that_is_gone_and_whose_grant_is_still_known() -> None:
    rig = Rig(cut(node(("a", TEMPLATE), pods=()), "ascend", "a"))
    assert rig.step()[0] == ("ascend", ("a",), ("a",))  # for the while that it may come back
    assert rig.step(GRACE_S + 1)[0] == ("ascend", (), ())


def test_a_lost_slice_and_a_reclaimed_one_are_reported() -> None:
    rig = Rig(cut(node(), "cambricon", "gone"))
    rig.answers["cambricon"] = SliceReport(
        reclaimed=("slice 1 of pod gone",), lost=("m",), failed=("slice 2: in use",), changed=True
    )
    rig.step()
    rig.step(GRACE_S + 1)
    assert ("", "SliceReclaimed") in rig.reported_events
    assert ("m", "SliceLost") in rig.reported_events
    assert ("", "SliceNotReclaimed") in rig.reported_events
    assert rig.slicer.reclaimed_count >= 1
