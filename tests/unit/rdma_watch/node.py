"""One machine with one NIC on disk, a session that watches it, and a clock that tests move."""

from __future__ import annotations

from pathlib import Path

from agent.clock import ManualClock
from agent.host.files import LiveHostFiles
from agent.snapshot.inventory import DeviceEvent, DeviceSample
from agent.snapshot.vendor import LIVE_CONTEXT, SessionContext
from plugins.vendors.rdma.session import RdmaSession
from plugins.vendors.rdma.settings import RdmaSettings
from tests.unit.rdma import made

PF = "0000:18:00.0"
PORT = f"{made.place(PF)}/infiniband/mlx5_0/ports/1"


class Node:
    """A machine on disk, a session that watches it, and a clock that a test moves."""

    def __init__(
        self,
        folder: Path,
        entries: made.Entries,
        settings: RdmaSettings,
        context: SessionContext = LIVE_CONTEXT,
    ) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.host: LiveHostFiles = made.disk(folder, entries)
        self.session = RdmaSession(self.host, settings, context, self.clock)

    def change(self, entries: made.Entries) -> None:
        made.disk(self.folder, entries)

    def remove(self, path: str) -> None:
        (self.folder / path.lstrip("/")).unlink()

    def after(self, seconds: float) -> tuple[DeviceEvent, ...]:
        """Let time pass, and return what there is to tell."""
        self.clock.advance(seconds)
        return self.session.events(0)

    def sample(self) -> DeviceSample:
        (only,) = self.session.sample()
        return only


def state(text: str) -> made.Entries:
    return {f"{PORT}/state": f"{text}\n".encode()}


def values(sample: DeviceSample, family: str) -> list[float]:
    return [item.value for item in sample.readings if item.family == f"xpu_rdma_{family}"]
