"""From the cards of a node to what is said of them: links, partitions, fabric, odd ones out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from agent.errors import HostFileError
from agent.host.files import HostFiles, text
from agent.model.device import DeviceLink, Health, HealthState, Pairs, VendorDevice
from agent.model.grouping.graph import Grouping, adjacency, components
from agent.model.grouping.islands import IslandCard, island_groups
from agent.model.inventory import Inventory, Problem
from agent.topology.address import sort_key
from agent.topology.text import format_cpu_list
from plugins.bindings.nvml.library import Nvml
from plugins.slices.mig import annotation as mig_annotation
from plugins.slices.mig.strategy import is_cut
from plugins.vendors.nvidia import names
from plugins.vendors.nvidia.discover import LABEL, UNIFIED, distinct_modules
from plugins.vendors.nvidia.fabric import (
    MANAGER_DOWN,
    FabricWatch,
    manager_down,
    must_be_ready,
    verdict,
)
from plugins.vendors.nvidia.links import CardLinks, matrix, node_clique, peers
from plugins.vendors.nvidia.roster import (
    PERSISTENCE_OFF,
    SLOW_ATTACH_S,
    DiscoveryPart,
    Known,
    Roster,
    quiet_number,
    quiet_text,
)
from plugins.vendors.nvidia.sight import Sight

IMEX_CHANNELS = "/dev/nvidia-caps-imex-channels"
MAX_CUDA = 999_999  # 999.99
MAX_CHANNEL = (1 << 20) - 1


class System(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver says of the whole node."""

    driver_version: str | None
    library: str
    facts: Pairs


def read_system(nvml: Nvml, host: HostFiles, sight: Sight) -> System:
    """Ask for versions, and look for switches and IMEX channels."""
    cuda = quiet_number(nvml, "nvmlSystemGetCudaDriverVersion_v2")
    version = quiet_text(nvml, "nvmlSystemGetNVMLVersion")
    told = (
        ("cuda", names.cuda_version(cuda) if 0 < cuda <= MAX_CUDA else None),
        ("nvml", version),
        ("nvswitches", str(sight.switches) if sight.switches else None),
        ("imex-channels", imex_channels(host)),
        ("missing-symbols", ",".join(sorted(nvml.missing.copy()))),
    )
    return System(
        driver_version=quiet_text(nvml, "nvmlSystemGetDriverVersion") or module_version(host),
        library=f"{nvml.path} {version}" if version else nvml.path,
        facts=tuple((key, value) for key, value in told if value),
    )


def module_version(host: HostFiles) -> str | None:
    """Return the version of the kernel module that is loaded."""
    return text(host, "/sys/module/nvidia/version")


def imex_channels(host: HostFiles) -> str | None:
    """List the channels of the node as `0-3,8`."""
    try:
        found = host.names(IMEX_CHANNELS)
    except HostFileError:
        return None
    numbers = (name.removeprefix("channel") for name in found if name.startswith("channel"))
    channels = {int(n) for n in numbers if n.isdecimal() and len(n) < 8 and int(n) <= MAX_CHANNEL}
    return format_cpu_list(channels) or None


def inventory(
    roster: Roster,
    asked: DiscoveryPart,
    sight: Sight,
    system: System,
    settings: Mapping[str, object],
    fabrics: FabricWatch,
) -> Inventory:
    """Say all that is known after a part of a discovery; lasting verdicts go to the roster, too."""
    here = {seen.key for seen in sight.cards} | set(roster.cards)
    vanished = roster.vanished(here)
    sides = {key: known.links for key, known in roster.known.items() if known.device.bus_id}
    links, problems = matrix(sides)
    told = [*problems, *(problem for known in roster.known.values() for problem in known.problems)]
    told += _slow_attach(roster)
    told += _judge_fabrics(roster.known, sight, settings, fabrics)
    told += _judge_twins(roster.known)
    answering = {
        key: card
        for key, card in roster.cards.items()
        if key in sides and roster.known[key].answers
    }
    joined = peers(answering, links)
    pending = [s for s in sight.cards if s.key in asked.pending and s.key not in roster.known]
    unasked = {seen.key: roster.unasked(seen) for seen in sight.cards if seen.reason}
    unasked |= {seen.key: roster.pending(seen) for seen in pending}
    devices = [
        _joined(known.device, joined)
        for key, known in roster.known.items()
        if key in here and key not in unasked
    ]
    devices += unasked.values()
    devices = sorted((*devices, *vanished), key=lambda card: card.key)
    # a table without the cards that follow would be wrong
    grouping = _grouping(devices, links, sides, settings) if not pending else Grouping()
    facts = (
        *system.facts,
        ("clique", node_clique(sides)),
        (mig_annotation.KEY, mig_annotation.annotation(devices)),
        (f"{LABEL}unified-memory", "true" if any(map(_unified, devices)) else None),
    )
    told += [*grouping.problems, *([roster.memory.problem] if roster.memory.problem else [])]
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
    devices: Sequence[VendorDevice], sight: Sight, asked: DiscoveryPart
) -> tuple[str, ...] | None:
    """Return the devices that this part of a discovery examined; `None` if that is all."""
    elsewhere = {seen.key for seen in sight.cards if not seen.reason} - asked.keys
    if not elsewhere:
        return None
    return tuple(card.key for card in devices if card.key not in elsewhere)


