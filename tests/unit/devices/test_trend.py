"""The last minutes of devices: means of each step, rates of counters, bounded memory."""

from __future__ import annotations

from msgspec.structs import replace

from agent.devices.trend import MAX_DEVICES, MAX_VALUES, STEP_S, TrendRecorder
from agent.snapshot.inventory import POWER, TEMPERATURE, DeviceSample, MetricValue, TrafficSource
from agent.snapshot.node import VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.usage import LinkTrafficTrend, NodeUsage, Trend, TrendView

RATE = TrafficSource(link="Wire", family="wire_bytes_per_second", is_sent=True, labels=("tx",))
COUNTER = TrafficSource(link="Wire", family="wire_bytes_total", is_sent=True)
IN = TrafficSource(link="Wire", family="wire_in_bytes_total", is_sent=False)


def vendor(taken_s: float, *samples: DeviceSample, name: str = "v") -> VendorState:
    return VendorState(vendor=name, samples=SnapshotPart(samples, taken_s))


def card(key: str = "a", **values: float) -> DeviceSample:
    readings = tuple(
        MetricValue(family=family, value=value, labels=("tx",)) for family, value in values.items()
    )
    return DeviceSample(key=key, core_percent=50.0, readings=readings)


def record(recorder: TrendRecorder, steps: int, *, at_s: float = 0.0) -> TrendView:
    """Add one sample a second until so many steps have ended; return the last view."""
    view, second = None, 0
    while steps:
        now_s = at_s + second
        new = recorder.add(
            now_s, NodeUsage(cpu_cores=2.0), (vendor(now_s, card(wire_bytes_total=100.0 * now_s)),)
        )
        second += 1
        if new is not None:
            view, steps = new, steps - 1
    assert view is not None
    return view


def test_a_value_is_the_mean_of_its_step() -> None:
    recorder = TrendRecorder()
    for second, percent in enumerate((10.0, 20.0, 30.0, 40.0, 50.0)):
        sample = replace(card(), core_percent=percent)
        assert recorder.add(second, NodeUsage(memory_bytes=7), (vendor(second, sample),)) is None
    view = recorder.add(STEP_S, NodeUsage(), (vendor(STEP_S, replace(card(), core_percent=None)),))
    assert view is not None
    assert view.devices["a"].busy_percent.values == (30.0,)
    assert view.memory_bytes.values == (7.0,)
    assert view.cpu_cores.values == ()
    assert view.step_s == STEP_S


def test_a_sample_that_is_still_the_last_one_counts_once() -> None:
    recorder = TrendRecorder()
    busy, idle = replace(card(), core_percent=100.0), replace(card(), core_percent=0.0)
    recorder.add(0, NodeUsage(), (vendor(0, busy),))
    for second in (1, 2, 3):
        recorder.add(second, NodeUsage(), (vendor(0, busy),))
    view = recorder.add(STEP_S, NodeUsage(), (vendor(4, idle),))
    assert view is not None
    assert view.devices["a"].busy_percent.last == 50.0


def test_the_hottest_sensor_and_the_power_are_recorded() -> None:
    recorder = TrendRecorder()
    sample = DeviceSample(
        key="a",
        readings=(
            MetricValue(family=TEMPERATURE, value=50, labels=("gpu",)),
            MetricValue(family=TEMPERATURE, value=61, labels=("memory",)),
            MetricValue(family=POWER, value=300),
        ),
    )
    recorder.add(0, NodeUsage(), (vendor(0, sample),))
    view = recorder.add(STEP_S, NodeUsage(), ())
    assert view is not None
    trend = view.devices["a"]
    assert (trend.temperature_celsius.last, trend.power_watts.last) == (61.0, 300.0)
    assert trend.busy_percent.last is None


def test_a_counter_becomes_bytes_per_second_and_a_reset_is_no_traffic() -> None:
    recorder = TrendRecorder({"v": (COUNTER, IN)})
    view = record(recorder, 2)
    (link,) = view.devices["a"].links
    assert (link.link, link.sent.values, link.received.values) == ("Wire", (100.0, 100.0), ())
    for second in range(20, 27):  # the driver was loaded again, and a step ends
        view = (
            recorder.add(float(second), NodeUsage(), (vendor(second, card(wire_bytes_total=0.0)),))
            or view
        )
    sent = view.devices["a"].links[0].sent
    assert sent.last == 0.0
    assert all(value is None or value >= 0 for value in sent.values)


