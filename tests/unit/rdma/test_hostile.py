from __future__ import annotations

import errno
import functools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.recording.tree import EntryKind, ErrorEntry, LinkEntry, TreeEntry, TreeFiles
from agent.snapshot.device import VendorDevice
from agent.snapshot.inventory import Inventory
from agent.snapshot.settings import VendorSettings
from plugins.vendors.rdma.vendor import RdmaVendor
from tests.captures import SHARED, capture, needs_shared
from tests.unit.rdma import made
from tests.vendors import open_session

pytestmark = needs_shared

INTERESTING = ("infiniband", "/pci/devices", "/class/net", "virtio", "/sys/module")
SETTINGS = {"replay": True, "soft": True}


@functools.lru_cache
def guest() -> made.Entries:
    """The captured guest without what no RDMA code looks at."""
    host = capture("qemu")
    assert isinstance(host, TreeFiles)
    return {
        f"{folder}/{name}": entry
        for folder, entries in host.walk()
        for name, entry in entries.items()
        if entry is not EntryKind.DIRECTORY and any(part in folder for part in INTERESTING)
    }


@functools.lru_cache
def fixture() -> made.Entries:
    """Two captured cards' files, put on functions of their own."""
    path = SHARED / "captures" / "infiniband" / "procfs-mlx4-mlx5.json"
    files = json.loads(path.read_text())["files"]
    homes = {"mlx4_0": "0000:18:00.0", "mlx5_0": "0000:40:00.0"}
    entries: made.Entries = made.nics(*((address, name) for name, address in homes.items()))
    for name, text in files.items():
        _, _, inside = name.partition("/sys/class/infiniband/")
        device, _, file = inside.partition("/")
        entries[f"{made.place(homes[device])}/infiniband/{device}/{file}"] = text.encode()
    return entries


def survey(entries: made.Entries) -> Inventory:
    """Do with a host everything that a session does."""
    host = TreeFiles.from_entries(entries)
    RdmaVendor().detect(host, VendorSettings())
    session = open_session(RdmaVendor(), host, SETTINGS)
    session.discover()
    session.sample()
    inventory = session.discover()
    session.close()
    return inventory


GARBAGE: st.SearchStrategy[TreeEntry] = st.one_of(
    st.binary(max_size=80),
    st.sampled_from([errno.EACCES, errno.EIO, errno.EINVAL, errno.ENODEV]).map(ErrorEntry),
    st.sampled_from(
        ["../../../etc/passwd", "/", "x" * 10_000, ".", "0000:18:00.0", "../0000:40:00.0/"]
    ).map(LinkEntry),
    st.sampled_from(
        [
            b"1" * 70_000,
            b"\0" * 100,
            b"4: ACTIVE\n4: ACTIVE",
            b"44: X",
            b"-1",
            b"9" * 40,
            b"\xff\xfe",
        ]
    ),
    st.just(EntryKind.DIRECTORY),
)


def mutated(base: made.Entries, changes: dict[int, TreeEntry | None]) -> made.Entries:
    """Replace or remove entries, chosen by their place in the order of paths."""
    result = dict(base)
    paths = sorted(base)
    for at, entry in changes.items():
        path = paths[at % len(paths)]
        if entry is None:
            result.pop(path, None)
        else:
            result[path] = entry
    return result


CHANGES = st.dictionaries(
    st.integers(0, 1 << 20), st.one_of(st.none(), GARBAGE), min_size=1, max_size=40
)
SLOW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SLOW
@given(CHANGES)
def test_a_damaged_guest_is_read_to_its_end(changes: dict[int, TreeEntry | None]) -> None:
    survey(mutated(guest(), changes))


@SLOW
@given(CHANGES)
def test_a_damaged_node_is_read_to_its_end(changes: dict[int, TreeEntry | None]) -> None:
    survey(mutated(fixture(), changes))


def by_name(inventory: Inventory) -> dict[str, VendorDevice]:
    return {dict(item.facts).get("name", ""): item for item in inventory.devices}


@SLOW
@given(st.integers(0, 1 << 20), GARBAGE)
def test_garbage_in_one_devices_files_costs_no_other(at: int, entry: TreeEntry) -> None:
    whole = fixture()
    own = [path for path in sorted(whole) if "/infiniband/mlx4_0/" in path]
    result = by_name(survey(whole | {own[at % len(own)]: entry}))
    clean = by_name(survey(whole))
    assert result["mlx5_0"] == clean["mlx5_0"]
    assert result["mlx4_0"].key == clean["mlx4_0"].key


def test_the_captured_cards_are_whole_without_garbage() -> None:
    result = by_name(survey(fixture()))
    assert [(item.minor, item.model) for item in result.values()] == [(0, "MT4099"), (1, "MT4118")]
    assert len(result["mlx4_0"].ports) == 2
    assert result["mlx4_0"].ports[1].link_layer == "InfiniBand"
    assert dict(result["mlx5_0"].facts).get("node_guid") is None


def test_a_captured_physical_state_is_taken_by_its_number_vector_11() -> None:
    (port,) = by_name(survey(fixture()))["mlx5_0"].ports
    assert (port.state, port.physical_state) == (4, 4)


@pytest.mark.parametrize("count", [100_000])
def test_row_5_a_directory_with_far_too_many_names(count: int) -> None:
    entries = dict(fixture())
    base = f"{made.place('0000:18:00.0')}/infiniband/mlx4_0/ports/1"
    entries |= {f"{base}/hw_counters/c{n}": b"1" for n in range(count)}
    session = open_session(RdmaVendor(), TreeFiles.from_entries(entries), SETTINGS)
    session.discover()
    readings = [item for sample in session.sample() for item in sample.readings]
    assert sum(item.family == "xpu_rdma_port_hw_total" for item in readings) < 600
