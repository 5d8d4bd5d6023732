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
    seen: list[RuntimeView] = []
    return RuntimeViewStore(FunctionHandler(nothing, seen.append)), seen


def test_each_change_is_a_new_picture_and_older_ones_stay_as_they_were() -> None:
    ours, seen = begun()
    ours.update(POD, MAIN)
    ours.remove_container("c1")
    ours.remove_sandbox("p1")
    assert [(len(one.sandboxes), len(one.containers)) for one in seen] == [(1, 1), (1, 0), (0, 0)]
    assert ours.view is seen[-1]


def test_a_requested_container_is_shown_once_with_its_result() -> None:
    ours, seen = begun()
    ours.update(POD)
    ours.add_requested(None, MAIN)
    assert len(seen) == 1
    ours.mark_created("c1")
    assert seen[-1].containers["c1"].state is ContainerState.CREATED
    ours.add_requested(None, RuntimeContainer(id="refused", sandbox_id="p1"))
    ours.remove_container("refused")
    ours.add_requested(None, RuntimeContainer(id="late", sandbox_id="p1"))
    ours.mark_missed("late", "BudgetExceeded")
    assert list(ours.view.containers) == ["c1", "late"]
    assert dict(ours.view.missed) == {"late": "BudgetExceeded"}
    assert len(seen) == 4


@pytest.mark.parametrize("state", [ContainerState.UNKNOWN, ContainerState.RUNNING])
def test_and_at_once_if_the_answer_takes_its_time_or_its_sandbox_is_new(
    state: ContainerState,
) -> None:
    ours, seen = begun()
    ours.add_requested(POD, RuntimeContainer(id="c1", sandbox_id="p1", state=state))
    assert [list(one.containers) for one in seen] == [["c1"]]
    ours.add_requested(None, RuntimeContainer(id="c2", sandbox_id="p1", state=state))
    ours.publish_pending()
    ours.publish_pending()
    ours.add_requested(None, RuntimeContainer(id="c3", sandbox_id="p1", state=state))
    ours.mark_created("c3")
    assert [list(one.containers) for one in seen[1:]] == [["c1", "c2"], ["c1", "c2", "c3"]]


def test_unknown_ids_end_without_an_error() -> None:
    ours, seen = begun()
    ours.remove_container("c1")
    ours.remove_sandbox("p1")
    ours.mark_missed("c1", "BudgetExceeded")
    assert seen == []


def test_a_sandbox_takes_its_containers_and_marks_with_it() -> None:
    ours, _ = begun()
    ours.update(POD, MAIN)
    ours.update(PodSandbox(id="p2"), RuntimeContainer(id="c2", sandbox_id="p2"))
    ours.mark_missed("c1", "BudgetExceeded")
    ours.mark_missed("p1", "HookFailed")
    assert dict(ours.view.missed) == {"c1": "BudgetExceeded", "p1": "HookFailed"}
    ours.remove_sandbox("p1")
    assert (list(ours.view.containers), dict(ours.view.missed)) == (["c2"], {})


def test_a_sandbox_that_was_stopped_is_listed_until_it_is_removed_and_holds_nothing() -> None:
    ours, seen = begun()
    ours.update(POD)
    ours.mark_stopped("p1")
    ours.mark_stopped("p1")
    ours.mark_stopped("unknown")
    assert [one.sandboxes["p1"].stopped for one in seen] == [False, True]


def test_a_mark_goes_with_its_container() -> None:
    ours, _ = begun()
    ours.update(POD, MAIN)
    ours.mark_missed("c1", "BudgetExceeded")
    ours.remove_container("c1")
    assert dict(ours.view.missed) == {}


def test_the_state_is_published_once() -> None:
    ours, seen = begun()
    ours.set_peer(parse_peer("containerd", "2.3.4", "", 0))
    ours.set_state("registered")
    ours.set_state("registered")
    assert [one.state for one in seen] == ["waiting", "registered"]
    view = ours.view
    assert (view.runtime, view.nri_version, view.takes_cdi) == ("containerd", (0, 12, 0), True)
    assert not view.is_synchronized


