"""The agent's worker that asks a library about another host: `... worker VENDOR HOST`.

The agent's own would refuse: it takes a host other than this machine for a recording.
"""

from __future__ import annotations

import os
import sys

from agent.probe.service import Pipe
from agent.probe.vendors import load_vendor
from agent.probe.wire import Start
from agent.probe.worker import answer, read_requests, take_pipes
from agent.recording.open import open_host


def main() -> None:
    """Serve the session of the vendor and the tree that the arguments name."""
    vendor, tree = sys.argv[1:3]
    questions, answers = take_pipes()
    requests, pipe = read_requests(vendor, questions), Pipe(answers)
    start = next(requests)
    assert isinstance(start, Start)
    host, settings = open_host(tree).files, start.settings
    answer(requests, pipe, start, lambda: load_vendor(vendor).open(host, settings))
    os._exit(0)


if __name__ == "__main__":
    main()
