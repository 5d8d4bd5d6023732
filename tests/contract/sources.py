"""Where a vendor's devices come from: recorded hosts, tapes, and sessions over stub libraries.

Each source is asked once in a run, because a session over a stub is a process of its own.
"""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest
import yaml

from agent.errors import NotSupported
from agent.host.files import LiveHostFiles
from agent.recording.host_source import open_host
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory
from agent.snapshot.vendor import DeviceVendor, VendorSession
from agent.wire_formats.device_info import DIRECTORY
from agent.workers.load import load_vendors
from agent.workers.tape import TapeSession, parse_tape
from fixtures.hosts.make_atlas import build
from plugins.vendors.fake.vendor import FakeVendor
from plugins.vendors.template.vendor import TemplateVendor
from tests.contract.hosts import FOLDER, example_host, host_of
from tests.fault import nvml_stub, nvml_tape
from tests.machines import Sysfs
from tests.stubs import child
from tests.stubs.dcmi.machines import a3x16, b3x8
from tests.stubs.stub import Stub
from tests.unit.cambricon import cards as mlu
from tests.unit.infofiles.made import entry as info_file_entry
from tests.unit.rdma import made as nics
from tests.vendors import open_session

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
MAX_PARTS = 32  # answers to `discover` until an inventory is whole
Session = VendorSession | child.Child
Opener = Callable[[Path], AbstractContextManager[Session]]


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """What one session answered, asked twice each."""

    inventories: tuple[Inventory, Inventory]
    samples: tuple[tuple[DeviceSample, ...], tuple[DeviceSample, ...]]
    events: tuple[DeviceEvent, ...]

    @property
    def inventory(self) -> Inventory:
        """Return the first inventory."""
        return self.inventories[0]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one vendor. `whole`: its library or its files answer, not sysfs alone."""

    vendor: str
    name: str
    opener: Opener
    whole: bool = True
    library: bool = False  # a stub, which the session must have asked
    count: int | None = None  # of devices, and what each has: figures of the makers' manuals
    memory_bytes: int | None = None

    def __str__(self) -> str:
        """Return the name that tests show: `-k NAME` chooses a vendor's."""
        return f"{self.vendor}-{self.name}"


def vendor_named(name: str) -> DeviceVendor:
    """Return a vendor: one that is shipped or installed, or the template."""
    return {**load_vendors(), TemplateVendor.description.name: TemplateVendor()}[name]


def ask(source: Source) -> Answers:
    """Return what the source's session answers; asked once in a run."""
    return _ask(source.vendor, source.name, source.opener)


@functools.cache
def _ask(vendor: str, name: str, opener: Opener) -> Answers:
    prefix = f"contract-{vendor}-{name}-"
    with tempfile.TemporaryDirectory(prefix=prefix) as folder, opener(Path(folder)) as session:
        inventories = _discover(session), _discover(session)
        samples = _sample(session), _sample(session)
        events = _events(session)
    return Answers(inventories=inventories, samples=samples, events=events)


def _discover(session: Session) -> Inventory:
    """Return a whole inventory: a vendor may answer in parts, and which it examined last varies."""
    for _ in range(MAX_PARTS):
        inventory = session.discover()
        if not inventory.partial:
            return msgspec.structs.replace(inventory, subjects=None)
    raise AssertionError(f"no whole inventory after {MAX_PARTS} answers")


def _sample(session: Session) -> tuple[DeviceSample, ...]:
    try:
        return session.sample()
    except NotSupported:
        return ()


def _events(session: Session) -> tuple[DeviceEvent, ...]:
    if isinstance(session, child.Child):
        return tuple(session.events)
    try:
        return session.events(0.0)
    except NotSupported:
        return ()


# Recorded hosts and tapes


def _replay(vendor: str, host: HostFiles) -> Opener:
    @contextlib.contextmanager
    def opener(folder: Path) -> Iterator[Session]:  # noqa: ARG001 - others need one
        with contextlib.closing(open_session(vendor_named(vendor), host, REPLAY)) as session:
            yield session

    return opener


REPLAY: dict[str, object] = {"replay": True}


def _tape(vendor: str, path: Path) -> Opener:
    @contextlib.contextmanager
    def opener(folder: Path) -> Iterator[Session]:  # noqa: ARG001 - others need one
        with contextlib.closing(TapeSession(parse_tape(path.read_bytes(), vendor))) as session:
            yield session

    return opener


def _recorded(vendor: str) -> Iterator[Source]:
    """Yield the hosts with a tape of the vendor: sysfs alone, then what the library answered."""
    for path in sorted(FOLDER.glob(f"*/tapes/{vendor}.jsonl")):
        host = path.parents[1].name
        opener = _replay(vendor, host_of(host))
        yield Source(vendor=vendor, name=f"sysfs-{host}", opener=opener, whole=False)
        yield Source(vendor=vendor, name=f"tape-{host}", opener=_tape(vendor, path))


# Vendors with a stub of their library


@contextlib.contextmanager
def _nvidia(folder: Path, played: nvml_tape.Played) -> Iterator[Session]:
    stub = nvml_stub.Stub(folder)
    stub.play(*(nvml_tape.TAPES / f"{played.scenario}.scenario").read_text().splitlines())
    with nvml_stub.on_tree(stub, FOLDER / played.host, sample_interval_s=0.0) as session:
        yield session


