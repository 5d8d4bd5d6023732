"""A machine with eight cards below a stub of NVML, asked by the agent's own client."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from agent.snapshot.device import VendorDevice
from agent.snapshot.inventory import DeviceEvent
from agent.snapshot.node import VendorState
from agent.workers.call_journal import prepare_journal
from agent.workers.client import VendorClient
from agent.workers.lifecycle import RestartPolicy, WorkerTiming
from agent.workers.process import WorkerSpec
from plugins.vendors.nvidia.vendor import NvidiaVendor
from tests.direct_messages import DirectMessages
from tests.fault.nvml_stub import ROOT, Stub, add_function, build, gpu
from tests.vendors import split_settings

SYSTEM = "system driver=570.124.06 cuda=12080"
BUSES = tuple(f"0000:{b}:00.0" for b in ("23", "24", "53", "54", "83", "84", "b3", "b4"))
TIMING = WorkerTiming(
    sample_every_s=0.05,
    discover_deadline_s=4.0,
    sample_deadline_s=3.0,
    hung_call_s=1.0,
    restart=RestartPolicy(first_s=0.01, longest_s=0.1),
)


class TreeSpec(WorkerSpec, frozen=True, kw_only=True):
    """Starts a worker that takes a folder for the machine's root, with the stub for NVML."""

    tree: str
    stub_environment: dict[str, str]

    def arguments(self) -> tuple[str, ...]:
        """Return the command line of the tests' own worker."""
        return (sys.executable, "-m", "tests.fault.nvml_worker", self.tree)

    def environment(self) -> dict[str, str]:
        """Return where the stub is and what it plays."""
        return {**super().environment(), **self.stub_environment, "PYTHONPATH": str(ROOT)}


class Machine:
    """Eight cards below a stub, and a client with a worker of its own."""

    def __init__(self, folder: Path, **values: object) -> None:
        """`values` are members of each card."""
        self.gpus = tuple(gpu(i, bus, **values) for i, bus in enumerate(BUSES))
        self.stub = Stub(folder)
        self.tree = folder / "root"
        self.run_dir = folder / "run"
        self.states: list[VendorState] = []
        self.events: list[DeviceEvent] = []
        self._changed = asyncio.Event()
        for minor, bus in enumerate(BUSES):
            uuid = f"GPU-00000000-0000-4000-8000-00000000000{minor}"
            add_function(self.tree, bus, Model="H100", GPU_UUID=uuid, Device_Minor=f"{minor}")
        self.journal = prepare_journal(str(self.run_dir), "nvidia")
        self.play()

    def play(self, *faults: str) -> None:
        self.stub.play(SYSTEM, *self.gpus, *faults)

    def start(self, timing: WorkerTiming = TIMING, **settings: object) -> VendorClient:
        """Start a client; it ends with `stop`."""
        environment = {
            name: value
            for name, value in self.stub.environment.items()
            if name != "XPU_NVML_CALLS"  # a trace of every call of every second
        }
        data = {"library_dirs": [str(build())], **settings}
        own, context = split_settings(NvidiaVendor.description, data)
        spec = TreeSpec(
            vendor="nvidia",
            settings=own,
            context=context,
            journal=self.journal,
            tree=str(self.tree),
            stub_environment=environment,
        )
        client = VendorClient(
            spec, (), messages=DirectMessages(self._on_state, self._on_events), timing=timing
        )
        self._task = asyncio.create_task(client.run())
        return client

    def _on_state(self, state: VendorState) -> None:
        self.states.append(state)
        self._changed.set()

    def _on_events(self, vendor: str, events: tuple[DeviceEvent, ...]) -> None:
        assert vendor == "nvidia"
        self.events.extend(events)
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    @property
    def now(self) -> VendorState:
        return self.states[-1]

    @property
    def cards(self) -> tuple[VendorDevice, ...]:
        inventory = self.now.inventory.value if self.states else None
        return inventory.devices if inventory is not None else ()

    def sampled(self) -> set[str]:
        return {s.key for s in self.now.samples.value if s.memory_used_bytes is not None}
