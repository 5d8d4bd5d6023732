"""What the host has for containers, of every vendor."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from agent.model.grant.host import HostMeans
from agent.model.grant.kernel import KernelMeans


def _none() -> Mapping[str, HostMeans]:
    return MappingProxyType({})


class MeansView(msgspec.Struct, frozen=True, kw_only=True):
    """By the vendor's plug-in name; of a vendor that is not here there is nothing."""

    vendors: Mapping[str, HostMeans] = msgspec.field(default_factory=_none)
    resctrl_groups: tuple[str, ...] = ()  # control groups that exist; a class is one of them
    kernel: KernelMeans = KernelMeans()
    problems: tuple[tuple[str, str], ...] = ()  # CamelCase reason and message, for people
