"""Published minors over restarts of the agent: kept, read, adopted, and never in the way."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.clock import ManualClock
from agent.config.sources import decode_settings
from agent.devices.minors import MinorRecord, MinorRecords, encode_records
from agent.devices.published_minors import MINORS_FILE, PublishedMinorStore
from agent.objects.device import DevicePublisher
from agent.recording.host_source import HostSource
from agent.recording.tree import TreeBuilder
from agent.snapshot.device import DeviceKind, Health, HealthState, VendorDevice
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore, VendorState
from agent.snapshot.part import SnapshotPart
from agent.state_writer import StateWriter
from tests.hanging import hanging_files, needs_fuse
from tests.pipelines import JoinedHost

LONG_S = 30.0
GPUS = tuple(
    VendorDevice(
        kind=DeviceKind.GPU,
        vendor="nvidia",
        bus_id=f"0000:1{n}:00.0",
        uuid=f"GPU-{n}",
        minor=n,
        vendor_minor=n,
    )
    for n in range(2)
)
MLUS = tuple(
    VendorDevice(
        kind=DeviceKind.MLU,
        vendor="cambricon",
        bus_id=f"0000:c{n}:00.0",
        uuid=f"MLU-{n}",
        minor=n,
        vendor_minor=n,
    )
    for n in range(2)
)
# what sysfs alone shows of cards whose library hangs
SILENT = tuple(
    replace(
        card,
        uuid=None,
        minor=None,
        vendor_minor=None,
        health=Health(state=HealthState.SUSPECT, reason="NotYetAsked"),
    )
    for card in GPUS
)


Listed = Mapping[str, tuple[VendorDevice, ...]]  # by vendor


class Agent:
    """One life of the agent; the state directory outlives it."""

    def __init__(self, folder: str = "", *, adopts: bool = False) -> None:
        self.writer = StateWriter(late_s=0.0)
        self.minors = PublishedMinorStore(folder, self.writer, stores=True, adopts=adopts)
        self.store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))
        opened = HostSource(files=TreeBuilder().build(""))
        self._facts = JoinedHost(
            opened, decode_settings({}), self.store, ManualClock(), self.minors
        )

    def publish(self, devices: Listed, nvml: str = "ready") -> dict[str, int]:
        """Publish what the vendors list; return the published minors by key."""
        self.store.put(
            vendors=tuple(
                VendorState(
                    vendor=name,
                    state=nvml if name == "nvidia" else "ready",
                    inventory=SnapshotPart(Inventory(vendor=name, devices=listed), 1.0),
                )
                for name, listed in sorted(devices.items())
            )
        )
        self._facts.join_devices()
        view = self.store.current.devices.value
        return {d.key: d.info.minor for d in view.devices if d.info.minor is not None}

    @property
    def publishes(self) -> bool:
        return bool(DevicePublisher().render(self.store.current, 0.0))

    def stop(self) -> None:
        assert self.writer.close(LONG_S)


ALL = {"cambricon": MLUS, "nvidia": GPUS}


def test_a_restart_while_a_library_hangs_moves_no_minor(tmp_path: Path) -> None:
    first = Agent(str(tmp_path))
    before = first.publish(ALL)
    assert before == {
        MLUS[0].key: 0,
        MLUS[1].key: 1,
        GPUS[0].key: 2,
        GPUS[1].key: 3,
    }
    first.stop()
    second = Agent(str(tmp_path))
    assert second.publish({"cambricon": MLUS[1:], "nvidia": ()}, "stalled") == {MLUS[1].key: 1}
    assert second.publish({"cambricon": MLUS, "nvidia": SILENT}, "stalled") == before
    assert second.publish(ALL) == before
    second.stop()


def test_cards_that_come_while_a_library_hangs_get_no_minor_of_its_cards(tmp_path: Path) -> None:
    first = Agent(str(tmp_path))
    before = first.publish({"nvidia": GPUS})
    first.stop()
    second = Agent(str(tmp_path))
    during = second.publish({"nvidia": (), "cambricon": MLUS}, "stalled")
    assert during == {MLUS[0].key: 2, MLUS[1].key: 3}
    assert second.publish(ALL) == {**before, **during}
    second.stop()
    third = Agent(str(tmp_path))
    assert third.publish(ALL) == {**before, **during}
    third.stop()


def test_a_device_that_has_left_frees_its_minor(tmp_path: Path) -> None:
    first = Agent(str(tmp_path))
    first.publish(ALL)
    new = replace(GPUS[1], bus_id="0000:f0:00.0", uuid="GPU-9", minor=1, vendor_minor=1)
    first.store.put(
        pci=SnapshotPart(first.store.current.pci.value, 1.0)
    )  # read, and without functions
    assert first.publish({"nvidia": (GPUS[0], new)}) == {GPUS[0].key: 2, new.key: 1}
    first.stop()


def body_of(*entries: tuple[str, int]) -> object:
    devices = [{"type": "gpu", "id": name, "minor": minor} for name, minor in entries]
    return {"spec": {"devices": devices}}


def test_after_a_loss_of_state_the_device_object_has_the_minors(tmp_path: Path) -> None:
    agent = Agent(str(tmp_path), adopts=True)
    agent.publish(ALL)
    assert not agent.publishes  # other minors than before would be another card's
    agent.minors.adopt(body_of(("GPU-0", 5), ("MLU-1", 0), ("GPU-gone", 1)))
    result = agent.publish(ALL)
    assert agent.publishes
    assert (result[GPUS[0].key], result[MLUS[1].key]) == (5, 0)
    assert len(set(result.values())) == 4
    agent.stop()
    again = Agent(str(tmp_path), adopts=True)
    assert again.publish(ALL) == result
    assert again.publishes
    again.stop()


def test_without_an_object_of_an_earlier_life_numbers_begin_anew(tmp_path: Path) -> None:
    agent = Agent(str(tmp_path), adopts=True)
    agent.minors.adopt(None)
    assert agent.publish({"nvidia": GPUS}) == {GPUS[0].key: 0, GPUS[1].key: 1}
    assert agent.publishes
    agent.stop()


def test_a_state_that_was_read_is_not_replaced_by_the_object(tmp_path: Path) -> None:
    first = Agent(str(tmp_path))
    before = first.publish(ALL)
    first.stop()
    second = Agent(str(tmp_path), adopts=True)
    second.minors.adopt(body_of(("GPU-0", 9)))
    assert second.publish(ALL) == before
    second.stop()


def test_without_a_folder_minors_last_as_long_as_the_process() -> None:
    agent = Agent()
    before = agent.publish(ALL)
    assert agent.publish({"nvidia": GPUS}) == {card.key: before[card.key] for card in GPUS}
    assert agent.minors.check().ok


RECORDS: MinorRecords = (MinorRecord(type="gpu", minor=7, vendor="nvidia", id="GPU-0"),)


@pytest.mark.parametrize("content", [b"", b"{", b'{"version":0,"devices":[]}', b"\xff"])
def test_a_damaged_file_is_renamed_and_reported_and_the_object_is_used(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / MINORS_FILE).write_bytes(content)
    agent = Agent(str(tmp_path), adopts=True)
    assert not agent.minors.check().ok
    assert "damaged" in agent.minors.check().message
    assert (tmp_path / f"{MINORS_FILE}.bad").read_bytes() == content
    agent.minors.adopt(body_of(("GPU-0", 7)))
    assert agent.publish({"nvidia": GPUS[:1]}) == {GPUS[0].key: 7}
    agent.stop()
    assert (tmp_path / MINORS_FILE).exists()


def test_a_command_reads_the_file_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / MINORS_FILE).write_bytes(encode_records(RECORDS))
    minors = PublishedMinorStore(str(tmp_path), StateWriter())
    assert minors.current() == (RECORDS, True)
    minors.save(())
    (tmp_path / MINORS_FILE).write_bytes(b"{")
    PublishedMinorStore(str(tmp_path), StateWriter())
    assert os.listdir(tmp_path) == [MINORS_FILE]


def test_a_folder_that_takes_no_file_stops_no_publishing(tmp_path: Path) -> None:
    blocked = tmp_path / "state"
    blocked.write_text("no folder")
    agent = Agent(str(blocked))
    before = agent.publish(ALL)
    assert agent.publishes
    agent.writer.file(str(blocked / MINORS_FILE)).wait(0.2)
    check = agent.minors.check()
    assert not check.ok
    assert os.strerror(errno.ENOTDIR) in check.message or os.strerror(errno.EEXIST) in check.message
    assert not check.gates_ready
    assert agent.publish(ALL) == before


@needs_fuse
def test_a_file_system_that_hangs_stops_no_publishing(tmp_path: Path) -> None:
    with hanging_files(tmp_path / "state") as files:
        agent = Agent(str(files.path))
        files.hang()
        before = agent.publish(ALL)
        assert agent.publishes
        assert agent.publish({"nvidia": GPUS}) == {card.key: before[card.key] for card in GPUS}
        assert not agent.minors.check().ok
        files.answer()
        agent.stop()
        again = Agent(str(files.path))
        assert again.publish(ALL) == before
        again.stop()
