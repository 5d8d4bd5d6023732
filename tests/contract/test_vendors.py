"""What every device vendor promises, asked of each: those shipped, and the one to copy."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agent.errors import NotSupported
from agent.host.files import HostFiles
from agent.model.inventory import DeviceEvent, DeviceSample, Inventory
from agent.probe import wire
from agent.probe.base import DeviceVendor, VendorSession
from agent.probe.vendors import load_vendors
from agent.recording.open import open_host
from agent.recording.tree import TreeBuilder
from plugins.vendors.fake.vendor import FakeVendor
from plugins.vendors.template.vendor import TemplateVendor

NAMES = (*load_vendors(), TemplateVendor.name)
EMPTY: HostFiles = TreeBuilder().build("")
HOSTS = {
    item.name: item
    for item in sorted((Path(__file__).parents[2] / "fixtures/hosts").iterdir())
    if item.is_dir() and not item.name.startswith("_")
}
FAMILY = re.compile(r"xpu_[a-z0-9]+(_[a-z0-9]+)+")
REASON = re.compile(r"([A-Z][a-z0-9]*)+")
SCENE = {
    "devices": [
        {
            "uuid": "FAKE-0",
            "minor": 0,
            "memory_bytes": 1 << 36,
            "core_percent": {"mean": 50, "swing": 80, "period_s": 1},
            "memory_used_bytes": {"from": 0, "to": 1 << 40, "over_s": 1},
            "temperature_celsius": 55,
            "power_watts": 300,
            "processes": [{"pid": 1}],
            "nodes": [{"path": "/dev/fake0", "major": 240, "minor": 0}],
            "labels": {"a": "b"},
        },
        {"kind": "rdma", "bus_id": "0000:3b:00.0", "ports": [{"number": 1, "state": 4}]},
    ],
    "links": [{"a": "0000:3b:00.0", "b": "FAKE-0", "type": "NVLink", "count": 2}],
    "events": [{"at_s": 0, "key": "FAKE-0", "reason": "Xid79", "state": "failed"}],
}
pytestmark = pytest.mark.parametrize("name", NAMES)
on_every_host = pytest.mark.parametrize("host", HOSTS)


def _vendor(name: str, folder: Path | None = None) -> tuple[DeviceVendor, dict[str, object]]:
    """Return the vendor and what its worker's settings are on a recorded host."""
    if name == FakeVendor.name and folder is not None:
        file = folder / "fake.yaml"
        file.write_text(yaml.safe_dump(SCENE))
        return FakeVendor(str(file)), {"file": str(file), "replay": True}
    vendor = {**load_vendors(), TemplateVendor.name: TemplateVendor()}[name]
    return vendor, {"replay": True}


@contextlib.contextmanager
def _session(
    name: str, host: HostFiles, folder: Path
) -> Iterator[tuple[DeviceVendor, VendorSession]]:
    vendor, settings = _vendor(name, folder)
    session = vendor.open(host, settings)
    yield vendor, session
    session.close()


def _sample(session: VendorSession) -> tuple[DeviceSample, ...]:
    try:
        return session.sample()
    except NotSupported:
        return ()


def _events(session: VendorSession) -> tuple[DeviceEvent, ...]:
    try:
        return session.events(0.0)
    except NotSupported:
        return ()


def _across(reply: wire.Reply) -> wire.Reply:
    return wire.decode_reply("x", wire.encode(reply))


def test_it_finds_nothing_wrong_with_no_settings_and_with_those_of_a_recording(name: str) -> None:
    vendor, settings = _vendor(name)
    vendor.check({})
    vendor.check(settings)


def test_nothing_is_sighted_where_nothing_is(name: str) -> None:
    assert _vendor(name)[0].sighted(EMPTY) == ()


@on_every_host
def test_what_is_sighted_has_a_name_and_says_why_no_more_is_known(
    name: str, host: str, tmp_path: Path
) -> None:
    devices = _vendor(name, tmp_path)[0].sighted(open_host(str(HOSTS[host])).files)
    assert len({device.key for device in devices}) == len(devices)
    for device in devices:
        assert device.bus_id or device.uuid
        assert REASON.fullmatch(device.health.reason)
        assert device.health.message


def test_a_session_on_an_empty_host_answers(name: str, tmp_path: Path) -> None:
    with _session(name, EMPTY, tmp_path) as (vendor, session):
        assert isinstance(session.discover(), Inventory)
        assert session.discover().vendor == vendor.name
        assert isinstance(_sample(session), tuple)


@on_every_host
def test_an_inventory_is_plain_data_that_survives_the_wire(
    name: str, host: str, tmp_path: Path
) -> None:
    with _session(name, open_host(str(HOSTS[host])).files, tmp_path) as (_, session):
        inventory = session.discover()
    assert _across(wire.Discovered(1, inventory)) == wire.Discovered(1, inventory)
    hash(inventory)  # tuples and frozen data all the way down


@on_every_host
def test_devices_of_an_inventory_are_told_apart(name: str, host: str, tmp_path: Path) -> None:
    with _session(name, open_host(str(HOSTS[host])).files, tmp_path) as (_, session):
        devices = session.discover().devices
    assert len({device.key for device in devices}) == len(devices)
    published = [(d.kind.wire_type, d.minor) for d in devices if d.minor is not None]
    assert len(set(published)) == len(published)
    assert all(REASON.fullmatch(device.health.reason) for device in devices)


@on_every_host
def test_discovery_of_an_unchanged_host_repeats_itself(
    name: str, host: str, tmp_path: Path
) -> None:
    with _session(name, open_host(str(HOSTS[host])).files, tmp_path) as (_, session):
        assert session.discover() == session.discover()


@on_every_host
def test_samples_are_of_known_devices_and_declared_families(
    name: str, host: str, tmp_path: Path
) -> None:
    with _session(name, open_host(str(HOSTS[host])).files, tmp_path) as (vendor, session):
        known = {device.key for device in session.discover().devices}
        samples = (*_sample(session), *_sample(session))
    declared = {family.name: len(family.labels) for family in vendor.families}
    for sample in samples:
        assert sample.key in known
        for reading in sample.readings:
            assert len(reading.labels) == declared[reading.family]
        series = [(reading.family, reading.labels) for reading in sample.readings]
        assert len(set(series)) == len(series)
    assert _across(wire.Sampled(1, samples)) == wire.Sampled(1, samples)


@on_every_host
def test_events_do_not_wait_longer_than_asked_and_survive_the_wire(
    name: str, host: str, tmp_path: Path
) -> None:
    with _session(name, open_host(str(HOSTS[host])).files, tmp_path) as (_, session):
        session.discover()
        events = _events(session)
    assert _across(wire.Happened(events)) == wire.Happened(events)
    assert all(REASON.fullmatch(event.reason) for event in events)


def test_closing_twice_is_closing_once(name: str, tmp_path: Path) -> None:
    with _session(name, EMPTY, tmp_path) as (_, session):
        session.close()


def test_families_say_their_unit_and_end_as_their_type_demands(name: str) -> None:
    families = _vendor(name)[0].families
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert FAMILY.fullmatch(family.name)
        assert family.help.endswith(".")
        assert family.type in ("gauge", "counter")
        assert family.name.endswith("_total") == (family.type == "counter")


def test_a_family_of_two_vendors_is_the_same_family(name: str) -> None:
    mine = {family.name: family for family in _vendor(name)[0].families}
    others = itertools.chain.from_iterable(_vendor(n)[0].families for n in NAMES if n != name)
    for family in others:
        assert mine.get(family.name, family) == family
