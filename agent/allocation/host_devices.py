"""Reads what the host has for containers: device nodes, driver numbers, CDI specs, kernel files.

The hooks then answer without reading the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import chain

from agent.allocation.cdi_spec_reader import CdiSpecReader
from agent.allocation.file_stamp import ABSENT_FILE, HostFileStamp, read_stamp
from agent.allocation.runtime_handler import RuntimeHandlerReader
from agent.cgroup.layout import CgroupLayout, LayoutLocator
from agent.cgroup.ledger import CORE_SWITCH, IDENTITY_SWITCH
from agent.cgroup.paths import qos_directory
from agent.cgroup.processes import supports_core_scheduling
from agent.clock import Clock
from agent.errors import HostFileError
from agent.host.files import LiveHostFiles, read_text, read_value
from agent.snapshot.cpu import CpuSet
from agent.snapshot.device import DeviceNode, VendorDevice
from agent.snapshot.host_devices import (
    CdiSpec,
    HostDevices,
    HostDevicesView,
    KernelFeatures,
)
from agent.snapshot.host_files import HostFiles
from agent.snapshot.node import NodeSnapshot, devices_by_vendor
from agent.snapshot.pod import KubeQos
from agent.snapshot.settings import VendorSettings
from agent.snapshot.vendor import DeviceVendor, ReadsFunctions, injecting_vendors
from agent.wire_formats.cdi_specs import stale_reason
from agent.wire_formats.kernel_text import parse_cpu_list, parse_int

MAX_FOLDER_NODES = 4096  # of one folder; a host has 2048 IMEX channels
MAX_DRIVERS = 1024
PROC_DEVICES = "/proc/devices"
_CHARACTER_HEADER = "Character devices:"


class DeviceNodeFinder:
    """Finds device nodes below /dev. A folder is read again only after a change of its entries."""

    def __init__(self, host: HostFiles, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._folders: dict[str, tuple[HostFileStamp, dict[str, DeviceNode | None]]] = {}

    def find(self, patterns: Iterable[str], paths: Iterable[str]) -> tuple[DeviceNode, ...]:
        """Return the nodes that match a pattern, by path, then those of the paths that exist."""
        nodes: dict[str, DeviceNode] = {}
        for pattern in patterns:
            folder, _, name = pattern.rpartition("/")
            for entry in self._names(folder):
                if fnmatchcase(entry, name) and (node := self._node(folder, entry)) is not None:
                    nodes[node.path] = node
        for path in dict.fromkeys(paths):
            folder, _, name = path.rpartition("/")
            if path not in nodes and name in self._names(folder):
                node = self._node(folder, name)
                if node is not None:
                    nodes[path] = node
        return tuple(nodes.values())

    def drop_changed_folders(self) -> None:
        """Forget the folders that changed; called before each round."""
        for folder in tuple(self._folders):
            if self._folders[folder][0] != read_stamp(self._host, folder, self._clock.wall()):
                del self._folders[folder]

    def _names(self, folder: str) -> dict[str, DeviceNode | None]:
        cached = self._folders.get(folder)
        if cached is None:
            stamp = read_stamp(self._host, folder, self._clock.wall())
            try:
                names = self._host.names(folder)[:MAX_FOLDER_NODES] if stamp != ABSENT_FILE else ()
            except HostFileError:
                names = ()
            cached = self._folders[folder] = stamp, dict.fromkeys(names)
        return cached[1]

    def _node(self, folder: str, name: str) -> DeviceNode | None:
        """Return a node of a listed folder; an unreadable one is tried again each time."""
        names = self._names(folder)
        if names[name] is None:
            path = f"{folder}/{name}"
            numbers = self._host.device_number(path)
            if numbers is not None:
                names[name] = DeviceNode(path=path, major=numbers[0], minor=numbers[1])
        return names[name]


def read_majors(host: HostFiles) -> tuple[tuple[str, int], ...]:
    """Return the numbers of the character drivers; none if the list is unreadable."""
    lines = (read_text(host, PROC_DEVICES) or "").partition(_CHARACTER_HEADER)[2].splitlines()
    majors: dict[str, int] = {}
    for line in lines[1 : MAX_DRIVERS + 1]:
        number, _, name = line.strip().partition(" ")
        if not number.isdecimal() or len(number) > 10:
            break  # a blank line ends the list; block drivers follow
        majors.setdefault(name, int(number))
    return tuple(majors.items())


BVT_FILE = "cpu.bvt_warp_ns"

MAX_SYSCTL_VALUE = 1 << 31


class KernelFeatureReader:
    """Reads the kernel's features of one host. Belongs to one thread."""

    def __init__(
        self,
        host: HostFiles,
        locator: LayoutLocator | None = None,
        has_cookies: Callable[[], bool] = supports_core_scheduling,
    ) -> None:
        """`has_cookies` asks this machine's kernel, not that of a recorded host."""
        self._host = host
        self._has_cookies = has_cookies
        self._locator = locator or LayoutLocator(host)

    def read(self, now_s: float) -> KernelFeatures:
        """Return the current features; an unreadable feature counts as absent."""
        layout = self._locator.layout(now_s)
        switch_present = self._host.exists(IDENTITY_SWITCH)
        return KernelFeatures(
            cgroup_version=None if layout is None else layout.version,
            besteffort_cpus=self._besteffort_cpus(layout),
            bvt_file=self._has_bvt_file(layout),
            identity_switch=self._read_sysctl(IDENTITY_SWITCH) if switch_present else None,
            identity_switch_present=switch_present,
            core_scheduling=self._has_core_scheduling(),
            core_switch=self._read_sysctl(CORE_SWITCH),
        )

    def _has_core_scheduling(self) -> bool:
        """Return whether tasks can have cookies; kernels of Anolis have a switch for it."""
        if self._host.exists(CORE_SWITCH):
            return True
        return isinstance(self._host, LiveHostFiles) and self._has_cookies()

    def _read_sysctl(self, path: str) -> int | None:
        return read_value(self._host, path, lambda text: parse_int(text, 0, MAX_SYSCTL_VALUE))

    def _has_bvt_file(self, layout: CgroupLayout | None) -> bool:
        if layout is None or layout.root is None:
            return False
        directory = layout.directory("cpu", layout.root)
        return directory is not None and self._host.exists(f"{directory}/{BVT_FILE}")

    def _besteffort_cpus(self, layout: CgroupLayout | None) -> CpuSet | None:
        """Return the CPUs of the directory; cgroup version 2 intersects them itself."""
        if layout is None or layout.root is None or layout.version != 1:
            return None
        cgroup = qos_directory(layout, KubeQos.BEST_EFFORT)
        directory = layout.directory("cpuset", cgroup)
        return (
            read_value(self._host, f"{directory}/cpuset.cpus", parse_cpu_list)
            if directory
            else None
        )


