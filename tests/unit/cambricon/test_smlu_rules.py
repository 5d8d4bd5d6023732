from __future__ import annotations

import pytest

from plugins.vendors.cambricon.smlu.profiles import (
    MIB,
    SliceRefused,
    SmluProfile,
    choose_profile,
    handle_of,
    request_of,
    unit_mib,
)


@pytest.mark.parametrize(
    ("setting", "total_mib", "unit"),
    [pytest.param(0, 16384, 163, id="V55"), (256, 16384, 256), (0, 23308, 233)],
)
def test_the_unit_of_memory(setting: int, total_mib: int, unit: int) -> None:
    assert unit_mib(setting, total_mib) == unit


@pytest.mark.parametrize(
    ("instance", "card", "handle"),
    [pytest.param(1, 0, 256, id="V56 card 0"), pytest.param(3, 1, 769, id="V56 card 1")],
)
def test_handles_of_instances(instance: int, card: int, handle: int) -> None:
    assert handle_of(instance, card) == handle


@pytest.mark.parametrize(
    ("memory_mib", "core", "card", "unit", "text"),
    [pytest.param(1100, 30, 2, 256, "2_30_4", id="V57"), (1024, 30, 2, 256, "2_30_4")],
)
def test_memory_is_rounded_down_to_units_and_the_remark_says_so(
    memory_mib: int, core: int, card: int, unit: int, text: str
) -> None:
    request, remark = request_of(card, core, memory_mib * MIB, unit)
    assert request.text == text
    expected_remark = f"1024Mi of {memory_mib}Mi: memory comes in units of 256Mi"
    assert remark == (expected_remark if memory_mib % unit else "")


@pytest.mark.parametrize(("core", "memory_mib"), [(0, 512), (101, 512), (5, 255), (5, 0)])
def test_a_slice_that_cannot_be_is_refused(core: int, memory_mib: int) -> None:
    with pytest.raises(SliceRefused):
        request_of(0, core, memory_mib * MIB, 256)


def _profile(number: int, remain: int) -> SmluProfile:
    return SmluProfile(id=number, core_percent=5, memory_bytes=1 << 30, total=20, remain=remain)


def test_the_profile_of_that_size_is_chosen() -> None:
    assert choose_profile([_profile(3, 1)], 5, 1 << 30) == _profile(3, 1)
    assert choose_profile([_profile(3, 1)], 6, 1 << 30) is None


def test_a_profile_of_which_nothing_is_left_is_refused_not_made_again() -> None:
    with pytest.raises(SliceRefused, match="no free slot of this profile"):
        choose_profile([_profile(3, 0)], 5, 1 << 30)
