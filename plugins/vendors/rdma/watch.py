"""Watches RDMA devices between discoveries: ports each second, counters every ten seconds."""

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
    TrafficRates,
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
    fault: Health | None = None  # counts whatever its ports show
    bond: tuple[str, ...] = ()  # network devices of a bond, all of which should have a link
    used_ports: tuple[int, ...] = ()  # known to be in use


class _CounterState(msgspec.Struct):
    """The state of a device's counters after the last reading."""

    files: tuple[CounterFile, ...]
    rates: TrafficRates = msgspec.field(default_factory=TrafficRates)
    readings: tuple[MetricValue, ...] = ()
    windows: dict[int, ErrorWindow] = msgspec.field(default_factory=dict)


class RdmaWatch:
    """Watches all devices. Two threads call it: the thread of the requests, and that of `wait`."""

    def __init__(
        self,
        host: HostFiles,
        settings: RdmaSettings,
        context: SessionContext,
        clock: Clock,
    ) -> None:
        self._host = host
        self._settings = settings
        self._health = DeviceHealthTracker(host, settings.port_policy, replay=context.is_replay)
        self._clock = clock
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._targets: dict[str, WatchTarget] = {}
        self._reported_vf_counts: dict[str, int] = {}  # reported numbers of virtual functions
        self._miss_counts: dict[str, int] = {}
        self._counter_states: dict[str, _CounterState] = {}
        self._counters = CounterReader(host)
        self._pod_readings: Mapping[str, tuple[MetricValue, ...]] = {}  # by RDMA name
        self._counters_read_s = float("-inf")
        self._polled_s = float("-inf")
        self._listing: tuple[str, ...] | None = None
        self._new_listing: tuple[str, ...] | None = None
        self._events: deque[DeviceEvent] = deque(maxlen=MAX_EVENTS)

    @property
    def problem(self) -> Problem | None:
        """Return why the kernel log is not read; `None` if it is."""
        return self._health.problem

    def set_targets(self, targets: Iterable[WatchTarget], absent: Mapping[str, bool]) -> None:
        """Watch exactly these devices; the history of `absent` ones stays.

        Faults in the kernel log of absent devices are dropped unless a pod has them (`True`).
        """
        with self._lock:
            self._reported_vf_counts = {}
            self._targets = {target.key: target for target in targets}
            self._health.retain(self._targets, absent)
            self._miss_counts = {
                key: count for key, count in self._miss_counts.items() if key in absent
            }
            last_states, self._counter_states = self._counter_states, {}
            for key, target in self._targets.items():
                state = _CounterState(list_counter_files(self._host, target.device))
                if key in last_states:
                    last = last_states[key]
                    state.readings, state.windows = last.readings, last.windows
                    state.rates = last.rates
                self._counter_states[key] = state
            paths = {
                file.path
                for counter_state in self._counter_states.values()
                for file in counter_state.files
            }
            self._counters.retain(paths)
            self._listing = list_entries(self._host, CLASS)

    def judge(self, target: WatchTarget) -> Health | None:
        """Read a device once and return its confirmed health.

        `None` if it was removed meanwhile.
        """
        with self._lock:
            self._health.read_log(self._clock.monotonic())
            self._health.expect(target.key, target.used_ports, target.fault)
            if self._observe(target) is None:
                return None
            return self._health.verdict(target.key)

    def health_of(self, key: str) -> Health | None:
        """Return the confirmed health of a device, which may be absent."""
        with self._lock:
            return self._health.verdict(key)

    def used_ports(self, key: str) -> tuple[int, ...]:
        """Return the ports that were active in this boot or are expected to be."""
        with self._lock:
            return self._health.used_ports(key)

    def clear(self, key: str) -> bool:
        """Clear the fault of a device in the kernel log; return whether there was one."""
        with self._lock:
            return self._health.clear(key)

    def count_miss(self, key: str) -> int:
        """Count a discovery without the device; return the number of such discoveries in a row."""
        with self._lock:
            self._miss_counts[key] = self._miss_counts.get(key, 0) + 1
            return self._miss_counts[key]

    def add_event(self, event: DeviceEvent) -> None:
        """Add an event to those that wait for `wait`."""
        with self._lock:
            self._events.append(event)

    def _observe(self, target: WatchTarget) -> tuple[PortReading, ...] | None:
        """Read the ports of a device; `None` if the device is not in the class any more."""
        name = target.device.name
        readings = tuple(
            read_port_state(self._host, name, number) for number in target.device.ports
        )
        if not any(port.is_readable for port in readings) and not self._host.exists(
            f"{CLASS}/{name}"
        ):
            return None
        self._miss_counts.pop(target.key, None)
        event = self._health.observe(
            target.key,
            readings,
            now_s=self._clock.monotonic(),
            wall_s=self._clock.wall(),
            lag_degraded=any(has_carrier(self._host, netdev) is False for netdev in target.bond),
        )
        if event is not None:
            self._events.append(event)
        return readings

    def poll(self) -> None:
        """Read every port, and check whether devices were added, removed or renamed."""
        with self._lock:
            self._polled_s = self._clock.monotonic()
            self._health.read_log(self._polled_s)
            for target in self._targets.values():
                if self._observe(target) is None:
                    self._miss_counts[target.key] = self._miss_counts.get(target.key, 0) + 1
                self._report_vf_count(target)
            self._compare_listing(list_entries(self._host, CLASS))

    def _report_vf_count(self, target: WatchTarget) -> None:
        """Add an event if a PF has another number of virtual functions than before."""
        if target.address is None or target.numvfs is None:
            return
        count = read_numvfs(self._host, target.address)
        if count is None or count == self._reported_vf_counts.get(target.key, target.numvfs):
            return
        message = f"{target.numvfs} virtual functions before, now {count}"
        self._reported_vf_counts[target.key] = count
        self._events.append(
            DeviceEvent(key=target.key, reason="VirtualFunctionsChanged", message=message)
        )

    def _compare_listing(self, listing: tuple[str, ...]) -> None:
        if listing == self._listing or self._listing is None:
            self._new_listing = None
        elif listing != self._new_listing:
            self._new_listing = listing  # a second reading must be equal
        else:
            self._listing, self._new_listing = listing, None
            event = DeviceEvent(
                key="", reason="RdmaDevicesChanged", message="devices came, went or were renamed"
            )
            self._events.append(event)

    def wait(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Poll each second until there are events, the time is over or the session is closed."""
        until_s = self._clock.monotonic() + wait_s
        while not self._stop.is_set():
            if self._clock.monotonic() - self._polled_s >= POLL_S:
                self.poll()
            if events := self._take_events():
                return events
            now_s = self._clock.monotonic()
            if now_s >= until_s:
                break
            self._stop.wait(max(0.0, min(until_s, self._polled_s + POLL_S) - now_s))
        return self._take_events()

    def _take_events(self) -> tuple[DeviceEvent, ...]:
        with self._lock:
            events = tuple(self._events)
            self._events.clear()
            return events

    def sample(self) -> tuple[DeviceSample, ...]:
        """Return the present port states, and the counters of the last ten seconds."""
        with self._lock:
            is_due = (
                self._clock.monotonic() - self._counters_read_s
                >= self._settings.counters_interval_s
            )
            if is_due:
                self._counters_read_s = self._clock.monotonic()
                self._pod_readings = pod_readings(self._host)
            samples = []
            for key, target in self._targets.items():
                port_states = self._observe(target)
                if port_states is None:
                    continue
                if is_due:
                    self._read_counters(target, port_states)
                readings = self._build_readings(target, port_states)
                verdict = self._health.verdict(key)
                samples.append(DeviceSample(key=key, readings=readings, health=verdict))
            return tuple(samples)

    def _build_readings(
        self, target: WatchTarget, port_states: tuple[PortReading, ...]
    ) -> tuple[MetricValue, ...]:
        name = target.device.name
        states = (
            MetricValue(
                family=f"{PREFIX}port_state", value=port.state, labels=(name, str(port.number))
            )
            for port in port_states
            if port.state is not None
        )
        flaps = (
            MetricValue(
                family=f"{PREFIX}port_flaps_total",
                value=self._health.port(target.key, port.number).flaps,
                labels=(name, str(port.number)),
            )
            for port in port_states
        )
        functions = (
            MetricValue(family=f"{PREFIX}virtual_functions", value=count, labels=(name, state))
            for state, count in target.device.vfs
        )
        info = MetricValue(family=f"{PREFIX}info", value=1, labels=target.device.info)
        counters = self._counter_states[target.key].readings
        return (info, *states, *flaps, *functions, *counters, *self._pod_readings.get(name, ()))

    def _read_counters(self, target: WatchTarget, port_states: tuple[PortReading, ...]) -> None:
        """Read a device's counters, and check those that show a bad link."""
        state, now_s = self._counter_states[target.key], self._clock.monotonic()
        link_counters: dict[int, dict[str, int]] = {}
        readings: list[MetricValue] = []
        for file in state.files:
            value = self._counters.value(file.path)
            readings += readings_of(file, value)
            readings += state.rates.read(file, value, now_s)
            if value is not None and file.name in ("link_downed", *self._settings.limits):
                link_counters.setdefault(file.port, {}).setdefault(file.name, value)
        for port in port_states:
            readings += port_readings(self._host, target.device.name, port)
        state.readings = tuple(readings)
        for number, values in link_counters.items():
            self._report_errors(target, number, values, now_s)

    def _report_errors(
        self, target: WatchTarget, number: int, values: Mapping[str, int], now_s: float
    ) -> None:
        downed = values.get("link_downed")
        if downed is not None:
            self._health.count_downed(target.key, number, downed, now_s)
        windows = self._counter_states[target.key].windows
        errors = tuple((name, value) for name, value in values.items() if name != "link_downed")
        limits = self._settings.limits
        windows[number], text = check_errors(windows.get(number), errors, now_s, limits)
        if text:
            message = f"port {number} within five minutes: {text}"
            self._events.append(DeviceEvent(key=target.key, reason="PortErrors", message=message))

    def close(self) -> None:
        """End `wait` and close all files."""
        self._stop.set()
        with self._lock:
            self._counters.retain(set())
            self._health.close()
