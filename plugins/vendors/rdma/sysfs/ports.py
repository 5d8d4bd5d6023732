"""Ports of an RDMA device: state, rate, addresses, and the network device of each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agent.host.files import read_text
from agent.snapshot.device import DevicePort
from agent.snapshot.host_files import HostFiles
from plugins.vendors.rdma.health.ports import ACTIVE, ACTIVE_DEFER, INIT, PortReading
from plugins.vendors.rdma.sysfs.classes import CLASS, list_entries
from plugins.vendors.rdma.sysfs.values import (
    is_ipv4,
    is_link_local,
    is_name,
    is_pkey,
    parse_enum,
    parse_gid,
    parse_lid,
    parse_port,
    parse_rate,
)

MAX_GIDS = 256
MAX_EMPTY = 16  # empty slots in a row that end a table
MAX_PKEYS = 16  # slots of partition keys that are read
GID_BYTES = 64
GIDS_KEPT_S = 300.0  # a table of 256 addresses costs as many reads
LINE_BYTES = 256  # every other file here is one short line
INFINIBAND = "InfiniBand"
_IPOIB = "32"  # ARPHRD_INFINIBAND


class Gid(msgspec.Struct, frozen=True, kw_only=True):
    """One address of a port."""

    index: int
    gid: str
    type: str | None = None  # ib, 1 or 2 (RoCE version); None: not reported (EFA)
    netdev: str | None = None


def gid_type(words: str | None, link_layer: str | None) -> str | None:
    """Return the type of a GID: the kernel has one name for InfiniBand and RoCE v1."""
    if words in ("IB/RoCE v1", "RoCE v1"):
        return "ib" if link_layer == INFINIBAND else "1"
    return "2" if words == "RoCE v2" else None


def preferred_gid(gids: Sequence[Gid], link_layer: str | None) -> Gid | None:
    """Return the GID to show: RoCE v2 over IPv4, else a v2 that is not link-local.

    On IB the first.
    """
    if link_layer == INFINIBAND:
        return gids[0] if gids else None
    roce_v2 = [candidate for candidate in gids if candidate.type == "2"]
    for candidate in roce_v2:
        if is_ipv4(candidate.gid):
            return candidate
    return next((candidate for candidate in roce_v2 if not is_link_local(candidate.gid)), None)


def port_numbers(host: HostFiles, name: str) -> tuple[int, ...]:
    """Return a device's ports; entries that are not port numbers are skipped."""
    numbers = (parse_port(entry) for entry in list_entries(host, f"{CLASS}/{name}/ports"))
    return tuple(sorted(number for number in numbers if number is not None))


def _line(host: HostFiles, path: str) -> str:
    return read_text(host, path, LINE_BYTES) or ""


def read_gids(host: HostFiles, name: str, number: int) -> tuple[Gid, ...]:
    """Read a port's table up to sixteen empty slots in a row; an error is an empty slot."""
    base = f"{CLASS}/{name}/ports/{number}"
    link_layer = _line(host, f"{base}/link_layer")
    gids: list[Gid] = []
    empty = 0
    for index in range(MAX_GIDS):
        gid = parse_gid(read_text(host, f"{base}/gids/{index}", GID_BYTES) or "")
        empty = 0 if gid else empty + 1
        if empty == MAX_EMPTY:
            break
        if gid:
            words = read_text(host, f"{base}/gid_attrs/types/{index}", GID_BYTES)
            netdev = read_text(host, f"{base}/gid_attrs/ndevs/{index}", GID_BYTES) or ""
            gids.append(
                Gid(
                    index=index,
                    gid=gid,
                    type=gid_type(words, link_layer),
                    netdev=netdev if is_name(netdev) else None,
                )
            )
    return tuple(gids)


def read_port_state(host: HostFiles, name: str, number: int) -> PortReading:
    """Read a port's state: one file if it is active, else also the files that explain the state."""
    base = f"{CLASS}/{name}/ports/{number}"
    state_text = _line(host, f"{base}/state")
    state = parse_enum(state_text)
    if state and state[0] == ACTIVE:
        return PortReading(number=number, state=ACTIVE)
    physical = parse_enum(_line(host, f"{base}/phys_state"))
    is_init = state is not None and state[0] == INIT
    return PortReading(
        number=number,
        state=state[0] if state else None,
        physical=physical[0] if physical else None,
        sm_lid=parse_lid(_line(host, f"{base}/sm_lid")) if is_init else None,
        is_infiniband=is_init and _line(host, f"{base}/link_layer") == INFINIBAND,
        is_readable=bool(state_text),
    )


