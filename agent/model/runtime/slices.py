"""Slices that are cut off cards for pods and taken back: what is wanted, what came of it."""

from __future__ import annotations

import msgspec

from agent.model.device import DevicePartition


class SliceWish(msgspec.Struct, frozen=True, kw_only=True):
    """A slice for one pod: by the name of a template, or by cores and memory."""

    pod: str  # uid
    device: str  # key of the card
    template: str = ""
    core_percent: int | None = None
    memory_bytes: int | None = None


class SliceMade(msgspec.Struct, frozen=True, kw_only=True):
    """A wish that is fulfilled, now or earlier."""

    pod: str
    device: str
    partition: DevicePartition


class SliceUnmade(msgspec.Struct, frozen=True, kw_only=True):
    """A wish that cannot be fulfilled now."""

    pod: str
    device: str
    reason: str  # CamelCase
    message: str


class SlicesKept(msgspec.Struct, frozen=True, kw_only=True):
    """What stands after a vendor did what it could; asked again, it does only what is missing."""

    made: tuple[SliceMade, ...] = ()
    unmade: tuple[SliceUnmade, ...] = ()
    reclaimed: tuple[str, ...] = ()  # of pods that are gone, for people
    lost: tuple[str, ...] = ()  # uids of pods whose slice is gone under them
    failed: tuple[str, ...] = ()  # what could not be taken back yet, for people
    changed: bool = False  # the devices look different now
