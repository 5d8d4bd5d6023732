"""The agent's worker that asks the library about another host: `... nvml_worker HOST [live]`.

The agent's own would refuse: it takes a host other than this machine for a recording. With `live`
the tree stands for a machine whose files go on, such as the kernel's log.
"""

from __future__ import annotations

import os
import sys

from agent.host.files import HostFiles, LiveRoot
from agent.probe.service import Pipe
from agent.probe.wire import Start
from agent.probe.worker import answer, read_requests, take_pipes
from agent.recording.open import open_host
from plugins.vendors.nvidia.vendor import NvidiaVendor


def main() -> None:
    """Serve the NVIDIA session of the tree that the first argument names."""
    questions, answers = take_pipes()
    requests, pipe = read_requests("nvidia", questions), Pipe(answers)
    start = next(requests)
    assert isinstance(start, Start)
    tree, live = sys.argv[1], "live" in sys.argv[2:]
    host: HostFiles = LiveRoot(tree) if live else open_host(tree).files
    settings = start.settings
    answer(requests, pipe, start, lambda: NvidiaVendor().open(host, settings))
    os._exit(0)


if __name__ == "__main__":
    main()
