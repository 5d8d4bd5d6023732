"""The way into containers as a process of its own, so that it can be killed and stopped.

    python -m tests.containerd.agent_side.standin FOLDER [memlock] [cdi]

It is made of the agent's own parts on the node of `scene`. FOLDER is a runtime's; what it knows
is written there again and again, as `agent.json`. SIGTERM ends it in order. Memory may be locked
by containers with RDMA if that is said, or if programs here may raise limits at all. With `cdi` the
runtime counts as one that takes CDI names by NRI, as containerd does from 2.1: the containers of
such tests are made with CDI names while no agent runs, as after the kubelet's `Allocate`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec.structs import replace

from agent.allocation.check import check_allocations
from agent.clock import SystemClock
from agent.config.containers import EnforceSettings, HookSettings, NriSettings
from agent.containers.devices import DevicesHook
from agent.containers.dispatch import Answers, ContainerAdjuster, hook_modes
from agent.containers.hooks import node_hooks
from agent.host.files import LiveHostFiles
from agent.nri.plugin import NriPlugin
from agent.snapshot.container import HookRequest, RuntimeView
from agent.snapshot.node import SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.verification.verifier import Verifier
from agent.workers.load import load_vendors
from tests.containerd.agent_side import scene
from tests.reported_events import ReportedEvents
from tests.runtime.handler import FunctionHandler

WRITE_S = 0.1


class NoPodFiles:
    """Leaves the files of pods alone: nothing reconciles here."""

    def write_pod(self, request: HookRequest) -> None:
        """Write nothing."""

    def record_requested_values(self, request: HookRequest, answers: Answers) -> None:
        """Record nothing."""

    def prioritise_missed_pods(self, before: RuntimeView, now: RuntimeView) -> None:
        """Prefer no pod."""


class StandIn:
    """One agent without a kubelet and without an API server."""

    def __init__(self, folder: Path, *, memlock: bool, takes_cdi: bool) -> None:
        self._takes_cdi = takes_cdi
        self._path = folder / "agent.json"
        self._clock = SystemClock()
        snapshot = scene.snapshot(self._clock.monotonic(), memlock=memlock, cdi=folder / "cdi")
        self._store = SnapshotStore(snapshot)
        self._reported = ReportedEvents()
        devices = DevicesHook(load_vendors(), HookSettings())
        hooks = (*node_hooks(reads_kubelet=False), devices)
        self._asker = ContainerAdjuster(
            hooks,
            hook_modes(hooks, EnforceSettings()),
            self._store,
            self._clock,
            messages=self._reported.messages,
            pod_files=NoPodFiles(),
            files=ThreadPoolExecutor(1),
            index=devices.index,
        )
        self._prover = Verifier(
            LiveHostFiles(),
            devices,
            self._clock,
            records=(f"{folder}/state/io.containerd.runtime.v2.task/k8s.io/{{id}}/config.json",),
        )
        settings = NriSettings(socket=str(folder / "nri.sock"))
        self._plugin = NriPlugin(
            settings,
            handler=FunctionHandler(self._asker.adjust, self._seen),
            clock=self._clock,
            sleep=self._soon,
            lock_path=str(folder / "agent.lock"),
        )

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        plugin = asyncio.create_task(self._plugin.run())
        loop.add_signal_handler(signal.SIGTERM, plugin.cancel)
        while not plugin.done():
            await asyncio.wait((plugin,), timeout=WRITE_S)
            proof = await asyncio.to_thread(self._prover.run_once, self._store.current)
            self._store.put(verification=SnapshotPart(proof, self._clock.monotonic()))
            self._write()

    @staticmethod
    async def _soon(seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.2))  # a test does not wait for the back-off

    def _seen(self, view: RuntimeView) -> None:
        if self._takes_cdi:
            view = replace(view, takes_cdi=True)
        self._store.put(runtime=SnapshotPart(view, self._clock.monotonic()))
        grants = check_allocations(self._store.current)
        self._store.put(allocations=SnapshotPart(grants, self._clock.monotonic()))

    def _write(self) -> None:
        now = self._store.current
        view, state = now.runtime.value, self._plugin.statistics
        reports = {
            "pid": os.getpid(),
            "state": view.state,
            "reason": view.reason,
            "registrations": state.registrations,
            "late": state.late,
            "ends": dict(state.ends),
            "missed": dict(view.missed),
            "containers": {
                container.id: container.state.value for container in view.containers.values()
            },
            "stopped": [sandbox.id for sandbox in view.sandboxes.values() if sandbox.stopped],
            "told": self._reported.pairs(),
            "proofs": {
                key: {"verdict": one.verdict.value, "details": one.details, "way": one.way}
                for key, one in now.verification.value.containers.items()
            },
            "refused": {pod.uid: pod.refusal for pod in now.allocations.value.pods.values()},
        }
        written = self._path.with_suffix(".new")
        written.write_text(json.dumps(reports))
        written.replace(self._path)


def main(arguments: list[str]) -> None:
    """Run until SIGTERM."""
    memlock = "memlock" in arguments or scene.may_raise_limits()
    folder, takes_cdi = Path(arguments[0]), "cdi" in arguments
    asyncio.run(StandIn(folder, memlock=memlock, takes_cdi=takes_cdi).run())


if __name__ == "__main__":
    main(sys.argv[1:])
