"""The NodeSLO in force, and what of the object could not be used."""

from __future__ import annotations

import msgspec

from agent.model.slo.spec import DEFAULTS, NodeSlo

MAX_REFUSED = 64  # told one by one; beyond them only counted


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """One value of the object that is not used; what stands instead is its default, or no rule."""

    path: str  # "spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPercent"
    why: str  # in words, with the range; never the value itself beyond 40 characters


class SloView(msgspec.Struct, frozen=True, kw_only=True):
    """What stands now. Without an object the defaults stand, which ask for nothing."""

    found: bool = False  # False: there is no object, or none was seen yet
    resource_version: str = ""  # of the object in force
    generation: int | None = None
    slo: NodeSlo = DEFAULTS
    refused: tuple[Refusal, ...] = ()  # the first of them, in the order of the fields
    refused_count: int = 0
    unknown_fields: int = 0  # of a newer manager: no error, and not used
    problem: str = ""  # why a newer object could not be read at all; what stands is older