def _matches(host: HostFiles, netdev: str, number: int, gids: Sequence[Gid]) -> bool:
    base = f"/sys/class/net/{netdev}"
    if _line(host, f"{base}/type") == _IPOIB:
        tail = _line(host, f"{base}/address").replace(":", "").lower()[-16:]
        return bool(gids) and gids[0].gid.replace(":", "")[-16:] == tail
    port = _line(host, f"{base}/dev_port")
    if port.isdecimal() and port != "0":
        return int(port[:5]) == number - 1
    # old drivers report the port only in dev_id; both are 0 on cards with one port
    dev_id = parse_lid(_line(host, f"{base}/dev_id"))
    return (dev_id or 0) == number - 1


def port_netdev(
    host: HostFiles, number: int, count: int, gids: Sequence[Gid], netdevs: Sequence[str]
) -> str | None:
    """Return a port's network device: by its addresses, else among those of the function."""
    gid_netdev = next((item.netdev for item in gids if item.netdev), None)
    if gid_netdev:
        return gid_netdev
    if count == 1 and len(netdevs) == 1:
        return netdevs[0]
    return next((item for item in netdevs if _matches(host, item, number, gids)), None)


def read_port(
    host: HostFiles,
    name: str,
    number: int,
    *,
    count: int,
    gids: Sequence[Gid],
    netdevs: Sequence[str],
) -> DevicePort:
    """Read one port for people and publishers; a port that is down has no rate."""
    base = f"{CLASS}/{name}/ports/{number}"
    state = parse_enum(_line(host, f"{base}/state"))
    physical = parse_enum(_line(host, f"{base}/phys_state"))
    link_layer = _line(host, f"{base}/link_layer") or None
    is_active = state is not None and state[0] in (ACTIVE, ACTIVE_DEFER)
    is_infiniband = link_layer == INFINIBAND
    best = preferred_gid(gids, link_layer)
    return DevicePort(
        number=number,
        state=state[0] if state else None,
        state_name=state[1] if state else None,
        physical_state=physical[0] if physical else None,
        # a port that is down prints a rate that is left over
        rate_mbps=parse_rate(_line(host, f"{base}/rate")) if is_active else None,
        link_layer=link_layer,
        lid=parse_lid(_line(host, f"{base}/lid")) if is_infiniband else None,
        sm_lid=parse_lid(_line(host, f"{base}/sm_lid")) if is_infiniband else None,
        gid=best.gid if best else None,
        gid_index=best.index if best else None,
        pkeys=read_pkeys(host, base) if is_infiniband else (),
        netdev=port_netdev(host, number, count, gids, netdevs),
    )


def read_pkeys(host: HostFiles, base: str) -> tuple[str, ...]:
    """Return the partition keys of a port's first slots; empty ones are zero."""
    keys = (_line(host, f"{base}/pkeys/{index}").lower() for index in range(MAX_PKEYS))
    return tuple(key for key in keys if is_pkey(key))


def has_carrier(host: HostFiles, netdev: str) -> bool | None:
    """Return whether a network device has a link; `None` if it is switched off or absent."""
    value = _line(host, f"/sys/class/net/{netdev}/carrier")
    return {"1": True, "0": False}.get(value)


def _uppers(host: HostFiles, netdev: str) -> tuple[str, ...]:
    """Return the devices on top of a network device: a bond, VLANs; the tables have their GIDs."""
    return tuple(
        entry
        for entry in list_entries(host, f"/sys/class/net/{netdev}")
        if entry.startswith("upper_")
    )


class PortReader:
    """Reads all facts about ports.

    Address tables are cached for five minutes, or until a port's state or the network devices
    change.
    """

    def __init__(self, host: HostFiles) -> None:
        self._host = host
        self._tables: dict[tuple[str, int], tuple[float, object, tuple[Gid, ...]]] = {}

    def read(
        self, name: str, netdevs: Sequence[str], now_s: float
    ) -> tuple[tuple[DevicePort, ...], tuple[str, ...]]:
        """Return a device's ports and all network devices on top of it, sorted."""
        numbers = port_numbers(self._host, name)
        ports: list[DevicePort] = []
        names = set(netdevs)
        stacked = tuple((netdev, _uppers(self._host, netdev)) for netdev in netdevs)
        for number in numbers:
            gids = self._gids(name, number, stacked, now_s)
            names.update(netdev.netdev for netdev in gids if netdev.netdev)
            ports.append(
                read_port(self._host, name, number, count=len(numbers), gids=gids, netdevs=netdevs)
            )
        return tuple(ports), tuple(sorted(names))

    def _gids(self, name: str, number: int, stacked: object, now_s: float) -> tuple[Gid, ...]:
        inputs = (_line(self._host, f"{CLASS}/{name}/ports/{number}/state"), stacked)
        read_s, last_inputs, gids = self._tables.get((name, number), (-GIDS_KEPT_S, None, ()))
        if now_s - read_s < GIDS_KEPT_S and last_inputs == inputs:
            return gids
        gids = read_gids(self._host, name, number)
        self._tables[name, number] = (now_s, inputs, gids)
        return gids

    def retain(self, names: set[str]) -> None:
        """Drop the tables of other devices."""
        self._tables = {key: table for key, table in self._tables.items() if key[0] in names}
