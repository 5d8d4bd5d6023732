"""Resources of cards and slices in Kubernetes: their names and quantities. Pure."""

from __future__ import annotations

import re

from agent.snapshot.allocation import CORE, MEMORY, RATIO
from agent.wire_formats.quantities import format_binary

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
MAX_RESOURCE = 63  # characters of a resource name with its prefix


def card_resources(memory_bytes: int, core_percent: int = 100) -> tuple[tuple[str, str], ...]:
    """Return what the scheduler allocates of one whole card, as canonical quantities."""
    return ((CORE, str(core_percent)), (MEMORY, format_binary(memory_bytes)), (RATIO, "100"))


def slice_resource_name(profile: str, prefix: str) -> str | None:
    """Return the kubelet's resource for slices of a profile; `None` if the kubelet refuses it.

    `1g.10gb+me` behind `nvidia.com/mig-` is `nvidia.com/mig-1g.10gb.me`: a plus sign is not
    allowed in the name of a resource.
    """
    name = prefix + profile.replace("+", ".")
    fits = len(name) <= MAX_RESOURCE and _SUBDOMAIN.fullmatch(name.partition("/")[2])
    return name if fits else None
