"""What a container gets of Cambricon cards and sMLU slices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from agent.model.device import VendorDevice
from agent.model.grant.container import Container
from agent.model.grant.edits import BIND_READ_ONLY, ContainerEdits, MountEdit, NodeEdit
from agent.model.grant.granted import CORE, RATIO, Grant, Match, matches
from agent.model.grant.host import HostMeans, HostNeeds
from agent.model.grant.refusal import GrantRefused, Refusal
from plugins.injection.cdi import called, names_of
from plugins.injection.nodes import below, missing_in, present, shown
from plugins.injection.policy import policy_of
from plugins.injection.ungranted import VOID, WARN, withheld

VISIBLE = "CAMBRICON_VISIBLE_DEVICES"
SLICES = "VIRTUAL_DEVICES"
CDI_KINDS = ("cambricon.com/mlu", "xpu-agent.io/mlu")
TOOL = "/usr/bin/cnmon"
WHOLE = 100  # percent
OLD_FOLDER = "/dev/cambricon"  # of old drivers
_CONTROL = ("/dev/cambricon_ctl", "/dev/cambricon_gdr")
# per card, before its own node; each driver has some of them
_OF_CARD = (
    "/dev/cambr-msgq:{}",
    "/dev/cambr-rpc:{}",
    "/dev/cmsg_ctrl{}",
    "/dev/commu{}",
    "/dev/cambricon_ipcm{}",
)


class CambriconPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What people decide about injection."""

    injection: Literal["auto", "cdi"] = "auto"
    ungranted: Literal["off", "warn", "void"] = "warn"


def _at_most_told(policy: CambriconPolicy) -> str:
    """Return `warn` for `void`: no value is known that the maker's runtime takes for none."""
    return WARN if policy.ungranted == VOID else policy.ungranted


def needs(_settings: Mapping[str, object]) -> HostNeeds:
    """Name the cards' and slices' nodes, and the maker's tool."""
    of_card = (path.format("*") for path in _OF_CARD)
    nodes = (*_CONTROL, *of_card, "/dev/cambricon_dev*", f"{OLD_FOLDER}/*", "/dev/cambricon-caps/*")
    return HostNeeds(nodes=nodes, paths=(TOOL,))


def edits(
    devices: Sequence[VendorDevice], grant: Grant, container: Container, host: HostMeans
) -> ContainerEdits:
    """Return what a grant changes; without one, what is said of a container that helps itself.

    Raises `GrantRefused` when the container could not use what it was granted.
    """
    policy = policy_of(host.settings, CambriconPolicy, "cambricon")
    granted = sorted(matches(grant, devices), key=_order)
    ours = "cambricon" in host.handler(container.runtime_handler).lower()
    if not granted:
        return withheld(container, VISIBLE, _at_most_told(policy), ours=ours)
    for match in granted:
        if match.partition is None and _is_share(match):
            raise GrantRefused(
                Refusal.PARTITION_MISSING, f"no slice of {match.device.key} was made"
            )
    sliced = [match for match in granted if match.partition is not None]
    if sliced and len({match.device.key for match in granted}) > 1:
        raise GrantRefused(Refusal.MIXED_GRANT, "slices of one card, or whole cards")
    if ours:
        given = _environment(granted, host)
        other = VISIBLE if given[0] == SLICES else SLICES
        notes = withheld(container, other, _at_most_told(policy), ours=ours).notes
        return ContainerEdits(env=(given,), notes=notes)
    if policy.injection == "cdi" and host.cdi_enabled and not sliced:
        return ContainerEdits(cdi=_names(granted, host))
    nodes = missing_in(container, _nodes(granted, host))
    mounted = TOOL not in host.paths or TOOL in container.mounts
    mounts = () if mounted else (MountEdit(host_path=TOOL, path=TOOL, options=BIND_READ_ONLY),)
    return ContainerEdits(nodes=nodes, mounts=mounts)


def _is_share(match: Match) -> bool:
    """Say whether less than the card was granted: then its slice is shown, never the card."""
    amounts = (match.entry.amount(name) for name in (CORE, RATIO))
    return any(amount is not None and amount < WHOLE for amount in amounts)


def _order(match: Match) -> tuple[int, int]:
    instance = match.partition.instance if match.partition else None
    return match.vendor_minor, -1 if instance is None else instance


def _nodes(granted: Sequence[Match], host: HostMeans) -> Iterator[NodeEdit]:
    """Yield control nodes, each card's, then those of slices; each path is looked for itself."""
    yield from present(host, _CONTROL)
    yield from below(host, OLD_FOLDER)
    whole = granted[0].partition is None
    for minor in dict.fromkeys(match.vendor_minor for match in granted):
        card = shown(host.must_have(f"/dev/cambricon_dev{minor}"))
        if whole:
            yield from present(host, (path.format(minor) for path in _OF_CARD))
            yield card
        else:
            yield card
            yield from present(host, (f"/dev/cambricon_ipcm{minor}",))
    for match in granted:
        yield from (shown(host.must_have(path)) for path in _caps(match))


def _caps(match: Match) -> tuple[str, ...]:
    part = match.partition
    if part is None:
        return ()
    if not part.nodes:
        raise GrantRefused(Refusal.DEVICE_NODE_MISSING, f"slice {part.uuid} has no node")
    return tuple(node.path for node in part.nodes)


def _environment(granted: Sequence[Match], host: HostMeans) -> tuple[str, str]:
    if granted[0].partition is None:
        return VISIBLE, ",".join(str(match.vendor_minor) for match in granted)
    slices = []
    for match in granted:
        card = (
            f"/dev/cambricon_dev{match.vendor_minor}",
            f"/dev/cambricon_ipcm{match.vendor_minor}",
        )
        nodes = [*(node.host_path for node in present(host, card)), *_caps(match)]
        slices.append(",".join(dict.fromkeys(nodes)))
    return SLICES, ";".join(slices)


def _names(granted: Sequence[Match], host: HostMeans) -> tuple[str, ...]:
    wanted = [f"mlu-{match.vendor_minor}" for match in granted]
    for kind in CDI_KINDS:
        names = names_of(host.cdi, kind, map(called, wanted))
        if names is not None:
            return names
    raise GrantRefused(Refusal.CDI_NAME_MISSING, f"no CDI spec of {CDI_KINDS[0]} has {wanted}")
