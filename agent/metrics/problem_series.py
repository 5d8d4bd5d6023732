"""Series of what is wrong on the node, with the recommended action. From the snapshot alone."""

from __future__ import annotations

from collections import Counter

from agent.metrics.families import NODE, ExportedFamily
from agent.metrics.text_format import SeriesLines, label_pairs, sample_line
from agent.runbook.problem import Severity, SubjectKind
from agent.runbook.problems import find_problems
from agent.runbook.runbook import Runbook
from agent.snapshot.node import NodeSnapshot

FAULT_LABELS = ("device", "minor", "uuid", "class", "reason", "action", "severity")
PROBLEM_FAMILIES: tuple[ExportedFamily, ...] = (
    ExportedFamily(
        name="xpu_agent_problems",
        type="gauge",
        help="Things that are wrong on the node, as the page lists them, by severity.",
        labels=(*NODE, "severity"),
        stability="stable",
    ),
    ExportedFamily(
        name="xpu_device_fault",
        type="gauge",
        help="Always 1: a fault of a device or of a slice of it, its class and the recommended "
        "action (none, look, reset, drain-and-reset, reboot, replace).",
        labels=(*NODE, *FAULT_LABELS),
        stability="stable",
    ),
)


def problem_series(
    snapshot: NodeSnapshot, runbook: Runbook, now_s: float, label_prefix: str
) -> SeriesLines:
    """Yield the number of problems, and the faults of devices; `now_s` is monotonic."""
    problems = find_problems(snapshot, runbook.find, now_s, 0.0)
    counts = Counter(problem.severity for problem in problems)
    name = "xpu_agent_problems"
    yield (
        name,
        [
            sample_line(
                name, label_prefix, counts[severity], label_pairs(("severity",), (severity.value,))
            )
            for severity in Severity
        ],
    )
    infos = {device.key: device.info for device in snapshot.devices.value.devices}
    cards = {part.uuid: key for key, info in infos.items() for part in info.partitions}
    rows: dict[str, None] = {}  # in order, each once
    name = "xpu_device_fault"
    for problem in problems:
        if problem.kind not in (SubjectKind.DEVICE, SubjectKind.SLICE):
            continue
        is_slice = problem.kind is SubjectKind.SLICE
        key = cards.get(problem.subject, "") if is_slice else problem.subject
        info = infos.get(key)
        minor = "" if info is None or info.minor is None else str(info.minor)
        uuid = problem.subject if is_slice else (info.uuid or "" if info is not None else "")
        values = (
            *(key, minor, uuid, problem.category.value, problem.reason),
            *(problem.action.value, problem.severity.value),
        )
        rows[sample_line(name, label_prefix, 1, label_pairs(FAULT_LABELS, values))] = None
    yield name, list(rows)
