"""Reading who wrote what, and whom a conflict names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kube.errors import Conflict, StatusCause
from agent.kube.server_side_apply import (
    conflicting_managers,
    field_managers,
    render_path,
    surplus_fields,
    unix_time,
)

FIELDS = {
    "f:metadata": {
        "f:annotations": {".": {}, "f:a/b": {}},
        "f:ownerReferences": {'k:{"uid":"u"}': {".": {}, "f:kind": {}}},
    },
    "f:spec": {"f:devices": {}},
}


def stored(fields: object, **entry: object) -> dict[str, object]:
    base = {"manager": "koordlet", "operation": "Update", "time": "2026-01-02T03:04:05Z"}
    return {"metadata": {"managedFields": [{**base, "fieldsV1": fields, **entry}]}}


@pytest.mark.parametrize(
    ("path", "owned"),
    [
        (("f:spec", "f:devices"), True),
        (("f:spec",), True),
        (("f:spec", "f:other"), False),
        (("f:metadata", "f:annotations", "f:a/b"), True),
        (("f:metadata", "f:annotations", "f:c"), False),
        (("f:metadata", "f:ownerReferences", 'k:{"uid":"u"}'), True),
        (("f:metadata", "f:ownerReferences", 'k:{"uid":"v"}'), False),
    ],
)
def test_a_manager_owns_what_its_fields_say(path: tuple[str, ...], owned: bool) -> None:
    (manager,) = field_managers(stored(FIELDS))
    assert manager.owns(path) is owned
    assert manager.last_write_s == 1767323045


def test_surplus_fields_of_a_manager_are_found() -> None:
    desired = {
        "metadata": {"annotations": {}, "ownerReferences": [{"uid": "u", "kind": "Node"}]},
        "spec": {"devices": []},
    }
    assert [render_path(path) for path in surplus_fields(FIELDS, desired)] == [
        '.metadata.annotations["a/b"]'
    ]
    assert [render_path(path) for path in surplus_fields(FIELDS, {})] == [".metadata", ".spec"]


@pytest.mark.parametrize(
    "listed",
    [None, {}, "x", [None, 1, {}], [{"manager": 1}], [{"manager": "a", "fieldsV1": []}]],
)
def test_entries_that_are_none_own_nothing(listed: object) -> None:
    for manager in field_managers({"metadata": {"managedFields": listed}}):
        assert not manager.owns(("f:spec",))
        assert not list(surplus_fields(manager.fields, {}))


@pytest.mark.parametrize("text", [None, 3, "", "yesterday", "2026-01-02", "2026-01-02T03:04:05"])
def test_what_is_no_moment_is_unknown(text: object) -> None:
    assert unix_time(text) is None


def test_a_conflict_names_its_managers() -> None:
    causes = (
        StatusCause(".spec.devices", 'conflict with "koordlet" using s/v1 at 2026-01-02T03:04:05Z'),
        StatusCause(".metadata.labels.a", 'conflict with "kubectl-edit"'),
    )
    error = Conflict("PATCH x", "2 conflicts", code=409, causes=causes)
    assert conflicting_managers(error) == {"koordlet", "kubectl-edit"}


def test_a_version_that_is_not_current_names_nobody() -> None:
    assert not conflicting_managers(Conflict("PATCH x", "the object has been modified", code=409))


@given(
    st.recursive(st.none() | st.text(max_size=5), lambda x: st.dictionaries(st.text(max_size=5), x))
)
def test_no_fields_break_the_reading(fields: object) -> None:
    for manager in field_managers(stored(fields)):
        manager.owns(("f:spec", "f:devices"))
        list(surplus_fields(manager.fields, {"spec": {"devices": [1]}}))
