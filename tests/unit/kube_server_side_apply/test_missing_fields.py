"""Fields that a server does not know: found in refusals and in what it kept."""

from __future__ import annotations

import pytest

from agent.kube.server_side_apply import (
    drop_fields,
    missing_fields,
    render_schema_path,
    undeclared_fields,
)

CONDITIONS = ("spec", "devices", "*", "conditions")


@pytest.mark.parametrize(
    ("message", "places"),
    [
        (
            "failed to create typed patch object (/n; g/v1, Kind=Device): "
            ".spec.devices[0].conditions: field not declared in schema",
            {CONDITIONS},
        ),
        (
            "failed to create typed patch object (/n; g/v1, Kind=Device): errors: "
            ".spec.devices[0].conditions: field not declared in schema "
            ".spec.devices[1].conditions: field not declared in schema "
            ".status.x: field not declared in schema",
            {CONDITIONS, ("status", "x")},
        ),
        ("etcdserver: request timed out", set()),
        ("x: field not declared in schema", set()),
    ],
)
def test_a_refused_apply_names_the_fields(message: str, places: set[tuple[str, ...]]) -> None:
    assert undeclared_fields(message) == places


def test_dropped_fields_are_found_once_for_all_entries() -> None:
    desired = {
        "spec": {"devices": [{"minor": 0, "conditions": [1]}, {"minor": 1, "conditions": [2]}]}
    }
    stored = {"spec": {"devices": [{"minor": 0}, {"minor": 1}]}}
    assert set(missing_fields(desired, stored)) == {CONDITIONS}
    assert render_schema_path(CONDITIONS) == "spec.devices[].conditions"


def test_empty_members_and_other_values_are_not_missing() -> None:
    assert not set(missing_fields({"a": {}, "b": [], "c": None, "d": 1}, {"d": 2}))
    assert not set(missing_fields({"a": [1, 2]}, {"a": [1]}))


def test_a_body_without_those_fields_keeps_all_others() -> None:
    body = {"spec": {"devices": [{"minor": 0, "conditions": [1]}], "conditions": 1}}
    assert drop_fields(body, frozenset({CONDITIONS})) == {
        "spec": {"devices": [{"minor": 0}], "conditions": 1}
    }
    assert drop_fields(body, frozenset()) is body
    assert drop_fields(body, frozenset({("spec",), ("spec", "devices")})) == {}
