"""The agent's worker that asks the library about another host: `... nvml_worker HOST [live]`.

The agent's own would refuse: it takes a host other than this machine for a recording. With `live`
the tree stands for a machine whose files go on, such as the kernel's log.
"""

from __future__ import annotations

import os
import sys

from agent.host.files import LiveHostFiles
from agent.recording.host_source import open_host
from agent.snapshot.host_files import HostFiles
from agent.workers.protocol import StartMessage
from agent.workers.worker import (
    AgentPipe,
    decode_vendor_settings,
    detach_pipes,
    read_requests,
    serve_session,
)
from plugins.vendors.nvidia.settings import NvidiaSettings
from plugins.vendors.nvidia.vendor import NvidiaVendor


def main() -> None:
    """Serve the NVIDIA session of the tree that the first argument names."""
    questions, answers = detach_pipes()
    requests, pipe = read_requests("nvidia", questions), AgentPipe(answers)
    start = next(requests)
    assert isinstance(start, StartMessage)
    tree, live = sys.argv[1], "live" in sys.argv[2:]
    host: HostFiles = LiveHostFiles(tree) if live else open_host(tree).files
    settings = decode_vendor_settings(start, NvidiaVendor.description)
    assert isinstance(settings, NvidiaSettings)
    serve_session(requests, pipe, start, lambda: NvidiaVendor().open(host, settings, start.context))
    os._exit(0)


if __name__ == "__main__":
    main()
