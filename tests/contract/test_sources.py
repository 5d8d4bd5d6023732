"""What every vendor promises of the devices that it lists, on every source that it has."""

from __future__ import annotations

import pytest

from agent.devices.trend import TrendRecorder
from agent.snapshot.inventory import BYTES_PER_SECOND, is_within
from agent.snapshot.node import VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.usage import DeviceTrend, NodeUsage
from agent.workers import protocol
from tests.contract.hosts import EMPTY, FOLDER, HOSTS, host_of
from tests.contract.promises import event_faults, inventory_faults, sample_faults
from tests.contract.sources import (
    NAMES,
    SOURCES,
    Source,
    ask,
    of_every_source,
    of_every_vendor,
    vendor_named,
)


def across(reply: protocol.WorkerMessage) -> protocol.WorkerMessage:
    """Return what is left of a reply on the other side of the wire."""
    return protocol.decode_reply("x", protocol.encode_message(reply))


@of_every_vendor
def test_a_vendor_has_a_source_with_devices(name: str) -> None:
    own = [source for source in SOURCES if source.vendor == name]
    assert own, f"no source of {name}: it needs fixtures/hosts/example-{name} or a recorded tape"


def test_every_tape_of_a_recorded_host_is_a_source() -> None:
    tapes = {(path.stem, path.parents[1].name) for path in FOLDER.glob("*/tapes/*.jsonl")}
    played = {(s.vendor, s.name.removeprefix("tape-")) for s in SOURCES if "tape-" in s.name}
    assert tapes == {pair for pair in played if pair[0] in NAMES}


@of_every_source
def test_an_inventory_keeps_every_promise(source: Source) -> None:
    inventory = ask(source).inventory
    assert inventory_faults(inventory, source.vendor, whole=source.whole) == []


@pytest.mark.parametrize("source", [s for s in SOURCES if s.count is not None], ids=str)
def test_the_devices_are_those_that_the_source_has(source: Source) -> None:
    devices = ask(source).inventory.devices
    assert len(devices) == source.count
    assert {device.memory_bytes for device in devices} == {source.memory_bytes}


@pytest.mark.parametrize("source", [s for s in SOURCES if s.library], ids=str)
def test_the_session_calls_the_stub(source: Source) -> None:
    answers = ask(source)
    assert answers.inventory.library
    assert not answers.inventory.problems
    assert len(answers.samples[0]) == len(answers.inventory.devices)
    assert all(device.uuid and device.minor is not None for device in answers.inventory.devices)


@of_every_source
def test_a_source_that_did_not_change_gives_an_equal_inventory(source: Source) -> None:
    first, second = ask(source).inventories
    assert first == second
    hash(first)  # tuples and frozen data all the way down


@of_every_source
def test_samples_keep_every_promise(source: Source) -> None:
    answers, families = ask(source), vendor_named(source.vendor).description.families
    for samples in answers.samples:
        assert sample_faults(samples, answers.inventory, families) == []


@of_every_source
def test_counters_do_not_fall(source: Source) -> None:
    before, after = (
        {(s.key, r.family, r.labels): r.value for s in samples for r in s.readings}
        for samples in ask(source).samples
    )
    fallen = [
        series
        for series, value in after.items()
        if series[1].endswith("_total") and value < before.get(series, value)
    ]
    assert fallen == []


@of_every_source
def test_traffic_of_samples_is_shown_by_link_and_direction(source: Source) -> None:
    answers, traffic = ask(source), vendor_named(source.vendor).description.traffic
    recorder, view = TrendRecorder({source.vendor: traffic}), None
    for second, samples in enumerate(answers.samples):
        state = VendorState(vendor=source.vendor, samples=SnapshotPart(samples, 9.0 * second))
        view = recorder.add(9.0 * second, NodeUsage(), (state,)) or view
    assert view is not None
    for sample in answers.samples[-1]:
        measured = {
            one.link
            for one in traffic
            for reading in sample.readings
            if one.family.endswith("_per_second")
            and one.family == reading.family
            and {*one.labels} <= {*reading.labels}
        }
        trend = view.devices.get(sample.key, DeviceTrend())
        assert measured <= {one.link for one in trend.links}
        for link in trend.links:
            for rate in (link.sent.last, link.received.last):
                assert rate is None or is_within(rate, BYTES_PER_SECOND)


@of_every_source
def test_events_keep_every_promise(source: Source) -> None:
    answers = ask(source)
    assert event_faults(answers.events, answers.inventory) == []


@of_every_source
def test_answers_survive_the_wire(source: Source) -> None:
    answers = ask(source)
    inventory, samples, events = answers.inventory, answers.samples[0], answers.events
    assert across(protocol.DiscoverReply(1, inventory)) == protocol.DiscoverReply(1, inventory)
    assert across(protocol.SampleReply(1, samples)) == protocol.SampleReply(1, samples)
    assert across(protocol.EventsMessage(events)) == protocol.EventsMessage(events)


@of_every_vendor
def test_a_host_without_the_hardware_shows_none(name: str) -> None:
    vendor = vendor_named(name)
    assert vendor.detect(EMPTY, vendor.description.settings()) == ()
    assert vendor.detect(host_of("vm-no-devices"), vendor.description.settings()) == ()


@pytest.mark.parametrize("host", HOSTS)
@of_every_vendor
def test_what_sysfs_alone_shows_has_a_name_and_a_reason(name: str, host: str) -> None:
    vendor = vendor_named(name)
    devices = vendor.detect(host_of(host), vendor.description.settings())
    listed = {s.name.partition("-")[2] for s in SOURCES if s.vendor == name}
    assert bool(devices) == (host in listed), "a host that shows the vendor's devices is a source"
    for device in devices:
        assert device.bus_id or device.uuid
        assert device.health.reason
        assert device.health.message
    assert len({device.key for device in devices}) == len(devices)
