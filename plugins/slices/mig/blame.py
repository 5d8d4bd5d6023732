"""Which instances of a card an event concerns. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent.model.device import DevicePartition

NOBODY = 0xFFFFFFFF  # an event's instance number when the driver cannot tell


def concerned(
    partitions: Iterable[DevicePartition], gi: int, ci: int
) -> tuple[DevicePartition, ...]:
    """Return the instances that an event with these numbers is about.

    With both numbers that instance, with the GPU instance alone all compute instances in it,
    and with neither all of the card.
    """
    return tuple(
        part
        for part in partitions
        if gi == NOBODY or (part.instance == gi and ci in (NOBODY, part.compute_instance))
    )
