"""What the kubelet gave by other device plug-ins is read from its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.app.allocation import KubeletDeviceMonitor
from agent.clock import ManualClock
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore
from tests.kubelet.checkpoint import NAME, Allocation, write

ENTRY = Allocation("u-1", "main", "nvidia.com/gpu", {"GPU-1": frozenset()})


class Monitored:
    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / NAME
        self.store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))
        self.monitor = KubeletDeviceMonitor(self.store, ManualClock(), str(folder))

    def read(self) -> list[str]:
        self.monitor.read()
        return [
            kubelet_device.pod_uid for kubelet_device in self.store.current.kubelet_devices.value
        ]


@pytest.fixture
def monitored(tmp_path: Path) -> Monitored:
    return Monitored(tmp_path)


def test_a_node_without_a_checkpoint_has_no_allocations_and_no_error(monitored: Monitored) -> None:
    assert monitored.read() == []
    assert monitored.store.current.kubelet_devices.error == ""


def test_allocations_follow_the_file(monitored: Monitored) -> None:
    write(monitored.folder, [ENTRY], {})
    assert monitored.read() == ["u-1"]
    write(monitored.folder, [], {})
    assert monitored.read() == []


def test_a_file_that_did_not_change_is_not_decoded_again(monitored: Monitored) -> None:
    write(monitored.folder, [ENTRY], {})
    monitored.read()
    part = monitored.store.current.kubelet_devices
    assert monitored.read() == ["u-1"]
    assert monitored.store.current.kubelet_devices is part


@pytest.mark.parametrize("content", [b"", b"{", b"[]"])
def test_a_damaged_file_gives_no_allocations_and_an_error(
    monitored: Monitored, content: bytes
) -> None:
    monitored.path.write_bytes(content)
    assert monitored.read() == []
    assert monitored.store.current.kubelet_devices.error
    write(monitored.folder, [ENTRY], {})
    assert monitored.read() == ["u-1"]
    assert monitored.store.current.kubelet_devices.error == ""
