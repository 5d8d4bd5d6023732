"""Records the last minutes of the node and of its devices, for people, in bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from agent.snapshot.inventory import POWER, TEMPERATURE, DeviceSample, MetricValue, TrafficSource
from agent.snapshot.node import VendorState
from agent.snapshot.usage import DeviceTrend, LinkTrafficTrend, NodeUsage, Trend, TrendView

STEP_S = 5.0
MAX_VALUES = 36  # of a quantity: three minutes, 144 bytes
# devices that have trends; with two links a device has eight quantities, which take 2.3 KB here and
# in the snapshot together
MAX_DEVICES = 256
SAMPLES_PER_STEP = 2.0  # rare samples make steps longer, so that each step has one

NAN = float("nan")
_Column = tuple[str, str]  # a quantity; of a link its name, and the direction
_CPU, _MEMORY = ("cpu", ""), ("memory", "")
_BUSY, _HEAT, _POWER = ("busy", ""), ("temperature", ""), ("power", "")
_SENT, _RECEIVED = "sent", "received"


class _Columns:
    """The values of one device or of the node, and the sums of the present step."""

    def __init__(self, links: Iterable[str] = ()) -> None:
        """Store the names of the links that the device may have, in the order to show them."""
        self._links = tuple(dict.fromkeys(links))
        self._values: dict[_Column, array[float]] = {}
        self._sums: dict[_Column, tuple[float, int]] = {}

    def add(self, items: Iterable[tuple[_Column, float | None]]) -> None:
        """Add values of one moment; absent ones are left out."""
        for column, value in items:
            if value is not None:
                total, count = self._sums.get(column, (0.0, 0))
                self._sums[column] = total + value, count + 1

    def end_step(self, step: int) -> bool:
        """Append the means of the step; return whether a value is left in any column."""
        for column in self._sums:
            if column not in self._values:
                self._values[column] = array("f", [NAN]) * min(step, MAX_VALUES - 1)
        for column, values in list(self._values.items()):
            total, count = self._sums.get(column, (NAN, 1))
            values.append(total / count)
            del values[:-MAX_VALUES]
            if all(value != value for value in values):  # noqa: PLR0124 - NaN
                del self._values[column]
        self._sums = {}
        return bool(self._values)

    def trend(self, column: _Column) -> Trend:
        """Return the values of a column."""
        return Trend(packed=self._values[column].tobytes() if column in self._values else b"")

    def links(self) -> tuple[LinkTrafficTrend, ...]:
        """Return the columns of the links that have values."""
        return tuple(
            LinkTrafficTrend(
                link=name, sent=self.trend((name, _SENT)), received=self.trend((name, _RECEIVED))
            )
            for name in self._links
            if (name, _SENT) in self._values or (name, _RECEIVED) in self._values
        )


class TrendRecorder:
    """Means of each step over the last minutes. For one thread; its views never change."""

    def __init__(
        self,
        traffic: Mapping[str, tuple[TrafficSource, ...]] = MappingProxyType({}),
        sample_interval_s: float = 1.0,
    ) -> None:
        """Record nothing yet; `traffic` has the sources of each vendor, by the plug-in's name."""
        self.step_s = max(STEP_S, SAMPLES_PER_STEP * sample_interval_s)
        self._traffic = traffic
        self._node = _Columns()
        self._devices: dict[str, _Columns] = {}
        self._sampled_s: dict[str, float] = {}  # by vendor, time of the last samples
        # by device and column, time and value of the last readings of a counter
        self._counters: dict[tuple[str, _Column], tuple[float, float]] = {}
        self._step_began_s: float | None = None
        self._steps = 0

    def add(
        self, now_s: float, node: NodeUsage, vendors: Iterable[VendorState]
    ) -> TrendView | None:
        """Add the node's usage and new samples; return a view if a step has ended."""
        self._node.add(((_CPU, node.cpu_cores), (_MEMORY, node.memory_bytes)))
        for vendor in vendors:
            taken_s = vendor.samples.taken_s
            if taken_s is None or self._sampled_s.get(vendor.vendor) == taken_s:
                continue
            self._sampled_s[vendor.vendor] = taken_s
            for sample in vendor.samples.value:
                self._add_sample(sample, taken_s, self._traffic.get(vendor.vendor, ()))
        if self._step_began_s is None:
            self._step_began_s = now_s
        if now_s - self._step_began_s < self.step_s:
            return None
        self._step_began_s = now_s
        return self._end_step()

    def _end_step(self) -> TrendView:
        self._node.end_step(self._steps)
        alive = {key: one for key, one in self._devices.items() if one.end_step(self._steps)}
        self._devices = alive
        self._counters = {name: value for name, value in self._counters.items() if name[0] in alive}
        self._steps += 1
        return TrendView(
            step_s=self.step_s,
            cpu_cores=self._node.trend(_CPU),
            memory_bytes=self._node.trend(_MEMORY),
            devices=MappingProxyType({key: _device_trend(one) for key, one in alive.items()}),
        )

    def _add_sample(
        self, sample: DeviceSample, taken_s: float, sources: tuple[TrafficSource, ...]
    ) -> None:
        columns = self._devices.get(sample.key)
        if columns is None:
            if len(self._devices) >= MAX_DEVICES:
                return
            columns = self._devices[sample.key] = _Columns(source.link for source in sources)
        heat = [one.value for one in sample.readings if one.family == TEMPERATURE]
        power = next((one.value for one in sample.readings if one.family == POWER), None)
        columns.add(
            (
                (_BUSY, sample.core_percent),
                (_MEMORY, sample.memory_used_bytes),
                (_HEAT, max(heat, default=None)),
                (_POWER, power),
            )
        )
        columns.add(self._traffic_rates(sample, taken_s, sources))

    def _traffic_rates(
        self, sample: DeviceSample, taken_s: float, sources: tuple[TrafficSource, ...]
    ) -> Iterator[tuple[_Column, float | None]]:
        """Yield bytes per second of each direction of each link, of its first source."""
        by_family: dict[str, list[MetricValue]] = {}
        for reading in sample.readings:
            by_family.setdefault(reading.family, []).append(reading)
        measured: set[_Column] = set()
        for source in sources:
            column = source.link, _SENT if source.is_sent else _RECEIVED
            values = [
                reading.value
                for reading in by_family.get(source.family, ())
                if all(value in reading.labels for value in source.labels)
            ]
            if not values or column in measured:
                continue
            measured.add(column)
            if source.family.endswith("_total"):
                yield column, self._rate(sample.key, column, taken_s, sum(values))
            else:
                yield column, sum(values)

    def _rate(self, key: str, column: _Column, taken_s: float, total: float) -> float | None:
        """Return the increase of a counter per second; `None` for the first value or a reset."""
        last_s, last = self._counters.get((key, column), (taken_s, total))
        self._counters[key, column] = taken_s, total
        if taken_s <= last_s or total < last:
            return None
        return (total - last) / (taken_s - last_s)


def _device_trend(columns: _Columns) -> DeviceTrend:
    return DeviceTrend(
        busy_percent=columns.trend(_BUSY),
        memory_bytes=columns.trend(_MEMORY),
        temperature_celsius=columns.trend(_HEAT),
        power_watts=columns.trend(_POWER),
        links=columns.links(),
    )
