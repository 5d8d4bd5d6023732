"""What is done next, from what is wanted and what the server has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.kube.writer.conflicts import ConflictHistory
from agent.kube.writer.decision import (
    ApplyStep,
    ConflictStep,
    DeleteStep,
    InSyncStep,
    LiveObject,
    OwnerRepairStep,
    WaitStep,
    decide,
)
from tests.unit.kube_writer.objects import (
    DEVICE,
    NODE,
    NOW,
    UID,
    body,
    desired,
    entry,
    owner,
    stored,
)

WRITTEN_S = 1_767_323_045.0  # of the entries
SPEC: dict[str, object] = {"f:spec": {"f:devices": {}}}
SOON, LATE = WRITTEN_S + 60, WRITTEN_S + 301


def sight(content: dict[str, Any] | None, server_s: float | None = SOON) -> LiveObject:
    return LiveObject(stored=content, server_s=server_s)


def test_what_is_not_there_is_made() -> None:
    step = decide(desired(), sight(None), NOW)
    assert isinstance(step, ApplyStep)
    assert (step.force, step.body) == (False, body())


def test_what_is_there_needs_nothing() -> None:
    assert decide(desired(), sight(stored(body())), NOW) == InSyncStep()


@pytest.mark.parametrize("uid", ["", "another"])
def test_nothing_is_made_for_a_node_that_is_not_known_or_not_this_one(uid: str) -> None:
    assert isinstance(decide(desired(), sight(None), replace(NOW, node_uid=uid)), WaitStep)


def test_a_status_waits_for_its_object_and_a_node_for_its_kubelet() -> None:
    metric = replace(
        desired({"metadata": {"name": NODE}, "status": {"a": 1}}),
        api_version="slo.koordinator.sh/v1alpha1",
        kind="NodeMetric",
        status_only=True,
    )
    node = replace(desired({"metadata": {"name": NODE}}), api_version="v1", kind="Node")
    assert isinstance(decide(metric, sight(None), NOW), WaitStep)
    assert isinstance(decide(node, sight(None), NOW), WaitStep)


def test_labels_of_a_node_are_written_only_to_the_node_that_was_read() -> None:
    wish = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {"a": "b"}}}
    node = replace(desired(wish), api_version="v1", kind="Node")
    step = decide(node, sight(stored({"metadata": {"name": NODE}})), NOW)
    assert isinstance(step, ApplyStep)
    assert step.body["metadata"]["uid"] == "object-uid"  # type: ignore[index] # as it is built


@pytest.mark.parametrize(
    ("server_s", "history", "forced"),
    [
        (SOON, ConflictHistory(), False),
        (LATE, ConflictHistory(), True),
        (None, ConflictHistory(), False),
        (LATE, ConflictHistory(takeovers=(("koordlet", WRITTEN_S),)), True),
        (LATE, ConflictHistory(takeovers=(("koordlet", WRITTEN_S - 900),)), False),
        (LATE + 3600, ConflictHistory(takeovers=(("koordlet", WRITTEN_S - 900),)), True),
        (SOON, ConflictHistory(managers_in_conflict=frozenset({"koordlet"})), False),
    ],
)
def test_fields_of_another_writer_are_taken_only_when_it_is_silent(
    server_s: float | None, history: ConflictHistory, forced: bool
) -> None:
    there = stored(body(2), entry("koordlet", SPEC))
    step = decide(desired(), sight(there, server_s), replace(NOW, conflict_history=history))
    if not forced:
        assert isinstance(step, ConflictStep)
        assert [rival.manager for rival in step.conflicts] == ["koordlet"]
        assert step.conflicts[0].fields == (".spec.devices",)
        return
    assert isinstance(step, ApplyStep)
    assert step.force
    metadata = step.body["metadata"]
    assert isinstance(metadata, dict)
    assert metadata["resourceVersion"] == "7"


def test_one_writer_that_lives_keeps_the_fields_of_one_that_is_gone() -> None:
    there = stored(
        body(2),
        entry("gone", SPEC, "2026-01-01T00:00:00Z"),
        entry("alive", SPEC, "2026-01-02T03:09:00Z"),
    )
    assert isinstance(decide(desired(), sight(there, LATE), NOW), ConflictStep)


def test_what_was_written_in_our_name_or_by_nobody_is_no_rival() -> None:
    own_values = stored(body(2), entry("xpu-agent", SPEC))
    step = decide(desired(), sight(own_values), NOW)
    assert isinstance(step, ApplyStep)
    assert not step.force
    accused = replace(
        NOW, conflict_history=ConflictHistory(managers_in_conflict=frozenset({"xpu-agent"}))
    )
    step = decide(desired(), sight(own_values), accused)
    assert isinstance(step, ApplyStep)
    assert step.force
    untracked = replace(
        NOW,
        conflict_history=ConflictHistory(managers_in_conflict=frozenset({"before-first-apply"})),
    )
    step = decide(desired(), sight(stored(body(2))), untracked)
    assert isinstance(step, ApplyStep)
    assert step.force


def test_a_label_that_another_has_is_left_out_and_the_rest_is_written() -> None:
    labels: dict[str, object] = {"f:metadata": {"f:labels": {"f:a": {}}}}
    there = stored(body(2, a="theirs", b="old"), entry("kubectl-edit", labels))
    step = decide(desired(body(1, a="x", b="y")), sight(there), NOW)
    assert isinstance(step, ApplyStep)
    assert step.body["metadata"]["labels"] == {"b": "y"}  # type: ignore[index] # as it is built
    there = stored(body(1, a="theirs", b="y"), entry("kubectl-edit", labels))
    assert isinstance(decide(desired(body(1, a="x", b="y")), sight(there), NOW), ConflictStep)


def test_applied_fields_that_are_not_desired_any_more_are_removed() -> None:
    labels: dict[str, object] = {"f:metadata": {"f:labels": {"f:old": {}}}}
    there = stored(body(1, old="x"), entry("xpu-agent", labels, operation="Apply"))
    assert isinstance(decide(desired(), sight(there), NOW), ApplyStep)
    theirs = stored(body(1, old="x"), entry("koordlet", labels))
    assert decide(desired(), sight(theirs), NOW) == InSyncStep()


def test_owners_that_are_no_more_are_taken_off_first() -> None:
    there = stored(body())
    theirs = {"kind": "ConfigMap", "name": NODE, "uid": "c"}
    there["metadata"]["ownerReferences"] = [owner("dead"), theirs, owner()]
    step = decide(desired(), sight(there), NOW)
    assert isinstance(step, OwnerRepairStep)
    assert step.patch["metadata"] == {
        "resourceVersion": "7",
        "ownerReferences": [theirs, owner(UID)],
    }


@pytest.mark.parametrize(
    ("entries", "removed"),
    [
        ((entry("xpu-agent", SPEC),), True),
        ((entry("xpu-agent", SPEC), entry("kube", {"f:metadata": {}})), True),
        ((entry("xpu-agent", SPEC), entry("koordlet", SPEC)), False),
        ((entry("koordlet", SPEC),), False),
        ((), False),
    ],
)
def test_only_an_object_without_other_writers_is_removed(
    entries: tuple[dict[str, object], ...], removed: bool
) -> None:
    step = decide(desired(is_absent=True), sight(stored(body(), *entries)), NOW)
    assert step == (DeleteStep("object-uid", "7") if removed else InSyncStep())
    assert decide(desired(is_absent=True), sight(None), NOW) == InSyncStep()


def test_a_shared_list_is_merged_locked_and_taken_but_not_annotations() -> None:
    def merge(there: Any, wish: Any) -> Any:
        return {**wish, "zones": [{**wish["zones"][0], "costs": there["zones"][0]["costs"]}]}

    def content(cpu: str, note: str, **zone: object) -> dict[str, Any]:
        metadata = {"name": NODE, "annotations": {"n": note}, "ownerReferences": [owner()]}
        return {"metadata": metadata, "zones": [{"name": "node-0", "cpu": cpu, **zone}]}

    wish = replace(
        desired(content("4", "x")),
        api_version="topology.node.k8s.io/v1alpha1",
        kind="NodeResourceTopology",
        merge=merge,
    )
    theirs = entry("nfd", {"f:zones": {}})
    step = decide(wish, sight(stored(content("5", "x", costs=[1]), theirs)), NOW)
    assert isinstance(step, ApplyStep)
    assert step.force
    assert step.body["zones"] == [{"name": "node-0", "cpu": "4", "costs": [1]}]
    assert step.body["metadata"]["resourceVersion"] == "7"  # type: ignore[index] # as it is built
    notes = entry("koordlet", {"f:metadata": {"f:annotations": {"f:n": {}}}, "f:zones": {}})
    step = decide(wish, sight(stored(content("4", "theirs", costs=[1]), notes)), NOW)
    assert isinstance(step, ConflictStep)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["metadata", "spec", "devices", "f:spec"]), inner)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), JSON))
def test_no_answer_of_a_server_breaks_a_decision(there: dict[str, Any]) -> None:
    decide(desired(), sight(there), NOW)
    decide(desired(is_absent=True), sight(there), NOW)


def test_fields_that_the_server_does_not_know_are_neither_compared_nor_written() -> None:
    wish = body()
    wish["spec"]["devices"][0]["conditions"] = [{"type": "Healthy"}]
    dropped = replace(NOW, unknown_fields=frozenset({("spec", "devices", "*", "conditions")}))
    assert decide(desired(wish), sight(stored(body())), dropped) == InSyncStep()
    step = decide(desired(wish), sight(None), dropped)
    assert isinstance(step, ApplyStep)
    assert step.body == body()
    assert step.body["apiVersion"] == DEVICE
