"""Where GPU instances may sit on a card, what still fits, and how to fit several. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

Starts = tuple[tuple[str, tuple[int, ...]], ...]  # profile: memory slices where one may begin
MAX_STEPS = 10_000  # of the search for a plan; a card of eight slices needs some hundreds


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What a card can make, as its driver says. A place is a start and a size in memory slices."""

    name: str
    id: int  # the driver's number
    slices: int  # compute slices
    most: int  # instances of it on one card
    places: tuple[tuple[int, int], ...] | None = None  # None: not told without rights


class Occupied(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance that exists, or is planned."""

    profile: int  # `Profile.id`
    start: int
    size: int
    slices: int


def compute_slices(profiles: Sequence[Profile]) -> int:
    """Return how many compute slices the card has: what its largest profile takes."""
    return max((profile.slices for profile in profiles), default=0)


def free_starts(profile: Profile, used: Sequence[Occupied], slices: int) -> tuple[int, ...]:
    """Return where one more instance fits on a card of that many compute slices, ascending."""
    made = sum(item.profile == profile.id for item in used)
    left = slices - sum(item.slices for item in used)
    if made >= profile.most or left < profile.slices:
        return ()
    return tuple(
        sorted(
            {
                start
                for start, size in profile.places or ()
                if all(
                    start + size <= item.start or item.start + item.size <= start for item in used
                )
            }
        )
    )


def free_slices(profiles: Sequence[Profile], used: Sequence[Occupied]) -> Starts:
    """Return for each profile that still fits where, in the order of the profiles."""
    slices = compute_slices(profiles)
    found = ((profile.name, free_starts(profile, used, slices)) for profile in profiles)
    return tuple((name, starts) for name, starts in found if starts)


def plan(
    wanted: Sequence[Profile], used: Sequence[Occupied], profiles: Sequence[Profile]
) -> tuple[tuple[Profile, int], ...] | None:
    """Return in which order and where to make the wanted instances; `None` if they do not fit.

    The order of making decides what still fits: large ones come first, starts are tried
    ascending, and a choice that leaves no room for the rest is taken back. `profiles` are all
    of the card's.
    """
    order = sorted(wanted, key=lambda profile: (-profile.slices, profile.id))
    slices = compute_slices(profiles)
    steps = iter(range(MAX_STEPS))

    def place(index: int, taken: tuple[Occupied, ...]) -> tuple[tuple[Profile, int], ...] | None:
        if index == len(order):
            return ()
        profile = order[index]
        sizes: Mapping[int, int] = dict(profile.places or ())
        for start in free_starts(profile, taken, slices):
            if next(steps, None) is None:
                return None
            one = Occupied(
                profile=profile.id, start=start, size=sizes[start], slices=profile.slices
            )
            rest = place(index + 1, (*taken, one))
            if rest is not None:
                return ((profile, start), *rest)
        return None

    return place(0, tuple(used))
