"""Entries of vendors' workers: the processes that call the vendors' libraries."""

from __future__ import annotations

from agent.runbook.entry import FaultCategory, RecommendedAction, RunbookEntry

_HANG_REMEDY = "see why the driver hangs in the kernel's log (hung task, Xid)"
_CRASH_REMEDY = "see the agent's log for the worker's last words; update the driver's library"
_IMPACT = (
    "The vendor's devices keep their last state; after a minute it is unknown, after five minutes "
    "they are out of service. Other vendors go on."
)
_RESTARTED = "The agent starts the worker again, after a growing pause."

WORKER_ENTRIES = (
    RunbookEntry(
        "Late",
        "the worker gave no answer in time",
        f"A call of the vendor's library took longer than its deadline. {_RESTARTED}",
        _IMPACT,
        _HANG_REMEDY,
        RecommendedAction.LOOK,
        FaultCategory.DRIVER,
    ),
    RunbookEntry(
        "EventsStuck",
        "the worker's wait for events does not end",
        f"The library's wait for events did not return in time. {_RESTARTED}",
        _IMPACT,
        _HANG_REMEDY,
        RecommendedAction.LOOK,
        FaultCategory.DRIVER,
    ),
    RunbookEntry(
        "Unkillable",
        "a worker process cannot be ended",
        "The process hangs in the kernel (state D), and no signal ends it.",
        _IMPACT,
        "reboot the node: a process of the driver cannot be ended any more",
        RecommendedAction.REBOOT,
        FaultCategory.DRIVER,
    ),
    RunbookEntry(
        "Closed",
        "the worker ended",
        f"The process of the vendor's library crashed or was killed. {_RESTARTED}",
        _IMPACT,
        _CRASH_REMEDY,
        RecommendedAction.LOOK,
        FaultCategory.DRIVER,
    ),
    RunbookEntry(
        "Garbage",
        "the worker sent something else than an answer",
        f"A line of the worker is no valid message. {_RESTARTED}",
        _IMPACT,
        _CRASH_REMEDY,
    ),
    RunbookEntry(
        "TooLong",
        "an answer of the worker is too long",
        f"A line of the worker is longer than the agent accepts. {_RESTARTED}",
        _IMPACT,
        _CRASH_REMEDY,
    ),
    RunbookEntry(
        "Flood",
        "the worker sends more than it was asked for",
        f"The worker sent more events than the agent accepts in the time. {_RESTARTED}",
        _IMPACT,
        _CRASH_REMEDY,
    ),
    RunbookEntry(
        "MemoryLimit",
        "the worker uses too much memory",
        "The vendor's library made the worker larger than discovery.worker_memory_bytes. The "
        "agent replaces the process.",
        "Answers are delayed by a restart of the worker.",
        "update the driver's library, which leaks; or raise discovery.worker_memory_bytes",
    ),
    RunbookEntry(
        "StartFailed",
        "the worker could not be started",
        "The kernel refused to start the worker's process.",
        _IMPACT,
        "see the agent's log: the worker's process could not be started",
    ),
    RunbookEntry(
        "LibraryReplaced",
        "the vendor's library was updated",
        "The library's file changed on disk. A new worker loads the new one.",
        "Answers are delayed by a restart of the worker.",
        "nothing: the worker starts again with the new library",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "BadConfig",
        "the settings of the vendor are not valid",
        "The worker refuses the settings of the vendor.",
        "The vendor's devices are listed with what sysfs has.",
        "correct discovery.VENDOR as the message says, and restart the agent",
    ),
    RunbookEntry(
        "NotRunning",
        "no worker of the vendor runs",
        "A request came while the worker was ended or was not started yet.",
        "The request is refused.",
        "try again; see the state of the vendor in `xpu-agent devices`",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "Busy",
        "too many requests wait for the worker",
        "More requests wait for the vendor's worker than its queue holds.",
        "The request is refused.",
        f"try again; if it goes on, {_HANG_REMEDY}",
    ),
    RunbookEntry(
        "UnexpectedError",
        "the vendor plug-in failed",
        "The plug-in raised an error that it should not: a bug of the plug-in or an answer of the "
        "driver that nobody expected.",
        _IMPACT,
        "report it with `xpu-agent doctor --bundle FILE`; see the agent's log",
    ),
    RunbookEntry(
        "VendorFault",
        "a call of the vendor's library failed",
        "The library answered a call with an error that is not classified.",
        "The facts of that call are missing.",
        _CRASH_REMEDY,
        RecommendedAction.LOOK,
        FaultCategory.DRIVER,
    ),
    RunbookEntry(
        "HostFileError",
        "a file of the host cannot be read",
        "The vendor plug-in needs a file of the host, and the kernel refuses it or fails.",
        _IMPACT,
        "see the message: /sys, /proc and /dev have to be the host's in the agent's container",
    ),
    RunbookEntry(
        "ParseError",
        "an answer or a file has an unexpected form",
        "The vendor plug-in cannot understand what a file or a tool has.",
        _IMPACT,
        "see the message; report it with the version of driver and tool",
    ),
    RunbookEntry(
        "CallSuspended",
        "a library call that hung before is left out",
        "A call about a device hung or crashed, so it is not made for a while; see CallHung.",
        "A fact of the device is missing.",
        _HANG_REMEDY,
        RecommendedAction.LOOK,
        FaultCategory.DRIVER,
    ),
    RunbookEntry(
        "LibraryUnavailable",
        "the vendor's library cannot be used",
        "The library is missing, is not trusted, or could not be loaded.",
        "The devices are listed with what sysfs has, and cannot be allocated.",
        "see the message; install the library of the driver's own version",
        RecommendedAction.LOOK,
        FaultCategory.DRIVER,
    ),
    RunbookEntry(
        "ToolFailed",
        "the vendor's tool failed",
        "The tool that is asked in place of the library ended with an error.",
        "Facts of the devices are missing.",
        "run the tool on the node; see the kernel's log",
        RecommendedAction.LOOK,
        FaultCategory.DRIVER,
    ),
    RunbookEntry(
        "ToolTimedOut",
        "the vendor's tool gave no answer in time",
        "The tool that is asked in place of the library was ended after its deadline.",
        "Facts of the devices are missing.",
        _HANG_REMEDY,
        RecommendedAction.LOOK,
        FaultCategory.DRIVER,
    ),
    RunbookEntry(
        "VendorWorkerStalled",
        "a worker hangs",
        "The event names the vendor and the reason.",
        _IMPACT,
        "see the entry of the reason in the message",
    ),
    RunbookEntry(
        "VendorWorkerRestarting",
        "a worker ended and starts again",
        "The event names the vendor and the reason.",
        _IMPACT,
        "see the entry of the reason in the message",
    ),
    RunbookEntry(
        "VendorWorkerQuarantined",
        "a worker ended too often",
        "The worker ended again and again. The agent waits before it starts the next one.",
        _IMPACT,
        "see the entry of the reason in the message; `xpu-agent rescan` starts it at once",
    ),
)
