"""The agent's worker that asks the library about another host: `... nvml_worker HOST`.

The agent's own would refuse: it takes a host other than this machine for a recording.
"""

from __future__ import annotations

import os
import sys

from agent.probe.service import Pipe, Service
from agent.probe.wire import Opened, Start
from agent.probe.worker import read_requests, take_pipes
from agent.recording.open import open_host
from plugins.vendors.nvidia.vendor import NvidiaVendor


def main() -> None:
    """Serve the NVIDIA session of the tree that the first argument names."""
    questions, answers = take_pipes()
    requests, pipe = read_requests("nvidia", questions), Pipe(answers)
    start = next(requests)
    assert isinstance(start, Start)
    session = NvidiaVendor().open(open_host(sys.argv[1]).files, start.settings)
    pipe.say(0, Opened)
    Service(pipe, session).run(requests, events=start.events)
    os._exit(0)


if __name__ == "__main__":
    main()
