"""What a container gets of NVIDIA cards: CDI names, an environment, or bare device nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from agent.model.device import VendorDevice
from agent.model.grant.container import Container
from agent.model.grant.edits import ContainerEdits, Note
from agent.model.grant.granted import Grant, Match, by_bus_id, matches
from agent.model.grant.host import HostMeans, HostNeeds
from agent.model.grant.merge import merged
from agent.model.grant.refusal import GrantRefused, Refusal
from plugins.injection.identifiers import visible_id
from plugins.injection.nodes import missing_in
from plugins.injection.nvidia import hami, mps
from plugins.injection.nvidia.names import CHANNEL_KIND, lookup
from plugins.injection.nvidia.nodes import PATTERNS, node_edits
from plugins.injection.policy import policy_of
from plugins.injection.ungranted import withheld

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
CHANNELS = "NVIDIA_IMEX_CHANNELS"
NICS, NICS_ON = "NVIDIA_MOFED", "enabled"  # all RDMA devices of the host, beside cards
# by which NVIDIA's runtime knows images of before VISIBLE: those that do not set it ask for all
OLD_IMAGE, NEW_IMAGE = "CUDA_VERSION", "NVIDIA_REQUIRE_CUDA"


class NvidiaPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What people decide about injection."""

    injection: Literal["auto", "cdi", "env", "nodes"] = "auto"
    upstream_compatible: bool = False  # minors in grant order, as koordlet writes them
    driver_root: str = "/"
    preload: Literal["env", "file"] = "env"
    region: bool = True  # let HAMi-core count where the agent can read it
    ungranted: Literal["off", "warn", "void"] = "warn"


def needs(settings: Mapping[str, object]) -> HostNeeds:
    """Name the driver's nodes, below its own root too, and HAMi-core's files."""
    root = policy_of(settings, NvidiaPolicy, "nvidia").driver_root.rstrip("/")
    return HostNeeds(
        nodes=tuple(f"{top}{path}" for top in dict.fromkeys((root, "")) for path in PATTERNS),
        paths=(hami.LIBRARY, hami.PRELOAD_SOURCE),
        mps=True,
    )


def edits(
    devices: Sequence[VendorDevice], grant: Grant, container: Container, host: HostMeans
) -> ContainerEdits:
    """Return what a grant changes; without one, what becomes of a container that helps itself.

    Raises `GrantRefused` when the container could not use what it was granted.
    """
    policy = policy_of(host.settings, NvidiaPolicy, "nvidia")
    named = matches(grant, devices)
    ours = host.handler(container.runtime_handler).startswith("nvidia")
    if not named:
        old = _is_old_image(container)
        return withheld(container, VISIBLE, policy.ungranted, ours=ours, implied=old)
    granted = by_bus_id(named)
    for match in granted:
        cut = dict(match.device.facts).get("unschedulable") == Refusal.MIG_ENABLED.value
        if cut and match.partition is None:
            raise GrantRefused(Refusal.MIG_ENABLED, f"{match.device.key} was granted whole")
    parts = [_visible(named, granted, grant, container, host, policy)]
    if container.value(NICS) == NICS_ON:
        parts.append(withheld(container, NICS, policy.ungranted, ours=ours))
    if hami.asked_for(container):
        preload_file = policy.preload == "file"
        limits = hami.edits(
            granted, container, host, preload_file=preload_file, region=policy.region
        )
        parts.append(limits)
    elif mps.asked_for(container):
        parts.append(mps.edits(granted, host))
    return merged(parts)


def _visible(
    named: Sequence[Match],
    granted: Sequence[Match],
    grant: Grant,
    container: Container,
    host: HostMeans,
    policy: NvidiaPolicy,
) -> ContainerEdits:
    names, why = None, ""
    if policy.injection == "cdi" or (policy.injection == "auto" and host.cdi_enabled):
        names, why = lookup(granted, host)
    if names is not None:
        channels = tuple(f"{CHANNEL_KIND}={number}" for number in grant.channels)
        return ContainerEdits(cdi=(*names, *channels))
    if policy.injection == "cdi":
        raise GrantRefused(Refusal.CDI_NAME_MISSING, why)
    handler = host.handler(container.runtime_handler)
    if policy.injection == "env" or (policy.injection == "auto" and handler.startswith("nvidia")):
        return _environment(named, granted, grant, container, policy)
    nodes = node_edits(granted, grant.channels, host, policy.driver_root)
    message = "only device nodes are injected: the image must bring the driver's libraries"
    # NVIDIA's runtime would add what the image asks for, such as all cards
    quiet = [(VISIBLE, "void")] if handler.startswith("nvidia") else []
    if quiet and container.value(CHANNELS):
        quiet.append((CHANNELS, ""))
    return ContainerEdits(
        env=tuple(quiet),
        nodes=missing_in(container, nodes),
        notes=(Note(reason="NoDriverInjection", message=message),),
    )


def _is_old_image(container: Container) -> bool:
    unset = container.value(VISIBLE) is None
    return unset and bool(container.value(OLD_IMAGE)) and not container.value(NEW_IMAGE)


def _environment(
    named: Sequence[Match],
    granted: Sequence[Match],
    grant: Grant,
    container: Container,
    policy: NvidiaPolicy,
) -> ContainerEdits:
    """Name the cards by UUID: a number would be NVML's index, which is not the minor.

    Channels that the container asks for itself and was not granted are taken from its request.
    """
    if policy.upstream_compatible and all(match.partition is None for match in named):
        visible = [str(match.vendor_minor) for match in named]
    else:
        visible = [visible_id(match) for match in granted]
    env = [(VISIBLE, ",".join(dict.fromkeys(visible)))]  # a card once, however many replicas
    if grant.channels or container.value(CHANNELS):
        env.append((CHANNELS, ",".join(map(str, grant.channels))))
    return ContainerEdits(env=tuple(env))
