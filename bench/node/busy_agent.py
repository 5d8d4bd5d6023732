"""The agent on an arranged root: `python -m bench.node.busy_agent ROOT FAKE_FILE OUT`.

With the variable XPU_BENCH_HOLDS set, it prints at its end how long single callbacks held the
event loop's thread, in milliseconds of that thread's own CPU time: the greatest first. In the
environment of a pod it is an agent of that cluster. XPU_BENCH_NRI is the socket of a runtime,
XPU_BENCH_ALIASES a list for `metrics.aliases`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from agent.app.application import run_application
from agent.app.composition import ServeOptions, create_inputs
from agent.clock import SystemClock
from agent.config.address import ListenAddress
from agent.config.sources import decode_settings
from agent.host.files import LiveHostFiles
from agent.kube.endpoint import find_api_target
from agent.recording.host_source import HostSource
from agent.workers.load import vendor_descriptions
from agent.workers.selection import launch_workers

KEPT = 10
SETTLED_S = 3.0
NOTED_MS = 0.1


def measure_holds(holds_ms: list[tuple[float, str]]) -> None:
    """Note the CPU time of every callback of the event loop once the agent has settled."""
    run = asyncio.events.Handle._run  # noqa: SLF001 - the one place that all callbacks pass
    from_s = time.monotonic() + SETTLED_S

    def timed(handle: asyncio.Handle) -> None:
        if time.monotonic() < from_s:
            run(handle)
            return
        began_s = time.thread_time()
        run(handle)
        held_ms = (time.thread_time() - began_s) * 1e3
        if held_ms > NOTED_MS:
            owner = getattr(getattr(handle, "_callback", None), "__self__", None)
            holds_ms.append((held_ms, f"{owner or handle!r}"[:300]))

    setattr(asyncio.events.Handle, "_run", timed)  # noqa: B010 - as above


def _everything() -> dict[str, object]:
    """Return the settings that switch on what costs: collectors, prediction, aliases."""
    tables = [table.name for vendor in vendor_descriptions() for table in vendor.aliases]
    return {
        "collect": {
            **dict.fromkeys(("best_effort", "cold_memory", "cycles", "resctrl", "storage"), True),
            "prediction": {"enabled": True, "cold_start_s": 0},
        },
        "metrics": {"aliases": ["hami", "hami_legacy", "koordlet", "node_exporter", *tables]},
    }


def main() -> None:
    """Run until SIGTERM."""
    root, fake, out = sys.argv[1:4]
    own = {"file": fake}
    runtime = os.environ.get("XPU_BENCH_NRI", "")
    aliases = os.environ.get("XPU_BENCH_ALIASES", "")
    settings = decode_settings(
        {
            "nri": {"attach": "on", "socket": runtime} if runtime else {"attach": "off"},
            "discovery": {"fake": own, "vendors": {"nvidia": "off", "rdma": "off"}},
            "metrics": {"aliases": [part for part in aliases.split(",") if part]},
            "node": {"name": os.environ.get("XPU_AGENT_NODE__NAME", "")},
        },
        vendor_descriptions(),
    )
    opened = HostSource(files=LiveHostFiles(root), source="bench")
    inputs = create_inputs(settings, opened, SystemClock())
    clustered = "KUBERNETES_SERVICE_HOST" in os.environ
    options = ServeOptions(
        listen=(ListenAddress("127.0.0.1", 0),),
        out=out,
        notice="bench",
        cluster=find_api_target(os.environ) if clustered else None,
    )
    if kubelet := os.environ.get("XPU_BENCH_KUBELET", ""):
        # imported here: gRPC is no part of the agent that other figures are taken of
        from bench.containers.beside.kubelet_part import attach  # noqa: PLC0415 - see above

        attach(kubelet)
    holds_ms: list[tuple[float, str]] = []
    if os.environ.get("XPU_BENCH_HOLDS"):
        measure_holds(holds_ms)
    run_application(inputs, launch_workers(inputs.vendors.values(), opened, settings), options)
    if holds_ms:
        print(json.dumps(sorted(holds_ms, reverse=True)[:KEPT]), flush=True)


if __name__ == "__main__":
    main()
