"""Which NRI a runtime has: the table, what is said, and what is assumed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.nri.versions import (
    DEFAULT_NRI_VERSION,
    SUBSCRIBED_EVENTS,
    Version,
    event_mask,
    nri_version,
    parse_peer,
    parse_version,
    supported_events,
)

TABLE = [
    ("containerd", "1.7.0", (0, 3, 0)),
    ("containerd", "1.7.6", (0, 3, 0)),
    ("containerd", "1.7.7", (0, 4, 0)),
    ("containerd", "1.7.13", (0, 4, 0)),
    ("containerd", "1.7.14", (0, 6, 0)),
    ("containerd", "v1.7.15", (0, 6, 0)),
    ("containerd", "1.7.16", (0, 6, 1)),
    ("containerd", "1.7.24~ds1", (0, 6, 1)),
    ("containerd", "1.7.25", (0, 6, 1)),
    ("containerd", "1.7.26", (0, 8, 0)),
    ("containerd", "1.7.30", (0, 8, 0)),
    ("containerd", "v2.0.5", (0, 8, 0)),
    ("containerd", "v2.1.4", (0, 8, 0)),
    ("containerd", "2.2.0", (0, 10, 0)),
    ("containerd", "2.2.1", (0, 11, 0)),
    ("containerd", "2.3.0", (0, 12, 0)),
    ("containerd", "2.3.4", (0, 12, 0)),
    ("containerd", "v2.4.0-beta.0", (0, 12, 2)),
    ("cri-o", "1.26.0", (0, 2, 0)),
    ("cri-o", "1.26.1", (0, 2, 0)),
    ("cri-o", "1.26.2", (0, 3, 0)),
    ("cri-o", "1.26.3", (0, 3, 0)),
    ("cri-o", "1.26.4", (0, 3, 1)),
    ("cri-o", "1.27.0", (0, 3, 0)),
    ("cri-o", "1.27.1", (0, 3, 1)),
    ("cri-o", "1.28.11", (0, 3, 1)),
    ("cri-o", "1.29.0", (0, 5, 0)),
    ("cri-o", "1.29.1", (0, 5, 0)),
    ("cri-o", "1.29.2", (0, 6, 0)),
    ("cri-o", "1.30.9", (0, 6, 0)),
    ("cri-o", "1.31.4", (0, 6, 1)),
    ("cri-o", "1.32.1", (0, 9, 0)),
    ("cri-o", "1.33.0", (0, 9, 1)),
    ("cri-o", "1.34.2", (0, 10, 0)),
    ("cri-o", "1.35.0", (0, 11, 0)),
]


@pytest.mark.parametrize(("name", "version", "nri"), TABLE)
def test_a_runtime_that_says_nothing_of_nri_is_known_by_its_version(
    name: str, version: str, nri: Version
) -> None:
    for silent in ("", "(devel)", "0.0.0-unknown"):
        assert nri_version(name, version, silent) == nri


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("containerd", ""),
        ("containerd", "devel"),
        ("containerd", "1.6.9"),
        ("containerd", "1.x"),
        ("containerd", "9999999999.1.1"),
        ("cri-o", "1.25.0"),
        ("docker", "27.0.1"),
        ("", ""),
    ],
)
def test_an_unknown_runtime_has_the_assumed_version(name: str, version: str) -> None:
    assert nri_version(name, version, "") == DEFAULT_NRI_VERSION == (0, 8, 0)


def test_what_the_runtime_says_of_nri_counts() -> None:
    assert nri_version("containerd", "1.7.0", "v0.12.2") == (0, 12, 2)
    assert nri_version("containerd", "1.7.0", "v0.11.1-0.20250101-abcdef") == (0, 11, 1)
    assert nri_version("containerd", "1.7.0", "0.12.2") == (0, 3, 0)  # no `v`: not said
    assert nri_version("containerd", "1.7.0", "vnext") == (0, 3, 0)


@pytest.mark.parametrize(
    ("nri", "valid"),
    [((0, 2, 0), 0x07FF), ((0, 9, 1), 0x07FF), ((0, 10, 0), 0x3FFF), ((1, 0, 0), 0x3FFF)],
)
def test_events_are_clipped_to_what_the_version_knows(nri: Version, valid: int) -> None:
    assert supported_events(nri) == valid
    assert event_mask(nri, 0xFFFF) == valid
    assert event_mask(nri) == SUBSCRIBED_EVENTS == 0x06CF


def test_no_event_at_all_is_never_subscribed_to() -> None:
    assert event_mask((0, 8, 0), 0) == event_mask((0, 8, 0), 0x3000) == 0x0008


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_no_text_makes_a_mask_that_a_runtime_refuses(name: str, version: str, nri: str) -> None:
    result = nri_version(name, version, nri)
    mask = event_mask(result)
    assert mask
    assert not mask & ~supported_events(result)


@pytest.mark.parametrize(
    ("name", "version", "nri", "taken"),
    [
        ("containerd", "2.0.5", "", False),
        ("containerd", "2.1.0", "", True),
        ("containerd", "v2.1.0-beta.1", "", True),
        ("containerd", "2.1.0", "v0.6.1", False),
        ("containerd", "1.7.30", "", False),
        ("cri-o", "1.33.9", "", False),
        ("CRI-O", "1.34.0", "", True),
        ("containerd", "(devel)", "v0.12.2", False),  # nobody knows
        ("other", "9.9.9", "v0.12.2", False),
    ],
)
def test_cdi_names_go_only_to_runtimes_that_resolve_them(
    name: str, version: str, nri: str, taken: bool
) -> None:
    assert parse_peer(name, version, nri, 0).takes_cdi is taken


def test_limits_and_scores_go_only_to_runtimes_that_read_them() -> None:
    old, middle, new = (
        parse_peer("containerd", text, "", 0) for text in ("1.7.0", "1.7.7", "1.7.26")
    )
    assert [one.takes_rlimits for one in (old, middle, new)] == [False, True, True]
    assert [one.takes_oom_score for one in (old, middle, new)] == [False, False, True]


def test_a_runtime_that_names_no_time_limit_has_the_default() -> None:
    limits = [
        parse_peer("containerd", "2.3.0", "", inputs).request_timeout_s for inputs in (0, -1, 1500)
    ]
    assert limits == [2.0, 2.0, 1.5]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("v1.2.3", (1, 2, 3)),
        ("1.2", (1, 2, 0)),
        ("1.2.3+x", (1, 2, 3)),
        ("1", None),
        ("x1.2", None),
    ],
)
def test_a_version_is_the_numbers_it_begins_with(text: str, numbers: Version | None) -> None:
    assert parse_version(text) == numbers
