"""Lists what is wrong on a node now, the worst first, from the snapshot alone."""

from __future__ import annotations

from agent.runbook.device_problems import device_problems, vendor_problems
from agent.runbook.problem import Problem, ProblemContext, sort_key
from agent.runbook.runbook import EntryLookup
from agent.runbook.service_problems import (
    cluster_problems,
    container_problems,
    file_problems,
    object_problems,
    own_problems,
)
from agent.snapshot.node import NodeSnapshot

MAX_PROBLEMS = 200


def find_problems(
    snapshot: NodeSnapshot, lookup: EntryLookup, now_s: float, wall_s: float
) -> tuple[Problem, ...]:
    """Return everything that is wrong on the node by the running agent, at most `MAX_PROBLEMS`.

    `lookup` is `Runbook.find`; `now_s` is monotonic. Problems of vendors and devices that only
    start are left out.
    """
    context = ProblemContext(lookup=lookup, now_s=now_s, wall_s=wall_s)
    sources = (
        own_problems,
        device_problems,
        vendor_problems,
        cluster_problems,
        object_problems,
        container_problems,
        file_problems,
    )
    problems = {problem for source in sources for problem in source(snapshot, context)}
    return tuple(sorted(problems, key=sort_key)[:MAX_PROBLEMS])
