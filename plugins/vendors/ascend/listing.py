"""Parts of an inventory: a chip with its vNPUs, links, facts of the node, the table of faults."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from agent.errors import AgentError, ParseError
from agent.host.files import HostFiles
from agent.model.device import Health, Pairs, VendorDevice
from agent.model.inventory import Problem
from plugins.bindings.dcmi.library import Dcmi
from plugins.bindings.dcmi.network import NetworkWatch
from plugins.bindings.dcmi.state import die_policy
from plugins.faults.ascend.codes import MAX_FILE, CodeTable, maker_table, parse_fault_codes
from plugins.slices.vnpu.make import listed as listed_vdevs
from plugins.vendors.ascend.chips import Chips
from plugins.vendors.ascend.describe import device
from plugins.vendors.ascend.links import Joined, joined
from plugins.vendors.ascend.sight import Sighting
from plugins.vendors.ascend.sight import device as sighted
from plugins.vendors.ascend.watch import Watched

SUPER_POD = "xpu-agent.io/super-pod"
UNHEALTHY_PORTS = "xpu-agent.io/npu-network-unhealthy"


def table_of(path: object) -> tuple[CodeTable, Problem | None]:
    """Return the table of faults: the file's if one is set and can be read, else the maker's."""
    if not isinstance(path, str) or not path:
        return maker_table(), None
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a worker needs no pathlib
            return parse_fault_codes(file.read(MAX_FILE + 1)), None
    except OSError as error:
        told = f"{path}: {error.strerror}; the maker's table is in force"
    except ParseError as error:
        told = f"{path}: {error}; the maker's table is in force"
    return maker_table(), Problem(reason="FaultCodesRefused", message=told)


def found_odd(*looked_at: Problem | None) -> tuple[Problem, ...]:
    """Return what there is to tell, each once."""
    return tuple(dict.fromkeys(problem for problem in looked_at if problem is not None))


def listed(watched: Watched, health: Health, host: HostFiles) -> VendorDevice:
    """Describe a chip as it is now; one that does not answer keeps what it was cut into."""
    vdevs = watched.vdevs
    if watched.answers and not watched.missing:
        watched.chip.begin()
        vdevs = listed_vdevs(watched.chip)
        if watched.chip.faults:
            vdevs = watched.vdevs
    watched.vdevs = vdevs
    watched.described = replace(watched.described, vdevs=tuple(vdev.id for vdev in vdevs))
    return device(watched.described, health, host, vdevs)


def in_doubt(found: VendorDevice, why: str) -> VendorDevice:
    """Return a device of which nobody can tell now how it is."""
    health = replace(found.health, reason="DriverError", message=why, certain=False)
    return replace(found, health=health)


def unlisted(
    seen: Iterable[Sighting],
    devices: Collection[VendorDevice],
    remembered: Mapping[str, VendorDevice],
) -> list[VendorDevice]:
    """Return functions that the driver does not list, with the numbers they had before.

    None, where the driver does not tell where its chips sit: they may be those.
    """
    ours = [found.bus_id for found in devices]
    rest = [function for function in seen if function.bus_id not in ours]
    if ours.count(None) >= len(rest):
        return []
    minors = {found.minor for found in devices}
    found = []
    for function in rest:
        plain = sighted(function, "DriverError")
        before = remembered.get(function.bus_id)
        if before is None or before.minor in minors or not plain.managed:
            found.append(plain)
        else:
            found.append(replace(before, health=plain.health, partitions=()))
    return found


def joined_of(dcmi: Dcmi, chips: Chips) -> Joined:
    """Return how the known chips are joined, and what is granted together."""
    try:
        policy = die_policy(dcmi)
    except AgentError:
        policy = None
    described = [watched.described for watched in chips.known.values()]
    return joined(described, chips.links(dcmi), policy)


def facts_of(dcmi: Dcmi, chips: Collection[Watched], network: NetworkWatch) -> Pairs:
    """Return what is to be known of the whole node."""
    found = [("missing-symbols", ",".join(sorted(dcmi.missing)))] if dcmi.missing else []
    ordered = sorted((watched.described for watched in chips), key=lambda chip: chip.phy)
    pods = [(chip.phy, chip.facts.super_pod) for chip in ordered]
    inside = [(phy, pod) for phy, pod in pods if pod is not None]
    if inside:
        _, first = inside[0]
        document = {
            "superPodId": first.super_pod_id,
            "serverId": first.server_id,
            "sdid": {str(phy): pod.sdid for phy, pod in inside},
        }
        found.append((SUPER_POD, json.dumps(document, separators=(",", ":"))))
    ports = ((chip.phy, network.port(chip.key)) for chip in ordered)
    unwell = [str(phy) for phy, port in ports if port is not None and not port.works]
    if unwell:
        found.append((UNHEALTHY_PORTS, ",".join(unwell)))
    return tuple(found)
