"""The NodeSLO on its way from the watch into the snapshot."""

from __future__ import annotations

import msgspec
import pytest

from agent.app.cluster_facts import ClusterFactsUpdater
from agent.app.identity import MachineIdentity
from agent.clock import ManualClock
from agent.messages import MessageQueue
from agent.slo.status import is_frozen
from agent.snapshot.node import SnapshotStore
from tests.clustered import NAME, snapshot

STALE_S = 1800.0


class Case:
    """What is known, and what is in force."""

    def __init__(self, *, applies: bool = True) -> None:
        self.applies = applies
        self.clock = ManualClock()
        self.store = SnapshotStore(snapshot())
        self.known = ClusterFactsUpdater(
            NAME, MachineIdentity(), self.store, self.clock, MessageQueue()
        )

    def say(self, version: int, spec: str) -> None:
        output = {"metadata": {"resourceVersion": str(version)}, "spec": msgspec.Raw(spec.encode())}
        self.known.update_slo({NAME: output})
        if self.applies:
            self.known.apply_slo()

    @property
    def version(self) -> str:
        return self.store.current.cluster.slo.value.resource_version

    @property
    def frozen(self) -> bool:
        return is_frozen(self.store.current.cluster.slo, self.clock.monotonic(), STALE_S)


def test_objects_decoded_on_other_threads_are_applied_in_their_order() -> None:
    case = Case(applies=False)
    case.say(1, "{}")
    case.say(2, "{}")
    case.say(3, "7")
    assert case.version == ""
    for _ in range(3):
        case.known.apply_slo()
    assert case.version == "2"
    assert case.store.current.cluster.slo.value.problem


@pytest.mark.parametrize("hours", [0.0, 6.0])
def test_a_cluster_without_the_kind_node_slo_is_not_frozen(hours: float) -> None:
    case = Case()
    assert case.frozen
    case.clock.advance(hours * 3600)
    case.known.confirm("slo", None, "404: the server has no such resource")
    case.known.confirm_no_slo(case.clock.monotonic())
    assert not case.frozen
    case.clock.advance(STALE_S + 1)  # and then the API server was away
    assert case.frozen


def test_a_refused_value_is_reported_once_as_long_as_it_is_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    case = Case()
    for version, spec in enumerate(('{"systemStrategy": 7}',) * 3 + ("7", "7", "{}")):
        case.say(version, spec)
    messages = [record.message for record in caplog.records if "node_slo" in record.message]
    assert messages == ["node_slo_refused", "node_slo_unreadable"]
    assert vars(caplog.records[0])["first"] == "spec.systemStrategy must be an object, is 7"


def test_an_answer_before_the_kind_vanished_does_not_confirm_its_absence() -> None:
    case = Case()
    case.known.confirm_no_slo(500.0)
    case.known.confirm("slo", 100.0, "404")
    assert case.store.current.cluster.slo.taken_s == 500.0


def test_a_kind_that_vanishes_says_nothing_of_the_object_that_is_in_force() -> None:
    case = Case()
    case.say(1, '{"cpuBurstStrategy": {"policy": "auto"}}')
    case.clock.advance(STALE_S + 1)
    case.known.confirm_no_slo(case.clock.monotonic())
    assert case.version == "1"
    assert case.frozen
