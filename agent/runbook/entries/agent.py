"""Entries of the agent itself: its loops, its lock, its files, its release on request."""

from __future__ import annotations

from agent.runbook.entry import RecommendedAction, RunbookEntry

UNLISTED = RunbookEntry(
    "Unlisted",
    "a reason without an entry",
    "The vendor plug-in that reports the reason has no entry for it.",
    "See the message.",
    "see `xpu-agent devices`, and the kernel's log of that time",
)

AGENT_ENTRIES = (
    RunbookEntry(
        "LoopLate",
        "a loop of the agent does not run",
        "The last good run of the loop is older than three of its intervals.",
        "The agent is not ready; what the loop reads or writes is old.",
        "see the message and the agent's log; a file system or the node's CPUs may hang",
    ),
    RunbookEntry(
        "LoopFailing",
        "a loop of the agent fails",
        "The last runs of the loop raised an error. It runs again after a growing pause.",
        "What the loop reads or writes is old.",
        "see the message; report it with `xpu-agent doctor --bundle FILE`",
    ),
    RunbookEntry(
        "SelfCheckFailed",
        "a check of the agent on itself failed",
        "The message names the part of the agent.",
        "See the message.",
        "see /healthz?verbose and the agent's log",
    ),
    RunbookEntry(
        "MetricsAccessStale",
        "changed certificates or passwords of the metrics are not in force",
        "A file of metrics.tls or metrics.web_config_file was changed, and cannot be used.",
        "The certificate and the rules before stay in force; that certificate may expire.",
        "see the message; correct the Secret or the file: it is read again within seconds",
    ),
    RunbookEntry(
        "LockLost",
        "the lock of the node is missing",
        "The lock file in node.run_dir could not be taken, or was removed or replaced.",
        "A second agent could write at the same time.",
        "make node.run_dir writable, and restart the agent",
    ),
    RunbookEntry(
        "AdminSocketMissing",
        "the agent's admin socket is missing",
        "The socket in node.run_dir cannot be made, or was removed.",
        "`xpu-agent rescan`, `release` and `clear` do not reach the agent.",
        "make node.run_dir writable, and restart the agent",
    ),
    RunbookEntry(
        "AdminRefused",
        "a request at the admin socket was refused",
        "Somebody else than root or the agent's user asked.",
        "Nothing was changed.",
        "run the command as root",
    ),
    RunbookEntry(
        "AdminRescan",
        "somebody asked for a new discovery",
        "root or the agent's user ran `xpu-agent rescan`. The event records it.",
        "The vendors were asked again.",
        "nothing",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "AdminRelease",
        "somebody released a driver",
        "root or the agent's user ran `xpu-agent release`. The event records it.",
        "The vendor's devices keep their last state until a rescan.",
        "nothing; `xpu-agent rescan` ends it",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "AdminClear",
        "somebody cleared a fault",
        "root or the agent's user ran `xpu-agent clear`. The event records it.",
        "The device comes back into service when its checks are good.",
        "nothing",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "AdminLoglevel",
        "somebody changed the log level",
        "root or the agent's user changed it at the admin socket. The event records it.",
        "The agent logs more or less than its settings say, until its restart.",
        "nothing",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "AgentEndedUnexpectedly",
        "the last agent ended without leaving",
        "The agent before this one was killed, ran out of memory or crashed.",
        "The node was without an agent until now.",
        "see the log of the last agent (`kubectl logs --previous`) and the kernel's log",
    ),
    RunbookEntry(
        "HealthNotStored",
        "faults of devices do not survive a restart",
        "The file of health states in node.state_dir is missing or cannot be written.",
        "After a restart of the agent a failed device may be in service until its next check.",
        "set node.state_dir, make room there, and make it writable for the agent",
    ),
    RunbookEntry(
        "MinorsNotStored",
        "numbers of devices do not survive a restart",
        "The file of published minors in node.state_dir is missing or cannot be written.",
        "A restart takes the minors from the Device object.",
        "set node.state_dir, make room there, and make it writable for the agent",
        RecommendedAction.LOOK,
    ),
    RunbookEntry(
        "EventFileNotWritten",
        "the event file cannot be written",
        "The output folder is full, read-only or hangs.",
        "Events are on the page only.",
        "make room, and make the folder of --out writable for the agent",
    ),
    UNLISTED,
)
