"""What a container gets of Ascend chips and vNPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from agent.model.device import VendorDevice
from agent.model.grant.container import Container
from agent.model.grant.edits import (
    BIND_READ_ONLY,
    BIND_TREE_READ_ONLY,
    ContainerEdits,
    MountEdit,
)
from agent.model.grant.granted import Grant, Match, matches
from agent.model.grant.host import HostMeans, HostNeeds
from agent.model.grant.merge import by_depth
from agent.model.grant.refusal import GrantRefused, Refusal
from plugins.injection.ascend.environment import (
    NO_DRIVER,
    OPTIONS,
    SPECS,
    VIRTUAL,
    VISIBLE,
)
from plugins.injection.ascend.nodes import PATTERNS, node_edits
from plugins.injection.cdi import called, names_of
from plugins.injection.identifiers import safe
from plugins.injection.nodes import missing_in
from plugins.injection.policy import policy_of
from plugins.injection.ungranted import withheld

CDI_KINDS = ("ascend.com/npu", "xpu-agent.io/npu")
DRIVER = "/usr/local/Ascend/driver"
LIBRARY_PATH = "LD_LIBRARY_PATH"
LIBRARY_DIRS = (f"{DRIVER}/lib64/common", f"{DRIVER}/lib64/driver")
_FOLDERS = (f"{DRIVER}/lib64", f"{DRIVER}/include", "/usr/local/dcmi", "/var/queue_schedule")
_FILES = (f"{DRIVER}/version.info", "/usr/local/bin/npu-smi", "/etc/ascend_install.info")
TOPOLOGY = f"{DRIVER}/topo"  # of super pods
MOUNT_LIST = "/etc/ascend-docker-runtime.d/base.list"
SOURCES = (*_FOLDERS, *_FILES, TOPOLOGY, *LIBRARY_DIRS)  # to be looked for on the host


class AscendPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What people decide about injection."""

    injection: Literal["auto", "cdi"] = "auto"
    ungranted: Literal["off", "warn", "void"] = "warn"


def needs(_settings: Mapping[str, object]) -> HostNeeds:
    """Name the chips' and managers' nodes, and the driver's files."""
    return HostNeeds(nodes=PATTERNS, paths=SOURCES, mount_list=MOUNT_LIST)


def edits(
    devices: Sequence[VendorDevice], grant: Grant, container: Container, host: HostMeans
) -> ContainerEdits:
    """Return what a grant changes; without one, what becomes of a container that helps itself.

    Raises `GrantRefused` when the container could not use what it was granted.
    """
    policy = policy_of(host.settings, AscendPolicy, "ascend")
    granted = matches(grant, devices)
    ours = "ascend" in host.handler(container.runtime_handler).lower()
    if not granted:
        return withheld(container, VISIBLE, policy.ungranted, ours=ours)
    sliced = any(match.partition or match.entry.template for match in granted)
    if sliced and len(granted) > 1:
        raise GrantRefused(Refusal.MIXED_GRANT, "a container gets one vNPU, or whole chips")
    if ours:
        return ContainerEdits(env=_environment(granted, container))
    if sliced and granted[0].partition is None:
        template = granted[0].entry.template
        raise GrantRefused(Refusal.PARTITION_MISSING, f"no vNPU of {template} was made")
    if policy.injection == "cdi" and host.cdi_enabled:
        return ContainerEdits(cdi=_names(granted, host))
    nodes = missing_in(container, node_edits(granted, host))
    env = (*_environment(granted, container), *_library_path(container, host))
    return ContainerEdits(nodes=nodes, mounts=_mounts(granted, container, host), env=env)


def _environment(granted: Sequence[Match], container: Container) -> tuple[tuple[str, str], ...]:
    """Name the chips to the runtime; a vNPU by its own number, or by what it is made from.

    An option of the container that would have chips' numbers read as those of vNPUs is dropped.
    """
    (first, *_) = granted
    # a template of the container's own would have the runtime cut the chip
    no_cut = ((SPECS, ""),) if container.value(SPECS) else ()
    if first.partition is not None:
        return ((VISIBLE, str(_vnpu(first))), (OPTIONS, VIRTUAL), *no_cut)
    numbers = sorted({match.vendor_minor for match in granted})
    visible = (VISIBLE, ",".join(map(str, numbers)))
    env = [visible]
    asked = [value for name, value in container.env if name == OPTIONS]
    if any(VIRTUAL in value for value in asked):
        env.append((OPTIONS, NO_DRIVER if any(NO_DRIVER in value for value in asked) else ""))
    if first.entry.template:
        env.append((SPECS, safe(first.entry.template, "vNPU template")))
    else:
        env += no_cut
    return tuple(env)


def _vnpu(match: Match) -> int:
    number = match.partition.instance if match.partition else None
    if number is None:
        raise GrantRefused(Refusal.PARTITION_MISSING, f"{match.device.key}: a vNPU has no number")
    return number


def _names(granted: Sequence[Match], host: HostMeans) -> tuple[str, ...]:
    """Return the chips' CDI names; vNPUs have none."""
    wanted = sorted(match.vendor_minor for match in granted if match.partition is None)
    for kind in CDI_KINDS:
        names = names_of(host.cdi, kind, (called(str(number)) for number in wanted))
        if names is not None and len(wanted) == len(granted):
            return names
    raise GrantRefused(Refusal.CDI_NAME_MISSING, "no CDI spec names every granted chip")


def _mounts(
    granted: Sequence[Match], container: Container, host: HostMeans
) -> tuple[MountEdit, ...]:
    """Mount the driver's files that exist; the node's own list replaces ours."""
    super_pod = any(key.startswith("super") for key, _ in granted[0].device.facts)
    paths = (*_FOLDERS, *_FILES, *((TOPOLOGY,) if super_pod else ()))
    if host.mount_list is not None:
        paths = host.mount_list
    wanted = (path for path in paths if path in host.paths and path not in container.mounts)
    return by_depth(
        MountEdit(
            host_path=path,
            path=path,
            options=BIND_READ_ONLY if path in _FILES else BIND_TREE_READ_ONLY,
        )
        for path in dict.fromkeys(wanted)
    )


def _library_path(container: Container, host: HostMeans) -> tuple[tuple[str, str], ...]:
    """Put the driver's folders that exist before the container's own."""
    own = container.value(LIBRARY_PATH) or ""
    listed = own.split(":")
    added = [path for path in LIBRARY_DIRS if path in host.paths and path not in listed]
    if not added:
        return ()
    return ((LIBRARY_PATH, ":".join((*added, own) if own else added)),)