def _slow_attach(roster: Roster) -> list[Problem]:
    """Name persistence mode where cards without it took seconds to attach."""
    slow = {
        key: took_s
        for key, took_s in roster.slow_s.items()
        if key in roster.known and PERSISTENCE_OFF in roster.known[key].device.facts
    }
    if not slow:
        return []
    first = min(slow, key=sort_key)
    told = (
        f"{first} took {slow[first]:.1f} s to attach, {len(slow)} cards took over"
        f" {SLOW_ATTACH_S:g} s: persistence mode is off, and the driver lets go of idle cards"
    )
    return [Problem(reason="PersistenceModeOff", message=told)]


def _unified(card: VendorDevice) -> bool:
    return UNIFIED in card.facts


def _judge_fabrics(
    known: Mapping[str, Known], sight: Sight, settings: Mapping[str, object], fabrics: FabricWatch
) -> list[Problem]:
    """Give each card its condition `FabricReady`, and its verdict where the node needs it."""
    whole = {key: k.links for key, k in known.items() if not is_cut(k.device)}
    down = manager_down(whole, sight.switches)
    models = tuple(k.device.model or "" for k in known.values())
    must = must_be_ready(settings.get("fabric_must_be_ready"), sight.switches, models)
    fabrics.keep(set(known))
    for key, card in known.items():
        concerned = down and key in whole and bool(card.links.ends)
        condition = fabrics.condition(key, card.links.fabric, manager_is_down=concerned)
        if condition is not None:
            conditions = (
                *(c for c in card.device.conditions if c.type != condition.type),
                condition,
            )
            card.device = replace(card.device, conditions=conditions)
        card.standing = card.standing or verdict(condition, must=must)
    told = f"{sight.switches} NVSwitch functions, and no NVLink of any card is active"
    return [Problem(reason=MANAGER_DOWN, message=told)] if down else []


def _judge_twins(known: Mapping[str, Known]) -> list[Problem]:
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
        card.standing = Health(state=HealthState.FAILED, reason="DuplicateUUID", message=told)
    return problems


def _joined(card: VendorDevice, joined: Mapping[str, str]) -> VendorDevice:
    told = joined.get(card.key)
    return replace(card, facts=(*card.facts, ("peers", told))) if told else card


def _grouping(
    devices: Sequence[VendorDevice],
    links: Sequence[DeviceLink],
    sides: Mapping[str, CardLinks],
    settings: Mapping[str, object],
) -> Grouping:
    """Derive the partition table; cards without a number of their own are in none."""
    told = distinct_modules([d for d in devices if d.managed and d.minor is not None])
    minors = [card.minor for card in told]
    cards = [
        IslandCard(key=card.key, minor=card.minor, module_id=card.module_id, whole=not is_cut(card))
        for card in told
        if card.minor is not None and minors.count(card.minor) == 1
    ]
    speeds = [side.link_bytes_per_s for side in sides.values() if side.link_bytes_per_s]
    wanted = settings.get("partition_bandwidth") is True and speeds
    return island_groups(cards, links, min(speeds) if wanted else None)


def _on_islands(
    devices: Sequence[VendorDevice], links: Sequence[DeviceLink]
) -> tuple[VendorDevice, ...]:
    """Label each card that has NVLink with the lowest minor of the cards that it reaches.

    One cut by MIG reaches none: its instances have no peers.
    """
    whole = (card for card in devices if not is_cut(card))
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
