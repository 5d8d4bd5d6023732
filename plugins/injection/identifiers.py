"""Names of devices on their way into environments, CDI names and paths."""

from __future__ import annotations

import re

from agent.model.grant.granted import Match
from agent.model.grant.refusal import GrantRefused, Refusal

# what UUIDs of cards and slices, PCI addresses and RDMA devices are made of; no list separators
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


def safe(name: str | None, what: str) -> str:
    """Return a name that no list or path can be broken with; `BadDeviceId` for any other.

    Libraries lie and annotations are written by users; neither may add a card to a list.
    """
    if not name or not _NAME.fullmatch(name) or "/../" in f"/{name}/":
        raise GrantRefused(Refusal.BAD_DEVICE_ID, f"{what}: {(name or '')[:64]!r}")
    return name


def own_id(match: Match) -> str | None:
    """Return the uuid of a card, or of the slice of it; `None` for one that may mean others.

    A library that calls a card `all` or `0` would have its runtime show other cards.
    """
    uuid = match.partition.uuid if match.partition else match.device.uuid
    return uuid if uuid and "-" in uuid else None


def visible_id(match: Match) -> str:
    """Return what names a card, or the slice of it, to the vendor's runtime; else `BadDeviceId`."""
    uuid = own_id(match)
    if uuid is None:
        said = match.partition.uuid if match.partition else match.device.uuid
        raise GrantRefused(Refusal.BAD_DEVICE_ID, f"{match.device.key}: {(said or '')[:64]!r}")
    return safe(uuid, match.device.key)
