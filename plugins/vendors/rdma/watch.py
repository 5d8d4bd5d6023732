"""Watches RDMA devices between discoveries: ports each second, counters each ten seconds."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from agent.clock import Clock
from agent.snapshot.device import Health
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import DeviceEvent, DeviceSample, MetricValue, Problem
from agent.snapshot.vendor import SessionContext
from plugins.vendors.rdma.health.device_health import DeviceHealthTracker
from plugins.vendors.rdma.health.ports import ErrorWindow, PortReading, check_errors
from plugins.vendors.rdma.metrics import PREFIX
from plugins.vendors.rdma.settings import RdmaSettings
from plugins.vendors.rdma.sysfs.classes import CLASS, list_entries
from plugins.vendors.rdma.sysfs.counters import (
    CountedDevice,
    CounterFile,
    CounterReader,
    list_counter_files,
    port_readings,
    readings_of,
)
from plugins.vendors.rdma.sysfs.functions import read_numvfs
from plugins.vendors.rdma.sysfs.pod_cgroups import pod_readings
from plugins.vendors.rdma.sysfs.ports import has_carrier, read_port_state

POLL_S = 1.0  # the kernel sends no event when a port changes its state
MAX_EVENTS = 256  # waiting to be fetched; the oldest go first


class WatchTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A device to watch."""

    key: str
    device: CountedDevice
    address: str | None = None  # of its PCI function
    numvfs: int | None = None  # virtual functions at the last discovery
    fault: Health | None = None  # what is wrong whatever its ports say
    bond: tuple[str, ...] = ()  # network devices of a bond, all of which should have a link
    used_ports: tuple[int, ...] = ()  # known to be in use


class _CounterState(msgspec.Struct):
    """What the last reading of a device's counters left."""

    files: tuple[CounterFile, ...]
    readings: tuple[MetricValue, ...] = ()
    windows: dict[int, ErrorWindow] = msgspec.field(default_factory=dict)


