"""Runs in a process with the stub: what a session does to vNPUs, one JSON line a step.

    python -m tests.unit.vnpu.steps HOST SETTINGS STEP...

A step is JSON: ["create", key, template, pod], ["destroy", key, number], ["reconcile", pods].
"""

from __future__ import annotations

import json
import sys

from agent.errors import AgentError
from agent.recording.open import open_host
from plugins.vendors.ascend.session import AscendSession


def main() -> None:
    """Do the steps in order; an error is an answer."""
    host, settings, *steps = sys.argv[1:]
    session = AscendSession(open_host(host).files, json.loads(settings))
    session.discover()
    for step in steps:
        try:
            answer = do(session, json.loads(step))
        except AgentError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        sys.stdout.write(f"{json.dumps(answer)}\n")


def do(session: AscendSession, step: list[object]) -> object:
    """Do one step."""
    what, *rest = step
    if what == "create":
        found = session.create_vnpu(*map(str, rest))
        return {"instance": found.instance, "memory": found.memory_bytes, "cores": found.cores}
    if what == "destroy":
        session.destroy_vnpu(str(rest[0]), int(str(rest[1])))
        return {}
    pods = rest[0]
    told = session.reconcile_vnpus(set(map(str, pods)) if isinstance(pods, list) else None)
    return {
        "destroyed": [owned.vdev for owned in told.destroyed],
        "lost": [owned.vdev for owned in told.lost],
        "failed": len(told.failed),
    }


if __name__ == "__main__":
    main()
