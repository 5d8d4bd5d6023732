"""Reservations of Koordinator's scheduler: their devices are given to no other pod."""

from __future__ import annotations

import json

import msgspec
import pytest

from agent.wire_formats.device_allocated import ANNOTATION
from plugins.scheduler.cluster_state import AssignedPod, ClusterState
from plugins.scheduler.devices.device_table import GPU, GPU_CORE
from plugins.scheduler.pod_object import PodKey, SchedulerPod
from plugins.scheduler.server.cluster_feed import (
    RESERVATION_ALLOCATED,
    PodChanges,
    ReservationObject,
    Reservations,
    reserved_devices,
)
from tests.unit.scheduler.vectors import NODES


def grant(*minors: int) -> str:
    cards = [{"minor": minor, "resources": {GPU_CORE: "100"}} for minor in minors]
    return json.dumps({"gpu": cards})


def reservation(*minors: int, phase: str = "Available", node: str = "n") -> AssignedPod | None:
    document = {
        "metadata": {"name": "r", "uid": "u-r", "annotations": {ANNOTATION: grant(*minors)}},
        "status": {"phase": phase, "nodeName": node},
    }
    return reserved_devices(
        msgspec.json.decode(json.dumps(document).encode(), type=ReservationObject)
    )


def user(*minors: int, text: str = '{"name":"r","uid":"u-r"}') -> SchedulerPod:
    annotations = {ANNOTATION: grant(*minors), RESERVATION_ALLOCATED: text}
    return SchedulerPod(key=PodKey("u-p", "ns", "p"), node="n", annotations=annotations)


class Scene:
    def __init__(self) -> None:
        self.state = ClusterState()
        self.state.set_node("n", {})
        self.state.set_devices(msgspec.structs.replace(NODES["A"], node="n"))
        self.reservations = Reservations(self.state)
        self.pods = PodChanges(self.state, self.reservations)

    def used(self) -> dict[int, int]:
        amounts = self.state.state("n").usage.amounts
        return {minor: of[GPU_CORE] for (kind, minor), of in amounts.items() if kind == GPU}


def test_an_available_reservation_keeps_its_devices_until_it_is_deleted() -> None:
    scene = Scene()
    scene.reservations.set_reservation("r", reservation(0, 1))
    assert scene.used() == {0: 100, 1: 100}
    scene.reservations.set_reservation("r", reservation(1))
    assert scene.used() == {1: 100}
    scene.reservations.set_reservation("r", None)
    assert scene.used() == {}


@pytest.mark.parametrize(
    ("phase", "node"), [("Pending", "n"), ("Succeeded", "n"), ("Available", "")]
)
def test_a_reservation_that_is_not_available_on_a_node_keeps_nothing(phase: str, node: str) -> None:
    assert reservation(0, phase=phase, node=node) is None


@pytest.mark.parametrize("is_pod_first", [True, False])
def test_of_a_reservation_and_the_pod_that_uses_it_the_pod_alone_counts(
    is_pod_first: bool,
) -> None:
    scene = Scene()
    if is_pod_first:
        scene.pods.set_object("ns/p", user(0))
    scene.reservations.set_reservation("r", reservation(0, 1))
    scene.pods.set_object("ns/p", user(0))
    assert scene.used() == {0: 100}
    scene.pods.set_object("ns/p", user(0))
    scene.pods.remove_object("ns/p", user(0))
    assert scene.used() == {0: 100, 1: 100}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"uid":5}', '{"uid":"other"}'])
def test_a_pod_that_uses_no_known_reservation_counts_beside_it(text: str) -> None:
    scene = Scene()
    scene.reservations.set_reservation("r", reservation(0))
    scene.pods.set_object("ns/p", user(1, text=text))
    assert scene.used() == {0: 100, 1: 100}
