"""Builds an inventory from the cards of a node: links, partitions, fabric, problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from agent.errors import HostFileError
from agent.host.files import read_text
from agent.snapshot.device import DeviceLink, Health, HealthState, Pairs, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import Inventory, Problem
from agent.snapshot.pci import address_sort_key
from agent.topology.device_groups import (
    DeviceGrouping,
    LinkedCard,
    adjacency,
    components,
    partition_groups,
)
from agent.wire_formats.kernel_text import format_cpu_list
from plugins.vendors.nvidia.discovery import names
from plugins.vendors.nvidia.discovery.cards import (
    PERSISTENCE_OFF,
    SLOW_ATTACH_S,
    DiscoveredCard,
    DiscoveryPart,
    NvidiaCards,
    system_number,
    system_text,
)
from plugins.vendors.nvidia.discovery.descriptions import LABEL, UNIFIED_MEMORY, distinct_modules
from plugins.vendors.nvidia.discovery.nvlink import (
    MANAGER_DOWN,
    CardLinks,
    FabricStateTracker,
    describe_peers,
    fabric_health,
    is_manager_down,
    link_matrix,
    must_fabric_be_ready,
    node_clique,
)
from plugins.vendors.nvidia.discovery.sysfs import NvidiaHardware
from plugins.vendors.nvidia.kubelet import has_mig_enabled
from plugins.vendors.nvidia.library.nvml import Nvml
from plugins.vendors.nvidia.mig import instances as mig_instances
from plugins.vendors.nvidia.settings import NvidiaSettings

IMEX_CHANNELS = "/dev/nvidia-caps-imex-channels"
MAX_CUDA = 999_999  # 999.99
MAX_CHANNEL = (1 << 20) - 1


class DriverFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Versions and other facts of the driver and the node."""

    driver_version: str | None
    library: str
    facts: Pairs


def read_driver_facts(nvml: Nvml, host: HostFiles, hardware: NvidiaHardware) -> DriverFacts:
    """Read versions, switches and IMEX channels."""
    cuda = system_number(nvml, "nvmlSystemGetCudaDriverVersion_v2")
    version = system_text(nvml, "nvmlSystemGetNVMLVersion")
    facts = (
        ("cuda", names.cuda_version(cuda) if 0 < cuda <= MAX_CUDA else None),
        ("nvml", version),
        ("nvswitches", str(hardware.switches) if hardware.switches else None),
        ("imex-channels", imex_channels(host)),
        ("missing-symbols", ",".join(sorted(nvml.missing.copy()))),
    )
    return DriverFacts(
        driver_version=system_text(nvml, "nvmlSystemGetDriverVersion") or module_version(host),
        library=f"{nvml.path} {version}" if version else nvml.path,
        facts=tuple((key, value) for key, value in facts if value),
    )


def module_version(host: HostFiles) -> str | None:
    """Return the version of the loaded kernel module."""
    return read_text(host, "/sys/module/nvidia/version")


def imex_channels(host: HostFiles) -> str | None:
    """Return the node's IMEX channels as a list such as `0-3,8`; `None` without any."""
    try:
        names = host.names(IMEX_CHANNELS)
    except HostFileError:
        return None
    numbers = (name.removeprefix("channel") for name in names if name.startswith("channel"))
    channels = {int(n) for n in numbers if n.isdecimal() and len(n) < 8 and int(n) <= MAX_CHANNEL}
    return format_cpu_list(channels) or None


def build_inventory(
    node_cards: NvidiaCards,
    part: DiscoveryPart,
    hardware: NvidiaHardware,
    system: DriverFacts,
    settings: NvidiaSettings,
    fabrics: FabricStateTracker,
) -> Inventory:
    """Build the inventory after a part of a discovery; sets `lasting_health` in `node_cards`."""
    present = {function.key for function in hardware.cards} | set(node_cards.cards)
    removed = node_cards.describe_removed(present)
    card_links = {
        key: entry.links for key, entry in node_cards.discovered.items() if entry.device.bus_id
    }
    links, link_problems = link_matrix(card_links)
    problems = [
        *link_problems,
        *(problem for entry in node_cards.discovered.values() for problem in entry.problems),
    ]
    problems += _slow_attach(node_cards)
    problems += _check_fabrics(node_cards.discovered, hardware, settings, fabrics)
    problems += _report_duplicate_uuids(node_cards.discovered)
    answering_cards = {
        key: card
        for key, card in node_cards.cards.items()
        if key in card_links and node_cards.discovered[key].is_answering
    }
    peers = describe_peers(answering_cards, links)
    pending = [
        s for s in hardware.cards if s.key in part.pending and s.key not in node_cards.discovered
    ]
    unreachable = {
        function.key: node_cards.describe_unreachable(function)
        for function in hardware.cards
        if function.reason
    }
    unreachable |= {function.key: node_cards.describe_pending(function) for function in pending}
    devices = [
        _with_peers(entry.device, peers)
        for key, entry in node_cards.discovered.items()
        if key in present and key not in unreachable
    ]
    devices += unreachable.values()
    devices = sorted((*devices, *removed), key=lambda card: card.key)
    # a partition table without the pending cards would be wrong
    grouping = _grouping(devices, links, card_links, settings) if not pending else DeviceGrouping()
    facts = (
        *system.facts,
        ("clique", node_clique(card_links)),
        (mig_instances.MIG_ANNOTATION, mig_instances.mig_annotation(devices)),
        (f"{LABEL}unified-memory", "true" if any(map(_unified, devices)) else None),
    )
    problems += [
        *grouping.problems,
        *([node_cards.store.problem] if node_cards.store.problem else []),
    ]
    return Inventory(
        vendor="nvidia",
        devices=distinct_modules(_on_islands(devices, links)),
        links=links,
        driver_version=system.driver_version,
        library=system.library,
        facts=tuple((key, value) for key, value in facts if value),
        problems=tuple(problems),
        groups=grouping.groups,
        group_policy=settings.partition_policy if grouping.groups else None,
        subjects=_subjects(devices, hardware, part),
        partial=bool(part.pending),
    )


