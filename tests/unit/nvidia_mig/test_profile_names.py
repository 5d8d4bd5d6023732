"""Parsed names of profiles and instances, and their kubelet resources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from plugins.vendors.nvidia.mig.profile_names import (
    MigProfileName,
    driver_profile_name,
    mig_resource_name,
    old_uuid,
    parse_profile,
    slice_name,
    slices_of,
)

MIB = 1 << 20


@pytest.mark.parametrize(
    ("profile", "compute_slices", "memory_mb", "total", "name"),
    [
        pytest.param(0, 1, 4864, 40960 * MIB, "1g.5gb", id="V01"),
        pytest.param(9, 1, 9856, 40960 * MIB, "1g.10gb", id="V02"),
        pytest.param(2, 1, 19968, 40960 * MIB, "1c.3g.20gb", id="V03"),
        pytest.param(7, 1, 4864, 40960 * MIB, "1g.5gb+me", id="V04"),
        pytest.param(0, 1, 9856, 85520809984, "1g.10gb", id="V05"),
        pytest.param(13, 1, 24000, 97887 * MIB, "1g.24gb-me", id="V06"),
    ],
)
def test_an_instance_is_named_by_its_slices_and_its_share_of_the_memory(
    profile: int, compute_slices: int, memory_mb: int, total: int, name: str
) -> None:
    slices, suffix = slices_of(profile)
    assert slice_name(slices, compute_slices, memory_mb, total, suffix) == name
    parse_profile(name)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        pytest.param(
            "1c.3g.20gb+me",
            MigProfileName(compute=1, slices=3, gigabytes=20, added=("me",)),
            id="V07",
        ),
        ("7g.80gb", MigProfileName(slices=7, gigabytes=80)),
        ("1g.24gb-me", MigProfileName(slices=1, gigabytes=24, removed=("me",))),
        ("1g.10gb+me.all,gfx", MigProfileName(slices=1, gigabytes=10, added=("me.all", "gfx"))),
    ],
)
def test_a_profiles_name_is_taken_apart(text: str, parts: MigProfileName) -> None:
    assert parse_profile(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("1g.5gb+me-gfx", id="V07-two-lists"),
        pytest.param("1g.5", id="V07-no-unit"),
        pytest.param("1g.5gb+", id="V07-empty-list"),
        *("", "1g", "1g.5gb,me", "0g.5gb", "1 g.5gb", "1g.5gb ", "1g.5gb+me,me", "1g.5gb+.me"),
        *("1c.1g.1g.5gb", "g.5gb", "1g.5GB", "1g.5gb+me.", "-1g.5gb", "99999g.5gb", "1g.5gb+1e"),
    ],
)
def test_what_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_profile(text)


@given(st.text(max_size=60))
def test_any_text_is_a_profile_or_refused(text: str) -> None:
    assert driver_profile_name(text) in (None, text.removeprefix("MIG ").strip())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        pytest.param("MIG-GPU-aa-bb/7/0", ("GPU-aa-bb", 7, 0), id="V08"),
        pytest.param("MIG-1b2c", None, id="V08-opaque"),
        ("MIG-GPU-aa-bb/7", None),
        ("MIG-GPU-aa-bb/7/x", None),
        ("GPU-aa-bb/7/0", None),
    ],
)
def test_an_old_uuid_names_card_and_instances(
    text: str, parts: tuple[str, int, int] | None
) -> None:
    assert old_uuid(text) == parts


@pytest.mark.parametrize(
    ("profile", "resource"),
    [
        pytest.param("1g.5gb+me", "nvidia.com/mig-1g.5gb.me", id="V04"),
        pytest.param("1g.24gb-me", "nvidia.com/mig-1g.24gb-me", id="V06"),
        ("1c.3g.20gb", "nvidia.com/mig-1c.3g.20gb"),
        ("1g.10gb+me.all", "nvidia.com/mig-1g.10gb.me.all"),
        ("1g.5gb+" + "x" * 60, None),
        ("1g.5gb+Me", None),
        ("unknown,", None),
    ],
)
def test_a_profile_is_a_resource_of_the_kubelet(profile: str, resource: str | None) -> None:
    assert mig_resource_name(profile) == resource
