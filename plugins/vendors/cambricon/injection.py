"""Container edits for Cambricon cards and sMLU slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agent.snapshot.allocation import (
    CORE,
    RATIO,
    AllocationRefused,
    DeviceAllocation,
    DeviceMatch,
    RefusalReason,
    match_devices,
)
from agent.snapshot.container import ContainerSpec
from agent.snapshot.device import VendorDevice
from agent.snapshot.edits import BIND_READ_ONLY, ContainerEdits, DeviceNodeEdit, MountEdit
from agent.snapshot.host_devices import HostDeviceQuery, HostDevices
from agent.wire_formats.cdi_specs import has_name, qualified_names
from plugins.shared.injection import (
    VOID,
    WARN,
    existing_nodes,
    missing_nodes,
    node_edit,
    nodes_below,
    withhold_devices,
)
from plugins.vendors.cambricon.settings import CambriconSettings

RUNTIME_HANDLER = "cambricon"
VISIBLE = "CAMBRICON_VISIBLE_DEVICES"
SLICES = "VIRTUAL_DEVICES"
OWN_KIND = "xpu-agent.io/mlu"  # of the CDI file that the agent writes
CDI_KINDS = ("cambricon.com/mlu", OWN_KIND)
TOOL = "/usr/bin/cnmon"
WHOLE = 100  # percent
OLD_FOLDER = "/dev/cambricon"  # folder of old drivers
_CONTROL_NODES = ("/dev/cambricon_ctl", "/dev/cambricon_gdr")
# nodes of a card besides its main node; each driver has some of them
_CARD_NODES = (
    "/dev/cambr-msgq:{}",
    "/dev/cambr-rpc:{}",
    "/dev/cmsg_ctrl{}",
    "/dev/commu{}",
    "/dev/cambricon_ipcm{}",
)


def _at_most_warn(policy: str) -> str:
    """Return `warn` for `void`: the maker's runtime has no value that means no devices."""
    return WARN if policy == VOID else policy


def host_query(_settings: CambriconSettings) -> HostDeviceQuery:
    """Return the paths that injection needs: nodes of cards and slices, and the maker's tool."""
    of_card = (path.format("*") for path in _CARD_NODES)
    nodes = (
        *_CONTROL_NODES,
        *of_card,
        "/dev/cambricon_dev*",
        f"{OLD_FOLDER}/*",
        "/dev/cambricon-caps/*",
    )
    return HostDeviceQuery(nodes=nodes, paths=(TOOL,))


def edits(
    devices: Sequence[VendorDevice],
    allocation: DeviceAllocation,
    container: ContainerSpec,
    host: HostDevices,
) -> ContainerEdits:
    """Return the edits for an allocation.

    Without an allocation, return notes on a container that requests devices by itself. Raises
    `AllocationRefused` if the container could not use the allocated devices.
    """
    matches = sorted(match_devices(allocation, devices), key=_order)
    has_vendor_runtime = (
        RUNTIME_HANDLER in host.effective_handler(container.runtime_handler).lower()
    )
    if not matches:
        return withhold_devices(
            container,
            VISIBLE,
            _at_most_warn(container.unallocated_policy),
            has_vendor_runtime=has_vendor_runtime,
        )
    for match in matches:
        if match.partition is None and _is_share(match):
            raise AllocationRefused(
                RefusalReason.PARTITION_MISSING, f"no slice of {match.device.key} was made"
            )
    slices = [match for match in matches if match.partition is not None]
    if slices and len({match.device.key for match in matches}) > 1:
        raise AllocationRefused(RefusalReason.MIXED_GRANT, "slices of one card, or whole cards")
    if has_vendor_runtime:
        variable = _environment(matches, host)
        other = VISIBLE if variable[0] == SLICES else SLICES
        notes = withhold_devices(
            container,
            other,
            _at_most_warn(container.unallocated_policy),
            has_vendor_runtime=has_vendor_runtime,
        ).notes
        return ContainerEdits(env=(variable,), notes=notes)
    if host.settings_as(CambriconSettings).injection == "cdi" and host.cdi_enabled and not slices:
        return ContainerEdits(cdi=_names(matches, host))
    nodes = missing_nodes(container, _nodes(matches, host))
    is_mounted = TOOL not in host.paths or TOOL in container.mounts
    mounts = () if is_mounted else (MountEdit(host_path=TOOL, path=TOOL, options=BIND_READ_ONLY),)
    return ContainerEdits(nodes=nodes, mounts=mounts)


def _is_share(match: DeviceMatch) -> bool:
    """Return whether the allocation is a part of the card, so the container must get a slice."""
    amounts = (match.entry.amount(name) for name in (CORE, RATIO))
    return any(amount is not None and amount < WHOLE for amount in amounts)


def _order(match: DeviceMatch) -> tuple[int, int]:
    instance = match.partition.instance if match.partition else None
    return match.vendor_minor, -1 if instance is None else instance


def _nodes(matches: Sequence[DeviceMatch], host: HostDevices) -> Iterator[DeviceNodeEdit]:
    """Yield control nodes, nodes of cards, then nodes of slices."""
    yield from existing_nodes(host, _CONTROL_NODES)
    yield from nodes_below(host, OLD_FOLDER)
    is_whole = matches[0].partition is None
    for minor in dict.fromkeys(match.vendor_minor for match in matches):
        card = node_edit(host.require_node(f"/dev/cambricon_dev{minor}"))
        if is_whole:
            yield from existing_nodes(host, (path.format(minor) for path in _CARD_NODES))
            yield card
        else:
            yield card
            yield from existing_nodes(host, (f"/dev/cambricon_ipcm{minor}",))
    for match in matches:
        yield from (node_edit(host.require_node(path)) for path in _caps(match))


def _caps(match: DeviceMatch) -> tuple[str, ...]:
    part = match.partition
    if part is None:
        return ()
    if not part.nodes:
        raise AllocationRefused(RefusalReason.DEVICE_NODE_MISSING, f"slice {part.uuid} has no node")
    return tuple(node.path for node in part.nodes)


def _environment(matches: Sequence[DeviceMatch], host: HostDevices) -> tuple[str, str]:
    if matches[0].partition is None:
        return VISIBLE, ",".join(str(match.vendor_minor) for match in matches)
    slices = []
    for match in matches:
        card = (
            f"/dev/cambricon_dev{match.vendor_minor}",
            f"/dev/cambricon_ipcm{match.vendor_minor}",
        )
        nodes = [*(node.host_path for node in existing_nodes(host, card)), *_caps(match)]
        slices.append(",".join(dict.fromkeys(nodes)))
    return SLICES, ";".join(slices)


def _names(matches: Sequence[DeviceMatch], host: HostDevices) -> tuple[str, ...]:
    device_names = [f"mlu-{match.vendor_minor}" for match in matches]
    for kind in CDI_KINDS:
        names = qualified_names(host.cdi, kind, map(has_name, device_names))
        if names is not None:
            return names
    raise AllocationRefused(
        RefusalReason.CDI_NAME_MISSING, f"no CDI spec of {CDI_KINDS[0]} has {device_names}"
    )
