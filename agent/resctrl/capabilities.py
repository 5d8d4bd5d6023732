"""What the kernel and the processor partition, from resctrl's `info` folder. Pure."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping

import msgspec

from agent.config.containers import ResctrlSettings
from agent.resctrl.schemata import BANDWIDTH, CACHE_LINES, Schemata
from agent.snapshot.inventory import Problem
from agent.wire_formats.kernel_text import parse_digits

MBPS_OPTION = "mba_MBps"
AMD_VENDORS = ("AuthenticAMD", "HygonGenuine")
EIGHTHS = 8  # AMD counts bandwidth in units of 1/8 GB/s
INFO_FILES = {
    **dict.fromkeys(
        CACHE_LINES, ("cbm_mask", "min_cbm_bits", "num_closids", "shareable_bits", "sparse_masks")
    ),
    BANDWIDTH: ("bandwidth_gran", "delay_linear", "min_bandwidth", "num_closids"),
    "L3_MON": ("num_rmids",),
}
BAD_INFO = "ResctrlInfoInvalid"

_MASK = re.compile(r"[0-9a-fA-F]{1,16}")


class BandwidthUnit(enum.Enum):
    """What a number of the `MB` line means."""

    PERCENT = "percent"
    MBPS = "MB/s"  # mounted with `mba_MBps`
    EIGHTH_GBPS = "GB/s / 8"  # AMD


class CacheAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """The cache that groups share; with code and data apart, both lines get the same masks."""

    lines: tuple[str, ...]  # L3, or L3CODE and L3DATA
    full_mask: int
    min_bits: int = 1
    has_sparse_masks: bool = False  # masks may have gaps
    starts_high: bool = False  # 0 percent is at the highest bit
    closids: int
    domains: tuple[int, ...]


class BandwidthAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """The memory bandwidth that groups share."""

    unit: BandwidthUnit
    minimum: int = 1
    granularity: int = 1
    is_linear: bool = True  # otherwise the kernel maps values to steps of its own
    unlimited: int  # as the root group shows it
    domain_units: int | None = None  # what one domain reaches, in `unit`; `None`: unknown
    closids: int
    domains: tuple[int, ...]


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What can be partitioned and monitored here."""

    cache: CacheAllocation | None = None
    bandwidth: BandwidthAllocation | None = None
    rmids: int = 0  # monitoring ids; 0: no monitoring
    problems: tuple[Problem, ...] = ()

    @property
    def closids(self) -> int:
        """Return how many control groups the kernel allows, with the root group."""
        parts = (self.cache, self.bandwidth)
        return min((part.closids for part in parts if part is not None), default=0)


DEFAULT_SETTINGS = ResctrlSettings()


def build_capabilities(
    info: Mapping[str, str],
    root: Schemata,
    options: frozenset[str],
    vendor: str | None,
    settings: ResctrlSettings = DEFAULT_SETTINGS,
) -> Capabilities:
    """Return what `info` and the root group's schemata describe.

    `info` has the texts by `L3/cbm_mask`. A resource without a line in the schemata does not
    exist; one whose files are damaged is left out with a problem.
    """
    problems: list[Problem] = []
    lines = tuple(line for line in CACHE_LINES if root.get(line))
    cache = _cache(info, root, lines, settings, problems) if lines else None
    band = None
    if root.get(BANDWIDTH):
        band = _bandwidth(info, root[BANDWIDTH], options, vendor, settings, problems)
    rmids = parse_digits(info.get("L3_MON/num_rmids", "").strip(), 9) or 0
    return Capabilities(cache=cache, bandwidth=band, rmids=rmids, problems=tuple(problems))


def _cache(
    info: Mapping[str, str],
    root: Schemata,
    lines: tuple[str, ...],
    settings: ResctrlSettings,
    problems: list[Problem],
) -> CacheAllocation | None:
    line = lines[0]
    mask, shared = (_mask(info, f"{line}/{name}") for name in ("cbm_mask", "shareable_bits"))
    closids = _number(info, f"{line}/num_closids")
    if not mask or not closids:
        problems.append(_damaged(f"{line}/cbm_mask", f"{line}/num_closids"))
        return None
    return CacheAllocation(
        lines=lines,
        full_mask=mask,
        min_bits=_number(info, f"{line}/min_cbm_bits") or 1,
        has_sparse_masks=_number(info, f"{line}/sparse_masks") == 1,
        starts_high=settings.shared_ways_first and _is_high(shared & mask, mask),
        closids=closids,
        domains=tuple(sorted(root[line])),
    )


def _bandwidth(
    info: Mapping[str, str],
    root: Mapping[int, int],
    options: frozenset[str],
    vendor: str | None,
    settings: ResctrlSettings,
    problems: list[Problem],
) -> BandwidthAllocation | None:
    closids = _number(info, "MB/num_closids")
    if not closids:
        problems.append(_damaged("MB/num_closids"))
        return None
    unit, domain_units = BandwidthUnit.PERCENT, None
    if MBPS_OPTION in options:
        unit, domain_units = BandwidthUnit.MBPS, settings.domain_mbps or None
    elif vendor in AMD_VENDORS:
        unit, domain_units = BandwidthUnit.EIGHTH_GBPS, settings.amd_domain_gbps * EIGHTHS
    return BandwidthAllocation(
        unit=unit,
        minimum=_number(info, "MB/min_bandwidth") or 1,
        granularity=_number(info, "MB/bandwidth_gran") or 1,
        is_linear=_number(info, "MB/delay_linear") != 0,
        unlimited=max(root.values()),
        domain_units=domain_units,
        closids=closids,
        domains=tuple(sorted(root)),
    )


def _mask(info: Mapping[str, str], path: str) -> int:
    text = info.get(path, "").strip()
    return int(text, 16) if _MASK.fullmatch(text) else 0


def _is_high(shared: int, mask: int) -> bool:
    """Return whether the ways that other hardware uses are nearer to the highest bit."""
    if not shared:
        return False
    below = _lowest_bit(shared) - _lowest_bit(mask)
    return mask.bit_length() - shared.bit_length() < below


def _lowest_bit(mask: int) -> int:
    return (mask & -mask).bit_length()


def _number(info: Mapping[str, str], path: str) -> int | None:
    return parse_digits(info.get(path, "").strip(), 9)


def _damaged(*paths: str) -> Problem:
    return Problem(reason=BAD_INFO, message=f"info/{' or info/'.join(paths)} has no valid number")
