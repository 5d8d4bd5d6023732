"""Grants that cannot be: which are found, and that each is reported once."""

from __future__ import annotations

import asyncio
import json

import msgspec

from agent.wire_formats.device_allocated import ANNOTATION
from plugins.scheduler.allocation_audit import AllocationAudit, AllocationProblem, ProblemKind
from plugins.scheduler.cluster_state import ClusterState
from plugins.scheduler.devices.device_table import GPU_CORE
from plugins.scheduler.pod_object import PodKey, SchedulerPod
from plugins.scheduler.server.cluster_feed import PodChanges
from tests.unit.scheduler.vectors import NODES


def bound(name: str, *minors: int, text: str | None = None, percent: int = 100) -> SchedulerPod:
    cards = [{"minor": minor, "resources": {GPU_CORE: str(percent)}} for minor in minors]
    return SchedulerPod(
        key=PodKey(f"u-{name}", "ns", name),
        node="n",
        annotations={ANNOTATION: json.dumps({"gpu": cards}) if text is None else text},
    )


class Scene:
    """One node of eight cards, its pods, and what was reported."""

    def __init__(self) -> None:
        self.reported: list[AllocationProblem] = []
        self.state = ClusterState()
        self.state.set_node("n", {})
        self.state.set_devices(msgspec.structs.replace(NODES["A"], node="n"))
        self.pods = PodChanges(self.state)
        self.audit = AllocationAudit(self.state, self.pods)

    def put(self, pod: SchedulerPod) -> None:
        self.pods.set_object(f"ns/{pod.key.name}", pod)

    def check(self) -> list[tuple[ProblemKind, str]]:
        """Return the kinds and messages of the new problems."""

        async def new_problems() -> list[AllocationProblem]:
            return [problem async for problem in self.audit.check()]

        self.reported = asyncio.run(new_problems())
        return [(problem.kind, problem.message) for problem in self.reported]


def test_a_card_of_which_more_is_given_than_there_is_names_its_pods() -> None:
    scene = Scene()
    scene.put(bound("a", 0, 1))
    scene.put(bound("b", 1, percent=50))
    expected = f"gpu 1 (GPU-1) is given to ns/a, ns/b: 150 of 100 {GPU_CORE}"
    assert scene.check() == [(ProblemKind.DOUBLE_GRANTED, expected)]


def test_a_problem_is_reported_once_and_again_after_it_was_gone() -> None:
    scene = Scene()
    scene.put(bound("a", 0))
    scene.put(bound("b", 0))
    assert len(scene.check()) == 1
    scene.put(bound("c", 3))
    assert scene.check() == []
    scene.pods.remove_object("ns/b", bound("b", 0))
    assert scene.check() == []
    scene.put(bound("b", 0))
    assert len(scene.check()) == 1


def test_a_device_that_the_node_does_not_have_is_reported_and_counted() -> None:
    scene = Scene()
    scene.put(bound("a", 0, 77))
    assert scene.check() == [(ProblemKind.UNKNOWN_DEVICE, "node n has no gpu 77")]
    assert scene.reported[0].pod == PodKey("u-a", "ns", "a")
    assert scene.audit.unknown_device_count == 1
    scene.put(bound("a", 0))
    assert scene.check() == []
    assert scene.audit.unknown_device_count == 0


def test_a_grant_that_cannot_be_read_is_reported_with_its_error() -> None:
    scene = Scene()
    scene.put(bound("a", text="{"))
    ((kind, message),) = scene.check()
    assert kind is ProblemKind.UNREADABLE
    assert ANNOTATION in message
    assert scene.check() == []


def test_without_a_device_object_nothing_is_wrong() -> None:
    scene = Scene()
    scene.put(bound("a", 0))
    other = msgspec.structs.replace(bound("b", 5), node="without")
    scene.put(other)
    assert scene.check() == []


def test_sick_cards_of_running_pods_are_not_given_twice() -> None:
    scene = Scene()
    scene.put(bound("a", 0))
    scene.state.remove_devices("n")
    assert scene.check() == []
