"""CDI names of NVIDIA cards: by UUID, else by a name whose own nodes are the card's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from agent.model.grant.granted import Match
from agent.model.grant.host import CdiDevice, CdiSpec, HostMeans
from plugins.injection.cdi import names_of, stale
from plugins.injection.identifiers import own_id

FIRST_KINDS = ("nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu")
OWN_KIND = "xpu-agent.io/gpu"  # written where no file of NVIDIA's names every card
CHANNEL_KIND = "nvidia.com/imex-channel"
_NUMBERED = re.compile(r"(gpu|mig)?[0-9]{1,4}(:[0-9]{1,4})?")
_CARD = re.compile(r"/dev/nvidia[0-9]{1,4}")
_CAP = re.compile(r"/dev/nvidia-caps/nvidia-cap[0-9]{1,6}")


def lookup(granted: Sequence[Match], host: HostMeans) -> tuple[tuple[str, ...] | None, str]:
    """Return a qualified name for each match, all of one kind; else `None` and why.

    Indices move when cards come and go, so a numbered name counts only if its nodes are exactly
    those of the card; `all` never does. A stale spec is not used.
    """
    specs, why = [], "no CDI spec names every granted card"
    for spec in host.cdi:
        reason = stale(spec, host.paths, host.driver_version)
        if reason:
            why = reason
        else:
            specs.append(spec)
    tests = [_same(match) for match in granted]
    for kind in _kinds(specs):
        names = names_of(specs, kind, tests)
        if names is not None:
            return names, ""
    return None, why


def _kinds(specs: Iterable[CdiSpec]) -> tuple[str, ...]:
    others = []
    for kind in dict.fromkeys(spec.kind for spec in specs):
        vendor, _, kind_class = kind.partition("/")
        nvidia = vendor == "nvidia.com" or vendor.endswith(".nvidia.com")
        if kind_class == "gpu" and nvidia and vendor != "management.nvidia.com":
            others.append(kind)
    return tuple(dict.fromkeys((*FIRST_KINDS, *others, OWN_KIND)))


def _same(match: Match) -> Callable[[CdiDevice], bool]:
    """Return the test whether a CDI device is this card, or this slice of it."""
    part = match.partition
    uuid = own_id(match)
    number = match.device.vendor_minor
    cards = set() if number is None else {f"/dev/nvidia{number}"}
    caps = {node.path for node in part.nodes} if part else set()

    def fits(device: CdiDevice) -> bool:
        if uuid is not None and device.name == uuid:
            return True
        if not cards or not _NUMBERED.fullmatch(device.name):
            return False
        if part is not None and len(caps) < 2:
            return False
        own = {path for path in device.nodes if _CARD.fullmatch(path)}
        own_caps = {path for path in device.nodes if _CAP.fullmatch(path)}
        return own == cards and own_caps == caps

    return fits
