"""One host's RDMA devices, looked at in the worker: discovered, watched, told of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from agent.errors import NotSupported
from agent.host.files import HostFiles, text
from agent.model.device import Health, VendorDevice
from agent.model.inventory import DeviceEvent, DeviceSample, Inventory
from agent.topology.address import sort_key
from plugins.bindings.rdma_class.classes import ClassKind, RdmaClass
from plugins.bindings.rdma_class.pods import pod_limits
from plugins.vendors.rdma import describe
from plugins.vendors.rdma.counters import Watched
from plugins.vendors.rdma.describe import Absence, Outfit
from plugins.vendors.rdma.functions import (
    ALWAYS_RDMA,
    GONE_VENDORS,
    Function,
    Scan,
    read_scan,
)
from plugins.vendors.rdma.minors import Claim, Kept, Seen
from plugins.vendors.rdma.nics import (
    Nic,
    Subject,
    VirtualFunctions,
    nics_of,
    problems_of,
    subject_of,
    virtual_functions,
    without_device,
)
from plugins.vendors.rdma.ports import PortReader
from plugins.vendors.rdma.settings import RdmaSettings
from plugins.vendors.rdma.watch import Target, Watch

LOOKS_TO_BE_GONE = 2  # a device that is missing once may be on its way to a new name
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class _Round(msgspec.Struct, frozen=True, kw_only=True):
    """What one discovery has read."""

    scan: Scan
    nics: tuple[Nic, ...]
    away: tuple[tuple[Function, Absence], ...]  # functions that had or should have a device
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
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._host = host
        self._settings = settings
        self._monotonic = monotonic
        self._wall = wall
        self._watch = Watch(host, settings, monotonic, wall)
        self._ports = PortReader(host)
        self._last: dict[str, VendorDevice] = {}
        self._kept = Kept(settings.state_dir, text(host, BOOT_ID) or "")

    def discover(self) -> Inventory:
        """Return every RDMA device; numbers are written down before anybody is told of them."""
        now = self._look()
        targets: list[Target] = []
        strays: list[str] = []
        devices: dict[str, VendorDevice] = {}
        for device in self._devices(now, targets, strays):
            devices[device.key] = device
        self._watch.adopt(targets, {item.address: why.in_namespace for item, why in now.away})
        self._ports.keep_only({target.device.name for target in targets})
        self._last = devices
        self._kept.remember(self._seen(now))
        odd = (self._kept.problem, self._watch.problem)
        problems = [problem for problem in odd if problem]
        problems += problems_of(now.scan, strays)
        mode = "exclusive" if now.scan.exclusive else "shared"
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
        if self._settings.replay:
            raise NotSupported("a recorded host has no events")
        return self._watch.wait(wait_s)

    def clear(self, key: str) -> bool:
        """Forget what the kernel's log says against a device."""
        return self._watch.clear(key)

    def close(self) -> None:
        """End waiting and close the counters' files."""
        self._watch.close()

    def _look(self) -> _Round:
        scan = read_scan(self._host, self._kept.state.seen)
        nics = tuple(nic for nic in nics_of(scan) if nic.function.vendor_id not in GONE_VENDORS)
        away = tuple(self._absent(scan, nics))
        soft = describe.soft_of(scan.classes)
        numbered = {nic.function: nic.primary.name for nic in nics}
        for function, why in away:
            seen = self._kept.seen(function.address)
            if why.managed:
                numbered[function] = seen.name if seen else ""
        ordered = sorted(numbered.items(), key=lambda item: sort_key(item[0].address))
        claims = {
            function.address: Claim(self._kept.identity(function), name)
            for function, name in ordered
        }
        if self._settings.soft:
            claims |= {uuid: Claim(uuid, item.name) for uuid, item in soft}
        given = self._kept.number(list(claims.values()))
        return _Round(
            scan=scan,
            nics=nics,
            away=away,
            soft=soft,
            minors={key: given[item.key] for key, item in claims.items() if item.key in given},
            limits=pod_limits(self._host),
            now_s=self._monotonic(),
        )

    def _absent(self, scan: Scan, nics: tuple[Nic, ...]) -> Iterator[tuple[Function, Absence]]:
        here = {address for nic in nics for address in (nic.function.address, *nic.members)}
        maybe = {function.address for function in without_device(scan, nics)}
        for address, function in scan.functions.items():
            seen = self._kept.seen(address)
            if address in here or (seen is None and address not in maybe):
                continue
            why = describe.absence(function, seen, scan)
            if seen or why.managed or function.driver in ALWAYS_RDMA:
                yield function, why

    def _devices(
        self, now: _Round, targets: list[Target], strays: list[str]
    ) -> Iterator[VendorDevice]:
        """Describe all devices; those that can be watched become targets."""
        for nic in now.nics:
            vfs = self._virtual(nic.function, nic.primary.name, now)
            strays += vfs.strays
            outfit = self._outfit(subject_of(nic, vfs, now.scan), now, targets)
            if outfit is not None:
                sisters = describe.same_card(nic, now.nics)
                yield describe.nic_device(nic, now.scan.nodes, outfit, vfs, sisters)
            elif nic.function.address in self._last:
                yield self._missed(self._last[nic.function.address])
        for function, why in now.away:
            yield self._away(function, why, now)
        for uuid, item in now.soft:
            netdevs = (item.parent,) if item.parent else ()
            subject = Subject(key=uuid, item=item, netdevs=netdevs)
            outfit = self._outfit(subject, now, targets)
            if outfit is not None:
                managed = self._settings.soft
                yield describe.soft_device(item, now.scan.nodes, outfit, uuid=uuid, managed=managed)
        for item in now.scan.classes:
            if item.origin.kind is ClassKind.OTHER:
                yield describe.other_device(item)

    def _virtual(self, function: Function, name: str, now: _Round) -> VirtualFunctions:
        return virtual_functions(
            function,
            name,
            now.scan.functions,
            self._settings.vf_pools,
            exclusive=now.scan.exclusive,
        )

    def _outfit(self, subject: Subject, now: _Round, targets: list[Target]) -> Outfit | None:
        """Look at a device's ports; `None` if it left while it was looked at."""
        function, name = subject.function, subject.item.name
        address, root = (function.address, function.root) if function else (None, None)
        ports, netdevs = self._ports.read(name, subject.netdevs, now.now_s)
        seen = self._kept.seen(subject.key)
        target = Target(
            key=subject.key,
            device=Watched(
                name=name,
                ports=tuple(port.number for port in ports),
                info=subject.info(netdevs, ports[0].link_layer if ports else None),
                vfs=subject.vf_counts,
            ),
            address=address,
            numvfs=function.numvfs if function else None,
            fault=describe.node_fault(
                self._host, name, now.scan.nodes, replay=self._settings.replay
            ),
            bond=subject.bond,
            used_ports=(
                *(seen.used_ports if seen else ()),
                *self._settings.expected(address, root, name),
            ),
        )
        health = self._watch.judge(target)
        if health is None:
            return None
        targets.append(target)
        return Outfit(
            minor=now.minors.get(subject.key),
            labels=self._settings.labels_of(address, root, name),
            health=health,
            ports=ports,
            netdevs=netdevs,
            pod_limit=now.limits.get(name),
            exclusive=now.scan.exclusive,
        )

    def _away(self, function: Function, why: Absence, now: _Round) -> VendorDevice:
        """Describe a function without RDMA device; the first time it may be a matter of time."""
        key, seen = function.address, self._kept.seen(function.address)
        last = self._last.get(key)
        missed = self._watch.miss(key)
        if last and why.health and why.managed and missed < LOOKS_TO_BE_GONE:
            return self._missed(last)
        name = seen.name if seen else ""
        before = self._watch.health_of(key) or Health()
        outfit = Outfit(
            minor=now.minors.get(key),
            labels=self._settings.labels_of(key, function.root, name),
            health=self._since(why.health, last) if why.health else before,
            exclusive=now.scan.exclusive,
        )
        vfs = self._virtual(function, name, now)
        return describe.away_device(function, seen, outfit, vfs, why, last)

    def _missed(self, last: VendorDevice) -> VendorDevice:
        """Keep a device for one more look, and have that look soon."""
        self._watch.tell(
            DeviceEvent(key=last.key, reason="RdmaDeviceMissed", message="looking once more")
        )
        return last

    def _since(self, health: Health, last: VendorDevice | None) -> Health:
        """Date a change that this session has seen."""
        if last is None:
            return health
        same = last.health.reason == health.reason
        return replace(health, since_s=last.health.since_s if same else self._wall())

    def _seen(self, now: _Round) -> dict[str, Seen]:
        return {
            nic.function.address: Seen(
                name=nic.primary.name,
                guid=nic.primary.node_guid,
                driver=nic.function.driver,
                used_ports=self._watch.used_ports(nic.function.address),
            )
            for nic in now.nics
        }
