"""RDMA devices by PCI function: what sysfs shows, and of those in pods what it showed last."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec.structs import replace

from agent.errors import ParseError
from agent.host.attributes import entries
from agent.host.files import HostFiles, text
from agent.model.device import DeviceNode, VendorDevice
from agent.model.grant.host import RdmaFunction
from agent.topology.address import parse_address
from agent.topology.text import parse_dev_number
from plugins.bindings.rdma_class.classes import Nodes, link_text, primary_of, read_nodes
from plugins.bindings.rdma_class.text import is_name

PCI = "/sys/bus/pci/devices"
# whose entries tell that a device came, went, or changed its name or network namespace
CLASSES = ("infiniband", "infiniband_verbs", "infiniband_mad", "net")
REFRESH_S = 30.0  # all is read again
MAX_FUNCTIONS = 1024
_SWITCH_MANAGER = re.compile(r"smi[0-9]+")  # no data goes through it
_VERBS = re.compile(r"uverbs[0-9]{1,5}")

Signature = tuple[tuple[str, ...], ...]


class FunctionReader:
    """The functions of one host."""

    def __init__(self, host: HostFiles) -> None:
        self._host = host
        self._signature: Signature = ()
        self._read_s: float | None = None
        self._found: tuple[RdmaFunction, ...] = ()
        self._last: dict[str, RdmaFunction] = {}  # with verbs

    def read(self, devices: Iterable[VendorDevice], now_s: float) -> tuple[RdmaFunction, ...]:
        """Return the functions of these devices, virtual ones included, in their order."""
        addresses = tuple(dict.fromkeys(_addresses(devices)))[:MAX_FUNCTIONS]
        listed = (entries(self._host, f"/sys/class/{name}") for name in CLASSES)
        signature = (addresses, *listed)
        young = self._read_s is not None and now_s - self._read_s < REFRESH_S
        if not young or signature != self._signature:
            nodes = read_nodes(self._host, addresses)
            self._found = tuple(self._function(address, nodes) for address in addresses)
            self._last = {f.address: f for f in self._found if f.verbs}
            self._signature, self._read_s = signature, now_s
        return self._found

    def _function(self, address: str, nodes: Nodes) -> RdmaFunction:
        folder = f"{PCI}/{address}"
        driver = link_text(self._host, f"{folder}/driver")
        names = [name for name in entries(self._host, f"{folder}/infiniband") if _is_nic(name)]
        first = primary_of(names) if names else ""
        ordered = tuple(sorted(names, key=lambda name: (name != first, len(name), name)))
        verbs = tuple(nodes.uverbs[name] for name in ordered if name in nodes.uverbs)
        mad = (node for name in ordered for node in nodes.mad.get(name, ()))
        now = RdmaFunction(
            address=address,
            names=ordered,
            verbs=verbs or self._verbs_below(folder),
            umad=tuple(node for node in mad if "/umad" in node.path),
            netdevs=tuple(filter(is_name, entries(self._host, f"{folder}/net"))),
            driver=driver.rstrip("/").rpartition("/")[2] if driver else None,
        )
        last = self._last.get(address)
        if not now.names and last is not None and last.driver == now.driver:
            # in a pod's network namespace; its numbers stay
            return replace(last, netdevs=now.netdevs)
        return now

    def _verbs_below(self, folder: str) -> tuple[DeviceNode, ...]:
        """Return what the function's own folder tells of a device that no class shows here."""
        found: list[DeviceNode] = []
        for name in filter(_VERBS.fullmatch, entries(self._host, f"{folder}/infiniband_verbs")):
            try:
                numbers = text(self._host, f"{folder}/infiniband_verbs/{name}/dev") or ""
                major, minor = parse_dev_number(numbers)
            except ParseError:
                continue
            found.append(DeviceNode(path=f"/dev/infiniband/{name}", major=major, minor=minor))
        return tuple(found)


def _is_nic(name: str) -> bool:
    return is_name(name) and not _SWITCH_MANAGER.fullmatch(name)


def _addresses(devices: Iterable[VendorDevice]) -> Iterable[str]:
    for device in devices:
        told = (device.bus_id, *dict(device.facts).get("members", "").split(","))
        virtual = (vf.bus_id for group in device.vf_groups for vf in group.vfs)
        for address in (*told, *virtual):
            try:
                yield parse_address(address or "")
            except ParseError:
                continue
