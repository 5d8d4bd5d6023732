"""Implausible values are absent, counted, reported once, and never published."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.snapshot.device import VendorDevice
from agent.snapshot.inventory import DeviceEvent, DeviceSample
from tests.fault.nvml_stub import Stub, gpu, on_tree
from tests.stubs.child import Child
from tests.unit.nvidia.conftest import BUSES

SYSTEM = "system driver=570.124.06 cuda=12080"
ALL_LINKS = 0xFFFFFFFF
MEMORY = 85520809984
FIELDS = (
    "field 0 186 u32 345678",
    "field 0 185 u32 345678",
    "field 0 83 u64 987654321",
    "field 0 82 u32 51",
    "field 0 197 u64 1000",
    "field 0 198 u64 2000",
    f"field 0 138:{ALL_LINKS} u64 3",
    f"field 0 139:{ALL_LINKS} u64 4",
    "field 0 230 u32 0",
    "field 0 94 u32 7",
    "field 0 91 u32 1",
    "field 0 161:0 u32 1",
    "field 0 4 u64 1",
    "field 0 6 u64 1",
    "field 0 29 u32 1",
    "field 0 74 u64 1000",
    "field 0 188 u32 700000",
    "field 0 138:0 u64 3",
)
PARTS = (
    *FIELDS,
    "link 0 0 state=1 type=2",
    "gpm 0 2 33.5",
    "gpm 0 3 12.5",
    "proc 0 pid=4711 mem=1048576 sm=12 ts=1 gi= ci= list=c",
)
CARD = gpu(
    0,
    BUSES[0],
    encoder=3,
    decoder=4,
    sram=0,
    repair="0,0",
    unrepairable=0,
    **{"uncorrected": 1, "plimit": 700000, "fans": 1, "fan.0": 30, "license": "1,1,1"},
)
COUNTED = "xpu_device_implausible_readings_total"
# upper bounds by family; only temperatures may be below zero
HIGHEST = (
    (re.compile(r".*_fan_speed_ratio"), 2.0),
    (re.compile(r".*_ratio"), 1.0),
    (re.compile(r".*_watts"), 10_000.0),
    (re.compile(r".*_celsius"), 200.0),
    (re.compile(r".*_hertz"), 2e10),
    (re.compile(r".*_memory_(used|total|free|reserved)_bytes"), float(1 << 50)),
    (re.compile(r".*_bytes_per_second"), 1.1e13),
    (re.compile(r".*_(pending|failed|licensed)"), 1.0),
    (re.compile(r".*_retired_pages"), float(1 << 20)),
    (re.compile(r".*_performance_state"), 15.0),
    (re.compile(r".*_last_xid"), 65535.0),
    (re.compile(r".*_recovery_action"), 255.0),
    (re.compile(r".*_rows_total"), float(1 << 20)),
    (re.compile(r".*_active"), 1.0),
    (re.compile(r".*_total"), float(1 << 63) - 1),
)


def impossible(sample: DeviceSample) -> Iterator[str]:
    """Return the implausible values of a sample."""
    total, used = sample.memory_total_bytes, sample.memory_used_bytes
    if sample.core_percent is not None and not 0 <= sample.core_percent <= 100:
        yield f"busy {sample.core_percent}"
    if total is not None and not 0 < total <= 1 << 50:
        yield f"total {total}"
    if used is not None and not 0 <= used <= (total or 1 << 50):
        yield f"used {used} of {total}"
    for process in sample.processes or ():
        size, percent = process.memory_bytes, process.core_percent
        if not 0 < process.pid < 1 << 31 or (size or 0) > (total or 1 << 50):
            yield f"process {process.pid} with {size}"
        if percent is not None and not 0 <= percent <= 100:
            yield f"process {process.pid} busy {percent}"
    for reading in sample.readings:
        low = -100.0 if reading.family.endswith("_celsius") else 0.0
        high = next((high for name, high in HIGHEST if name.fullmatch(reading.family)), 0.0)
        if not low <= reading.value <= high:
            yield f"{reading.family} {reading.labels} {reading.value}"


def odd(card: VendorDevice) -> Iterator[str]:
    """Return the implausible values of a device."""
    if card.memory_bytes is not None and not 0 < card.memory_bytes <= 1 << 50:
        yield f"memory {card.memory_bytes}"
    if card.minor is not None and not 0 <= card.minor < 1 << 20:
        yield f"minor {card.minor}"
    for name, value in (*card.labels, *card.facts):
        if any(len(word) > 9 for word in re.findall(r"[0-9]+", value)) and name not in (
            "serial",
            "ib-guid",
        ):
            yield f"{name}={value}"


def read_events(child: Child) -> list[DeviceEvent]:
    """Return the events so far."""
    child.sample()
    return [event for event in child.events if event.reason == "ImplausibleReading"]


def sampled(child: Child) -> list[DeviceSample]:
    """Sample until all values are read: slow ones within ten cycles, performance after 100 ms."""
    samples: list[DeviceSample] = []
    until_s = time.monotonic() + 20
    while time.monotonic() < until_s:
        samples.append(child.sample()[0])
        families = {r.family for r in samples[-1].readings}
        if len(samples) >= 12 and "xpu_device_sm_occupancy_ratio" in families:
            return samples
    raise TimeoutError


def counts(sample: DeviceSample) -> dict[str, float]:
    return {r.labels[0]: r.value for r in sample.readings if r.family == COUNTED}


@pytest.mark.parametrize("byte", [255, 128, 127])
def test_no_answer_of_noise_is_published(stub: Stub, tree: Path, byte: int) -> None:
    stub.play(SYSTEM, CARD, *PARTS)
    with on_tree(stub, tree) as child:
        child.discover()
        stub.take_calls()
        child.discover()
        for _ in range(10):
            assert not list(impossible(child.sample()[0]))
        called = {call.split()[0] for call in stub.take_calls()}
        symbols = sorted(name for name in called if "Handle" not in name and "Event" not in name)
        assert len(symbols) > 40
        for symbol in symbols:
            stub.play(SYSTEM, CARD, *PARTS, f"fill {symbol} 0 {byte}")
            card = child.discover().devices[0]
            implausible = [
                *odd(card),
                *(reading for s in child.sample() for reading in impossible(s)),
            ]
            assert not implausible, (symbol, implausible)


@pytest.mark.parametrize(
    ("lie", "absent"),
    [
        ("gpu 0 util=4294967295,5", "core"),
        ("gpu 0 util=4,4294967295", "xpu_device_memory_busy_ratio"),
        ("gpu 0 temp=4294967023", "xpu_device_temperature_celsius gpu"),
        (f"gpu 0 used={MEMORY + 1}", "used"),
        ("field 0 186 u32 4294967295", ""),  # the mean power replaces it
        ("field 0 83 u64 18446744073709551615", ""),  # another call stands in
        ("field 0 82 u32 4294967295", "xpu_device_temperature_celsius memory"),
        ("field 0 197 u64 18446744073709551615", "xpu_device_pcie_bytes_total tx"),
        (f"field 0 138:{ALL_LINKS} u64 18446744073709551615", "xpu_device_nvlink_bytes_total tx"),
        ("field 0 230 u32 4294967295", "xpu_device_recovery_action"),
        ("field 0 4 u64 18446744073709551615", ""),  # another call stands in
        ("field 0 161:0 u32 4294967295", "xpu_device_nvlink_errors_total replay"),
        ("gpu 0 clock.1=4294967295", "xpu_device_clock_hertz sm"),
        ("gpu 0 encoder=4294967295", "xpu_device_engine_busy_ratio encoder"),
        ("gpu 0 throttle=0xffffffffffffffff", "xpu_device_throttle_active hw_thermal"),
        ("gpu 0 remap=4294967295,0,0,0", "xpu_device_remapped_rows_total correctable"),
        ("gpm 0 2 4294967295", "xpu_device_sm_active_ratio"),
        ("gpm 0 2 -1", "xpu_device_sm_active_ratio"),
        ("proc 0 pid=4711 mem=18446744073709551614 sm=12 ts=1 gi= ci= list=g", ""),
        ("proc 0 pid=4294967295 mem=1 sm=12 ts=1 gi= ci= list=g", ""),
    ],
)
def test_an_impossible_reading_is_absent_counted_and_named_once(
    stub: Stub, tree: Path, lie: str, absent: str
) -> None:
    stub.play(SYSTEM, CARD, *PARTS, lie)
    with on_tree(stub, tree) as child:
        child.discover()
        samples = sampled(child)
        events = read_events(child)
        while len(events) < len(counts(samples[-1])):  # the thread of events publishes them
            events = read_events(child)
        child.discover()
        assert read_events(child) == events
    last = samples[-1]
    assert not [reading for sample in samples for reading in impossible(sample)]
    names = {" ".join((r.family, *r.labels)) for r in last.readings}
    names |= {"core"} if last.core_percent is not None else set()
    names |= {"used"} if last.memory_used_bytes is not None else set()
    assert absent not in names
    assert last.memory_total_bytes == MEMORY
    assert counts(last)
    assert min(counts(last).values()) >= 1
    assert {(event.key, event.state) for event in events} == {(BUSES[0], None)}
    calls = sorted(event.message.partition(" answered ")[0] for event in events)
    assert calls == sorted(counts(last))
    rejections = [rejection for sample in samples for rejection in sample.rejections]
    assert {rejection.family for rejection in rejections} == set(calls)


def test_a_time_stamp_from_the_far_future_does_not_end_the_samples(stub: Stub, tree: Path) -> None:
    future = "proc 0 pid=4711 mem=1 sm=50 ts=18446744073709551615 gi= ci= list=c"
    stub.play(SYSTEM, CARD, future)
    with on_tree(stub, tree) as child:
        child.discover()
        child.sample()
        now_us = int(time.time() * 1e6)
        stub.play(SYSTEM, CARD, f"proc 0 pid=4711 mem=1 sm=60 ts={now_us} gi= ci= list=c")
        sample = child.sample()[0]
    assert [p.pid for p in sample.processes or ()] == [4711]
    assert [p.core_percent for p in sample.processes or ()] == [60.0]


def test_a_card_without_implausible_values_has_no_such_count(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, CARD, *PARTS)
    with on_tree(stub, tree) as child:
        child.discover()
        samples = [child.sample()[0] for _ in range(12)]
        assert not read_events(child)
    assert not counts(samples[-1])