@contextlib.contextmanager
def _ascend(folder: Path, machine: str, lines: Callable[[], list[str]]) -> Iterator[Session]:
    host = folder / "host"
    host.mkdir()
    (host / "host.txt").write_text(build(machine))
    stub = Stub("dcmi", folder)
    stub.play(*lines())
    settings = {"library_path": str(stub.path), "sample_interval_s": 0.0}
    with child.on_tree("ascend", stub.environment, host, settings) as session:
        yield session


@contextlib.contextmanager
def _cambricon(folder: Path) -> Iterator[Session]:
    stub = mlu.stub_of(folder, *mlu.machine(8))
    with mlu.session(stub, mlu.tree_of(folder, 8)) as session:
        yield session


# Vendors that read files


@contextlib.contextmanager
def _rdma(folder: Path) -> Iterator[Session]:  # noqa: ARG001 - others need one
    entries = nics.nics(("0000:18:00.0", "mlx5_0"), ("0000:3b:00.0", "mlx5_1"))
    entries |= nics.exclusive()
    with contextlib.closing(
        open_session(vendor_named("rdma"), nics.tree(entries), REPLAY)
    ) as session:
        yield session


@contextlib.contextmanager
def _accelerators(folder: Path) -> Iterator[Session]:  # noqa: ARG001 - others need one
    sysfs = Sysfs()
    for bus in ("16", "17"):
        facts = {"class": "0x038000", "vendor": "0x9999", "device": "0x4001"}
        sysfs.function(f"pci0000:16/0000:{bus}:00.0", **facts)
    settings = {"cards": [{"match": "9999:4001", "memory_mib": 65536, "model": "C500"}]}
    vendor = vendor_named("accelerators")
    with contextlib.closing(open_session(vendor, sysfs.builder.build(), settings)) as session:
        yield session


@contextlib.contextmanager
def _infofiles(folder: Path) -> Iterator[Session]:
    directory = folder / DIRECTORY.lstrip("/")
    directory.mkdir(parents=True)
    (directory / "cards.json").write_text(json.dumps([info_file_entry("0"), info_file_entry("1")]))
    vendor = vendor_named("infofiles")
    with contextlib.closing(open_session(vendor, LiveHostFiles(str(folder)), {})) as session:
        yield session


def fake_vendor(folder: Path) -> tuple[FakeVendor, dict[str, object]]:
    """Return the fake vendor with its scene below a folder, and its settings."""
    file = folder / "fake.yaml"
    file.write_text(yaml.safe_dump(SCENE))
    return FakeVendor(), {"file": str(file), "replay": True}


@contextlib.contextmanager
def _fake(folder: Path) -> Iterator[Session]:
    vendor, settings = fake_vendor(folder)
    host = open_host(str(FOLDER / "vm-no-devices")).files
    with contextlib.closing(open_session(vendor, host, settings)) as session:
        yield session


_BUILTIN: dict[str, tuple[Source, ...]] = {
    "nvidia": tuple(
        Source(
            vendor="nvidia",
            name=f"stub-{played.scenario}",
            opener=lambda folder, played=played: _nvidia(folder, played),  # type: ignore[misc]  # a default in a lambda
            library=True,
            count=count,
            memory_bytes=memory_mib << 20,
        )
        for played, count, memory_mib in ((nvml_tape.H100, 8, 81559), (nvml_tape.A100, 4, 40960))
    ),
    "ascend": (
        Source(
            vendor="ascend",
            name="stub-910b3x8",
            opener=lambda folder: _ascend(folder, "910b3x8", b3x8),
            library=True,
            count=8,
            memory_bytes=64 << 30,
        ),
        Source(
            vendor="ascend",
            name="stub-a3x16",
            opener=lambda folder: _ascend(folder, "a3x16", a3x16),
            library=True,
            count=16,
            memory_bytes=64 << 30,
        ),
    ),
    "cambricon": (
        Source(
            vendor="cambricon",
            name="stub-mlu370x8",
            opener=_cambricon,
            library=True,
            count=8,
            memory_bytes=23308 << 20,
        ),
    ),
    "rdma": (
        Source(vendor="rdma", name="two-nics", opener=_rdma, count=2),
        Source(
            vendor="rdma",
            name="sysfs-qemu-4numa-8xh100",
            opener=_replay("rdma", host_of("qemu-4numa-8xh100")),
            whole=False,
        ),
    ),
    "accelerators": (
        Source(
            vendor="accelerators",
            name="two-cards",
            opener=_accelerators,
            count=2,
            memory_bytes=64 << 30,
        ),
    ),
    "infofiles": (
        Source(
            vendor="infofiles",
            name="two-cards",
            opener=_infofiles,
            count=2,
            memory_bytes=64 << 30,
        ),
    ),
    "fake": (Source(vendor="fake", name="scene", opener=_fake),),
}


def sources_of(vendor: str) -> tuple[Source, ...]:
    """Return all sources of a vendor; a new one has its example host, until it brings tapes."""
    result = (*_recorded(vendor), *_BUILTIN.get(vendor, ()))
    host = example_host(vendor_named(vendor))
    if host is None:
        return result
    return (
        *result,
        Source(vendor=vendor, name="example", opener=_replay(vendor, host), whole=False),
    )


NAMES = (*load_vendors(), TemplateVendor.description.name)
SOURCES = tuple(source for name in NAMES for source in sources_of(name))
of_every_source = pytest.mark.parametrize("source", SOURCES, ids=str)
of_every_vendor = pytest.mark.parametrize("name", NAMES)
