"""Runs in a process with the stub: what a session does to vNPUs, one JSON line a step.

    python -m tests.unit.ascend_vnpu.steps HOST SETTINGS STEP...

A step is JSON: ["create", key, template, pod], ["reconcile", pods], ["changed", pods].
"""

from __future__ import annotations

import json
import sys

from agent.errors import AgentError
from agent.recording.host_source import open_host
from agent.snapshot.inventory import SliceRequest
from agent.state_writer import StateFile, StateWriter
from plugins.vendors.ascend.session import AscendSession
from plugins.vendors.ascend.settings import AscendSettings
from plugins.vendors.ascend.vendor import AscendVendor
from tests.patience import PATIENCE_S
from tests.vendors import split_settings


def main() -> None:
    """Do the steps in order; an error is an answer."""
    # no step is refused because a busy disk takes longer than half a second to write the ownership
    StateFile.save.__defaults__ = StateWriter.read.__defaults__ = (PATIENCE_S,)
    host, settings, *steps = sys.argv[1:]
    own, context = split_settings(AscendVendor.description, json.loads(settings))
    assert isinstance(own, AscendSettings)
    session = AscendSession(open_host(host).files, own, context)
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
        device, template, pod = map(str, rest)
        wish = SliceRequest(pod=pod, device=device, template=template)
        report = session.slices([wish], None)
        for refused in report.unmade:
            return {"error": refused.reason, "message": refused.message}
        partition = report.made[0].partition
        return {
            "instance": partition.instance,
            "memory": partition.memory_bytes,
            "cores": partition.cores,
        }
    pods = rest[0]
    reconciled = session.slices([], set(map(str, pods)) if isinstance(pods, list) else None)
    if what == "changed":
        return {"changed": reconciled.changed}
    return {
        "destroyed": list(reconciled.reclaimed),
        "lost": list(reconciled.lost),
        "failed": len(reconciled.failed),
    }


if __name__ == "__main__":
    main()
