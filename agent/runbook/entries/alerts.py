"""Entries of alerts about what no agent reports by itself: other nodes, the scheduler, its end."""

from __future__ import annotations

from agent.runbook.entry import FaultCategory, RecommendedAction, RunbookEntry

_NO_PLACEMENT = "No pod with devices is placed; pods that run are not affected."

ALERT_ENTRIES = (
    RunbookEntry(
        "AgentAbsent",
        "no agent is scraped",
        "Prometheus has no series of any agent.",
        "No alert about nodes and devices can fire.",
        "see `kubectl -n xpu-agent get daemonset,pods`, then the targets page of Prometheus, and "
        "port, NetworkPolicy and authentication of `metrics.listen`",
    ),
    RunbookEntry(
        "AgentDown",
        "an agent does not answer",
        "Prometheus knows the agent's address, and its scrapes fail: the agent is not running, "
        "hangs, or renders its page too slowly.",
        "Objects of the node stay as they are. Without an agent, containers start without the "
        "devices of their grant, and the kubelet starts no pod with a resource of the agent.",
        "see `kubectl -n xpu-agent describe pod` and `logs --previous` of the node's pod; on the "
        "node run `xpu-agent doctor`",
    ),
    RunbookEntry(
        "AgentMemoryHigh",
        "the agent is near its memory limit",
        "Resident memory of the agent and its workers, without what the kernel keeps for them.",
        "Above the limit the kernel ends the agent or a worker, again and again.",
        "compare with other nodes: many pods need more, so raise the limit; memory that grows for "
        "days is a fault, so save `xpu-agent doctor --bundle FILE` and restart the agent",
    ),
    RunbookEntry(
        "MetricsCut",
        "the metrics lack pods",
        "A family has more series of pods and containers than `metrics.max_series`.",
        "The last pods in the order of namespace and name have no series. Devices have theirs.",
        "raise `metrics.max_series`, or switch `collect.pods` off where nobody reads these series",
    ),
    RunbookEntry(
        "MemoryRepairPending",
        "faulty memory is replaced at the next reset",
        "The driver has marked a row or a page of the card's memory, and replaces it at a reset.",
        "The card works with less safety: another error in the same place ends its pods.",
        "drain the node when it suits, and reset the card",
        RecommendedAction.DRAIN_AND_RESET,
        FaultCategory.MEMORY,
    ),
    RunbookEntry(
        "MemoryRepairFailed",
        "faulty memory cannot be replaced",
        "The card has no spare row or page left for a faulty one.",
        "Pods on the card end with memory errors.",
        "drain the node and replace the card",
        RecommendedAction.REPLACE,
        FaultCategory.MEMORY,
    ),
    RunbookEntry(
        "MemoryErrorsUncorrected",
        "memory errors were not corrected",
        "The card counted errors in its memory that its check bits could not correct.",
        "Programs that used this memory ended, or their results are wrong.",
        "see the card's health and its other entries here; repeat the work of that time, and "
        "reset the card once it is free",
        RecommendedAction.DRAIN_AND_RESET,
        FaultCategory.MEMORY,
    ),
    RunbookEntry(
        "ThermalThrottling",
        "a card is slow because it is hot",
        "The card holds its clocks back for its temperature for more than a tenth of the time.",
        "Jobs over several cards are as slow as the hottest one.",
        "compare the temperatures of the node's cards; see to fans, filters and the room's air",
        RecommendedAction.LOOK,
        FaultCategory.THERMAL,
    ),
    RunbookEntry(
        "EvictionStorm",
        "the agent evicts many pods",
        "More than ten pods of a node were evicted within a quarter of an hour by one rule.",
        "Best-effort work makes no progress and is placed again and again.",
        "see which rule it is; lower the batch supply of the node or its thresholds in the "
        "NodeSLO, and look for a pod of production that has grown",
    ),
    RunbookEntry(
        "SchedulerAbsent",
        "no replica of xpu-scheduler is scraped",
        "There were replicas within the last day.",
        _NO_PLACEMENT,
        "see the Deployment `xpu-scheduler`, its events and logs, and the scrape's certificate",
    ),
    RunbookEntry(
        "SchedulerNoLeader",
        "no replica of xpu-scheduler leads",
        "All replicas wait for the Lease.",
        _NO_PLACEMENT,
        "see the logs of the replicas, the Lease `xpu-scheduler`, and the right to update it",
    ),
    RunbookEntry(
        "SchedulerTwoLeaders",
        "two replicas of xpu-scheduler lead",
        "Two processes hold a Lease at a time: two installations, or clocks that differ.",
        "Both may give the same device to a pod.",
        "scale the Deployment to one replica; remove the second installation, compare the clocks",
    ),
    RunbookEntry(
        "SchedulerLeaderChanges",
        "the leader of xpu-scheduler changes often",
        "The Lease is not renewed in time: replicas end, or the API server answers late.",
        "Placement stops for up to fifteen seconds each time.",
        "see restarts and memory of the replicas, and the API server's latency for leases",
    ),
    RunbookEntry(
        "SchedulerBindFailures",
        "xpu-scheduler cannot bind pods",
        "More than a tenth of the bindings fail.",
        "Pods are placed late or not at all.",
        "see events BindingRefused and DeviceNotMarked, and /apis/v1/explain of a pod",
    ),
    RunbookEntry(
        "SchedulerReservationsLeaking",
        "devices are held for pods that are not bound",
        "A binding has an unknown outcome for long, or the plan of a gang waits for members.",
        "Other pods cannot have these devices.",
        "see `xpu_scheduler_holds` and nodeDeviceSummaries; delete the pods of gangs that never "
        "become complete; a restart of the leader reads all bindings again",
    ),
    RunbookEntry(
        "DeviceDoubleGranted",
        "devices are granted to more pods than they have room for",
        "The annotations of bound pods add up to more than a device has.",
        "Pods share a card against the will of their owners, or their containers are refused.",
        "see the events of the Device object, which name the pods; delete the later pod, and find "
        "what else binds pods with devices",
    ),
    RunbookEntry(
        "GrantUnreadable",
        "grants of bound pods cannot be counted",
        "The annotation device-allocated of a bound pod cannot be read, or names a device that its "
        "node does not have.",
        "The devices of these pods look free and may be granted twice.",
        "see the events GrantUnreadable and GrantOfUnknownDevice; delete and recreate the pods",
    ),
    RunbookEntry(
        "SchedulerSlow",
        "xpu-scheduler answers slowly",
        "One in a hundred calls of kube-scheduler takes a second or longer.",
        "Pods are placed late; past its timeout kube-scheduler gives up.",
        "see CPU throttling and memory of the leader, and the number of nodes and pending pods",
    ),
)