class RdmaWatch:
    """Keeps the memory of all devices. Two threads call it: questions, and waiting for events."""

    def __init__(
        self,
        host: HostFiles,
        settings: RdmaSettings,
        context: SessionContext,
        clock: Clock,
    ) -> None:
        self._host = host
        self._settings = settings
        self._judge = DeviceHealthTracker(host, settings.port_policy, replay=context.is_replay)
        self._clock = clock
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._targets: dict[str, WatchTarget] = {}
        self._virtual: dict[str, int] = {}  # counts of virtual functions that were told
        self._missed: dict[str, int] = {}
        self._counted: dict[str, _CounterState] = {}
        self._counters = CounterReader(host)
        self._pods: Mapping[str, tuple[MetricValue, ...]] = {}  # by RDMA name
        self._counted_s = float("-inf")
        self._polled_s = float("-inf")
        self._listing: tuple[str, ...] | None = None
        self._new_listing: tuple[str, ...] | None = None
        self._events: deque[DeviceEvent] = deque(maxlen=MAX_EVENTS)

    @property
    def problem(self) -> Problem | None:
        """What keeps the kernel's log from being heard."""
        return self._judge.problem

    def set_targets(self, targets: Iterable[WatchTarget], kept: Mapping[str, bool]) -> None:
        """Watch exactly these devices from now on; of `kept` ones the memory stays.

        Those are away. Unless a pod has them (`True`), what the kernel said of them is over.
        """
        with self._lock:
            self._virtual = {}
            self._targets = {target.key: target for target in targets}
            self._judge.keep_only(self._targets, kept)
            self._missed = {key: n for key, n in self._missed.items() if key in kept}
            before, self._counted = self._counted, {}
            for key, target in self._targets.items():
                counted = _CounterState(list_counter_files(self._host, target.device))
                if key in before:
                    counted.readings, counted.windows = before[key].readings, before[key].windows
                self._counted[key] = counted
            paths = {file.path for item in self._counted.values() for file in item.files}
            self._counters.keep_only(paths)
            self._listing = list_entries(self._host, CLASS)

    def judge(self, target: WatchTarget) -> Health | None:
        """Look at a device once and return its settled health; `None` if it left meanwhile."""
        with self._lock:
            self._judge.read_log(self._clock.monotonic())
            self._judge.expect(target.key, target.used_ports, target.fault)
            if self._observe(target) is None:
                return None
            return self._judge.verdict(target.key)

    def health_of(self, key: str) -> Health | None:
        """Return the settled health of a device that may be away."""
        with self._lock:
            return self._judge.verdict(key)

    def used_ports(self, key: str) -> tuple[int, ...]:
        """Return the ports that were active in this boot or are expected to be."""
        with self._lock:
            return self._judge.used_ports(key)

    def clear(self, key: str) -> bool:
        """Forget what the kernel's log says against a device; say whether there was something."""
        with self._lock:
            return self._judge.clear(key)

    def count_miss(self, key: str) -> int:
        """Count a look that did not find a device; return how many there were in a row."""
        with self._lock:
            self._missed[key] = self._missed.get(key, 0) + 1
            return self._missed[key]

    def add_event(self, event: DeviceEvent) -> None:
        """Add an event to those that wait to be fetched."""
        with self._lock:
            self._events.append(event)

    def _observe(self, target: WatchTarget) -> tuple[PortReading, ...] | None:
        """Take one look in; `None` if the device is not in the class any more."""
        name = target.device.name
        seen = tuple(read_port_state(self._host, name, number) for number in target.device.ports)
        if not any(port.is_readable for port in seen) and not self._host.exists(f"{CLASS}/{name}"):
            return None
        self._missed.pop(target.key, None)
        event = self._judge.observe(
            target.key,
            seen,
            now_s=self._clock.monotonic(),
            wall_s=self._clock.wall(),
            lag_degraded=any(has_carrier(self._host, item) is False for item in target.bond),
        )
        if event is not None:
            self._events.append(event)
        return seen

    def poll(self) -> None:
        """Look at every port once, and whether devices came, went or were renamed."""
        with self._lock:
            self._polled_s = self._clock.monotonic()
            self._judge.read_log(self._polled_s)
            for target in self._targets.values():
                if self._observe(target) is None:
                    self._missed[target.key] = self._missed.get(target.key, 0) + 1
                self._count_virtual(target)
            self._compare(list_entries(self._host, CLASS))

    def _count_virtual(self, target: WatchTarget) -> None:
        """Notice a PF that was given other virtual functions; drivers take them up later."""
        if target.address is None or target.numvfs is None:
            return
        count = read_numvfs(self._host, target.address)
        if count is None or count == self._virtual.get(target.key, target.numvfs):
            return
        message = f"{target.numvfs} virtual functions before, now {count}"
        self._virtual[target.key] = count
        self._events.append(
            DeviceEvent(key=target.key, reason="VirtualFunctionsChanged", message=message)
        )

    def _compare(self, listing: tuple[str, ...]) -> None:
        if listing == self._listing or self._listing is None:
            self._new_listing = None
        elif listing != self._new_listing:
            self._new_listing = listing  # a second look must show the same
        else:
            self._listing, self._new_listing = listing, None
            event = DeviceEvent(
                key="", reason="RdmaDevicesChanged", message="devices came, went or were renamed"
            )
            self._events.append(event)

    def wait(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Poll each second until something happens, the time is over or the session ends."""
        until_s = self._clock.monotonic() + wait_s
        while not self._stop.is_set():
            if self._clock.monotonic() - self._polled_s >= POLL_S:
                self.poll()
            if found := self._fetch():
                return found
            now_s = self._clock.monotonic()
            if now_s >= until_s:
                break
            self._stop.wait(max(0.0, min(until_s, self._polled_s + POLL_S) - now_s))
        return self._fetch()

    def _fetch(self) -> tuple[DeviceEvent, ...]:
        with self._lock:
            found = tuple(self._events)
            self._events.clear()
            return found

    def sample(self) -> tuple[DeviceSample, ...]:
        """Return states as of now and counters of the last ten seconds."""
        with self._lock:
            due = self._clock.monotonic() - self._counted_s >= self._settings.counters_interval_s
            if due:
                self._counted_s = self._clock.monotonic()
                self._pods = pod_readings(self._host)
            samples = []
            for key, target in self._targets.items():
                seen = self._observe(target)
                if seen is None:
                    continue
                if due:
                    self._count(target, seen)
                readings = self._readings(target, seen)
                verdict = self._judge.verdict(key)
                samples.append(DeviceSample(key=key, readings=readings, health=verdict))
            return tuple(samples)

    def _readings(
        self, target: WatchTarget, seen: tuple[PortReading, ...]
    ) -> tuple[MetricValue, ...]:
        name = target.device.name
        states = (
            MetricValue(
                family=f"{PREFIX}port_state", value=port.state, labels=(name, str(port.number))
            )
            for port in seen
            if port.state is not None
        )
        flaps = (
            MetricValue(
                family=f"{PREFIX}port_flaps_total",
                value=self._judge.port(target.key, port.number).flaps,
                labels=(name, str(port.number)),
            )
            for port in seen
        )
        functions = (
            MetricValue(family=f"{PREFIX}virtual_functions", value=count, labels=(name, state))
            for state, count in target.device.vfs
        )
        info = MetricValue(family=f"{PREFIX}info", value=1, labels=target.device.info)
        counted = self._counted[target.key].readings
        return (info, *states, *flaps, *functions, *counted, *self._pods.get(name, ()))

    def _count(self, target: WatchTarget, seen: tuple[PortReading, ...]) -> None:
        """Read a device's counters, and judge those that tell of a bad link."""
        counted, now_s = self._counted[target.key], self._clock.monotonic()
        watched: dict[int, dict[str, int]] = {}
        readings: list[MetricValue] = []
        for file in counted.files:
            value = self._counters.value(file.path)
            readings += readings_of(file, value)
            if value is not None and file.name in ("link_downed", *self._settings.limits):
                watched.setdefault(file.port, {}).setdefault(file.name, value)
        for port in seen:
            readings += port_readings(self._host, target.device.name, port)
        counted.readings = tuple(readings)
        for number, values in watched.items():
            self._warn(target, number, values, now_s)

    def _warn(
        self, target: WatchTarget, number: int, values: Mapping[str, int], now_s: float
    ) -> None:
        downed = values.get("link_downed")
        if downed is not None:
            self._judge.count_downed(target.key, number, downed, now_s)
        windows = self._counted[target.key].windows
        errors = tuple((name, value) for name, value in values.items() if name != "link_downed")
        limits = self._settings.limits
        windows[number], words = check_errors(windows.get(number), errors, now_s, limits)
        if words:
            message = f"port {number} within five minutes: {words}"
            self._events.append(DeviceEvent(key=target.key, reason="PortErrors", message=message))

    def close(self) -> None:
        """End waiting and close all files."""
        self._stop.set()
        with self._lock:
            self._counters.keep_only(set())
            self._judge.close()
