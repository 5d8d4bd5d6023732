"""What every device vendor promises, asked of each: those shipped, and the one to copy."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

from agent.errors import NotSupported
from agent.model.device import HealthState
from agent.model.inventory import Inventory
from agent.probe import wire
from agent.probe.base import clear_in
from tests.contract.asked import (
    NAMES,
    across,
    events_of,
    inventory_of,
    of_every_vendor,
    on_every_host,
    sample_of,
    session_of,
    vendor_of,
)
from tests.contract.hosts import EMPTY, host_of

FAMILY = re.compile(r"xpu_[a-z0-9]+(_[a-z0-9]+)+")
REASON = re.compile(r"([A-Z][a-z0-9]*)+")
# what costs a start or starts something; a session may have it, the agent's side not
HEAVY = ("asyncio", "ctypes", "yaml", "pyudev", "pynvml", "psutil", "importlib.metadata", "aiohttp")
ALLOWED = {"fake": ("yaml",)}  # its devices are YAML; it is not loaded without a file
pytestmark = of_every_vendor


def test_it_finds_nothing_wrong_with_no_settings_and_with_those_of_a_recording(name: str) -> None:
    vendor, settings = vendor_of(name)
    vendor.check({})
    vendor.check(settings)


def test_it_says_plainly_whether_it_needs_a_process_of_its_own(name: str) -> None:
    assert isinstance(getattr(vendor_of(name)[0], "isolated", True), bool)


def test_the_agent_loads_it_without_anything_heavy(name: str) -> None:
    module = type(vendor_of(name)[0]).__module__
    forbidden = [heavy for heavy in HEAVY if heavy not in ALLOWED.get(name, ())]
    code = f"import sys; import {module}; print(*(m for m in {forbidden} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_nothing_is_sighted_where_nothing_is(name: str) -> None:
    assert vendor_of(name)[0].sighted(EMPTY) == ()


@on_every_host
def test_what_is_sighted_has_a_name_and_says_why_no_more_is_known(
    name: str, host: str, tmp_path: Path
) -> None:
    devices = vendor_of(name, tmp_path)[0].sighted(host_of(host))
    assert len({device.key for device in devices}) == len(devices)
    for device in devices:
        assert device.bus_id or device.uuid
        assert REASON.fullmatch(device.health.reason)
        assert device.health.message


def test_a_session_on_an_empty_host_answers(name: str, tmp_path: Path) -> None:
    with session_of(name, EMPTY, tmp_path) as (vendor, session):
        assert isinstance(session.discover(), Inventory)
        assert session.discover().vendor == vendor.name
        assert isinstance(sample_of(session), tuple)


@on_every_host
def test_an_inventory_is_plain_data_that_survives_the_wire(
    name: str, host: str, tmp_path: Path
) -> None:
    inventory = inventory_of(name, host, tmp_path)
    assert across(wire.Discovered(1, inventory)) == wire.Discovered(1, inventory)
    hash(inventory)  # tuples and frozen data all the way down


@on_every_host
def test_discovery_of_an_unchanged_host_repeats_itself(
    name: str, host: str, tmp_path: Path
) -> None:
    with session_of(name, host_of(host), tmp_path) as (_, session):
        assert session.discover() == session.discover()


@on_every_host
def test_samples_are_of_known_devices_and_declared_families(
    name: str, host: str, tmp_path: Path
) -> None:
    with session_of(name, host_of(host), tmp_path) as (vendor, session):
        known = {device.key for device in session.discover().devices}
        samples = (*sample_of(session), *sample_of(session))
    declared = {family.name: len(family.labels) for family in vendor.families}
    for sample in samples:
        assert sample.key in known
        for reading in sample.readings:
            assert len(reading.labels) == declared[reading.family]
        series = [(reading.family, reading.labels) for reading in sample.readings]
        assert len(set(series)) == len(series)
    assert across(wire.Sampled(1, samples)) == wire.Sampled(1, samples)


@on_every_host
def test_the_verdict_of_a_sample_is_one_that_a_vendor_may_give(
    name: str, host: str, tmp_path: Path
) -> None:
    with session_of(name, host_of(host), tmp_path) as (_, session):
        session.discover()
        samples = sample_of(session)
    for health in (sample.health for sample in samples if sample.health is not None):
        assert health.state is not HealthState.PROBING  # that is the agent's to say
        assert REASON.fullmatch(health.reason)
        assert health.message


@on_every_host
def test_events_do_not_wait_longer_than_asked_and_survive_the_wire(
    name: str, host: str, tmp_path: Path
) -> None:
    with session_of(name, host_of(host), tmp_path) as (_, session):
        session.discover()
        events = events_of(session)
    assert across(wire.Happened(events)) == wire.Happened(events)
    assert all(REASON.fullmatch(event.reason) for event in events)
    assert all(event.state is not HealthState.PROBING for event in events)


def test_clearing_a_device_that_nobody_knows_clears_nothing(name: str, tmp_path: Path) -> None:
    with session_of(name, EMPTY, tmp_path) as (_, session):
        session.discover()
        try:
            assert clear_in(session, "0000:ff:1f.7") is False
        except NotSupported:
            assert not hasattr(session, "clear")


def test_closing_twice_is_closing_once(name: str, tmp_path: Path) -> None:
    with session_of(name, EMPTY, tmp_path) as (_, session):
        session.close()


def test_families_say_their_unit_and_end_as_their_type_demands(name: str) -> None:
    families = vendor_of(name)[0].families
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert FAMILY.fullmatch(family.name)
        assert family.help.endswith(".")
        assert family.type in ("gauge", "counter")
        assert family.name.endswith("_total") == (family.type == "counter")


def test_a_family_of_two_vendors_is_the_same_family(name: str) -> None:
    mine = {family.name: family for family in vendor_of(name)[0].families}
    others = itertools.chain.from_iterable(vendor_of(n)[0].families for n in NAMES if n != name)
    for family in others:
        assert mine.get(family.name, family) == family
