"""A spec as JSON, which may be as large as an API server takes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given

from agent.slo.decoder import MAX_PART_BYTES
from agent.slo.overlay import decode_spec, overlay_spec
from agent.slo.status import build_slo_view
from agent.snapshot.slo import NODE_SLO_DEFAULTS, NodeSlo, NodeSloView
from tests.unit.slo.test_hostile import anything, some, specs
from tests.unit.slo.wire import Tree

LARGE = json.dumps(["x" * 100] * (MAX_PART_BYTES // 100))
HUGE = '{"a": 1e999}'  # a number that nobody can hold
AUTO = '"cpuBurstStrategy": {"policy": "auto"}'


def read(spec: str) -> NodeSloView:
    return build_slo_view({"metadata": {}, "spec": msgspec.Raw(spec.encode())}, NodeSloView())


def auto_but(part: str) -> NodeSloView:
    """Read a spec with one part that is right."""
    view = read(f"{{{AUTO}, {part}}}")
    assert view.slo.cpu_burst.policy == "auto"
    return view


@some
@given(specs | anything)
def test_json_says_what_its_values_say(spec: Any) -> None:
    text = json.dumps(spec).encode()
    try:
        values = msgspec.json.decode(text)
    except msgspec.MsgspecError:  # NaN, halves of characters
        build_slo_view({"spec": msgspec.Raw(text)}, NodeSloView())
        return
    if isinstance(values, dict):
        assert overlay_spec(decode_spec(msgspec.Raw(text))) == overlay_spec(values)
    else:
        assert bool(build_slo_view({"spec": msgspec.Raw(text)}, NodeSloView()).problem) is (
            values is not None
        )


@pytest.mark.parametrize(
    "part",
    [
        "hostApplications",
        "systemStrategy",
        "resourceQOSStrategy",
        "resourceUsedThresholdWithBE",
    ],
)
@pytest.mark.parametrize("value", [LARGE, HUGE], ids=["large", "number"])
def test_a_part_that_is_too_large_or_unreadable_is_refused_alone(part: str, value: str) -> None:
    view = auto_but(f'"{part}": {value}')
    assert [refusal.path for refusal in view.refused] == [f"spec.{part}"]
    assert view.refused[0].why == "must be JSON of 128 KiB at most"


def test_a_third_partys_part_that_is_unreadable_is_refused_alone_too() -> None:
    view = auto_but(f'"extensions": {{"a": {{"b": 1}}, "c": {HUGE}}}')
    assert view.slo.extensions == (("a", '{"b":1}'),)
    assert [refusal.path for refusal in view.refused] == ["spec.extensions['c']"]


def test_third_parties_parts_are_too_large_together() -> None:
    view = auto_but(f'"extensions": {{"a": 1, "c": {LARGE}}}')
    assert view.slo.extensions == ()
    assert [refusal.path for refusal in view.refused] == ["spec.extensions"]


def test_parts_of_newer_managers_are_counted_however_large() -> None:
    view = auto_but(f'"newer": {LARGE}, "newest": 1')
    assert (view.unknown_fields, view.refused_count) == (2, 0)


@pytest.mark.parametrize("text", [LARGE, HUGE[:-1], "7", '"x"', '{"a"', "", "{} {}"])
def test_a_spec_that_is_no_object_changes_nothing(text: str) -> None:
    view = read(text)
    assert view.problem
    assert (view.found, view.slo) == (False, NODE_SLO_DEFAULTS)


@pytest.mark.parametrize("text", ["null", " null ", "{}", '{"extensions": null}'])
def test_a_spec_that_says_nothing_is_found(text: str) -> None:
    view = read(text)
    assert (view.found, view.problem, view.slo) == (True, "", NODE_SLO_DEFAULTS)


def test_the_same_object_with_other_blanks_is_the_same_in_force() -> None:
    spec: Tree = {"extensions": {"b": [1, {"d": 1, "c": 2}], "a": {}}}
    slos: list[NodeSlo] = [read(json.dumps(spec, indent=indent)).slo for indent in (None, 4)]
    assert slos[0] == slos[1]
