from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import BadConfig
from plugins.vendors.nvidia.health.xid import (
    CLASSES,
    XidClass,
    XidRules,
    xid_message,
)
from plugins.vendors.nvidia.settings import NvidiaSettings, read_xid_rules
from tests.vendors import section

A, W, R, B, N, INQUIRE, F = XidClass
DEFAULT = XidRules()


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        pytest.param((13, 31, 43, 45, 68, 69, 94, 109), A, id="V31"),
        pytest.param((63, 92, 121), W, id="V32"),
        pytest.param((48, 64, 95, 119, 120, 140, 156), R, id="V33"),
        pytest.param((79,), B, id="V34-reboot"),
        pytest.param((154,), INQUIRE, id="V34-inquire"),
        pytest.param((54, 999, 177), F, id="V34-fault"),
        pytest.param((74, *range(144, 151)), N, id="V35"),
        pytest.param((0, 1, 7, 61, 123, 142, 100_000), F, id="unknown"),
        pytest.param((71, 72, 100, 130, 135), A, id="inside-a-range"),
    ],
)
def test_a_number_is_of_its_class(numbers: tuple[int, ...], kind: XidClass) -> None:
    assert {DEFAULT.class_of(number) for number in numbers} == {kind}


def test_the_catalogue_holds_every_number_once_and_none_beyond_the_drivers_header() -> None:
    assert max(CLASSES) == 176
    assert sum(kind is A for kind in CLASSES.values()) == 53
    assert sum(kind is W for kind in CLASSES.values()) == 39
    assert sum(kind is R for kind in CLASSES.values()) == 22


@pytest.mark.parametrize(
    ("settings", "environment", "expected"),
    [
        ({"xids": {"ignore": ["79"], "fatal": [13]}}, {}, {79: A, 13: F, 48: R}),
        ({"xids": {"fatal": ["48"]}}, {}, {48: R}),
        ({}, {"DP_DISABLE_HEALTHCHECKS": "79, 48,nonsense"}, {79: A, 48: A, 119: R}),
        ({}, {"DP_DISABLE_HEALTHCHECKS": "all"}, {79: A, 48: A}),
        ({}, {"DP_DISABLE_HEALTHCHECKS": "xids", "DP_ENABLE_HEALTHCHECKS": "13"}, {48: A, 13: F}),
        ({}, {"DP_DISABLE_HEALTHCHECKS": "all", "DP_ENABLE_HEALTHCHECKS": "all"}, {48: R}),
        ({}, {"DP_DISABLE_HEALTHCHECKS": "48", "DP_ENABLE_HEALTHCHECKS": "48"}, {48: R}),
        ({"xids": {"ignore": [48]}}, {"DP_ENABLE_HEALTHCHECKS": "48"}, {48: A}),
        ({"xids": {"fatal": [48]}}, {"DP_DISABLE_HEALTHCHECKS": "48"}, {48: R}),
        ({"upstream_compatible": True}, {}, {63: R, 94: R, 13: A, 109: A, 79: B, 69: R}),
    ],
)
def test_settings_move_numbers_and_variables_are_their_defaults(
    settings: dict[str, object], environment: dict[str, str], expected: dict[int, XidClass]
) -> None:
    rules = read_xid_rules(section(NvidiaSettings, settings), environment)
    assert {number: rules.class_of(number) for number in expected} == expected


@pytest.mark.parametrize(
    ("table", "where"),
    [
        ({"ignore": ["bus error"]}, "xids.ignore"),
        ({"fatal": [-1]}, "xids.fatal"),
        ({"fatal": [10**9]}, "xids.fatal"),
        ({"ignore": [48], "fatal": [48]}, "48 is in both"),
    ],
)
def test_what_is_no_number_is_refused_before_anything_starts(
    table: dict[str, object], where: str
) -> None:
    with pytest.raises(BadConfig, match=where):
        section(NvidiaSettings, {"xids": table}).check()


def test_the_message_is_koordlets_and_says_what_to_do() -> None:
    prefix = "Xid error detected on device, error code: 79"
    assert xid_message(79).startswith(prefix)
    assert "reboot" in xid_message(79)
    assert xid_message(69) == (
        "Xid error detected on device, error code: 69 (error of the graphics engine's class)"
    )
    assert "support" in xid_message(177)


@given(st.integers(min_value=0), st.text(max_size=30), st.text(max_size=30))
def test_any_number_under_any_environment_has_a_class_and_a_message(
    number: int, disabled: str, enabled: str
) -> None:
    environment = {"DP_DISABLE_HEALTHCHECKS": disabled, "DP_ENABLE_HEALTHCHECKS": enabled}
    assert read_xid_rules(NvidiaSettings(), environment).class_of(number) in XidClass
    assert str(number) in xid_message(number)
