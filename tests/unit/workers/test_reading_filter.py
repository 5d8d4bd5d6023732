"""Readings that no device can mean are absent, counted, and logged once per family."""

from __future__ import annotations

import itertools
import logging
import math
import sys
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.snapshot.inventory import (
    DeviceSample,
    Inventory,
    MetricFamily,
    MetricValue,
    ProcessSample,
    Rejection,
    is_within,
)
from agent.workers.load import vendor_descriptions
from agent.workers.protocol import SampleReply, decode_reply, encode_message, reject_non_finite
from agent.workers.reading_filter import MAX_FAMILIES, OTHER, ReadingFilter
from tests import factory

POWER = MetricFamily(name="xpu_x_power_watts", type="gauge", help="")
BUSY = MetricFamily(name="xpu_x_busy_ratio", type="gauge", help="", labels=("unit",))
HEAT = MetricFamily(name="xpu_x_temperature_celsius", type="gauge", help="")
ERRORS = MetricFamily(name="xpu_x_errors_total", type="counter", help="", labels=("kind",))
LANES = MetricFamily(name="xpu_x_lanes", type="gauge", help="", bounds=(1, 32))
SIZE = MetricFamily(name="xpu_x_slice_bytes", type="gauge", help="", labels=("slice",))
USED = MetricFamily(
    name="xpu_x_slice_used_bytes", type="gauge", help="", labels=("slice",), limit=SIZE.name
)
FAMILIES = (POWER, BUSY, HEAT, ERRORS, LANES, SIZE, USED)
NAN, INF = float("nan"), float("inf")


def readings_filter(families: Iterable[MetricFamily] = FAMILIES) -> ReadingFilter:
    return ReadingFilter("acme", families)


def reading(family: MetricFamily, value: float, *labels: str) -> MetricValue:
    return MetricValue(family=family.name, value=value, labels=labels)


def sample(*readings: MetricValue, **fields: object) -> DeviceSample:
    return replace(DeviceSample(key="k", readings=readings), **fields)


def filtered(one: DeviceSample) -> tuple[DeviceSample, dict[str, int]]:
    """Return a sample after the filter, and the number of rejections by family."""
    checked = readings_filter()
    (result,) = checked.filter_samples((one,))
    return result, {count.family: count.count for count in checked.rejections}


@pytest.mark.parametrize(
    "impossible",
    [
        reading(POWER, 10_001),
        reading(POWER, -1),
        reading(POWER, 4294967295),
        reading(BUSY, 1.01, "core"),
        reading(BUSY, 42949672.95, "core"),
        reading(HEAT, 4294967023),  # -273 as an unsigned number
        reading(HEAT, -273),
        reading(HEAT, NAN),
        reading(POWER, INF),
        reading(ERRORS, -1, "a"),
        reading(ERRORS, float((1 << 64) - 1), "a"),
        reading(LANES, 33),
        reading(LANES, 0),
    ],
)
def test_an_impossible_reading_is_absent_and_counted(impossible: MetricValue) -> None:
    good = reading(BUSY, 0.5, "other")
    result, counts = filtered(sample(good, impossible))
    assert result.readings == (good,)
    assert counts == {impossible.family: 1}


@pytest.mark.parametrize(
    ("fields", "absent", "family"),
    [
        ({"core_percent": 4294967295.0}, "core_percent", "xpu_device_utilization_ratio"),
        ({"core_percent": 100.1}, "core_percent", "xpu_device_utilization_ratio"),
        ({"core_percent": NAN}, "core_percent", "xpu_device_utilization_ratio"),
        ({"memory_used_bytes": 17}, "memory_used_bytes", "xpu_device_memory_used_bytes"),
        ({"memory_used_bytes": -1}, "memory_used_bytes", "xpu_device_memory_used_bytes"),
        (
            {"memory_total_bytes": (1 << 64) - 1},
            "memory_total_bytes",
            "xpu_device_memory_total_bytes",
        ),
    ],
)
def test_an_impossible_field_is_absent_and_the_others_stay(
    fields: dict[str, object], absent: str, family: str
) -> None:
    good = sample(core_percent=50.0, memory_used_bytes=15, memory_total_bytes=16)
    result, counts = filtered(replace(good, **fields))
    assert result == replace(good, **{absent: None})
    assert counts == {family: 1}


def test_memory_in_use_above_the_devices_memory_is_absent_if_the_sample_has_no_total() -> None:
    checked = readings_filter()
    card = replace(factory.gpu(0).info, memory_bytes=16)
    checked.filter_inventory(Inventory(vendor="acme", devices=(card,)))
    (result,) = checked.filter_samples((sample(key=card.key, memory_used_bytes=17),))
    assert result.memory_used_bytes is None