def _subjects(
    devices: Sequence[VendorDevice], hardware: NvidiaHardware, part: DiscoveryPart
) -> tuple[str, ...] | None:
    """Return the devices that this part of a discovery examined; `None` means all."""
    other_keys = {function.key for function in hardware.cards if not function.reason} - part.keys
    if not other_keys:
        return None
    return tuple(card.key for card in devices if card.key not in other_keys)


def _slow_attach(node_cards: NvidiaCards) -> list[Problem]:
    """Report cards without persistence mode that took seconds to attach."""
    slow = {
        key: took_s
        for key, took_s in node_cards.attach_times_s.items()
        if key in node_cards.discovered
        and PERSISTENCE_OFF in node_cards.discovered[key].device.facts
    }
    if not slow:
        return []
    first = min(slow, key=address_sort_key)
    message = (
        f"{first} took {slow[first]:.1f} s to attach, {len(slow)} cards took over"
        f" {SLOW_ATTACH_S:g} s: persistence mode is off, and the driver lets go of idle cards"
    )
    return [Problem(reason="PersistenceModeOff", message=message)]


def _unified(card: VendorDevice) -> bool:
    return UNIFIED_MEMORY in card.facts


def _check_fabrics(
    discovered: Mapping[str, DiscoveredCard],
    hardware: NvidiaHardware,
    settings: NvidiaSettings,
    fabrics: FabricStateTracker,
) -> list[Problem]:
    """Set each card's condition `FabricReady`, and its health if the node needs the fabric."""
    whole_card_links = {
        key: k.links for key, k in discovered.items() if not has_mig_enabled(k.device)
    }
    is_down = is_manager_down(whole_card_links, hardware.switches)
    models = tuple(k.device.model or "" for k in discovered.values())
    is_required = must_fabric_be_ready(settings.fabric_must_be_ready, hardware.switches, models)
    fabrics.retain(set(discovered))
    for key, card in discovered.items():
        is_manager_down_for_card = is_down and key in whole_card_links and bool(card.links.ends)
        condition = fabrics.condition(
            key, card.links.fabric, manager_is_down=is_manager_down_for_card
        )
        if condition is not None:
            conditions = (
                *(c for c in card.device.conditions if c.type != condition.type),
                condition,
            )
            card.device = replace(card.device, conditions=conditions)
        card.lasting_health = card.lasting_health or fabric_health(
            condition, is_required=is_required
        )
    message = f"{hardware.switches} NVSwitch functions, and no NVLink of any card is active"
    return [Problem(reason=MANAGER_DOWN, message=message)] if is_down else []


def _report_duplicate_uuids(discovered: Mapping[str, DiscoveredCard]) -> list[Problem]:
    """Report cards with the same UUID; only the first in bus order keeps it."""
    problems: list[Problem] = []
    first_keys: dict[str, str] = {}
    for key in sorted(discovered):
        card, uuid = discovered[key], discovered[key].device.uuid
        if uuid is None or first_keys.setdefault(uuid, key) == key:
            continue
        message = f"{key} has the UUID of {first_keys[uuid]}: {uuid}"
        problems.append(Problem(reason="DuplicateUUID", message=message))
        facts = (*card.device.facts, ("unschedulable", "DuplicateUUID"))
        card.device = replace(card.device, uuid=None, resources=(), facts=facts)
        card.lasting_health = Health(
            state=HealthState.FAILED, reason="DuplicateUUID", message=message
        )
    return problems


def _with_peers(card: VendorDevice, peers: Mapping[str, str]) -> VendorDevice:
    card_peers = peers.get(card.key)
    return replace(card, facts=(*card.facts, ("peers", card_peers))) if card_peers else card


def _grouping(
    devices: Sequence[VendorDevice],
    links: Sequence[DeviceLink],
    card_links: Mapping[str, CardLinks],
    settings: NvidiaSettings,
) -> DeviceGrouping:
    """Return the partition table of the cards that have a unique minor."""
    candidates = distinct_modules([d for d in devices if d.managed and d.minor is not None])
    minors = [card.minor for card in candidates]
    cards = [
        LinkedCard(
            key=card.key,
            minor=card.minor,
            module_id=card.module_id,
            whole=not has_mig_enabled(card),
        )
        for card in candidates
        if card.minor is not None and minors.count(card.minor) == 1
    ]
    speeds = [side.link_bytes_per_s for side in card_links.values() if side.link_bytes_per_s]
    lowest = min(speeds) if speeds and settings.partition_bandwidth else None
    return partition_groups(cards, links, lowest)


def _on_islands(
    devices: Sequence[VendorDevice], links: Sequence[DeviceLink]
) -> tuple[VendorDevice, ...]:
    """Label each card with the lowest minor of all cards that it reaches over NVLink.

    A card with MIG instances reaches none, because instances have no peers.
    """
    whole = (card for card in devices if not has_mig_enabled(card))
    minors = {card.key: card.minor for card in whole if card.minor is not None}
    islands: dict[str, int] = {}
    for island in components(adjacency(minors, ((link.a, link.b) for link in links))):
        if len(island) > 1:
            islands |= dict.fromkeys(island, min(minors[key] for key in island))
    return tuple(
        replace(card, labels=(*card.labels, (f"{LABEL}nvlink-island", str(islands[card.key]))))
        if card.key in islands
        else card
        for card in devices
    )