def test_the_first_source_with_readings_counts_and_labels_choose_them() -> None:
    recorder = TrendRecorder({"v": (RATE, COUNTER)})
    readings = (
        MetricValue(family=RATE.family, value=5.0, labels=("tx", "0")),
        MetricValue(family=RATE.family, value=6.0, labels=("tx", "1")),
        MetricValue(family=RATE.family, value=70.0, labels=("rx", "0")),
    )
    for second in range(6):
        counted = MetricValue(family=COUNTER.family, value=1e6 * second, labels=())
        sample = DeviceSample(key="a", readings=(*readings, counted))
        view = recorder.add(second, NodeUsage(), (vendor(second, sample),))
    assert view is not None
    assert view.devices["a"].links == (
        LinkTrafficTrend(link="Wire", sent=view.devices["a"].links[0].sent),
    )
    assert view.devices["a"].links[0].sent.last == 11.0


def test_links_stand_in_the_order_of_the_vendors_sources() -> None:
    names = ("Wire", "Bus", "Air", "Fibre")
    sources = tuple(
        TrafficSource(link=name, family=f"{name}_bytes_per_second", is_sent=True) for name in names
    )
    recorder = TrendRecorder({"v": sources})
    for second in range(6):
        # the first link of all is measured later than the others
        measured = names if second > 2 else names[1:]
        readings = tuple(
            MetricValue(family=f"{name}_bytes_per_second", value=1.0) for name in reversed(measured)
        )
        sample = DeviceSample(key="a", readings=readings)
        view = recorder.add(second, NodeUsage(), (vendor(second, sample),))
    assert view is not None
    assert tuple(link.link for link in view.devices["a"].links) == names


def test_all_trends_end_together_and_gaps_are_unknown() -> None:
    recorder = TrendRecorder()
    record(recorder, 3)
    view = None
    for second in range(100, 111):
        samples = (card("b"),) if second < 104 else ()
        view = recorder.add(second, NodeUsage(), (vendor(second, *samples),)) or view
    assert view is not None
    # the node's last steps are unknown, as is all that was before the device came
    assert view.cpu_cores.values[:3] == (2.0, 2.0, 2.0)
    assert len(view.cpu_cores.values) == len(view.devices["b"].busy_percent.values)
    assert view.devices["b"].busy_percent.values[:3] == (None, None, None)
    assert 50.0 in view.devices["b"].busy_percent.values


def test_memory_is_bounded_in_time_and_in_devices() -> None:
    recorder = TrendRecorder()
    view = record(recorder, MAX_VALUES + 5)
    assert len(view.devices["a"].busy_percent.values) == MAX_VALUES
    assert len(view.devices["a"].busy_percent.packed) == 4 * MAX_VALUES
    many = tuple(card(str(index)) for index in range(MAX_DEVICES + 5))
    recorder.add(1e5, NodeUsage(), (vendor(1e5, *many),))
    last = recorder.add(2e5, NodeUsage(), ())
    assert last is not None
    assert len(last.devices) == MAX_DEVICES


def test_a_device_without_a_value_in_all_that_time_is_forgotten() -> None:
    recorder = TrendRecorder()
    record(recorder, 1)
    now_s, view = 10.0, None
    for _ in range(MAX_VALUES + 1):
        now_s += STEP_S
        view = recorder.add(now_s, NodeUsage(), ())
    assert view is not None
    assert view.devices == {}


def test_rare_samples_make_long_steps() -> None:
    assert TrendRecorder(sample_interval_s=30.0).step_s == 60.0


def test_trends_that_end_together_are_added_from_the_end() -> None:
    recorder = TrendRecorder()
    one = record(recorder, 3).devices["a"].busy_percent
    assert one.plus(Trend(packed=one.packed[:8])).values == (100.0, 100.0)
