"""OOM scores by annotation."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from agent.containers.hooks import OOM_DEFAULT, OOM_SPEC, OomHook
from agent.snapshot.container import HookStage
from agent.wire_formats.annotations import AnnotationError
from tests.unit.containers.scene import ask, pod, scene


@pytest.mark.parametrize(
    ("annotations", "container", "expected"),
    [
        ({OOM_SPEC: '{"a":-1000,"b":5}'}, "a", -1000),
        ({OOM_SPEC: '{"b":5}', OOM_DEFAULT: "7"}, "a", 7),
        ({OOM_SPEC: '{"b":5}'}, "a", None),
        ({OOM_DEFAULT: "1000"}, "a", 1000),
        ({OOM_DEFAULT: "7"}, "", None),
        ({OOM_DEFAULT: "7"}, None, None),
        ({}, "a", None),
    ],
)
def test_a_containers_value(
    annotations: Mapping[str, str], container: str | None, expected: int | None
) -> None:
    request = ask(HookStage.RECONCILE, pod(annotations=annotations), container)
    assert OomHook().adjust(request, scene()).oom_score_adj == expected


@pytest.mark.parametrize(
    "annotations",
    [
        {OOM_SPEC: "{", OOM_DEFAULT: "7"},
        {OOM_SPEC: '{"a":1001}', OOM_DEFAULT: "7"},
        {OOM_SPEC: '{"a":true}'},
        {OOM_SPEC: '{"b":"7"}', OOM_DEFAULT: "7"},
        {OOM_SPEC: '{"a":1e3}'},
        {OOM_SPEC: '{"a":99999999999999999999999999}'},
        {OOM_DEFAULT: "-1001"},
        {OOM_DEFAULT: "٧"},
        {OOM_DEFAULT: "7.0"},
        {OOM_DEFAULT: "9" * 5000},
        {OOM_DEFAULT: ""},
    ],
)
def test_a_hostile_value_is_refused(annotations: Mapping[str, str]) -> None:
    request = ask(HookStage.RECONCILE, pod(annotations=annotations))
    with pytest.raises(AnnotationError, match="oom-score-adj"):
        OomHook().adjust(request, scene())