RESCTRL_ROOT = "/sys/fs/resctrl"
_RESCTRL_FOLDERS = ("info", "mon_data", "mon_groups")
MAX_RESCTRL_GROUPS = 256
MAX_LISTED_MOUNTS = 128  # paths of a mount list, the limit of its own reader
MAX_LIST_BYTES = 16 * 1024
MAX_PATH = 1024
CDI_SPEC_STALE = "CdiSpecStale"


class HostDeviceReader:
    """Reads one host. Belongs to one thread; unchanged files are not read again."""

    def __init__(
        self,
        host: HostFiles,
        vendors: Mapping[str, DeviceVendor],
        settings: Mapping[str, VendorSettings],
        clock: Clock,
        locator: LayoutLocator | None = None,
    ) -> None:
        """`vendors` and their `settings` are by name; nothing is read yet."""
        self._host = host
        self._queries = {
            name: vendor.host_query(settings[name])
            for name, vendor in injecting_vendors(vendors).items()
        }
        self._function_readers = {
            name: vendor.function_reader(host)
            for name, vendor in vendors.items()
            if isinstance(vendor, ReadsFunctions)
        }
        self._driver_domains = {
            cdi.driver_domain: name
            for name, vendor in vendors.items()
            if (cdi := vendor.description.cdi) is not None and cdi.driver_domain
        }
        self._settings = settings
        self._clock = clock
        self._node_finder = DeviceNodeFinder(host, clock)
        self._cdi_specs = CdiSpecReader(host, clock)
        self._runtime_handler = RuntimeHandlerReader(host, clock)
        self._kernel = KernelFeatureReader(host, locator)
        self._last_view = HostDevicesView()

    def read(self, snapshot: NodeSnapshot) -> HostDevicesView:
        """Return the host's devices for each vendor of the node; an equal view is the same object.

        An unreadable file affects only its own facts: it becomes a problem, and nothing is raised.
        """
        self._node_finder.drop_changed_folders()
        specs, problems = self._cdi_specs.read()
        mounts = frozenset(self._existing_paths(chain.from_iterable(spec.mounts for spec in specs)))
        common = HostDevices(
            majors=read_majors(self._host),
            paths=mounts,
            cdi=specs,
            default_handler=self._runtime_handler.read(snapshot.runtime.value.runtime),
        )
        drivers = {
            state.vendor: state.inventory.value.driver_version if state.inventory.value else None
            for state in snapshot.vendors
        }
        own = devices_by_vendor(snapshot)
        vendors = {
            name: self._read_vendor(common, name, own.get(name, ()), drivers[name], snapshot)
            for name in drivers
            if name in self._queries
        }
        view = HostDevicesView(
            vendors=vendors,
            resctrl_groups=self._resctrl_groups(),
            kernel=self._kernel.read(self._clock.monotonic()),
            problems=(*problems, *self._stale_specs(specs, mounts, drivers)),
        )
        if view != self._last_view:
            self._last_view = view
        return self._last_view

    def _stale_specs(
        self, specs: Iterable[CdiSpec], mounts: frozenset[str], drivers: Mapping[str, str | None]
    ) -> Iterator[tuple[str, str]]:
        """Yield a problem for each CDI file made for another version of a vendor's driver."""
        for spec in specs:
            for domain, vendor in self._driver_domains.items():
                if spec.kind.partition("/")[0].endswith(domain):
                    reason = stale_reason(spec, mounts, drivers.get(vendor))
                    if reason:
                        yield CDI_SPEC_STALE, reason

    def _read_vendor(
        self,
        common: HostDevices,
        name: str,
        devices: tuple[VendorDevice, ...],
        driver: str | None,
        snapshot: NodeSnapshot,
    ) -> HostDevices:
        query = self._queries[name]
        mount_list = self._read_mount_list(query.mount_list)
        paths = (*query.paths, *(mount_list or ()))
        reader = self._function_readers.get(name)
        return HostDevices(
            nodes=self._node_finder.find(query.nodes, _node_paths(devices)),
            paths=common.paths.union(self._existing_paths(paths)),
            majors=common.majors,
            cdi=common.cdi,
            default_handler=common.default_handler,
            driver_version=driver,
            functions=reader.read(devices, self._clock.monotonic()) if reader else (),
            mps=snapshot.sharing.value.mps if query.mps else (),
            mount_list=mount_list,
            settings=self._settings[name],
        )

    def _existing_paths(self, paths: Iterable[str]) -> Iterator[str]:
        return (
            path
            for path in dict.fromkeys(paths)
            if _is_plain_path(path) and self._host.exists(path)
        )

    def _read_mount_list(self, path: str) -> tuple[str, ...] | None:
        """Return the plain paths of a list; `None` if there is none."""
        content = read_text(self._host, path, MAX_LIST_BYTES) if path else None
        if content is None:
            return None
        lines = (line.strip() for line in content.splitlines()[:MAX_LISTED_MOUNTS])
        return tuple(line for line in lines if _is_plain_path(line))

    def _resctrl_groups(self) -> tuple[str, ...]:
        try:
            names = self._host.names(RESCTRL_ROOT)
        except HostFileError:
            return ()
        groups = (name for name in names if name not in _RESCTRL_FOLDERS)
        existing = (name for name in groups if self._host.exists(f"{RESCTRL_ROOT}/{name}/schemata"))
        return tuple(existing)[:MAX_RESCTRL_GROUPS]


def _is_plain_path(path: str) -> bool:
    is_absolute = path.startswith("/") and len(path) <= MAX_PATH and "\0" not in path
    return is_absolute and ".." not in path.split("/")


def _node_paths(devices: Iterable[VendorDevice]) -> Iterator[str]:
    for device in devices:
        yield from (node.path for node in device.nodes if _is_plain_path(node.path))
        for part in device.partitions:
            yield from (node.path for node in part.nodes if _is_plain_path(node.path))
