"""Each promise can be broken: an honest answer passes, and one lie in it is named."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from agent.snapshot.device import (
    DeviceCondition,
    DeviceKind,
    DeviceLink,
    DeviceNode,
    DevicePartition,
    Health,
    HealthState,
    VendorDevice,
)
from agent.snapshot.inventory import (
    DeviceEvent,
    DeviceGroup,
    DeviceSample,
    Inventory,
    MetricFamily,
    MetricValue,
    Problem,
    ProcessSample,
)
from tests.contract.promises import (
    CORE,
    MEMORY,
    RATIO,
    RDMA,
    event_faults,
    family_faults,
    inventory_faults,
    sample_faults,
)

AMOUNTS = {CORE: "100", MEMORY: "64Gi", RATIO: "100"}
FIRST, SECOND = "0000:03:00.0", "0000:04:00.0"
ODD = Health(state=HealthState.SUSPECT, reason="an odd reason", message="words")
PROBING = Health(state=HealthState.PROBING)


def card(number: int, **changes: Any) -> VendorDevice:
    """Return an honest device."""
    plain: dict[str, Any] = {
        "kind": DeviceKind.XPU,
        "vendor": "acme",
        "bus_id": (FIRST, SECOND)[number],
        "uuid": f"ACME-{number}",
        "minor": number,
        "vendor_minor": number,
        "memory_bytes": 64 << 30,
        "resources": tuple(AMOUNTS.items()),
        "nodes": (DeviceNode(path=f"/dev/acme{number}", major=240, minor=number),),
    }
    return VendorDevice(**{**plain, **changes})


def amounts(**changes: str | None) -> tuple[tuple[str, str], ...]:
    """Return the honest amounts with some changed; `None` leaves one out."""
    names = {"core": CORE, "memory": MEMORY, "ratio": RATIO}
    result = {**AMOUNTS, **{names[name]: amount for name, amount in changes.items()}}
    return tuple((name, amount) for name, amount in result.items() if amount is not None)


SLICE = DevicePartition(uuid="ACME-0/1", profile="1g", memory_bytes=8 << 30)
HONEST = Inventory(
    vendor="acme",
    devices=(card(0, partitions=(SLICE,), free_slices=(("1g", (0, 1)),)), card(1)),
    links=(DeviceLink(a=FIRST, b=SECOND, type="NVLink", count=4),),
    groups=(DeviceGroup(keys=(FIRST, SECOND), link_type="NVLink"),),
)


def with_first(**changes: Any) -> Inventory:
    """Return the honest inventory with a change of its first device."""
    return replace(HONEST, devices=(card(0, **changes), HONEST.devices[1]))


def test_an_honest_inventory_breaks_no_promise() -> None:
    assert inventory_faults(HONEST, "acme", whole=True) == []
    nic = card(0, kind=DeviceKind.RDMA, resources=((RDMA, "100"),))
    assert inventory_faults(replace(HONEST, devices=(nic, card(1))), "acme", whole=True) == []
    bare = card(0, minor=None, uuid=None, resources=(), memory_bytes=None, vendor_minor=None)
    assert inventory_faults(Inventory(vendor="acme", devices=(bare,)), "acme", whole=False) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bus_id": None, "uuid": None}, "neither an address nor a uuid"),
        ({"bus_id": "0000:3B:00.0"}, "not spelt as the kernel"),
        ({"vendor": ""}, "its maker has no name"),
        ({"minor": 1}, "one minor"),
        ({"minor": -1}, "minor -1"),
        ({"minor": 1 << 31}, "is no number of a device"),
        ({"vendor_minor": 1}, "one vendor_minor"),
        ({"vendor_minor": -1}, "vendor_minor -1"),
        ({"uuid": "ACME-1"}, "one uuid"),
        ({"bus_id": SECOND}, "one key"),
        ({"uuid": None}, "no uuid to be granted by"),
        ({"uuid": " "}, "no uuid to be granted by"),
        ({"memory_bytes": 0}, "unknown is None"),
        ({"memory_bytes": -(64 << 30)}, "unknown is None"),
        ({"memory_bytes": 81559}, "unknown is None"),
        ({"memory_bytes": 1 << 60}, "unknown is None"),
        ({"memory_bytes": 32 << 30}, "gpu-memory is 64Gi"),
        ({"memory_bytes": None}, "is granted, and not known"),
        ({"resources": amounts(core="1")}, "hundredths"),
        ({"resources": amounts(core="100.5")}, "no whole number"),
        ({"resources": amounts(ratio="50")}, "hundredths"),
        ({"resources": amounts(ratio=None)}, "that can be granted has"),
        ({"resources": amounts(memory=None)}, "that can be granted has"),
        ({"resources": amounts(memory="64GB")}, "no positive quantity"),
        ({"resources": amounts(memory="-64Gi")}, "no positive quantity"),
        ({"resources": amounts(memory="0")}, "no positive quantity"),
        ({"resources": amounts(memory="68719476736")}, "gpu-memory is 68719476736"),
        ({"resources": amounts(memory="80Gi")}, "gpu-memory is 80Gi"),
        ({"resources": (*amounts(), ("koordinator.sh/gpu-cores", "1"))}, "knows no such resource"),
        ({"resources": (*amounts(), ("acme.com/core", "-3"))}, "no positive quantity"),
        ({"resources": (*amounts(), ("acme.com/core", "2.5"))}, "no whole number"),
        ({"resources": (*amounts(), ("core", "2"))}, "no name of a resource"),
        ({"resources": (*amounts(), (CORE, "100"))}, "listed twice"),
        ({"resources": (*amounts(), (RDMA, "100"))}, "an accelerator has no"),
        ({"kind": DeviceKind.RDMA}, "and nothing else"),
        ({"managed": False}, "not managed, and has resources"),
        ({"health": ODD}, "no CamelCase reason"),
        ({"health": replace(ODD, reason="Odd", message="")}, "no CamelCase reason"),
        ({"health": PROBING}, "only the agent may say"),
        ({"partitions": (replace(SLICE, health=PROBING),)}, "only the agent may say"),
        ({"partitions": (replace(SLICE, memory_bytes=0),)}, "the memory of ACME-0/1"),
        ({"partitions": (SLICE, SLICE)}, "uuid of another slice"),
        ({"partitions": (replace(SLICE, uuid="ACME-1"),)}, "uuid of another slice"),
        ({"partitions": (replace(SLICE, uuid=""),)}, "a slice has no uuid"),
        ({"free_slices": (("1g", (1, 0)),)}, "is free at"),
        ({"free_slices": (("1g", (-1,)),)}, "is free at"),
        ({"nodes": (DeviceNode(path="/dev/../etc/x", major=1, minor=1),)}, "no device node"),
        ({"nodes": (DeviceNode(path="/etc/shadow", major=1, minor=1),)}, "no device node"),
        ({"nodes": (DeviceNode(path="/dev/acme0", major=240, minor=-1),)}, "has the numbers"),
        ({"nodes": HONEST.devices[1].nodes}, "no node is its own"),
        ({"conditions": (DeviceCondition(type="Healthy", status=True, reason="X"),)}, "no type"),
        ({"conditions": (DeviceCondition(type="Odd", status=True, reason="a b"),)}, "no reason"),
    ],
)
def test_a_lie_about_a_device_is_named(changes: dict[str, Any], words: str) -> None:
    faults = inventory_faults(with_first(**changes), "acme", whole=True)
    assert any(words in fault for fault in faults), faults


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": ()}, "no device is listed"),
        ({"vendor": "other"}, "is of 'other'"),
        ({"devices": (card(0, minor=None), card(1, minor=None))}, "no device can be published"),
        ({"devices": (card(0, minor=0), card(1, minor=0))}, "one minor"),
        ({"links": (HONEST.links[0], HONEST.links[0])}, "a link is listed twice"),
        ({"links": (DeviceLink(a=SECOND, b=FIRST, type="NVLink", count=0),)}, "counted 0"),
        ({"links": (DeviceLink(a=FIRST, b=FIRST, type="NVLink", count=1),)}, "of two devices"),
        ({"groups": (HONEST.groups[0], HONEST.groups[0])}, "a group is listed twice"),
        ({"groups": (DeviceGroup(keys=(), link_type="x"),)}, "is empty"),
        ({"groups": (DeviceGroup(keys=("0000:ff:00.0",), link_type="x"),)}, "not listed"),
        ({"group_policy": "Maybe"}, "no policy"),
        ({"problems": (Problem(reason="no library", message="x"),)}, "problem"),
    ],
)
def test_a_lie_about_an_inventory_is_named(changes: dict[str, Any], words: str) -> None:
    faults = inventory_faults(replace(HONEST, **changes), "acme", whole=True)
    assert any(words in fault for fault in faults), faults


FAMILIES = (
    MetricFamily(name="xpu_acme_temperature_celsius", type="gauge", help="Heat.", labels=("at",)),
    MetricFamily(name="xpu_acme_busy_ratio", type="gauge", help="Busy."),
    MetricFamily(name="xpu_acme_errors_total", type="counter", help="Errors."),
)
HOT = MetricValue(family="xpu_acme_temperature_celsius", value=-5.0, labels=("chip",))
SAMPLE = DeviceSample(
    key=FIRST,
    core_percent=100.0,
    memory_used_bytes=64 << 30,
    memory_total_bytes=64 << 30,
    processes=(ProcessSample(pid=7, memory_bytes=0, core_percent=0.0, partition=SLICE.uuid),),
    readings=(HOT, MetricValue(family="xpu_acme_busy_ratio", value=1.0)),
    health=Health(),
)


def test_honest_samples_families_and_events_break_no_promise() -> None:
    assert family_faults(FAMILIES) == []
    assert sample_faults((SAMPLE,), HONEST, FAMILIES) == []
    event = DeviceEvent(key=FIRST, reason="Xid79", state=HealthState.FAILED)
    assert event_faults((event, replace(event, key="")), HONEST) == []


def reading(name: str, value: float) -> tuple[MetricValue, ...]:
    """Return one reading of a family without labels."""
    return (MetricValue(family=f"xpu_acme_{name}", value=value),)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"key": "0000:ff:00.0"}, "no such device"),
        ({"core_percent": 101.0}, "busy for 101"),
        ({"core_percent": -1.0}, "busy for -1"),
        ({"core_percent": math.nan}, "busy for nan"),
        ({"memory_used_bytes": -1}, "-1 bytes of its memory"),
        ({"memory_used_bytes": 65 << 30}, "are in use"),
        ({"memory_total_bytes": 0}, "unknown is None"),
        ({"processes": (ProcessSample(pid=0),)}, "no process"),
        ({"processes": (ProcessSample(pid=7, memory_bytes=-1),)}, "-1 bytes"),
        ({"processes": (ProcessSample(pid=7, core_percent=200.0),)}, "200.0 percent"),
        ({"processes": (ProcessSample(pid=7, partition="gone"),)}, "slice that is not listed"),
        ({"readings": (HOT, HOT)}, "two values"),
        ({"readings": (replace(HOT, labels=()),)}, "has the labels"),
        ({"readings": (replace(HOT, value=5000.0),)}, "is 5000.0"),
        ({"readings": reading("busy_ratio", 55.0)}, "is 55.0"),
        ({"readings": reading("errors_total", -1.0)}, "is -1.0"),
        ({"readings": reading("errors_total", math.inf)}, "is inf"),
        ({"readings": reading("undeclared", 1.0)}, "not declared"),
        ({"health": PROBING}, "only the agent may say"),
    ],
)
def test_a_lie_in_a_sample_is_named(changes: dict[str, Any], words: str) -> None:
    faults = sample_faults((replace(SAMPLE, **changes),), HONEST, FAMILIES)
    assert any(words in fault for fault in faults), faults


def test_a_device_that_is_sampled_twice_is_named() -> None:
    assert sample_faults((SAMPLE, SAMPLE), HONEST, FAMILIES) == ["a device is sampled twice"]


@pytest.mark.parametrize(
    ("name", "kind", "help_text", "words"),
    [
        ("acme_temperature_celsius", "gauge", "Heat.", "no name of a family"),
        ("xpu_acme_memory_used_mib", "gauge", "Memory.", "not in base units"),
        ("xpu_acme_clock_mhz", "gauge", "Clock.", "not in base units"),
        ("xpu_acme_wait_ms_total", "counter", "Waits.", "not in base units"),
        ("xpu_acme_power_watts", "gauge", "Power", "no full stop"),
        ("xpu_acme_power_watts", "summary", "Power.", "is no type"),
        ("xpu_acme_errors", "counter", "Errors.", "end in _total"),
        ("xpu_acme_errors_total", "gauge", "Errors.", "end in _total"),
    ],
)
def test_a_lie_about_a_family_is_named(name: str, kind: str, help_text: str, words: str) -> None:
    faults = family_faults((MetricFamily(name=name, type=kind, help=help_text),))
    assert any(words in fault for fault in faults), faults
    assert family_faults((FAMILIES[0], FAMILIES[0])) == ["a family is declared twice"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"key": "0000:ff:00.0"}, "no such device"),
        ({"reason": "xid 79"}, "no CamelCase reason"),
        ({"state": HealthState.PROBING}, "only the agent may say"),
    ],
)
def test_a_lie_in_an_event_is_named(changes: dict[str, Any], words: str) -> None:
    event = DeviceEvent(**{"key": FIRST, "reason": "Xid79", **changes})
    (fault,) = event_faults((event,), HONEST)
    assert words in fault
