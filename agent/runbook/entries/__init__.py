"""The agent's own entries, one module for each part of the agent."""

from agent.runbook.entries.agent import AGENT_ENTRIES, UNLISTED
from agent.runbook.entries.alerts import ALERT_ENTRIES
from agent.runbook.entries.cluster import CLUSTER_ENTRIES
from agent.runbook.entries.containers import CONTAINER_ENTRIES
from agent.runbook.entries.devices import DEVICE_ENTRIES
from agent.runbook.entries.enforcement import ENFORCEMENT_ENTRIES
from agent.runbook.entries.grants import GRANT_ENTRIES
from agent.runbook.entries.host import HOST_ENTRIES
from agent.runbook.entries.kubelet import KUBELET_ENTRIES
from agent.runbook.entries.usage import USAGE_ENTRIES
from agent.runbook.entries.workers import WORKER_ENTRIES
from agent.runbook.entry import EntryTable, RunbookEntry, RunbookSection, entry_table

__all__ = ["OWN_ENTRIES", "OWN_SECTIONS", "UNLISTED"]

_CHECKS = "the page, `xpu-agent doctor` and `/healthz?verbose`"
_DEVICES = (
    "the page, `xpu-agent doctor`, `xpu-agent devices`, the conditions of the Device object, and "
    "the events of the node"
)


def _section(title: str, where: str, entries: tuple[RunbookEntry, ...]) -> RunbookSection:
    return RunbookSection(title=title, where=where, entries=entries)


OWN_SECTIONS: tuple[RunbookSection, ...] = (
    _section("Agent", _CHECKS, AGENT_ENTRIES),
    _section("Cluster", f"{_CHECKS}, and the events of the node", CLUSTER_ENTRIES),
    _section("Devices of all vendors", _DEVICES, DEVICE_ENTRIES),
    _section("Workers of vendors", _DEVICES, WORKER_ENTRIES),
    _section("Machine", "the page, `xpu-agent doctor` and `xpu-agent topology`", HOST_ENTRIES),
    _section(
        "Allocations", "the events of the pod, the page and `xpu-agent doctor`", GRANT_ENTRIES
    ),
    _section(
        "Containers",
        f"{_CHECKS}, and the events of the node or of the pod",
        CONTAINER_ENTRIES,
    ),
    _section("Kubelet", f"{_CHECKS}, and the events of the node or of the pod", KUBELET_ENTRIES),
    _section(
        "Files of pods and of the node",
        "the page, `xpu-agent doctor`, the Node condition EnforcementHealthy, and events",
        ENFORCEMENT_ENTRIES,
    ),
    _section(
        "Collectors",
        "the page, the agent's log (`collector_problem`) and [collectors.md](collectors.md)",
        USAGE_ENTRIES,
    ),
    _section("Several nodes and the scheduler", "alerts: [observe.md](observe.md)", ALERT_ENTRIES),
)
OWN_ENTRIES: EntryTable = entry_table(
    *(entry for section in OWN_SECTIONS for entry in section.entries)
)
