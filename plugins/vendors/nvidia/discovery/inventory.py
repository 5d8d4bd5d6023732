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
from plugins.vendors.nvidia.mig import instances as mig_annotation

IMEX_CHANNELS = "/dev/nvidia-caps-imex-channels"
MAX_CUDA = 999_999  # 999.99
MAX_CHANNEL = (1 << 20) - 1


class DriverFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver says of the whole node."""

    driver_version: str | None
    library: str
    facts: Pairs


def read_driver_facts(nvml: Nvml, host: HostFiles, sight: NvidiaHardware) -> DriverFacts:
    """Ask for versions, and look for switches and IMEX channels."""
    cuda = system_number(nvml, "nvmlSystemGetCudaDriverVersion_v2")
    version = system_text(nvml, "nvmlSystemGetNVMLVersion")
    told = (
        ("cuda", names.cuda_version(cuda) if 0 < cuda <= MAX_CUDA else None),
        ("nvml", version),
        ("nvswitches", str(sight.switches) if sight.switches else None),
        ("imex-channels", imex_channels(host)),
        ("missing-symbols", ",".join(sorted(nvml.missing.copy()))),
    )
    return DriverFacts(
        driver_version=system_text(nvml, "nvmlSystemGetDriverVersion") or module_version(host),
        library=f"{nvml.path} {version}" if version else nvml.path,
        facts=tuple((key, value) for key, value in told if value),
    )


def module_version(host: HostFiles) -> str | None:
    """Return the version of the kernel module that is loaded."""
    return read_text(host, "/sys/module/nvidia/version")


def imex_channels(host: HostFiles) -> str | None:
    """List the channels of the node as `0-3,8`."""
    try:
        found = host.names(IMEX_CHANNELS)
    except HostFileError:
        return None
    numbers = (name.removeprefix("channel") for name in found if name.startswith("channel"))
    channels = {int(n) for n in numbers if n.isdecimal() and len(n) < 8 and int(n) <= MAX_CHANNEL}
    return format_cpu_list(channels) or None


def build_inventory(
    roster: NvidiaCards,
    asked: DiscoveryPart,
    sight: NvidiaHardware,
    system: DriverFacts,
    settings: Mapping[str, object],
    fabrics: FabricStateTracker,
) -> Inventory:
    """Say all that is known after a part of a discovery; lasting verdicts go to the roster, too."""
    here = {seen.key for seen in sight.cards} | set(roster.cards)
    vanished = roster.describe_removed(here)
    sides = {key: known.links for key, known in roster.discovered.items() if known.device.bus_id}
    links, problems = link_matrix(sides)
    told = [
        *problems,
        *(problem for known in roster.discovered.values() for problem in known.problems),
    ]
    told += _slow_attach(roster)
    told += _judge_fabrics(roster.discovered, sight, settings, fabrics)
    told += _judge_twins(roster.discovered)
    answering = {
        key: card
        for key, card in roster.cards.items()
        if key in sides and roster.discovered[key].is_answering
    }
    joined = describe_peers(answering, links)
    pending = [s for s in sight.cards if s.key in asked.pending and s.key not in roster.discovered]
    unasked = {seen.key: roster.describe_unreachable(seen) for seen in sight.cards if seen.reason}
    unasked |= {seen.key: roster.describe_pending(seen) for seen in pending}
    devices = [
        _with_peers(known.device, joined)
        for key, known in roster.discovered.items()
        if key in here and key not in unasked
    ]
    devices += unasked.values()
    devices = sorted((*devices, *vanished), key=lambda card: card.key)
    # a table without the cards that follow would be wrong
    grouping = _grouping(devices, links, sides, settings) if not pending else DeviceGrouping()
    facts = (
        *system.facts,
        ("clique", node_clique(sides)),
        (mig_annotation.MIG_ANNOTATION, mig_annotation.mig_annotation(devices)),
        (f"{LABEL}unified-memory", "true" if any(map(_unified, devices)) else None),
    )
    told += [*grouping.problems, *([roster.store.problem] if roster.store.problem else [])]
    return Inventory(
        vendor="nvidia",
        devices=distinct_modules(_on_islands(devices, links)),
        links=links,
        driver_version=system.driver_version,
        library=system.library,
        facts=tuple((key, value) for key, value in facts if value),
        problems=tuple(told),
        groups=grouping.groups,
        group_policy=str(settings.get("partition_policy") or "Prefer") if grouping.groups else None,
        subjects=_subjects(devices, sight, asked),
        partial=bool(asked.pending),
    )


def _subjects(
    devices: Sequence[VendorDevice], sight: NvidiaHardware, asked: DiscoveryPart
) -> tuple[str, ...] | None:
    """Return the devices that this part of a discovery examined; `None` if that is all."""
    elsewhere = {seen.key for seen in sight.cards if not seen.reason} - asked.keys
    if not elsewhere:
        return None
    return tuple(card.key for card in devices if card.key not in elsewhere)


def _slow_attach(roster: NvidiaCards) -> list[Problem]:
    """Name persistence mode where cards without it took seconds to attach."""
    slow = {
        key: took_s
        for key, took_s in roster.slow_s.items()
        if key in roster.discovered and PERSISTENCE_OFF in roster.discovered[key].device.facts
    }
    if not slow:
        return []
    first = min(slow, key=address_sort_key)
    told = (
        f"{first} took {slow[first]:.1f} s to attach, {len(slow)} cards took over"
        f" {SLOW_ATTACH_S:g} s: persistence mode is off, and the driver lets go of idle cards"
    )
    return [Problem(reason="PersistenceModeOff", message=told)]


def _unified(card: VendorDevice) -> bool:
    return UNIFIED_MEMORY in card.facts


def _judge_fabrics(
    known: Mapping[str, DiscoveredCard],
    sight: NvidiaHardware,
    settings: Mapping[str, object],
    fabrics: FabricStateTracker,
) -> list[Problem]:
    """Give each card its condition `FabricReady`, and its verdict where the node needs it."""
    whole = {key: k.links for key, k in known.items() if not has_mig_enabled(k.device)}
    down = is_manager_down(whole, sight.switches)
    models = tuple(k.device.model or "" for k in known.values())
    must = must_fabric_be_ready(settings.get("fabric_must_be_ready"), sight.switches, models)
    fabrics.keep_only(set(known))
    for key, card in known.items():
        concerned = down and key in whole and bool(card.links.ends)
        condition = fabrics.condition(key, card.links.fabric, manager_is_down=concerned)
        if condition is not None:
            conditions = (
                *(c for c in card.device.conditions if c.type != condition.type),
                condition,
            )
            card.device = replace(card.device, conditions=conditions)
        card.lasting_health = card.lasting_health or fabric_health(condition, must=must)
    told = f"{sight.switches} NVSwitch functions, and no NVLink of any card is active"
    return [Problem(reason=MANAGER_DOWN, message=told)] if down else []


def _judge_twins(known: Mapping[str, DiscoveredCard]) -> list[Problem]:
    """Of cards with one UUID only the first in bus order can be granted by it."""
    problems: list[Problem] = []
    first: dict[str, str] = {}
    for key in sorted(known):
        card, uuid = known[key], known[key].device.uuid
        if uuid is None or first.setdefault(uuid, key) == key:
            continue
        told = f"{key} has the UUID of {first[uuid]}: {uuid}"
        problems.append(Problem(reason="DuplicateUUID", message=told))
        facts = (*card.device.facts, ("unschedulable", "DuplicateUUID"))
        card.device = replace(card.device, uuid=None, resources=(), facts=facts)
        card.lasting_health = Health(state=HealthState.FAILED, reason="DuplicateUUID", message=told)
    return problems


def _with_peers(card: VendorDevice, joined: Mapping[str, str]) -> VendorDevice:
    told = joined.get(card.key)
    return replace(card, facts=(*card.facts, ("peers", told))) if told else card


def _grouping(
    devices: Sequence[VendorDevice],
    links: Sequence[DeviceLink],
    sides: Mapping[str, CardLinks],
    settings: Mapping[str, object],
) -> DeviceGrouping:
    """Derive the partition table; cards without a number of their own are in none."""
    told = distinct_modules([d for d in devices if d.managed and d.minor is not None])
    minors = [card.minor for card in told]
    cards = [
        LinkedCard(
            key=card.key,
            minor=card.minor,
            module_id=card.module_id,
            whole=not has_mig_enabled(card),
        )
        for card in told
        if card.minor is not None and minors.count(card.minor) == 1
    ]
    speeds = [side.link_bytes_per_s for side in sides.values() if side.link_bytes_per_s]
    wanted = settings.get("partition_bandwidth") is True and speeds
    return partition_groups(cards, links, min(speeds) if wanted else None)


def _on_islands(
    devices: Sequence[VendorDevice], links: Sequence[DeviceLink]
) -> tuple[VendorDevice, ...]:
    """Label each card that has NVLink with the lowest minor of the cards that it reaches.

    One cut by MIG reaches none: its instances have no peers.
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
