"""Builds the parts of an inventory: chips, vNPUs, links, node facts, fault table."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from agent.errors import AgentError, ParseError
from agent.snapshot.device import Health, Pairs, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import Problem
from plugins.vendors.ascend.discovery.chip_table import ChipTable
from plugins.vendors.ascend.discovery.descriptions import describe_chip
from plugins.vendors.ascend.discovery.links import LinkTopology, derive_links
from plugins.vendors.ascend.discovery.sysfs import AscendFunction
from plugins.vendors.ascend.discovery.sysfs import describe_function as sighted
from plugins.vendors.ascend.health.fault_codes import (
    MAX_FAULT_FILE,
    CodeTable,
    maker_table,
    parse_fault_codes,
)
from plugins.vendors.ascend.health.watch import WatchedChip
from plugins.vendors.ascend.library.dcmi import Dcmi
from plugins.vendors.ascend.library.network import NetworkWatch
from plugins.vendors.ascend.library.state import die_policy
from plugins.vendors.ascend.vnpu.maker import list_vnpus as listed_vdevs

SUPER_POD = "xpu-agent.io/super-pod"
UNHEALTHY_PORTS = "xpu-agent.io/npu-network-unhealthy"


def load_fault_codes(path: str) -> tuple[CodeTable, Problem | None]:
    """Return the table of faults: the file's if one is set and can be read, else the maker's."""
    if not path:
        return maker_table(), None
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a worker needs no pathlib
            return parse_fault_codes(file.read(MAX_FAULT_FILE + 1)), None
    except OSError as error:
        message = f"{path}: {error.strerror}; the maker's table is in force"
    except ParseError as error:
        message = f"{path}: {error}; the maker's table is in force"
    return maker_table(), Problem(reason="FaultCodesRefused", message=message)


def distinct_problems(*looked_at: Problem | None) -> tuple[Problem, ...]:
    """Return what there is to tell, each once."""
    return tuple(dict.fromkeys(problem for problem in looked_at if problem is not None))


def describe_watched_chip(watched: WatchedChip, health: Health, host: HostFiles) -> VendorDevice:
    """Describe a chip as it is now; one that does not answer keeps what it was cut into."""
    vdevs = watched.vdevs
    if watched.is_answering and not watched.missing:
        watched.chip.begin_round()
        vdevs = listed_vdevs(watched.chip)
        if watched.chip.faults:
            vdevs = watched.vdevs
    watched.vdevs = vdevs
    watched.description = replace(watched.description, vdevs=tuple(vdev.id for vdev in vdevs))
    return describe_chip(watched.description, health, host, vdevs)


def mark_in_doubt(device: VendorDevice, why: str) -> VendorDevice:
    """Return a device of which nobody can tell now how it is."""
    health = replace(device.health, reason="DriverError", message=why, certain=False)
    return replace(device, health=health)


def describe_unlisted(
    seen: Iterable[AscendFunction],
    devices: Collection[VendorDevice],
    remembered: Mapping[str, VendorDevice],
) -> list[VendorDevice]:
    """Return functions that the driver does not list, with the numbers they had before.

    None, where the driver does not tell where its chips sit: they may be those.
    """
    ours = [unlisted.bus_id for unlisted in devices]
    rest = [function for function in seen if function.bus_id not in ours]
    if ours.count(None) >= len(rest):
        return []
    minors = {unlisted.minor for unlisted in devices}
    unlisted = []
    for function in rest:
        plain = sighted(function, "DriverError")
        before = remembered.get(function.bus_id)
        if before is None or before.minor in minors or not plain.managed:
            unlisted.append(plain)
        else:
            unlisted.append(replace(before, health=plain.health, partitions=()))
    return unlisted


def links_of_node(dcmi: Dcmi, chips: ChipTable) -> LinkTopology:
    """Return how the known chips are joined, and what is granted together."""
    try:
        policy = die_policy(dcmi)
    except AgentError:
        policy = None
    described = [watched.description for watched in chips.known.values()]
    return derive_links(described, chips.links(dcmi), policy)


def node_facts(dcmi: Dcmi, chips: Collection[WatchedChip], network: NetworkWatch) -> Pairs:
    """Return what is to be known of the whole node."""
    facts = [("missing-symbols", ",".join(sorted(dcmi.missing)))] if dcmi.missing else []
    ordered = sorted((watched.description for watched in chips), key=lambda chip: chip.phy)
    pods = [(chip.phy, chip.facts.super_pod) for chip in ordered]
    inside = [(phy, pod) for phy, pod in pods if pod is not None]
    if inside:
        _, first = inside[0]
        document = {
            "superPodId": first.super_pod_id,
            "serverId": first.server_id,
            "sdid": {str(phy): pod.sdid for phy, pod in inside},
        }
        facts.append((SUPER_POD, json.dumps(document, separators=(",", ":"))))
    ports = ((chip.phy, network.port(chip.key)) for chip in ordered)
    unwell = [str(phy) for phy, port in ports if port is not None and not port.is_working]
    if unwell:
        facts.append((UNHEALTHY_PORTS, ",".join(unwell)))
    return tuple(facts)
