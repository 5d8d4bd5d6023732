"""The picture of pods and containers: what is told is in it, what ended is not."""

from __future__ import annotations

import pytest

from agent.nri import runtime_view as module
from agent.nri.runtime_view import RuntimeViewStore
from agent.nri.versions import parse_peer
from agent.snapshot.container import ContainerState, PodSandbox, RuntimeContainer, RuntimeView
from tests.runtime.handler import FunctionHandler
from tests.unit.nri.talk import nothing

POD = PodSandbox(id="p1", uid="u1")
MAIN = RuntimeContainer(id="c1", sandbox_id="p1", name="main")


def begun() -> tuple[RuntimeViewStore, list[RuntimeView]]:
    runtime_views: list[RuntimeView] = []
    return RuntimeViewStore(FunctionHandler(nothing, runtime_views.append)), runtime_views


def test_each_change_is_a_new_picture_and_older_ones_stay_as_they_were() -> None:
    own_values, observations = begun()
    own_values.update(POD, MAIN)
    own_values.remove_container("c1")
    own_values.remove_sandbox("p1")
    assert [
        (len(observation.sandboxes), len(observation.containers)) for observation in observations
    ] == [
        (1, 1),
        (1, 0),
        (0, 0),
    ]
    assert own_values.view is observations[-1]


def test_a_requested_container_is_shown_once_with_its_result() -> None:
    own_values, observations = begun()
    own_values.update(POD)
    own_values.add_requested(None, MAIN)
    assert len(observations) == 1
    own_values.mark_created("c1")
    assert observations[-1].containers["c1"].state is ContainerState.CREATED
    own_values.add_requested(None, RuntimeContainer(id="refused", sandbox_id="p1"))
    own_values.remove_container("refused")
    own_values.add_requested(None, RuntimeContainer(id="late", sandbox_id="p1"))
    own_values.mark_missed("late", "BudgetExceeded")
    assert list(own_values.view.containers) == ["c1", "late"]
    assert dict(own_values.view.missed) == {"late": "BudgetExceeded"}
    assert len(observations) == 4


@pytest.mark.parametrize("state", [ContainerState.UNKNOWN, ContainerState.RUNNING])
def test_and_at_once_if_the_answer_takes_its_time_or_its_sandbox_is_new(
    state: ContainerState,
) -> None:
    own_values, observations = begun()
    own_values.add_requested(POD, RuntimeContainer(id="c1", sandbox_id="p1", state=state))
    assert [list(observation.containers) for observation in observations] == [["c1"]]
    own_values.add_requested(None, RuntimeContainer(id="c2", sandbox_id="p1", state=state))
    own_values.publish_pending()
    own_values.publish_pending()
    own_values.add_requested(None, RuntimeContainer(id="c3", sandbox_id="p1", state=state))
    own_values.mark_created("c3")
    assert [list(observation.containers) for observation in observations[1:]] == [
        ["c1", "c2"],
        ["c1", "c2", "c3"],
    ]


def test_unknown_ids_end_without_an_error() -> None:
    own_values, observations = begun()
    own_values.remove_container("c1")
    own_values.remove_sandbox("p1")
    own_values.mark_missed("c1", "BudgetExceeded")
    assert observations == []


def test_a_sandbox_takes_its_containers_and_marks_with_it() -> None:
    own_values, _ = begun()
    own_values.update(POD, MAIN)
    own_values.update(PodSandbox(id="p2"), RuntimeContainer(id="c2", sandbox_id="p2"))
    own_values.mark_missed("c1", "BudgetExceeded")
    own_values.mark_missed("p1", "HookFailed")
    assert dict(own_values.view.missed) == {"c1": "BudgetExceeded", "p1": "HookFailed"}
    own_values.remove_sandbox("p1")
    assert (list(own_values.view.containers), dict(own_values.view.missed)) == (["c2"], {})


def test_a_sandbox_that_was_stopped_is_listed_until_it_is_removed_and_holds_nothing() -> None:
    own_values, observations = begun()
    own_values.update(POD)
    own_values.mark_stopped("p1")
    own_values.mark_stopped("p1")
    own_values.mark_stopped("unknown")
    assert [observation.sandboxes["p1"].stopped for observation in observations] == [False, True]


def test_all_sandboxes_of_a_pod_that_ended_hold_nothing() -> None:
    own_values, observations = begun()
    own_values.update(PodSandbox(id="p1", uid="u1", stopped=True))
    for key, uid in (("p2", "u1"), ("p3", "u2")):
        own_values.update(PodSandbox(id=key, uid=uid))
    before = len(observations)
    own_values.mark_pods_stopped({"u1", "u9"})
    own_values.mark_pods_stopped({"u1", "u9"})
    assert len(observations) == before + 1
    stopped = {key: one.stopped for key, one in own_values.view.sandboxes.items()}
    assert stopped == {"p1": True, "p2": True, "p3": False}


def test_a_sandbox_that_was_stopped_stays_so_in_the_lists_of_later_connections() -> None:
    own_values, _ = begun()
    own_values.update(POD)
    own_values.mark_stopped("p1")
    own_values.begin_list()
    own_values.replace_all([POD, PodSandbox(id="p2", uid="u1")], [])
    assert [one.stopped for one in own_values.view.sandboxes.values()] == [True, False]


def test_a_container_that_has_ended_is_not_started_by_a_later_event() -> None:
    own_values, _ = begun()
    running = RuntimeContainer(id="c1", sandbox_id="p1", state=ContainerState.RUNNING, pid=7)
    own_values.update(POD, MAIN)
    own_values.mark_started(running)
    assert dict(own_values.view.containers) == {"c1": running}
    own_values.remove_container("c1")
    own_values.mark_started(running)
    assert dict(own_values.view.containers) == {}


