"""The agent's worker that asks a library about another host: `... worker VENDOR HOST`.

The agent's own would refuse: it takes a host other than this machine for a recording.
"""

from __future__ import annotations

import os
import sys

from agent.recording.host_source import open_host
from agent.workers.load import load_vendor
from agent.workers.protocol import StartMessage
from agent.workers.worker import (
    AgentPipe,
    decode_vendor_settings,
    detach_pipes,
    read_requests,
    serve_session,
)


def main() -> None:
    """Serve the session of the vendor and the tree that the arguments name."""
    vendor, tree = sys.argv[1:3]
    questions, answers = detach_pipes()
    requests, pipe = read_requests(vendor, questions), AgentPipe(answers)
    start = next(requests)
    assert isinstance(start, StartMessage)
    host, loaded = open_host(tree).files, load_vendor(vendor)
    settings = decode_vendor_settings(start, loaded.description)
    serve_session(requests, pipe, start, lambda: loaded.open(host, settings, start.context))
    os._exit(0)


if __name__ == "__main__":
    main()
