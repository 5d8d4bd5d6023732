"""The agent whose NVIDIA worker sees a tree and the NVML stub: `... TREE LIBRARIES OUT WINDOW`.

Nothing else of it is arranged: the worker is a process that is asked over its pipe. WINDOW is
the setting `publish.coalesce_ms`. In the environment of a pod it writes to that API server.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from msgspec.structs import asdict, replace

from agent.app.application import run_application
from agent.app.composition import ServeOptions, create_inputs
from agent.clock import SystemClock
from agent.config.address import ListenAddress
from agent.config.sources import decode_settings
from agent.host.files import LiveHostFiles
from agent.kube.endpoint import find_api_target
from agent.log import configure_logging
from agent.recording.host_source import HostSource
from agent.workers.load import vendor_descriptions
from agent.workers.process import WorkerSpec, launch
from agent.workers.selection import select_vendors

ROOT = Path(__file__).parents[2]
OTHERS = ("rdma", "ascend", "cambricon", "accelerators", "infofiles")


class TreeSpec(WorkerSpec, frozen=True, kw_only=True):
    """A worker for another root than this machine's."""

    tree: str

    def arguments(self) -> tuple[str, ...]:
        """Return the command line."""
        return (sys.executable, "-m", "tests.fault.nvml_worker", self.tree)

    def environment(self) -> dict[str, str]:
        """Return the whole environment, with what the stub reads."""
        stub = {name: os.environ[name] for name in ("XPU_NVML_SCENARIO", "XPU_NVML_CALLS")}
        return {**super().environment(), **stub, "PYTHONPATH": str(ROOT)}


def main() -> None:
    """Run until SIGTERM."""
    tree, libraries, out, window_ms = sys.argv[1:5]
    off = dict.fromkeys(OTHERS, "off")
    settings = decode_settings(
        {
            "discovery": {"vendors": off, "nvidia": {"library_dirs": [libraries]}},
            "publish": {"coalesce_ms": window_ms},
            "node": {"name": os.environ.get("XPU_AGENT_NODE__NAME", "")},
        },
        vendor_descriptions(),
    )
    configure_logging(settings.log.level)
    opened = HostSource(files=LiveHostFiles(tree), source="bench")
    inputs = create_inputs(settings, opened, SystemClock())
    workers = []
    for vendor in select_vendors(inputs.vendors.values(), opened, settings):
        spec = TreeSpec(**asdict(vendor.spec), tree=tree)
        workers.append(replace(vendor, spec=spec, launched=launch(spec)))
    clustered = "KUBERNETES_SERVICE_HOST" in os.environ
    options = ServeOptions(
        listen=(ListenAddress("127.0.0.1", 0),),
        out=out,
        notice="bench",
        cluster=find_api_target(os.environ) if clustered else None,
    )
    run_application(inputs, workers, options)


if __name__ == "__main__":
    main()
