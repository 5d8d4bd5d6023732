"""Free placements of instances on a card."""

from __future__ import annotations

import json

import pytest

from plugins.vendors.nvidia.mig.profiles import InstancePlacement, MigProfile, free_slices
from tests.captures import SHARED, needs_shared

# name: driver's number, compute slices, maximum of instances, starts, size; from real 40 GB A100s
A100 = {
    "1g.5gb": (19, 1, 7, range(7), 1),
    "1g.5gb+me": (20, 1, 1, range(7), 1),
    "1g.10gb": (15, 1, 4, (0, 2, 4, 6), 2),
    "2g.10gb": (14, 2, 3, (0, 2, 4), 2),
    "3g.20gb": (9, 3, 2, (0, 4), 4),
    "4g.20gb": (5, 4, 1, (0,), 4),
    "7g.40gb": (0, 7, 1, (0,), 8),
}
PROFILES = tuple(
    MigProfile(
        name=name,
        id=number,
        slices=slices,
        max_instances=max_instances,
        places=tuple((start, size) for start in starts),
    )
    for name, (number, slices, max_instances, starts, size) in A100.items()
)
BY_NAME = {profile.name: profile for profile in PROFILES}
Free = dict[str, tuple[int, ...]]


def at(*places: str) -> tuple[InstancePlacement, ...]:
    """Return the occupied placements, such as `3g.20gb@4`."""
    placements = []
    for place in places:
        name, _, start = place.partition("@")
        number, slices, _, _, size = A100[name]
        placements.append(
            InstancePlacement(profile=number, start=int(start), size=size, slices=slices)
        )
    return tuple(placements)


@pytest.mark.parametrize(
    ("used", "free"),
    [
        pytest.param(
            at("3g.20gb@0"),
            {
                "1g.5gb": (4, 5, 6),
                "1g.5gb+me": (4, 5, 6),
                "1g.10gb": (4, 6),
                "2g.10gb": (4,),
                "3g.20gb": (4,),
            },
            id="V13",
        ),
        pytest.param(at("3g.20gb@0", "3g.20gb@4"), {}, id="V14"),
        pytest.param(
            at("1g.5gb@0", "2g.10gb@2"),
            {
                "1g.5gb": (1, 4, 5, 6),
                "1g.5gb+me": (1, 4, 5, 6),
                "1g.10gb": (4, 6),
                "2g.10gb": (4,),
                "3g.20gb": (4,),
            },
            id="V15",
        ),
        pytest.param(
            at("4g.20gb@0", "2g.10gb@4"),
            {"1g.5gb": (6,), "1g.5gb+me": (6,), "1g.10gb": (6,)},
            id="V16",
        ),
        pytest.param(
            at("1g.10gb@6", "1g.5gb+me@0"),
            {"1g.5gb": (1, 2, 3, 4, 5), "1g.10gb": (2, 4), "2g.10gb": (2, 4)},
            id="V17",
        ),
        pytest.param(at("7g.40gb@0"), {}, id="full"),
        pytest.param(at(*(f"1g.5gb@{n}" for n in range(7))), {}, id="all-compute-slices"),
    ],
)
def test_a_profile_is_free_where_nothing_overlaps(
    used: tuple[InstancePlacement, ...], free: Free
) -> None:
    assert dict(free_slices(PROFILES, used)) == free


def test_unknown_places_are_not_free() -> None:
    untold = MigProfile(name="1g.5gb", id=19, slices=1, max_instances=7)
    assert free_slices((untold,), ()) == ()


@needs_shared
@pytest.mark.parametrize("card", ["a100", "h100", "b200"])
def test_recorded_facts_of_cards_make_a_menu(card: str) -> None:
    path = SHARED / "captures" / "nvml" / f"mig-facts-{card}.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    for places in facts["gpu_instance_placements"].values():
        tables = [t for t in facts["gpu_instance_profiles"].values() if set(places) <= set(t)]
        for table in tables:
            menu = tuple(
                MigProfile(
                    name=name,
                    id=number,
                    slices=table[name]["SliceCount"],
                    max_instances=table[name]["InstanceCount"],
                    places=tuple((start, size) for start, size in profile_places),
                )
                for number, (name, profile_places) in enumerate(places.items())
            )
            free = dict(free_slices(menu, ()))
            assert free == {p.name: tuple(sorted(s for s, _ in p.places or ())) for p in menu}
