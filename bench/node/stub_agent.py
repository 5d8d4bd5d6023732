"""The agent whose NVIDIA worker sees a tree and the NVML stub: `... TREE LIBRARIES OUT WINDOW`.

Nothing else of it is arranged: the worker is a process that is asked over its pipe. WINDOW is
the setting `publish.coalesce_ms`. In the environment of a pod it writes to that API server.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from msgspec.structs import asdict, replace

from agent.clock import SystemClock
from agent.config.address import Address
from agent.config.decode import settings_from
from agent.daemon.options import ServeOptions
from agent.daemon.serve import serve
from agent.host.files import LiveRoot
from agent.kube.session.target import where_is_api
from agent.log import configure
from agent.node.crew import recruits
from agent.node.parts import build_parts
from agent.probe.process.launch import launch
from agent.probe.process.spec import WorkerSpec
from agent.recording.open import OpenedHost

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
    settings = settings_from(
        {
            "discovery": {"vendors": off, "nvidia": {"library_dirs": [libraries]}},
            "publish": {"coalesce_ms": window_ms},
            "node": {"name": os.environ.get("XPU_AGENT_NODE__NAME", "")},
        }
    )
    configure(settings.log.level)
    opened = OpenedHost(files=LiveRoot(tree), source="bench")
    parts = build_parts(settings, opened, SystemClock())
    crew = []
    for found in recruits(parts.vendors.values(), opened, settings):
        spec = TreeSpec(**asdict(found.spec), tree=tree)
        crew.append(replace(found, spec=spec, launched=launch(spec)))
    clustered = "KUBERNETES_SERVICE_HOST" in os.environ
    options = ServeOptions(
        listen=(Address("127.0.0.1", 0),),
        out=out,
        notice="bench",
        cluster=where_is_api(settings.api, os.environ) if clustered else None,
    )
    serve(parts, crew, options)


if __name__ == "__main__":
    main()
