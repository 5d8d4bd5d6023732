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

LOOKS_TO_BE_GONE = 2  # a device that is missing once may be on its way to a new name


class _DiscoveryRound(msgspec.Struct, frozen=True, kw_only=True):
    """What one discovery has read."""

    scan: RdmaScan
    nics: tuple[Nic, ...]
    away: tuple[
        tuple[RdmaPciFunction, DeviceAbsence], ...
    ]  # functions that had or should have a device
    soft: tuple[tuple[str, RdmaClass], ...]
    minors: Mapping[str, int]  # by key of the device
    limits: Mapping[str, str]
    now_s: float


class RdmaSession:
    """One host's RDMA devices. All is read from files: no library is loaded."""

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
        self._last: dict[str, VendorDevice] = {}
        self._kept = RdmaStateStore(context.state_dir, read_boot_id(host))

    def discover(self) -> Inventory:
        """Return every RDMA device; numbers are written down before anybody is told of them."""
        now = self._look()
        targets: list[WatchTarget] = []
        strays: list[str] = []
        devices: dict[str, VendorDevice] = {}
        for device in self._devices(now, targets, strays):
            devices[device.key] = device
        self._watch.set_targets(targets, {item.address: why.in_namespace for item, why in now.away})
        self._ports.keep_only({target.device.name for target in targets})
        self._last = devices
        self._kept.save_records(self._seen(now))
        odd = (self._kept.problem, self._watch.problem)
        problems = [problem for problem in odd if problem]
        problems += problems_of(now.scan, strays)
        mode = "exclusive" if now.scan.has_exclusive_netns else "shared"
        return Inventory(
            vendor="rdma",
            devices=tuple(devices.values()),
            facts=(("netns_mode", mode),),
            problems=tuple(problems),
        )

    def sample(self) -> tuple[DeviceSample, ...]:
        """Return port states and counters of the devices that are here."""
        return self._watch.sample()

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Wait for a port that changed; a recorded host has none: `NotSupported`."""
        if self._is_replay:
            raise NotSupported("a recorded host has no events")
        return self._watch.wait(wait_s)

    def clear(self, key: str) -> bool:
        """Forget what the kernel's log says against a device."""
        return self._watch.clear(key)

    def close(self) -> None:
        """End waiting and close the counters' files."""
        self._watch.close()

    def _look(self) -> _DiscoveryRound:
        scan = read_scan(self._host, self._kept.state.seen)
        nics = tuple(nic for nic in nics_of(scan) if nic.function.vendor_id not in GONE_VENDORS)
        away = tuple(self._absent(scan, nics))
        soft = descriptions.soft_of(scan.classes)
        numbered = {nic.function: nic.primary.name for nic in nics}
        for function, why in away:
            seen = self._kept.record_of(function.address)
            if why.managed:
                numbered[function] = seen.name if seen else ""
        ordered = sorted(numbered.items(), key=lambda item: address_sort_key(item[0].address))
        claims = {
            function.address: MinorRequest(self._kept.identity(function), name)
            for function, name in ordered
        }
        if self._settings.soft:
            claims |= {uuid: MinorRequest(uuid, item.name) for uuid, item in soft}
        given = self._kept.assign(list(claims.values()))
        return _DiscoveryRound(
            scan=scan,
            nics=nics,
            away=away,
            soft=soft,
            minors={key: given[item.key] for key, item in claims.items() if item.key in given},
            limits=pod_limits(self._host),
            now_s=self._clock.monotonic(),
        )

    def _absent(
        self, scan: RdmaScan, nics: tuple[Nic, ...]
    ) -> Iterator[tuple[RdmaPciFunction, DeviceAbsence]]:
        here = {address for nic in nics for address in (nic.function.address, *nic.members)}
        maybe = {function.address for function in without_device(scan, nics)}
        for address, function in scan.functions.items():
            seen = self._kept.record_of(address)
            if address in here or (seen is None and address not in maybe):
                continue
            why = descriptions.judge_absence(function, seen, scan)
            if seen or why.managed or function.driver in ALWAYS_RDMA:
                yield function, why

    def _devices(
        self, now: _DiscoveryRound, targets: list[WatchTarget], strays: list[str]
    ) -> Iterator[VendorDevice]:
        """Describe all devices; those that can be watched become targets."""
        for nic in now.nics:
            vfs = self._virtual(nic.function, nic.primary.name, now)
            strays += vfs.strays
            outfit = self._outfit(source_of(nic, vfs, now.scan), now, targets)
            if outfit is not None:
                sisters = descriptions.functions_of_card(nic, now.nics)
                yield descriptions.describe_nic(nic, now.scan.nodes, outfit, vfs, sisters)
            elif nic.function.address in self._last:
                yield self._missed(self._last[nic.function.address])
        for function, why in now.away:
            yield self._away(function, why, now)
        for uuid, item in now.soft:
            netdevs = (item.parent,) if item.parent else ()
            subject = DeviceSource(key=uuid, item=item, netdevs=netdevs)
            outfit = self._outfit(subject, now, targets)
            if outfit is not None:
                managed = self._settings.soft
                yield descriptions.describe_soft_device(
                    item, now.scan.nodes, outfit, uuid=uuid, managed=managed
                )
        for item in now.scan.classes:
            if item.origin.kind is ClassKind.OTHER:
                yield descriptions.describe_other_device(item)

    def _virtual(
        self, function: RdmaPciFunction, name: str, now: _DiscoveryRound
    ) -> VirtualFunctions:
        return virtual_functions(
            function,
            name,
            now.scan.functions,
            self._settings.pool_rules,
            exclusive=now.scan.has_exclusive_netns,
        )

    def _outfit(
        self, subject: DeviceSource, now: _DiscoveryRound, targets: list[WatchTarget]
    ) -> DeviceAttributes | None:
        """Look at a device's ports; `None` if it left while it was looked at."""
        function, name = subject.function, subject.item.name
        address, root = (function.address, function.root) if function else (None, None)
        ports, netdevs = self._ports.read(name, subject.netdevs, now.now_s)
        seen = self._kept.record_of(subject.key)
        target = WatchTarget(
            key=subject.key,
            device=CountedDevice(
                name=name,
                ports=tuple(port.number for port in ports),
                info=subject.info(netdevs, ports[0].link_layer if ports else None),
                vfs=subject.vf_counts,
            ),
            address=address,
            numvfs=function.numvfs if function else None,
            fault=descriptions.node_fault(self._host, name, now.scan.nodes, replay=self._is_replay),
            bond=subject.bond,
            used_ports=(
                *(seen.used_ports if seen else ()),
                *self._settings.expected_ports_of(address, root, name),
            ),
        )
        health = self._watch.judge(target)
        if health is None:
            return None
        targets.append(target)
        return DeviceAttributes(
            minor=now.minors.get(subject.key),
            labels=self._settings.labels_of(address, root, name),
            health=health,
            ports=ports,
            netdevs=netdevs,
            pod_limit=now.limits.get(name),
            exclusive=now.scan.has_exclusive_netns,
        )

    def _away(
        self, function: RdmaPciFunction, why: DeviceAbsence, now: _DiscoveryRound
    ) -> VendorDevice:
        """Describe a function without RDMA device; the first time it may be a matter of time."""
        key, seen = function.address, self._kept.record_of(function.address)
        last = self._last.get(key)
        missed = self._watch.count_miss(key)
        if last and why.health and why.managed and missed < LOOKS_TO_BE_GONE:
            return self._missed(last)
        name = seen.name if seen else ""
        before = self._watch.health_of(key) or Health()
        outfit = DeviceAttributes(
            minor=now.minors.get(key),
            labels=self._settings.labels_of(key, function.root, name),
            health=self._since(why.health, last) if why.health else before,
            exclusive=now.scan.has_exclusive_netns,
        )
        vfs = self._virtual(function, name, now)
        return descriptions.describe_absent_nic(function, seen, outfit, vfs, why, last)

    def _missed(self, last: VendorDevice) -> VendorDevice:
        """Keep a device for one more look, and have that look soon."""
        self._watch.add_event(
            DeviceEvent(key=last.key, reason="RdmaDeviceMissed", message="looking once more")
        )
        return last

    def _since(self, health: Health, last: VendorDevice | None) -> Health:
        """Date a change that this session has seen."""
        if last is None:
            return health
        same = last.health.reason == health.reason
        return replace(health, since_s=last.health.since_s if same else self._clock.wall())

    def _seen(self, now: _DiscoveryRound) -> dict[str, RdmaDeviceRecord]:
        return {
            nic.function.address: RdmaDeviceRecord(
                name=nic.primary.name,
                guid=nic.primary.node_guid,
                driver=nic.function.driver,
                used_ports=self._watch.used_ports(nic.function.address),
            )
            for nic in now.nics
        }
