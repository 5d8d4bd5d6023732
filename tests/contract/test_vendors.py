"""What every device vendor promises, asked of each: those shipped, and the one to copy."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from agent.errors import NotSupported
from agent.snapshot.inventory import Inventory
from agent.snapshot.vendor import DeviceVendor, VendorSession
from agent.workers.abilities import clear_fault
from tests.contract.hosts import EMPTY
from tests.contract.promises import family_faults
from tests.contract.sources import NAMES, REPLAY, fake_vendor, of_every_vendor, vendor_named
from tests.vendors import open_session

# what costs a start or starts something; a session may have it, the agent's side not
HEAVY = ("asyncio", "ctypes", "yaml", "pyudev", "pynvml", "psutil", "importlib.metadata", "aiohttp")
ALLOWED = {"fake": ("yaml",)}  # its devices are YAML; it is not loaded without a file
pytestmark = of_every_vendor


def vendor_of(name: str) -> tuple[DeviceVendor, dict[str, object]]:
    """Return the vendor and what its worker's settings are on a recorded host."""
    return vendor_named(name), REPLAY


@contextlib.contextmanager
def session_on_empty(name: str, folder: Path) -> Iterator[tuple[DeviceVendor, VendorSession]]:
    """Open a session on a host without anything, and close it."""
    vendor, settings = fake_vendor(folder) if name == "fake" else vendor_of(name)
    session = open_session(vendor, EMPTY, settings)
    yield vendor, session
    session.close()


def test_it_finds_nothing_wrong_with_its_default_settings(name: str) -> None:
    vendor_of(name)[0].description.settings().check()


def test_it_says_plainly_whether_it_needs_a_process_of_its_own(name: str) -> None:
    assert isinstance(vendor_of(name)[0].description.is_isolated, bool)


def test_the_agent_loads_it_without_anything_heavy(name: str) -> None:
    module = type(vendor_of(name)[0]).__module__
    forbidden = [heavy for heavy in HEAVY if heavy not in ALLOWED.get(name, ())]
    code = f"import sys; import {module}; print(*(m for m in {forbidden} if m in sys.modules))"
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert outcome.stdout.split() == []


def test_a_session_on_an_empty_host_answers(name: str, tmp_path: Path) -> None:
    with session_on_empty(name, tmp_path) as (vendor, session):
        assert isinstance(session.discover(), Inventory)
        assert session.discover().vendor == vendor.description.name
        with contextlib.suppress(NotSupported):
            assert isinstance(session.sample(), tuple)


def test_clearing_a_device_that_nobody_knows_clears_nothing(name: str, tmp_path: Path) -> None:
    with session_on_empty(name, tmp_path) as (_, session):
        session.discover()
        try:
            assert clear_fault(session, "0000:ff:1f.7") is False
        except NotSupported:
            assert not hasattr(session, "clear")


def test_closing_twice_is_closing_once(name: str, tmp_path: Path) -> None:
    with session_on_empty(name, tmp_path) as (_, session):
        session.close()


def test_families_keep_every_promise(name: str) -> None:
    assert family_faults(vendor_of(name)[0].description.families) == []


def test_sources_of_traffic_are_declared_families_in_both_directions(name: str) -> None:
    description = vendor_of(name)[0].description
    declared = {family.name: family for family in description.families}
    for source in description.traffic:
        assert source.family.endswith(("_bytes_total", "_bytes_per_second"))
        assert len(source.labels) <= len(declared[source.family].labels)
    sent = [source.link for source in description.traffic if source.is_sent]
    assert sent == [source.link for source in description.traffic if not source.is_sent]


def test_a_family_of_two_vendors_is_the_same_family(name: str) -> None:
    mine = {family.name: family for family in vendor_of(name)[0].description.families}
    others = itertools.chain.from_iterable(
        vendor_of(n)[0].description.families for n in NAMES if n != name
    )
    for family in others:
        assert mine.get(family.name, family) == family
