"""What must hold for any objects and any configurations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.apiserver import ApiServer
from tests.apiserver.apply.managers import Manager, Owned, apply, update
from tests.apiserver.apply.patches import merge_patch
from tests.apiserver.apply.paths import Fields, decode, dotted, encode
from tests.apiserver.apply.typed import compare, field_set, merge
from tests.apiserver.schema.shape import Shape
from tests.unit.apiserver.client import DEVICES, Client, device

Object = dict[str, Any]

SHAPE = Shape(
    {
        "type": "object",
        "properties": {
            "number": {"type": "integer"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "whole": {"type": "array", "items": {"type": "integer"}},
            "names": {
                "type": "array",
                "items": {"type": "string"},
                "x-kubernetes-list-type": "set",
            },
            "items": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": {
                    "type": "object",
                    "properties": {"type": {"type": "string"}, "value": {"type": "integer"}},
                },
            },
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
)
WORDS = st.sampled_from(["a", "b", "c"])
SMALL = st.integers(0, 2)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "number": SMALL,
        "labels": st.dictionaries(WORDS, WORDS, min_size=1),
        "whole": st.lists(SMALL),
        "names": st.lists(WORDS, unique=True, min_size=1),
        "items": st.dictionaries(
            WORDS, st.fixed_dictionaries({}, optional={"value": SMALL}), min_size=1
        ).map(lambda items: [{"type": name, **rest} for name, rest in items.items()]),
        "free": st.fixed_dictionaries(  # a key keeps its type: a change of it leaves dead paths
            {}, optional={"a": SMALL, "b": st.dictionaries(WORDS, SMALL, min_size=1)}
        ).filter(bool),
    },
)
MINE = Manager(name="mine", operation="Apply")
THEIRS = Manager(name="theirs", operation="Apply")
WRITER = Manager(name="writer", operation="Update", api_version="v1")
NOTHING = Owned(fields=frozenset(), api_version="v1", time="")


def in_order(value: Any) -> Any:
    """Return the value with lists in one order, so that only the content counts."""
    if isinstance(value, dict):
        return {key: in_order(item) for key, item in value.items()}
    return sorted(map(in_order, value), key=str) if isinstance(value, list) else value


def paths() -> st.SearchStrategy[Fields]:
    element = st.sampled_from(["f:spec", "f:.", 'k:{"type":"a:b"}', 'v:"x"', "i:0"])
    path = st.lists(element, min_size=1, max_size=4).map(tuple)
    return st.frozensets(path, max_size=8)


@given(paths())
def test_a_set_of_fields_survives_being_written_and_read(fields: Fields) -> None:
    assert decode(encode(fields)) == fields


def test_paths_are_reported_in_the_form_for_people() -> None:
    path = ("f:status", "f:conditions", 'k:{"type":"Ready"}', "f:status")
    assert dotted(path) == '.status.conditions[type="Ready"].status'
    assert dotted(("f:finalizers", 'v:"x"')) == '.finalizers[="x"]'


@given(CONFIGS, CONFIGS)
def test_of_one_manager_only_the_last_configuration_is_left(first: Object, last: Object) -> None:
    live, managers = apply(SHAPE, {}, first, {}, MINE, NOTHING, force=False)
    assert in_order(live) == in_order(first)
    live, managers = apply(SHAPE, live, last, managers, MINE, NOTHING, force=False)
    assert in_order(live) == in_order(last)
    owned = managers[MINE].fields if MINE in managers else frozenset()
    assert owned == field_set(SHAPE, last)


@given(CONFIGS, CONFIGS, CONFIGS)
def test_a_forced_apply_holds_and_takes_nothing_that_others_alone_own(
    mine: Object, theirs: Object, again: Object
) -> None:
    live, managers = apply(SHAPE, {}, mine, {}, MINE, NOTHING, force=False)
    live, managers = apply(SHAPE, live, theirs, managers, THEIRS, NOTHING, force=True)
    assert compare(SHAPE, live, merge(SHAPE, live, theirs)) == (set(), set(), set())
    live, managers = apply(SHAPE, live, again, managers, MINE, NOTHING, force=True)
    assert compare(SHAPE, live, merge(SHAPE, live, again)) == (set(), set(), set())
    fields = managers[THEIRS].fields if THEIRS in managers else frozenset()
    assert fields <= field_set(SHAPE, live), "what is owned is there"


@given(CONFIGS, CONFIGS)
def test_an_update_owns_what_it_changed(old: Object, new: Object) -> None:
    live, managers = apply(SHAPE, {}, old, {}, MINE, NOTHING, force=False)
    after = update(SHAPE, live, new, managers, WRITER, NOTHING)
    difference = compare(SHAPE, live, new)
    changed = difference.added | difference.modified
    assert (after[WRITER].fields if WRITER in after else frozenset()) == changed
    mine = after[MINE].fields if MINE in after else frozenset()
    assert not mine & (changed | difference.removed)


@given(CONFIGS, CONFIGS)
def test_a_difference_is_none_exactly_between_equals(old: Object, new: Object) -> None:
    assert compare(SHAPE, old, old) == (set(), set(), set())
    same = compare(SHAPE, old, new) == (set(), set(), set())
    assert same == (in_order(old) == in_order(new)) or old.get("whole") != new.get("whole")


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [  # of the appendix of RFC 7386
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch(target: object, patch: object, result: object) -> None:
    assert merge_patch(target, patch) == result


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=4), below, max_size=3)
    ),
    max_leaves=8,
)
HOSTILE = st.sampled_from(
    ["metadata", "spec", "status", "labels", "devices", "kind", "ownerReferences"]
)


@pytest.fixture(scope="module")
def client() -> Any:
    with ApiServer(nodes=("node-a",), garbage_collection=False) as api:
        yield Client(api)


@given(st.dictionaries(HOSTILE, JSON, max_size=3), st.dictionaries(HOSTILE, JSON, max_size=3))
def test_whatever_is_sent_the_answer_is_an_object_or_a_status(
    client: Client, top: Object, metadata: Object
) -> None:
    whole = {**device(), **top}
    if isinstance(whole["metadata"], dict):
        whole["metadata"] = {**metadata, **whole["metadata"]}
    path = f"{DEVICES}/node-a"
    for status, body in (
        client.apply(path, whole, force="true"),
        client.call("POST", DEVICES, whole),
        client.call("PUT", path, whole),
        client.merge(path, top),
        client.call(
            "PATCH",
            "/api/v1/nodes/node-a",
            top,
            content_type="application/strategic-merge-patch+json",
        ),
        client.get(DEVICES),
    ):
        assert body["kind"] in ("Device", "DeviceList", "Node", "Status"), (status, body)
