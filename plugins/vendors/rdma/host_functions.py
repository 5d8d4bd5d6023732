"""Reads the RDMA devices of each PCI function; those in pods stay as they were last read."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec.structs import replace

from agent.errors import ParseError
from agent.host.files import list_entries, read_text
from agent.snapshot.device import DeviceNode, VendorDevice
from agent.snapshot.host_devices import RdmaFunction
from agent.snapshot.host_files import HostFiles
from agent.snapshot.pci import parse_address
from agent.wire_formats.kernel_text import parse_dev_number
from plugins.vendors.rdma.sysfs.classes import RdmaNodes, link_text, primary_name, read_nodes
from plugins.vendors.rdma.sysfs.values import is_name

PCI_DEVICES = "/sys/bus/pci/devices"
# whose entries tell that a device came, went, or changed its name or network namespace
RDMA_CLASSES = ("infiniband", "infiniband_verbs", "infiniband_mad", "net")
REFRESH_S = 30.0  # all is read again
MAX_FUNCTIONS = 1024
_SWITCH_MANAGER = re.compile(r"smi[0-9]+")  # no data goes through it
_VERBS = re.compile(r"uverbs[0-9]{1,5}")

FolderEntries = tuple[tuple[str, ...], ...]


class RdmaFunctionReader:
    """Reads the functions of one host; belongs to one thread."""

    def __init__(self, host: HostFiles) -> None:
        self._host = host
        self._signature: FolderEntries = ()
        self._read_s: float | None = None
        self._functions: tuple[RdmaFunction, ...] = ()
        self._last_with_verbs: dict[str, RdmaFunction] = {}  # with verbs

    def read(self, devices: Iterable[VendorDevice], now_s: float) -> tuple[RdmaFunction, ...]:
        """Return the functions of these devices in their order, virtual ones included."""
        addresses = tuple(dict.fromkeys(_function_addresses(devices)))[:MAX_FUNCTIONS]
        listings = (list_entries(self._host, f"/sys/class/{name}") for name in RDMA_CLASSES)
        signature = (addresses, *listings)
        is_recent = self._read_s is not None and now_s - self._read_s < REFRESH_S
        if not is_recent or signature != self._signature:
            nodes = read_nodes(self._host, addresses)
            self._functions = tuple(self._function(address, nodes) for address in addresses)
            self._last_with_verbs = {f.address: f for f in self._functions if f.verbs}
            self._signature, self._read_s = signature, now_s
        return self._functions

    def _function(self, address: str, nodes: RdmaNodes) -> RdmaFunction:
        folder = f"{PCI_DEVICES}/{address}"
        driver = link_text(self._host, f"{folder}/driver")
        names = [
            name
            for name in list_entries(self._host, f"{folder}/infiniband")
            if _is_data_device(name)
        ]
        primary = primary_name(names) if names else ""
        ordered = tuple(sorted(names, key=lambda name: (name != primary, len(name), name)))
        verbs = tuple(nodes.uverbs[name] for name in ordered if name in nodes.uverbs)
        mad = (node for name in ordered for node in nodes.mad.get(name, ()))
        function = RdmaFunction(
            address=address,
            names=ordered,
            verbs=verbs or self._verbs_below(folder),
            umad=tuple(node for node in mad if "/umad" in node.path),
            netdevs=tuple(filter(is_name, list_entries(self._host, f"{folder}/net"))),
            driver=driver.rstrip("/").rpartition("/")[2] if driver else None,
        )
        last = self._last_with_verbs.get(address)
        if not function.names and last is not None and last.driver == function.driver:
            # in a pod's network namespace; its numbers stay
            return replace(last, netdevs=function.netdevs)
        return function

    def _verbs_below(self, folder: str) -> tuple[DeviceNode, ...]:
        """Return the nodes in the function's own folder, for a device that is not in the class."""
        nodes: list[DeviceNode] = []
        for name in filter(
            _VERBS.fullmatch, list_entries(self._host, f"{folder}/infiniband_verbs")
        ):
            try:
                numbers = read_text(self._host, f"{folder}/infiniband_verbs/{name}/dev") or ""
                major, minor = parse_dev_number(numbers)
            except ParseError:
                continue
            nodes.append(DeviceNode(path=f"/dev/infiniband/{name}", major=major, minor=minor))
        return tuple(nodes)


def _is_data_device(name: str) -> bool:
    return is_name(name) and not _SWITCH_MANAGER.fullmatch(name)


def _function_addresses(devices: Iterable[VendorDevice]) -> Iterable[str]:
    for device in devices:
        physical = (device.bus_id, *dict(device.facts).get("members", "").split(","))
        virtual = (vf.bus_id for group in device.vf_groups for vf in group.vfs)
        for address in (*physical, *virtual):
            try:
                yield parse_address(address or "")
            except ParseError:
                continue
