"""Comparing what is wanted with what the server has: by value, lists whole, foreign parts aside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kube.server_side_apply import differences, is_same, is_same_text, render_path

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=12,
)


def differing(desired: dict[str, object], stored: object) -> list[str]:
    return [render_path(path) for path in differences(desired, stored)]


@pytest.mark.parametrize(
    ("desired", "stored"),
    [
        ("24", "24"),
        ("24", 24),
        ("1", "1000m"),
        ("1k", "1000"),
        ("81559Mi", "85520809984"),
        ("384Gi", "412316860416"),
        ("0.5", "500m"),
        ("0", "0"),
    ],
)
def test_quantities_of_resources_are_compared_by_value(desired: str, stored: object) -> None:
    assert not differing({"resources": {"cpu": desired}}, {"resources": {"cpu": stored}})
    zone: dict[str, object] = {"resources": [{"name": "cpu", "capacity": desired}]}
    assert not differing(zone, {"resources": [{"name": "cpu", "capacity": stored}]})


@pytest.mark.parametrize(
    ("desired", "stored"), [("24", "25"), ("1", "1m"), ("1Ki", "1k"), ("1", True)]
)
def test_other_quantities_differ(desired: str, stored: object) -> None:
    assert differing({"resources": {"cpu": desired}}, {"resources": {"cpu": stored}})


def test_an_id_that_looks_like_a_quantity_is_text() -> None:
    assert differing({"id": "1k"}, {"id": "1000"}) == [".id"]


def test_annotations_are_compared_as_the_json_they_hold() -> None:
    def at(text: str) -> dict[str, object]:
        return {"metadata": {"annotations": {"a/b": text}}}

    assert not differing(at('{"a":1,"b":[2]}'), at('{ "b": [2], "a": 1 }'))
    assert differing(at('{"a":1}'), at('{"a":2}')) == ['.metadata.annotations["a/b"]']
    assert differing(at('{"a":1}'), at("{broken")) == ['.metadata.annotations["a/b"]']
    assert differing(at("null"), {"metadata": {}}) == ['.metadata.annotations["a/b"]']


def test_labels_are_compared_as_text() -> None:
    desired: dict[str, object] = {"metadata": {"labels": {"l": "{}"}}}
    assert differing(desired, {"metadata": {"labels": {"l": "{ }"}}}) == [".metadata.labels.l"]


def test_what_others_added_is_no_difference() -> None:
    stored = {"metadata": {"labels": {"l": "x", "theirs": "y"}, "uid": "u"}, "status": {"a": 1}}
    assert not differing({"metadata": {"labels": {"l": "x"}}}, stored)


def test_a_list_is_compared_whole() -> None:
    desired: dict[str, object] = {"spec": {"devices": [{"minor": 0}]}}
    for devices in ([], [{"minor": 0}, {"minor": 1}], [{"minor": 0, "labels": {"a": "b"}}]):
        assert differing(desired, {"spec": {"devices": devices}}) == [".spec.devices"]
    assert not differing(desired, {"spec": {"devices": [{"minor": 0, "labels": {}}]}})


def test_of_owners_and_conditions_only_the_desired_entries_are_compared() -> None:
    desired: dict[str, object] = {
        "metadata": {"ownerReferences": [{"uid": "u", "kind": "Node"}]},
        "status": {"conditions": [{"type": "Ours", "status": "True"}]},
    }
    conditions = [{"type": "Ready"}, {"type": "Ours", "status": "True", "x": 1}]
    owners = [{"uid": "other"}, {"uid": "u", "kind": "Node"}]
    stored = {"metadata": {"ownerReferences": owners}, "status": {"conditions": conditions}}
    assert not differing(desired, stored)
    conditions.pop()
    assert differing(desired, stored) == ['.status.conditions[{"type":"Ours"}]']


def test_true_is_not_one() -> None:
    assert not is_same(True, 1)
    assert is_same(1, 1.0)


@given(JSON)
def test_everything_is_equal_to_itself(value: object) -> None:
    if value == value:  # noqa: PLR0124 - a float that is no number is not
        assert is_same(value, value)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4), JSON)
def test_no_answer_of_a_server_breaks_the_comparison(
    desired: dict[str, object], stored: object
) -> None:
    list(differences(desired, stored))


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_text_breaks_the_comparison_of_annotations(desired: str, stored: str) -> None:
    is_same_text("{" + desired, "{" + stored)
    is_same({"resources": {"a": desired}}, {"resources": {"a": stored}})