def test_a_device_without_memory_of_its_own_keeps_its_zero() -> None:
    result, counts = filtered(sample(memory_total_bytes=0, memory_used_bytes=0))
    assert (result.memory_total_bytes, result.memory_used_bytes, counts) == (0, 0, {})


def test_an_impossible_size_of_memory_is_in_no_inventory() -> None:
    checked = readings_filter()
    good = factory.gpu(0).info
    lie = replace(factory.gpu(1).info, memory_bytes=(1 << 64) - 1)
    result = checked.filter_inventory(Inventory(vendor="acme", devices=(good, lie)))
    assert result.devices == (good, replace(lie, memory_bytes=None))
    assert [(rejection.device, rejection.count) for rejection in checked.rejections] == [
        (lie.key, 1)
    ]


def test_impossible_values_of_processes_are_absent() -> None:
    processes = (
        ProcessSample(pid=7, memory_bytes=5, core_percent=50.0),
        ProcessSample(
            pid=8,
            memory_bytes=17,
            core_percent=101.0,
            virtual_bytes=-1,
            engine_percents=(("encoder", 4294967295.0), ("decoder", 3.0)),
        ),
        ProcessSample(pid=(1 << 32) - 1, memory_bytes=1),
        ProcessSample(pid=0),
    )
    result, counts = filtered(sample(processes=processes, memory_total_bytes=16))
    rest = ProcessSample(pid=8, engine_percents=(("decoder", 3.0),))
    assert result.processes == (processes[0], rest)
    assert counts["xpu_device_processes"] == 2
    assert counts["xpu_device_process_virtual_memory_bytes"] == 1
    assert counts["xpu_device_process_engine_ratio"] == 1


def test_a_value_above_that_of_its_limit_is_absent() -> None:
    size, other = reading(SIZE, 10, "a"), reading(SIZE, 99, "b")
    result, counts = filtered(sample(reading(USED, 11, "a"), reading(USED, 11, "b"), size, other))
    assert result.readings == (reading(USED, 11, "b"), size, other)
    assert counts == {USED.name: 1}


def test_an_impossible_limit_limits_nothing() -> None:
    lie = reading(SIZE, -1, "a")
    result, _ = filtered(sample(reading(USED, 11, "a"), lie))
    assert result.readings == (reading(USED, 11, "a"),)


def counters(*values: float) -> list[float | None]:
    """Return what the filter exports of a counter with these values, one after the other."""
    checked = readings_filter()
    results = [
        checked.filter_samples((sample(reading(ERRORS, value, "a")),))[0].readings
        for value in values
    ]
    return [readings[0].value if readings else None for readings in results]


def test_a_counter_that_goes_back_for_one_sample_is_absent_then() -> None:
    assert counters(5, 6, 0, 7, 8) == [5, 6, None, 7, 8]


def test_a_counter_that_stays_below_its_value_was_reset_and_is_exported_again() -> None:
    assert counters(5, 1, 2, 3) == [5, None, 2, 3]
    assert counters(5, 0, 0, 0) == [5, None, 0, 0]


def test_a_counter_that_falls_on_and_on_is_never_exported() -> None:
    assert counters(9, 8, 7, 6) == [9, None, None, None]


def test_counters_of_other_labels_and_devices_do_not_mix() -> None:
    checked = readings_filter()
    first = sample(reading(ERRORS, 9, "a"), reading(ERRORS, 1, "b"))
    second = replace(first, key="other", readings=(reading(ERRORS, 2, "a"),))
    for _ in range(2):
        assert checked.filter_samples((first, second)) == (first, second)
    assert not checked.rejections


def test_a_new_worker_may_start_its_counters_from_zero() -> None:
    checked = readings_filter()
    checked.filter_samples((sample(reading(ERRORS, 9, "a")),))
    checked.forget_counters()
    (result,) = checked.filter_samples((sample(reading(ERRORS, 0, "a")),))
    assert result.readings
    assert not checked.rejections


def test_a_rejected_family_is_logged_once_and_the_first_value_is_remembered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    checked = readings_filter()
    for value in (4294967295, 5294967295, 6294967295):
        checked.filter_samples((sample(reading(POWER, value)),))
    (count,) = checked.rejections
    assert (count.family, count.count, count.device) == (POWER.name, 3, "k")
    assert float(count.value) == 4294967295
    assert [record.message for record in caplog.records] == ["reading_rejected"]


