"""Merge patches for servers without apply: only what differs, others' parts untouched."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.kube.apply.compare import same
from agent.kube.apply.merging import merge_patch
from tests.apiserver.apply.patches import merge_patch as patched

WHOLE = frozenset({"spec"})
VALUES = st.recursive(
    st.booleans() | st.integers(2, 4) | st.text("ab", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def test_an_object_that_is_as_wanted_needs_no_patch() -> None:
    stored = {"metadata": {"labels": {"a": "b", "theirs": "c"}}, "spec": {"devices": [1]}}
    assert merge_patch({"metadata": {"labels": {"a": "b"}}, "spec": {"devices": [1]}}, stored) == {}


def test_a_label_that_is_no_longer_wanted_is_set_to_null() -> None:
    stored = {"metadata": {"labels": {"a": "b", "theirs": "c"}}}
    wanted = {"metadata": {"labels": {"a": None, "absent": None}}}
    assert merge_patch(wanted, stored) == {"metadata": {"labels": {"a": None}}}


def test_labels_to_be_removed_from_an_object_without_labels_need_no_patch() -> None:
    assert merge_patch({"metadata": {"labels": {"a": None}}}, {"metadata": {}}) == {}


def test_what_a_section_of_ours_has_too_much_is_removed() -> None:
    stored = {"spec": {"devices": [1], "old": {"x": 1}}, "status": {"theirs": 1}}
    assert merge_patch({"spec": {"devices": [2]}}, stored, WHOLE) == {
        "spec": {"devices": [2], "old": None}
    }


def test_owners_and_conditions_of_others_stay_in_the_list() -> None:
    theirs, old, new = ({"uid": "t"}, {"uid": "u"}, {"uid": "u", "kind": "Node"})
    stored = {"metadata": {"ownerReferences": [old, theirs]}}
    patch = merge_patch({"metadata": {"ownerReferences": [new]}}, stored)
    assert patch == {"metadata": {"ownerReferences": [theirs, new]}}


@given(OBJECTS, OBJECTS)
def test_the_patched_section_is_what_was_wanted(
    wanted: dict[str, object], stored: dict[str, object]
) -> None:
    patch = merge_patch({"spec": wanted}, {"spec": stored}, WHOLE)
    result = patched({"spec": stored}, patch)
    assert same({"spec": wanted}, result)
    assert merge_patch({"spec": wanted}, result, WHOLE) == {}
