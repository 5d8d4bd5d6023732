"""The NodeSLO in force, and what of the object could not be used."""

from __future__ import annotations

import msgspec


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """One value of the object that is not used; the default, or the class's, stands instead."""

    path: str  # "spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPercent"
    why: str  # in words, with the range; never the value itself beyond 40 characters


class SloView(msgspec.Struct, frozen=True, kw_only=True):
    """What stands now. Without an object the defaults stand, which ask for nothing."""

    found: bool = False  # False: there is no object, or none was seen yet
    resource_version: str = ""
    refused: tuple[Refusal, ...] = ()