def test_values_that_the_vendor_left_out_are_counted_too() -> None:
    checked = readings_filter()
    rejection = Rejection(family="nvmlDeviceGetTemperature", value="4294967023")
    checked.filter_samples((sample(rejections=(rejection, rejection)),))
    assert [(one.family, one.count) for one in checked.rejections] == [(rejection.family, 2)]


def test_the_number_of_counted_families_is_limited() -> None:
    checked = readings_filter()
    names = [Rejection(family=f"f{number}", value="x" * 999) for number in range(MAX_FAMILIES + 9)]
    checked.filter_samples((sample(rejections=tuple(names)),))
    assert len(checked.rejections) == MAX_FAMILIES + 1
    assert {rejection.family: rejection.count for rejection in checked.rejections}[OTHER] == 9
    assert max(len(rejection.value) for rejection in checked.rejections) <= 40


def test_values_that_are_no_number_cross_the_pipe_as_rejections() -> None:
    lie = sample(
        reading(POWER, NAN),
        reading(HEAT, 40),
        core_percent=INF,
        processes=(
            ProcessSample(pid=7, core_percent=NAN, engine_percents=(("encoder", INF), ("mem", 2))),
        ),
    )
    line = encode_message(SampleReply(1, reject_non_finite((lie,))))
    reply = decode_reply("acme", line)
    assert isinstance(reply, SampleReply)
    (received,) = reply.samples
    assert received == sample(
        reading(HEAT, 40),
        processes=(ProcessSample(pid=7, engine_percents=(("mem", 2),)),),
        rejections=(
            Rejection(family=POWER.name, value="nan"),
            Rejection(family="xpu_device_utilization_ratio", value="inf"),
            Rejection(family="xpu_device_utilization_ratio", value="nan"),
            Rejection(family="xpu_device_process_engine_ratio", value="inf"),
        ),
    )


VALUES = st.one_of(
    st.floats(),
    st.sampled_from([4294967295.0, 4294967023.0, -273.0, -1.0, float(sys.maxsize), 1.0, 0.5]),
)
SIZES = st.none() | st.integers(-(1 << 63), 1 << 64)


@given(
    st.lists(st.tuples(st.sampled_from(FAMILIES), VALUES, st.sampled_from("ab")), max_size=8),
    st.none() | VALUES,
    SIZES,
    SIZES,
)
def test_no_impossible_value_passes_and_no_other_is_changed(
    values: list[tuple[MetricFamily, float, str]],
    core: float | None,
    used: int | None,
    total: int | None,
) -> None:
    readings = tuple(
        reading(family, value, *((label,) if family.labels else ()))
        for family, value, label in values
    )
    given_sample = sample(
        *readings, core_percent=core, memory_used_bytes=used, memory_total_bytes=total
    )
    checked = readings_filter()
    (result,) = checked.filter_samples((given_sample,))
    by_name = {family.name: family for family in FAMILIES}
    for one in result.readings:
        low, high = by_name[one.family].possible_values
        assert math.isfinite(one.value)
        assert low <= one.value <= high
        assert one in readings
    assert result.core_percent in (None, core)
    assert result.core_percent is None or 0 <= result.core_percent <= 100
    assert result.memory_total_bytes in (None, total)
    assert result.memory_used_bytes in (None, used)
    if result.memory_total_bytes and result.memory_used_bytes is not None:
        assert 0 <= result.memory_used_bytes <= result.memory_total_bytes
    absent = len(readings) - len(result.readings)
    absent += sum(
        getattr(given_sample, name) is not None and getattr(result, name) is None
        for name in ("core_percent", "memory_used_bytes", "memory_total_bytes")
    )
    assert sum(rejection.count for rejection in checked.rejections) == absent


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_a_counter_never_decreases_from_one_sample_to_the_next(values: list[int]) -> None:
    for before, after in itertools.pairwise(counters(*map(float, values))):
        assert before is None or after is None or after >= before


def test_every_family_of_every_vendor_refuses_what_no_hardware_means() -> None:
    for description in vendor_descriptions():
        names = {family.name for family in description.families}
        for family in description.families:
            low, high = family.possible_values
            assert not is_within(NAN, (low, high)), family.name
            assert not is_within(INF, (low, high)), family.name
            assert not is_within(float((1 << 64) - 1), (low, high)), family.name
            assert not is_within(-273.0, (low, high)), family.name
            assert low < high, family.name
            assert not family.limit or family.limit in names, family.name
            if family.type == "gauge" and not family.name.endswith(("_bytes", "_hertz", "second")):
                assert not is_within(4294967295.0, (low, high)), family.name