def test_a_full_list_replaces_all_that_was_known() -> None:
    ours, _ = begun()
    ours.update(PodSandbox(id="gone"), RuntimeContainer(id="gone-too", sandbox_id="gone"))
    ours.mark_missed("gone-too", "BudgetExceeded")
    ours.begin_list()
    ours.replace_all([POD], [MAIN])
    view = ours.view
    assert (list(view.sandboxes), list(view.containers), dict(view.missed)) == (["p1"], ["c1"], {})
    assert view.is_synchronized


def test_an_event_during_a_list_is_newer_than_the_list() -> None:
    ours, _ = begun()
    ours.begin_list()
    running = RuntimeContainer(id="c1", sandbox_id="p1", state=ContainerState.RUNNING, pid=7)
    ours.update(container=running)
    ours.update(POD, RuntimeContainer(id="new", sandbox_id="p1"))
    ours.remove_container("stopped")
    ours.remove_sandbox("removed")
    ours.replace_all(
        [POD, PodSandbox(id="removed")], [MAIN, RuntimeContainer(id="stopped", sandbox_id="p1")]
    )
    assert list(ours.view.sandboxes) == ["p1"]
    assert dict(ours.view.containers) == {"c1": running, "new": ours.view.containers["new"]}


def test_events_after_a_list_are_applied_as_usual() -> None:
    ours, _ = begun()
    ours.begin_list()
    ours.replace_all([POD], [MAIN])
    ours.remove_container("c1")
    ours.begin_list()
    ours.replace_all([POD], [MAIN])
    assert list(ours.view.containers) == ["c1"]


def test_what_came_while_there_was_no_connection_is_marked_but_for_a_first_list() -> None:
    ours, _ = begun()
    ours.begin_list()
    ours.replace_all([POD], [MAIN])  # by an agent before us, for all that is known
    assert dict(ours.view.missed) == {}
    ours.begin_list()
    ours.update(container=RuntimeContainer(id="asked", sandbox_id="p1"))
    new = [RuntimeContainer(id=key, sandbox_id="p1") for key in ("new", "asked")]
    ours.replace_all([POD, PodSandbox(id="p2")], [MAIN, *new])
    assert dict(ours.view.missed) == {"new": "NotAsked", "p2": "NotAsked"}


def test_a_list_that_was_lost_leaves_what_was_known() -> None:
    ours, _ = begun()
    ours.update(POD, MAIN)
    ours.begin_list()
    ours.fail_list()
    assert (ours.view.is_synchronized, ours.view.reason) == (True, "PodsUnread")
    assert list(ours.view.containers) == ["c1"]


def test_it_is_bounded_and_what_is_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SANDBOXES", 2)
    monkeypatch.setattr(module, "MAX_CONTAINERS", 3)
    ours, _ = begun()
    for number in range(5):
        ours.update(PodSandbox(id=f"p{number}"), RuntimeContainer(id=f"c{number}", sandbox_id="p0"))
    assert (len(ours.view.sandboxes), len(ours.view.containers), ours.dropped) == (2, 3, 5)
    ours.update(PodSandbox(id="p0", uid="u"))  # one that is in it may change
    assert (ours.view.sandboxes["p0"].uid, ours.dropped) == ("u", 5)
    ours.begin_list()
    ours.replace_all([PodSandbox(id=f"p{number}") for number in range(4)], [])
    assert (len(ours.view.sandboxes), ours.dropped) == (2, 7)


def test_an_entry_without_an_id_is_dropped() -> None:
    ours, _ = begun()
    ours.update(PodSandbox(id=""), RuntimeContainer(id="", sandbox_id=""))
    assert (dict(ours.view.sandboxes), dict(ours.view.containers)) == ({}, {})
