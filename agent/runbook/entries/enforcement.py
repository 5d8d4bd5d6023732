"""Entries of files of pods and of the node: strategies, hooks, the ledger, resctrl, evictions."""

from __future__ import annotations

from agent.runbook.entry import RecommendedAction, RunbookEntry

_FILES = "Files of pods or of the node are not as they should be."
_KEPT = "Files keep the values that they have, and nothing new is decided."
_SHORT = "CPU or memory of the node stays short."
_NOT_DIVIDED = "Cache and memory bandwidth are not divided as the NodeSLO or the pods ask for."
_EXPLAIN = "see the message, and `xpu-agent explain file PATH`"

ENFORCEMENT_ENTRIES = (
    RunbookEntry(
        "StrategyFailed",
        "a strategy fails",
        "The strategy raised an error that it should not: a bug of the agent.",
        "Its files keep the values that it set last. All other strategies go on.",
        "this is a bug of the agent: report it with xpu-agent doctor --bundle FILE; "
        "enforce.strategies.NAME: off restores its files",
    ),
    RunbookEntry(
        "StrategyUnsupported",
        "the kernel cannot do what a strategy needs",
        "A cgroup file or an interface of the kernel is missing on this host.",
        "What the NodeSLO or a pod asks for is not done.",
        "use a kernel that has what is missing, take it out of the NodeSLO, or set the strategy to"
        " off in enforce.strategies",
    ),
    RunbookEntry(
        "StrategyWaiting",
        "a strategy waits for an input",
        "A measurement or an object that the strategy needs has been missing for some time.",
        _KEPT,
        "see the message: the API server, the kubelet or a collector does not answer",
    ),
    RunbookEntry(
        "EnforcementFrozen",
        "the NodeSLO is not confirmed",
        "The API server has not confirmed the NodeSLO for longer than the settings allow.",
        _KEPT,
        "let the agent reach the API server",
    ),
    RunbookEntry(
        "EnforcementStopped",
        "too many changes failed",
        "So many writes were refused, or pods evicted, that the agent stops changing anything "
        "for a while.",
        _KEPT,
        "see the refusals and evictions in /api/v1/audit",
    ),
    RunbookEntry(
        "ForeignWriter",
        "another program writes the same file",
        "A file has another value again and again after the agent wrote it.",
        "The agent writes the file less and less often.",
        "switch one of the two off: here with enforce.strategies or enforce.hooks;"
        " xpu-agent explain file PATH names both values",
    ),
    RunbookEntry(
        "WritesStopped",
        "writes to a file are suspended",
        "The kernel refused a value again and again.",
        _FILES,
        "see the refusals in /api/v1/audit; after an hour the agent tries again",
    ),
    RunbookEntry(
        "WriteNotPermitted",
        "the kernel does not permit a write",
        "The agent lacks the right to write a cgroup file, or its mount is read-only.",
        _FILES,
        "mount /sys/fs/cgroup writable, and run the agent privileged",
    ),
    RunbookEntry(
        "ValueRefused",
        "the kernel refuses a value",
        "The value is outside what the kernel accepts for the file.",
        _FILES,
        _EXPLAIN,
    ),
    RunbookEntry(
        "CPUsNotInForce",
        "the kernel does not use the CPUs of a container",
        "The CPU set of the container is written, and the group above it has none of these CPUs.",
        "The container runs on other CPUs.",
        "see the CPU sets of the groups above; another program may have written them",
    ),
    RunbookEntry(
        "LimitInUse",
        "a limit below the present usage is refused",
        "The pod uses more memory than the new limit, and nothing could be reclaimed.",
        _FILES,
        "nothing: the agent tries again; else restart the pod",
    ),
    RunbookEntry(
        "ValueOutOfRange",
        "a hook asks for an impossible value",
        "A value that follows from a pod or a NodeSLO cannot be written to its file.",
        _FILES,
        "correct the field that the message names",
    ),
    RunbookEntry(
        "BadCgroupPath",
        "the cgroup of a pod cannot be found",
        "The path that the runtime reports is not valid.",
        "The files of that pod are not written.",
        "see the message and the cgroup driver of kubelet and runtime",
    ),
    RunbookEntry(
        "LedgerNotWritable",
        "the ledger of original values cannot be written",
        "The agent writes each original value to a file of node.state_dir before it changes a "
        "file, and that failed: the disk is full, read-only or does not answer, or the values are "
        "more than 64 MiB.",
        "No strategy writes a file, and nothing of the node is changed. Hooks still write files of "
        "pods, whose values follow from the pods, but not while the disk does not answer.",
        "make node.state_dir writable; until then nothing of the node is changed",
    ),
    RunbookEntry(
        "LedgerDamaged",
        "the ledger of original values is damaged",
        "A line of the ledger is not what the agent wrote. A copy is beside it.",
        "Original values of the lost lines are not restored.",
        "look at the copy beside the ledger; what it lost is not restored",
    ),
    RunbookEntry(
        "LedgerOfNewerVersion",
        "a newer agent wrote the ledger",
        "The ledger has lines that this version cannot read, as after a downgrade.",
        "Original values of these lines are restored by the newer version only.",
        "run `xpu-agent restore` of the newer version, or go back to it",
    ),
    RunbookEntry(
        "AuditFileNotWritable",
        "the audit file cannot be written",
        "The disk is full, read-only, or does not answer.",
        "Changes go on; up to 8,192 records wait in memory, and the others are lost.",
        "make room, or set enforce.audit_file",
    ),
    RunbookEntry(
        "OOMScoreNotWritable",
        "the OOM score of processes cannot be set",
        "The kernel refuses the agent the file oom_score_adj of a process.",
        "The kernel's choice under memory pressure is that of the runtime.",
        "run the agent privileged, with the host's process namespace (hostPID)",
    ),
    RunbookEntry(
        "SwitchRefused",
        "a switch of the kernel cannot be set",
        "A file below /proc/sys that switches a feature for the kubelet's QoS directories refuses "
        "the value.",
        "Values of the QoS directories that need the switch are not written.",
        _EXPLAIN,
    ),
    RunbookEntry(
        "CoreSchedulingRefused",
        "core scheduling cookies cannot be set",
        "The kernel refuses prctl(PR_SCHED_CORE), or lacks core scheduling.",
        "Processes of different pods may share a core.",
        "use a kernel with CONFIG_SCHED_CORE, and run the agent privileged",
    ),
    RunbookEntry(
        "EvictionBlocked",
        "a budget protects the pods to evict",
        "A PodDisruptionBudget does not permit the eviction now.",
        _SHORT,
        "look at the PodDisruptionBudgets of these pods",
    ),
    RunbookEntry(
        "EvictionFailed",
        "pods cannot be evicted",
        "The API server refuses the eviction.",
        _SHORT,
        "add daemonset/components/evictions if the right pods/eviction is missing",
    ),
    RunbookEntry(
        "evictPodSuccess",
        "a pod was evicted",
        "CPU or memory of the node was short, and the NodeSLO asks for evictions.",
        "The pod ends; its controller starts another one.",
        "nothing; see docs/evictions.md if there are many",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "evictPodPlanned",
        "a pod would be evicted",
        "The eviction is in plan mode: nothing was done.",
        _SHORT,
        "set the mode of the eviction to on, or nothing",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "evictPodFail",
        "a pod could not be evicted",
        "The event names the pod and the error.",
        _SHORT,
        "see the message; add daemonset/components/evictions if the right is missing",
    ),
    RunbookEntry(
        "ReclaimRefused",
        "memory of best-effort pods cannot be reclaimed",
        "The kernel refuses memory.reclaim, or lacks it.",
        "Memory of best-effort pods is not reclaimed before evictions.",
        "use a kernel with memory.reclaim (5.19), cgroup 2 and a writable /sys/fs/cgroup",
    ),
    RunbookEntry(
        "ResctrlNotMounted",
        "resctrl is not mounted",
        "/sys/fs/resctrl is not mounted, or cannot be mounted.",
        _NOT_DIVIDED,
        "mount -t resctrl resctrl /sys/fs/resctrl",
    ),
    RunbookEntry(
        "ResctrlUnreadable",
        "resctrl cannot be read",
        "The kernel refuses the agent files of /sys/fs/resctrl.",
        _NOT_DIVIDED,
        "mount /sys/fs/resctrl into the agent's container",
    ),
    RunbookEntry(
        "ResctrlInfoInvalid",
        "what the kernel tells about resctrl is not valid",
        "A file of /sys/fs/resctrl/info is not what the kernel documents.",
        _NOT_DIVIDED,
        "see the message; report it with the kernel's version",
    ),
    RunbookEntry(
        "ResctrlFailed",
        "a change of resctrl failed",
        "The kernel answered a change of a group with an error.",
        _NOT_DIVIDED,
        "see the message and /sys/fs/resctrl/info/last_cmd_status",
    ),
    RunbookEntry(
        "ResctrlNotPermitted",
        "the agent may not change resctrl",
        "The kernel refuses the change, or the mount is read-only.",
        _NOT_DIVIDED,
        "mount /sys/fs/resctrl writable and run the agent privileged",
    ),
    RunbookEntry(
        "ResctrlForeignGroup",
        "another program has a resctrl group",
        "A group that the agent did not make uses what a class asks for.",
        _NOT_DIVIDED,
        "let the other program remove its group, or take the class out of the NodeSLO",
    ),
    RunbookEntry(
        "ResctrlForeignWriter",
        "another program changes the agent's resctrl groups",
        "The schemata of a group of the agent have other values again and again.",
        _NOT_DIVIDED,
        "stop the other program, or set enforce.strategies.resctrl to off",
    ),
    RunbookEntry(
        "ResctrlExhausted",
        "the processor has too few resctrl groups",
        "More different values are asked for than the processor has groups (CLOSIDs).",
        _NOT_DIVIDED,
        "ask for fewer different values: classes with equal values share a group",
    ),
    RunbookEntry(
        "ResctrlRefused",
        "the kernel refuses a resctrl value",
        "A line of schemata is outside what the processor accepts.",
        _NOT_DIVIDED,
        "take the values that the message names out of the NodeSLO or the annotation",
    ),
    RunbookEntry(
        "ResctrlMaskInvalid",
        "a range of the cache is not possible",
        "The percentages of a class give no valid cache mask on this processor.",
        _NOT_DIVIDED,
        "correct catRangeStartPercent and catRangeEndPercent in the NodeSLO",
    ),
    RunbookEntry(
        "ResctrlBandwidthUnknown",
        "the memory bandwidth of the machine is unknown",
        "resctrl is mounted with mba_MBps, and the bandwidth of a domain is not known.",
        "Memory bandwidth is not limited.",
        "set resctrl.domain_mbps, or mount resctrl without mba_MBps",
    ),
    RunbookEntry(
        "ResctrlAnnotationInvalid",
        "the resctrl annotation of a pod is not valid",
        "node.koordinator.sh/resctrl of a pod cannot be used.",
        "The pod is in the group of its class.",
        "correct the pod's annotation node.koordinator.sh/resctrl",
    ),
    RunbookEntry(
        "ResctrlMonitorExhausted",
        "the processor cannot monitor all pods",
        "There are more pods than monitoring groups (RMIDs).",
        "Cache and bandwidth usage of some pods is absent.",
        "set resctrl.monitor_pods to false, or run fewer pods",
        RecommendedAction.LOOK,
    ),
)
