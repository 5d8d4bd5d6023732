"""The tables of the status page: devices, distances, memory nodes, pods, the agent itself."""

from __future__ import annotations

from collections.abc import Sequence

from agent.objects.yaml_text import to_yaml
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.publications import EventLine, Publication
from agent.snapshot.self_check import SelfCheckReport
from agent.web.components import badge, grid, meter
from agent.web.html import bytes_text, tag, text

MAX_POD_ROWS = 50


def numa_table(snapshot: NodeSnapshot) -> str:
    """Return memory nodes with their use and distances."""
    usage = {n.node_id: n for n in snapshot.usage.value.node.numa}
    rows = []
    for node in snapshot.numa.value.nodes:
        use = usage.get(node.id)
        used = use.memory_bytes if use else None
        cores = use.cpu_cores if use else None
        rows.append(
            [
                tag("strong", text(f"NUMA {node.id}")),
                text(len(node.cpus)),
                meter(cores, len(node.cpus), f"{cores:.2f}") if cores is not None else "–",
                meter(
                    used,
                    node.memory_bytes,
                    f"{bytes_text(used)} of {bytes_text(node.memory_bytes)}",
                ),
                text(" ".join(map(str, node.distances or ()))),
            ]
        )
    return grid(("node", "CPUs", "cores used", "memory used", "distances"), rows, "Memory nodes")


def pods_table(snapshot: NodeSnapshot) -> str:
    """Return the pods that use most CPU."""
    usage = snapshot.usage.value.pods
    pods = [(pod, usage.get(pod.uid)) for pod in snapshot.pods.value]
    if not pods:
        return tag("p", "No pod's control group was found on this host.", class_="quiet")
    pods.sort(key=lambda p: (-((p[1] and p[1].cpu_cores) or 0.0), p[0].uid))
    rows = []
    for pod, use in pods[:MAX_POD_ROWS]:
        cores = use.cpu_cores if use else None
        rows.append(
            [
                text(f"{pod.namespace}/{pod.name}" if pod.name else pod.uid),
                text(pod.qos.value),
                text(len(pod.containers)),
                text(None if cores is None else f"{cores:.3f}"),
                bytes_text(use.memory_bytes if use else None),
            ]
        )
    more = f" (the {MAX_POD_ROWS} busiest of {len(pods)})" if len(pods) > MAX_POD_ROWS else ""
    names = ("pod", "class", "containers", "cores used", "memory used")
    return grid(names, rows, f"Pods{more}")


def agent_table(snapshot: NodeSnapshot, report: SelfCheckReport) -> str:
    """Return the vendors' workers and the agent's checks on itself."""
    rows = [
        [
            text(check.name),
            badge("healthy" if check.ok else "failed", "ok" if check.ok else "fails"),
            text(check.message),
        ]
        for check in report.checks
    ]
    for vendor, problem in snapshot.devices.value.problems:
        rows.append([text(vendor), badge("suspect", problem.reason), text(problem.message)])
    return grid(("part", "state", "what it says"), rows, "The agent itself")


def events_list(events: Sequence[EventLine]) -> str:
    """Return the last events, newest first."""
    if not events:
        return tag("p", "Nothing has happened since the agent started.", class_="quiet")
    rows = [
        [text(e.time), text(e.reason), text(e.about), text(e.message), text(e.count)]
        for e in reversed(events)
    ]
    return grid(("time", "reason", "about", "message", "times"), rows, "Events")


def objects_list(objects: Sequence[Publication]) -> str:
    """Return each published object, folded."""
    return "".join(
        tag(
            "details",
            tag("summary", text(o.desired.kind), " ", tag("code", text(o.where))),
            tag("p", badge("failed", o.problem)) if o.problem else "",
            tag("pre", text(to_yaml(o.desired.body).decode()), tabindex=0),
        )
        for o in objects
    )
