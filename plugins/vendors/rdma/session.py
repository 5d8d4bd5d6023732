"""The session of RDMA devices: discovers and watches them in the worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from agent.clock import SYSTEM_CLOCK, Clock
from agent.errors import NotSupported
from agent.host.kernel import read_boot_id
from agent.snapshot.device import Health, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory
from agent.snapshot.pci import address_sort_key
from agent.snapshot.vendor import LIVE_CONTEXT, SessionContext
from plugins.vendors.rdma.discovery import descriptions
from plugins.vendors.rdma.discovery.descriptions import DeviceAbsence, DeviceAttributes
from plugins.vendors.rdma.discovery.minors import MinorRequest, RdmaDeviceRecord, RdmaStateStore
from plugins.vendors.rdma.discovery.nics import (
    DeviceSource,
    Nic,
    VirtualFunctions,
    nics_of,
    problems_of,
    source_of,
    virtual_functions,
    without_device,
)
from plugins.vendors.rdma.settings import RdmaSettings
from plugins.vendors.rdma.sysfs.classes import ClassKind, RdmaClass
from plugins.vendors.rdma.sysfs.counters import CountedDevice
from plugins.vendors.rdma.sysfs.functions import (
    ALWAYS_RDMA,
    GONE_VENDORS,
    RdmaPciFunction,
    RdmaScan,
    read_scan,
)
from plugins.vendors.rdma.sysfs.pod_cgroups import pod_limits
from plugins.vendors.rdma.sysfs.ports import PortReader
from plugins.vendors.rdma.watch import RdmaWatch, WatchTarget

MISSES_UNTIL_ABSENT = 2  # a device that is missing once may just be renamed


class _DiscoveryRound(msgspec.Struct, frozen=True, kw_only=True):
    """The data that one discovery has read."""

    scan: RdmaScan
    nics: tuple[Nic, ...]
    absent: tuple[
        tuple[RdmaPciFunction, DeviceAbsence], ...
    ]  # functions that had or should have a device
    soft_devices: tuple[tuple[str, RdmaClass], ...]
    minors: Mapping[str, int]  # by key of the device
    limits: Mapping[str, str]
    now_s: float


class RdmaSession:
    """The RDMA devices of one host. All data are read from files; no library is loaded."""

    def __init__(
        self,
        host: HostFiles,
        settings: RdmaSettings,
        context: SessionContext = LIVE_CONTEXT,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._host = host
        self._settings = settings
        self._is_replay = context.is_replay
        self._clock = clock
        self._watch = RdmaWatch(host, settings, context, clock)
        self._ports = PortReader(host)
        self._last_devices: dict[str, VendorDevice] = {}
        self._state_store = RdmaStateStore(context.state_dir, read_boot_id(host))

    def discover(self) -> Inventory:
        """Return every RDMA device; their minors are stored before they are returned."""
        discovery = self._read_round()
        targets: list[WatchTarget] = []
        strays: list[str] = []
        devices: dict[str, VendorDevice] = {}
        for device in self._devices(discovery, targets, strays):
            devices[device.key] = device
        self._watch.set_targets(
            targets,
            {function.address: absence.in_namespace for function, absence in discovery.absent},
        )
        self._ports.retain({target.device.name for target in targets})
        self._last_devices = devices
        self._state_store.save_records(self._records(discovery))
        possible = (self._state_store.problem, self._watch.problem)
        problems = [problem for problem in possible if problem]
        problems += problems_of(discovery.scan, strays)
        mode = "exclusive" if discovery.scan.has_exclusive_netns else "shared"
        return Inventory(
            vendor="rdma",
            devices=tuple(devices.values()),
            facts=(("netns_mode", mode),),
            problems=tuple(problems),
        )

    def sample(self) -> tuple[DeviceSample, ...]:
        """Return port states and counters of the devices in the class."""
        return self._watch.sample()

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Wait for a change of a port; raises `NotSupported` on a recorded host."""
        if self._is_replay:
            raise NotSupported("a recorded host has no events")
        return self._watch.wait(wait_s)

    def clear(self, key: str) -> bool:
        """Clear the fault of a device in the kernel log; return whether there was one."""
        return self._watch.clear(key)

    def close(self) -> None:
        """End `events` and close all files."""
        self._watch.close()

    def _read_round(self) -> _DiscoveryRound:
        scan = read_scan(self._host, self._state_store.state.records)
        nics = tuple(nic for nic in nics_of(scan) if nic.function.vendor_id not in GONE_VENDORS)
        absent = tuple(self._find_absent(scan, nics))
        soft_devices = descriptions.soft_of(scan.classes)
        names = {nic.function: nic.primary.name for nic in nics}
        for function, absence in absent:
            record = self._state_store.record_of(function.address)
            if absence.managed:
                names[function] = record.name if record else ""
        ordered = sorted(names.items(), key=lambda item: address_sort_key(item[0].address))
        requests = {
            function.address: MinorRequest(self._state_store.identity(function), name)
            for function, name in ordered
        }
        if self._settings.soft:
            requests |= {uuid: MinorRequest(uuid, item.name) for uuid, item in soft_devices}
        minors = self._state_store.assign(list(requests.values()))
        return _DiscoveryRound(
            scan=scan,
            nics=nics,
            absent=absent,
            soft_devices=soft_devices,
            minors={key: minors[item.key] for key, item in requests.items() if item.key in minors},
            limits=pod_limits(self._host),
            now_s=self._clock.monotonic(),
        )

    def _find_absent(
        self, scan: RdmaScan, nics: tuple[Nic, ...]
    ) -> Iterator[tuple[RdmaPciFunction, DeviceAbsence]]:
        present = {address for nic in nics for address in (nic.function.address, *nic.members)}
        candidates = {function.address for function in without_device(scan, nics)}
        for address, function in scan.functions.items():
            record = self._state_store.record_of(address)
            if address in present or (record is None and address not in candidates):
                continue
            absence = descriptions.judge_absence(function, record, scan)
            if record or absence.managed or function.driver in ALWAYS_RDMA:
                yield function, absence

    def _devices(
        self, discovery: _DiscoveryRound, targets: list[WatchTarget], strays: list[str]
    ) -> Iterator[VendorDevice]:
        """Describe all devices; add those that can be watched to `targets`."""
        for nic in discovery.nics:
            vfs = self._virtual_functions(nic.function, nic.primary.name, discovery)
            strays += vfs.strays
            attributes = self._attributes(source_of(nic, vfs, discovery.scan), discovery, targets)
            if attributes is not None:
                other_functions = descriptions.functions_of_card(nic, discovery.nics)
                yield descriptions.describe_nic(
                    nic, discovery.scan.nodes, attributes, vfs, other_functions
                )
            elif nic.function.address in self._last_devices:
                yield self._publish_again(self._last_devices[nic.function.address])
        for function, absence in discovery.absent:
            yield self._describe_absent(function, absence, discovery)
        for uuid, rdma_class in discovery.soft_devices:
            netdevs = (rdma_class.parent,) if rdma_class.parent else ()
            source = DeviceSource(key=uuid, item=rdma_class, netdevs=netdevs)
            attributes = self._attributes(source, discovery, targets)
            if attributes is not None:
                managed = self._settings.soft
                yield descriptions.describe_soft_device(
                    rdma_class, discovery.scan.nodes, attributes, uuid=uuid, managed=managed
                )
        for rdma_class in discovery.scan.classes:
            if rdma_class.origin.kind is ClassKind.OTHER:
                yield descriptions.describe_other_device(rdma_class)

    def _virtual_functions(
        self, function: RdmaPciFunction, name: str, discovery: _DiscoveryRound
    ) -> VirtualFunctions:
        return virtual_functions(
            function,
            name,
            discovery.scan.functions,
            self._settings.pool_rules,
            exclusive=discovery.scan.has_exclusive_netns,
        )

    def _attributes(
        self, source: DeviceSource, discovery: _DiscoveryRound, targets: list[WatchTarget]
    ) -> DeviceAttributes | None:
        """Read a device's ports; `None` if it was removed meanwhile."""
        function, name = source.function, source.item.name
        address, root = (function.address, function.root) if function else (None, None)
        ports, netdevs = self._ports.read(name, source.netdevs, discovery.now_s)
        record = self._state_store.record_of(source.key)
        target = WatchTarget(
            key=source.key,
            device=CountedDevice(
                name=name,
                ports=tuple(port.number for port in ports),
                info=source.info(netdevs, ports[0].link_layer if ports else None),
                vfs=source.vf_counts,
            ),
            address=address,
            numvfs=function.numvfs if function else None,
            fault=descriptions.node_fault(
                self._host, name, discovery.scan.nodes, replay=self._is_replay
            ),
            bond=source.bond,
            used_ports=(
                *(record.used_ports if record else ()),
                *self._settings.expected_ports_of(address, root, name),
            ),
        )
        health = self._watch.judge(target)
        if health is None:
            return None
        targets.append(target)
        return DeviceAttributes(
            minor=discovery.minors.get(source.key),
            labels=self._settings.labels_of(address, root, name),
            health=health,
            ports=ports,
            netdevs=netdevs,
            pod_limit=discovery.limits.get(name),
            exclusive=discovery.scan.has_exclusive_netns,
        )

    def _describe_absent(
        self, function: RdmaPciFunction, absence: DeviceAbsence, discovery: _DiscoveryRound
    ) -> VendorDevice:
        """Describe a function without RDMA device; at the first miss as in the last discovery."""
        key, record = function.address, self._state_store.record_of(function.address)
        last = self._last_devices.get(key)
        misses = self._watch.count_miss(key)
        if last and absence.health and absence.managed and misses < MISSES_UNTIL_ABSENT:
            return self._publish_again(last)
        name = record.name if record else ""
        last_health = self._watch.health_of(key) or Health()
        attributes = DeviceAttributes(
            minor=discovery.minors.get(key),
            labels=self._settings.labels_of(key, function.root, name),
            health=self._date_change(absence.health, last) if absence.health else last_health,
            exclusive=discovery.scan.has_exclusive_netns,
        )
        vfs = self._virtual_functions(function, name, discovery)
        return descriptions.describe_absent_nic(function, record, attributes, vfs, absence, last)

    def _publish_again(self, last: VendorDevice) -> VendorDevice:
        """Return the last description again, and request a discovery soon."""
        self._watch.add_event(
            DeviceEvent(key=last.key, reason="RdmaDeviceMissed", message="looking once more")
        )
        return last

    def _date_change(self, health: Health, last: VendorDevice | None) -> Health:
        """Return the health with the time of its change, if the session observed the change."""
        if last is None:
            return health
        is_same_reason = last.health.reason == health.reason
        return replace(
            health, since_s=last.health.since_s if is_same_reason else self._clock.wall()
        )

    def _records(self, discovery: _DiscoveryRound) -> dict[str, RdmaDeviceRecord]:
        return {
            nic.function.address: RdmaDeviceRecord(
                name=nic.primary.name,
                guid=nic.primary.node_guid,
                driver=nic.function.driver,
                used_ports=self._watch.used_ports(nic.function.address),
            )
            for nic in discovery.nics
        }