def test_a_container_that_starts_while_the_list_with_it_is_read_runs() -> None:
    own_values, _ = begun()
    running = RuntimeContainer(id="c1", sandbox_id="p1", state=ContainerState.RUNNING, pid=7)
    ended = RuntimeContainer(id="c2", sandbox_id="p1", state=ContainerState.RUNNING, pid=8)
    own_values.begin_list()
    own_values.mark_started(running)
    own_values.remove_container("c2")
    own_values.mark_started(ended)
    own_values.replace_all([POD], [MAIN, RuntimeContainer(id="c2", sandbox_id="p1")])
    assert dict(own_values.view.containers) == {"c1": running}


def test_a_mark_goes_with_its_container() -> None:
    own_values, _ = begun()
    own_values.update(POD, MAIN)
    own_values.mark_missed("c1", "BudgetExceeded")
    own_values.remove_container("c1")
    assert dict(own_values.view.missed) == {}


def test_the_state_is_published_once() -> None:
    own_values, observations = begun()
    own_values.set_peer(parse_peer("containerd", "2.3.4", "", 0))
    own_values.set_state("registered")
    own_values.set_state("registered")
    assert [observation.state for observation in observations] == ["waiting", "registered"]
    view = own_values.view
    assert (view.runtime, view.nri_version, view.takes_cdi) == ("containerd", (0, 12, 0), True)
    assert not view.is_synchronized


def test_a_full_list_replaces_all_that_was_known() -> None:
    own_values, _ = begun()
    own_values.update(PodSandbox(id="gone"), RuntimeContainer(id="gone-too", sandbox_id="gone"))
    own_values.mark_missed("gone-too", "BudgetExceeded")
    own_values.begin_list()
    own_values.replace_all([POD], [MAIN])
    view = own_values.view
    assert (list(view.sandboxes), list(view.containers), dict(view.missed)) == (["p1"], ["c1"], {})
    assert view.is_synchronized


def test_an_event_during_a_list_is_newer_than_the_list() -> None:
    own_values, _ = begun()
    own_values.begin_list()
    running = RuntimeContainer(id="c1", sandbox_id="p1", state=ContainerState.RUNNING, pid=7)
    own_values.update(container=running)
    own_values.update(POD, RuntimeContainer(id="new", sandbox_id="p1"))
    own_values.remove_container("stopped")
    own_values.remove_sandbox("removed")
    own_values.replace_all(
        [POD, PodSandbox(id="removed")], [MAIN, RuntimeContainer(id="stopped", sandbox_id="p1")]
    )
    assert list(own_values.view.sandboxes) == ["p1"]
    assert dict(own_values.view.containers) == {
        "c1": running,
        "new": own_values.view.containers["new"],
    }


def test_a_sandbox_that_stops_during_the_first_list_holds_nothing() -> None:
    own_values, _ = begun()
    own_values.begin_list()
    own_values.mark_stopped("p1")
    own_values.replace_all([POD, PodSandbox(id="p2")], [])
    assert [key for key, one in own_values.view.sandboxes.items() if not one.stopped] == ["p2"]


def test_events_after_a_list_are_applied_as_usual() -> None:
    own_values, _ = begun()
    own_values.begin_list()
    own_values.replace_all([POD], [MAIN])
    own_values.remove_container("c1")
    own_values.begin_list()
    own_values.replace_all([POD], [MAIN])
    assert list(own_values.view.containers) == ["c1"]


def test_what_came_while_there_was_no_connection_is_marked_but_for_a_first_list() -> None:
    own_values, _ = begun()
    own_values.begin_list()
    own_values.replace_all([POD], [MAIN])  # by an agent before us, for all that is known
    assert dict(own_values.view.missed) == {}
    own_values.begin_list()
    own_values.update(container=RuntimeContainer(id="asked", sandbox_id="p1"))
    new = [RuntimeContainer(id=key, sandbox_id="p1") for key in ("new", "asked")]
    own_values.replace_all([POD, PodSandbox(id="p2")], [MAIN, *new])
    assert dict(own_values.view.missed) == {"new": "NotAsked", "p2": "NotAsked"}


def test_a_list_that_was_lost_leaves_what_was_known() -> None:
    own_values, _ = begun()
    own_values.update(POD, MAIN)
    own_values.begin_list()
    own_values.fail_list()
    assert (own_values.view.is_synchronized, own_values.view.reason) == (True, "PodsUnread")
    assert list(own_values.view.containers) == ["c1"]


def test_it_is_bounded_and_what_is_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SANDBOXES", 2)
    monkeypatch.setattr(module, "MAX_CONTAINERS", 3)
    own_values, _ = begun()
    for number in range(5):
        own_values.update(
            PodSandbox(id=f"p{number}"), RuntimeContainer(id=f"c{number}", sandbox_id="p0")
        )
    assert (
        len(own_values.view.sandboxes),
        len(own_values.view.containers),
        own_values.dropped,
    ) == (2, 3, 5)
    own_values.update(PodSandbox(id="p0", uid="u"))  # one that is in it may change
    assert (own_values.view.sandboxes["p0"].uid, own_values.dropped) == ("u", 5)
    own_values.begin_list()
    own_values.replace_all([PodSandbox(id=f"p{number}") for number in range(4)], [])
    assert (len(own_values.view.sandboxes), own_values.dropped) == (2, 7)


def test_an_entry_without_an_id_is_dropped() -> None:
    own_values, _ = begun()
    own_values.update(PodSandbox(id=""), RuntimeContainer(id="", sandbox_id=""))
    assert (dict(own_values.view.sandboxes), dict(own_values.view.containers)) == ({}, {})
