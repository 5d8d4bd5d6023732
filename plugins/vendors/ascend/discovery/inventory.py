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
from plugins.vendors.ascend.discovery.sysfs import AscendFunction, describe_function
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
from plugins.vendors.ascend.vnpu.maker import list_vnpus

SUPER_POD = "xpu-agent.io/super-pod"
UNHEALTHY_PORTS = "xpu-agent.io/npu-network-unhealthy"


def load_fault_codes(path: str) -> tuple[CodeTable, Problem | None]:
    """Return the fault codes of the file at `path` if it is set and valid, else the maker's."""
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


def distinct_problems(*problems: Problem | None) -> tuple[Problem, ...]:
    """Return the problems that are not `None`, without duplicates."""
    return tuple(dict.fromkeys(problem for problem in problems if problem is not None))


def describe_watched_chip(watched: WatchedChip, health: Health, host: HostFiles) -> VendorDevice:
    """Describe a chip with its vNPUs; a chip that does not answer keeps its last vNPUs."""
    vdevs = watched.vdevs
    if watched.is_answering and not watched.absent_rounds:
        watched.chip.begin_round()
        vdevs = list_vnpus(watched.chip)
        if watched.chip.faults:
            vdevs = watched.vdevs
    watched.vdevs = vdevs
    watched.description = replace(watched.description, vdevs=tuple(vdev.id for vdev in vdevs))
    return describe_chip(watched.description, health, host, vdevs)


def mark_uncertain(device: VendorDevice, message: str) -> VendorDevice:
    """Return the device with its last health, marked as uncertain."""
    health = replace(device.health, reason="DriverError", message=message, certain=False)
    return replace(device, health=health)


def describe_unlisted(
    functions: Iterable[AscendFunction],
    devices: Collection[VendorDevice],
    stored: Mapping[str, VendorDevice],
) -> list[VendorDevice]:
    """Return functions that the driver does not list, with their stored numbers.

    Empty if as many listed chips have no bus id, because the functions may be those chips.
    """
    listed_bus_ids = [unlisted.bus_id for unlisted in devices]
    other_functions = [function for function in functions if function.bus_id not in listed_bus_ids]
    if listed_bus_ids.count(None) >= len(other_functions):
        return []
    minors = {unlisted.minor for unlisted in devices}
    unlisted = []
    for function in other_functions:
        device = describe_function(function, "DriverError")
        before = stored.get(function.bus_id)
        if before is None or before.minor in minors or not device.managed:
            unlisted.append(device)
        else:
            unlisted.append(replace(before, health=device.health, partitions=()))
    return unlisted


def links_of_node(dcmi: Dcmi, chips: ChipTable) -> LinkTopology:
    """Return the links between the chips, and the groups that are allocated together."""
    try:
        policy = die_policy(dcmi)
    except AgentError:
        policy = None
    descriptions = [watched.description for watched in chips.chips.values()]
    return derive_links(descriptions, chips.links(dcmi), policy)


def node_facts(dcmi: Dcmi, chips: Collection[WatchedChip], network: NetworkWatch) -> Pairs:
    """Return the facts of the node: missing symbols, super pod, unhealthy ports."""
    facts = [("missing-symbols", ",".join(sorted(dcmi.missing)))] if dcmi.missing else []
    ordered = sorted((watched.description for watched in chips), key=lambda chip: chip.phy)
    pods = [(chip.phy, chip.facts.super_pod) for chip in ordered]
    super_pod_chips = [(phy, pod) for phy, pod in pods if pod is not None]
    if super_pod_chips:
        _, first = super_pod_chips[0]
        document = {
            "superPodId": first.super_pod_id,
            "serverId": first.server_id,
            "sdid": {str(phy): pod.sdid for phy, pod in super_pod_chips},
        }
        facts.append((SUPER_POD, json.dumps(document, separators=(",", ":"))))
    ports = ((chip.phy, network.port(chip.key)) for chip in ordered)
    unhealthy_ports = [str(phy) for phy, port in ports if port is not None and not port.is_working]
    if unhealthy_ports:
        facts.append((UNHEALTHY_PORTS, ",".join(unhealthy_ports)))
    return tuple(facts)
