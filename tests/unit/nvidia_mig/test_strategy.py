"""Kubelet resources of cards and instances, and the annotation that lists them."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from agent.snapshot.device import DeviceKind, DevicePartition, VendorDevice
from plugins.vendors.nvidia.kubelet import kubelet_offer
from plugins.vendors.nvidia.mig.instances import MAX_ANNOTATION_BYTES, mig_annotation

CORE = (("koordinator.sh/gpu-core", "100"),)
Offered = dict[str, tuple[str, ...]]


def card(minor: int, *profiles: str, cut: bool | None = None, sm: int = 14) -> VendorDevice:
    is_cut = bool(profiles) if cut is None else cut
    return VendorDevice(
        kind=DeviceKind.GPU,
        vendor="nvidia",
        bus_id=f"0000:0{minor}:00.0",
        uuid=f"GPU-{minor}",
        minor=minor,
        resources=() if is_cut else CORE,
        labels=(("xpu-agent.io/mig", "true" if is_cut else "false"),),
        partitions=tuple(
            DevicePartition(
                uuid=f"MIG-{minor}-{n}",
                profile=profile,
                memory_bytes=4864 << 20,
                instance=n + 7,
                compute_instance=0,
                start=n,
                size=1,
                cores=sm,
            )
            for n, profile in enumerate(profiles)
        ),
        free_slices=(("1g.5gb", (5, 6)),) if is_cut else (),
    )


WHOLE, EQUAL = card(0), card(1, "1g.5gb", "1g.5gb")


@pytest.mark.parametrize(
    ("cards", "strategy", "offered"),
    [
        pytest.param(
            [WHOLE, EQUAL], "none", {"nvidia.com/gpu": ("GPU-0",)}, id="none-hands-out-no-cut-card"
        ),
        pytest.param(
            [EQUAL, card(2, "1g.5gb")],
            "single",
            {"nvidia.com/gpu": ("MIG-1-0", "MIG-1-1", "MIG-2-0")},
            id="single-hands-out-equal-instances",
        ),
        pytest.param(
            [WHOLE, card(1, "1g.5gb+me", "1c.3g.20gb", "1g.24gb-me")],
            "mixed",
            {
                "nvidia.com/gpu": ("GPU-0",),
                "nvidia.com/mig-1g.5gb.me": ("MIG-1-0",),
                "nvidia.com/mig-1c.3g.20gb": ("MIG-1-1",),
                "nvidia.com/mig-1g.24gb-me": ("MIG-1-2",),
            },
            id="mixed-names-each-profile",
        ),
        pytest.param([], "single", {}, id="no-cards"),
    ],
)
def test_a_strategy_decides_what_is_offered(
    cards: list[VendorDevice], strategy: str, offered: Offered
) -> None:
    offer = kubelet_offer(cards, strategy)
    assert (dict(offer.resources), offer.problems) == (offered, ())


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (WHOLE, "0000:00:00.0: the card is not cut by MIG"),
        (card(2, cut=True), "0000:02:00.0: the card has no instance"),
        (card(2, "2g.10gb"), "an instance is 2g.10gb, another 1g.5gb"),
        (card(2, "1g.5gb", sm=16), "an instance is 1g.5gb"),
    ],
)
def test_single_offers_nothing_where_one_card_is_odd(odd: VendorDevice, words: str) -> None:
    offer = kubelet_offer([EQUAL, odd], "single")
    assert offer.resources == ()
    assert [p.reason for p in offer.problems] == ["MIGNotUniform"]
    assert words in offer.problems[0].message


def test_a_profile_that_makes_no_resource_name_hides_no_other() -> None:
    offer = kubelet_offer([card(0, "un known", "1g.5gb")], "mixed")
    assert dict(offer.resources) == {"nvidia.com/mig-1g.5gb": ("MIG-0-1",)}
    assert [p.reason for p in offer.problems] == ["BadResourceName"]


def test_the_annotation_lists_instances_and_free_places_by_minor() -> None:
    assert json.loads(mig_annotation([WHOLE, card(1, "1g.5gb")])) == {
        "1": {
            "uuid": "GPU-1",
            "instances": [
                {
                    "uuid": "MIG-1-0",
                    "profile": "1g.5gb",
                    "gi": 7,
                    "ci": 0,
                    "start": 0,
                    "size": 1,
                    "memoryMiB": 4864,
                    "sm": 14,
                }
            ],
            "free": {"1g.5gb": [5, 6]},
        }
    }
    assert mig_annotation([WHOLE]) == ""


def test_an_annotation_that_would_be_too_long_loses_what_is_worth_least() -> None:
    one = card(0, *["1g.5gb"] * 7)
    just_too_many = MAX_ANNOTATION_BYTES // (len(mig_annotation([one])) - 1) + 1
    text = mig_annotation([replace(one, minor=100 + n) for n in range(just_too_many)])
    assert 0 < len(text) <= MAX_ANNOTATION_BYTES
    assert "free" not in text
    assert mig_annotation([card(n, *["1g.5gb"] * 56) for n in range(16)]) == ""
