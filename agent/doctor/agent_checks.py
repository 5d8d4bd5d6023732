"""Checks of the agent itself: whether it runs, its lock, restarts, state on the disk, clock."""

from __future__ import annotations

from collections.abc import Iterator

from agent.doctor.check import (
    RECORDED,
    Check,
    CheckGroup,
    CheckInputs,
    CheckResult,
    count_of,
    fail,
    join_names,
    ok,
    skip,
    warn,
)
from agent.doctor.facts import FolderFacts
from agent.version import VERSION

MIN_FREE_BYTES = 64 << 20
MIN_FREE_INODES = 1000
MAX_RESTARTS = 3  # of a pod or a worker: more are a loop
MAX_CLOCK_ERROR_S = 1.0
NO_AGENT = "no agent answers"
NO_STATE_DIR = "node.state_dir is not set"

# checks of the agent on itself that other checks of this command report with more detail
_REPORTED_ELSEWHERE = ("vendor:", "kubelet", "runtime", "lock")
_SELF_CHECK_REMEDIES = {
    "loop": "see the agent's log of the failing loop; restart the pod if it does not come back",
    "part": "see the message; the agent reads again by itself",
    "watch": "give the account the right to list and watch it, or install its CRD",
    "node": "set node.name (XPU_AGENT_NODE__NAME) to the Node of this machine",
    "api-server": "see the checks of the API server below",
    "cdi-files": "make cdi.dir writable",
    "pod-files": "see the message; nothing is changed until then",
    "publisher": "see the message; the agent tries again by itself",
}


def check_agent(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether an agent answers on this node."""
    if not facts.is_live:
        return
    if facts.agent is not None and not facts.agent_problem:
        yield ok("agent", "answers")
        return
    if facts.agent is not None:
        yield warn(
            "agent",
            facts.agent_problem,
            impact="devices are checked by a new discovery, which has seen no earlier fault",
            remedy="run the doctor of the agent's version: kubectl exec POD -- xpu-agent doctor",
        )
        return
    yield warn(
        "agent",
        facts.agent_problem or "none answers",
        impact="checks of what it does now are skipped",
        remedy="start it, or name its settings with --config",
    )


def check_version(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the agent that holds the lock has the version of this command."""
    if facts.lock is None or not facts.lock.version:
        return
    if facts.lock.version == VERSION:
        yield ok("agent-version", f"{VERSION}, as this command")
        return
    yield warn(
        "agent-version",
        f"the lock names version {facts.lock.version}, this command is {VERSION}",
        impact="this command may misread what that agent stores and answers",
        remedy="run the doctor of that agent: kubectl exec POD -- xpu-agent doctor; after an "
        "upgrade let the rollout end first",
    )


def check_self_checks(facts: CheckInputs) -> Iterator[CheckResult]:
    """Report what the running agent finds wrong with itself."""
    checks = facts.self_checks
    if checks is None:
        return
    failed = [
        (name, message)
        for name, (is_well, message) in checks.items()
        if not is_well and not name.startswith(_REPORTED_ELSEWHERE)
    ]
    for name, message in failed:
        remedy = _SELF_CHECK_REMEDIES.get(name.partition(":")[0], "see the agent's log")
        yield warn(
            f"self-checks:{name}",
            message or "it does not work",
            impact="the agent does this part of its work late or not at all",
            remedy=remedy,
        )
    if not failed:
        yield ok("self-checks", f"{len(checks)} checks of the agent on itself are well")


def check_lock(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check who holds the lock of this node, and whether its last holder crashed."""
    if not facts.is_live:
        yield skip("lock", RECORDED)
        return
    lock = facts.lock
    if lock is None:
        yield skip("lock", f"no lock in {facts.settings.node.run_dir}: no agent has run for a Node")
    elif lock.is_locked is None:
        yield skip("lock", f"{lock.path}: whether it is locked cannot be read")
    elif lock.is_locked:
        holder = lock.holder or "a process that left no name"
        if facts.agent is None:
            yield warn(
                "lock",
                f"{holder} holds {lock.path}, and no agent answers",
                impact="another agent waits until that process ends",
                remedy="see whether that process hangs; metrics.listen of these settings may "
                "also be another address than that agent's",
            )
        else:
            yield ok("lock", f"{holder} holds {lock.path}")
    elif facts.agent is not None:
        yield skip(
            "lock", f"nobody holds {lock.path}: the agent that answers runs without a cluster"
        )
    elif lock.has_left or not lock.holder:
        yield ok("lock", f"nobody holds {lock.path}; its last holder stopped on request")
    else:
        yield warn(
            "lock",
            f"nobody holds {lock.path}; {lock.holder} ended without leaving",
            impact="it was killed, ran out of memory or crashed: nothing is published now",
            remedy="see kubectl logs --previous of the agent's pod and the kernel's log (OOM)",
        )


def check_agent_restarts(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the agent's pod restarts again and again."""
    reply = facts.api.replies.get("agent-pods")
    if reply is None or reply.problem:
        yield skip("agent-restarts", facts.api.absence or _reply_problem(facts, "agent-pods"))
        return
    items = reply.document.get("items")
    pods = [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []
    if not pods:
        yield skip("agent-restarts", "the namespace has no pod of the agent on this node")
        return
    for pod in pods:
        count, cause = _restarts(pod)
        metadata = pod.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if count > MAX_RESTARTS:
            yield warn(
                "agent-restarts",
                f"pod {name}: {count} restarts{f', the last one: {cause}' if cause else ''}",
                impact="after each restart devices, watches and files of pods are read again",
                remedy="raise its memory limit if the cause is OOMKilled; else see kubectl logs "
                "--previous",
            )
        else:
            yield ok("agent-restarts", f"pod {name}: {count} restarts")


def _restarts(pod: dict[str, object]) -> tuple[int, str]:
    """Return how often the containers of a pod were restarted, and the cause of the last end."""
    status = pod.get("status")
    rows = status.get("containerStatuses") if isinstance(status, dict) else None
    count, cause = 0, ""
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict):
            continue
        number = row.get("restartCount")
        count += number if isinstance(number, int) else 0
        value: object = row.get("lastState")
        for key in ("terminated", "reason"):
            value = value.get(key) if isinstance(value, dict) else None
        cause = value if isinstance(value, str) else cause
    return count, cause


def _reply_problem(facts: CheckInputs, name: str) -> str:
    """Return why the API server gave no answer to a request."""
    reply = facts.api.replies.get(name)
    if reply is not None and reply.problem:
        return reply.problem
    return facts.api.problem or "the API server did not answer in time"


def check_worker_restarts(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the process of a vendor is started again and again."""
    if facts.discovery is None or not facts.node.vendors:
        return
    many = [state for state in facts.node.vendors if state.restarts > MAX_RESTARTS]
    for state in many:
        yield warn(
            f"worker-restarts:{state.vendor}",
            f"its process was started {state.restarts} times again",
            impact="between two starts no event of its devices is seen",
            remedy="see the agent's log for the worker's last words; update driver and library",
        )
    if not many:
        yield ok("worker-restarts", f"at most {max(s.restarts for s in facts.node.vendors)}")


def check_privileges(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether this process may read everything."""
    if not facts.is_live:
        yield skip("privileges", RECORDED)
    elif facts.is_root:
        yield ok("privileges", "root")
    else:
        yield warn(
            "privileges",
            "an ordinary user",
            impact="sockets, limits and logs of others cannot be looked at; checks are skipped",
            remedy="run it as root",
        )


def check_protobuf(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether messages of the runtime are decoded by compiled code."""
    if facts.protobuf != "python":
        yield ok("protobuf", facts.protobuf)
        return
    yield fail(
        "protobuf",
        facts.protobuf,
        impact="a list of the runtime takes a second to decode: it hangs up after two",
        remedy="install protobuf's wheel for this platform",
    )


def check_state_folder(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the folder of the agent's state can be written."""
    yield from _folder_result(
        facts,
        "state-dir",
        "node.state_dir",
        impact="published numbers of devices, health and original values of files are lost at the "
        "next restart, and nothing of the node is changed until then",
    )


def check_run_folder(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the folder of the lock can be written."""
    yield from _folder_result(
        facts,
        "run-dir",
        "node.run_dir",
        impact="the agent cannot take the lock of this node and does not start",
    )


def _folder_result(
    facts: CheckInputs, check: str, setting: str, *, impact: str
) -> Iterator[CheckResult]:
    folder = facts.folders.get(setting)
    if folder is None:
        yield skip(check, RECORDED if not facts.is_live else f"{setting} is not set")
        return
    if not folder.exists:
        yield warn(
            check,
            f"{folder.path} is not there",
            impact=impact,
            remedy=f"create it, or set {setting}; the agent's pod mounts it from the host",
        )
    elif folder.is_read_only:
        yield fail(
            check,
            f"{folder.path} is on a file system that is mounted read-only",
            impact=impact,
            remedy="mount it writable; after errors of the disk see the kernel's log (remounted "
            "read-only), and fsck",
        )
    elif not folder.is_writable:
        yield fail(
            check,
            f"{folder.path} cannot be written by this user",
            impact=impact,
            remedy="run as root, or give the folder to the agent's user",
        )
    else:
        yield ok(check, f"{folder.path} is writable")


def check_disk_space(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether there is room for the agent's files."""
    folders = [folder for folder in facts.folders.values() if folder.exists]
    if not folders:
        yield skip("disk-space", RECORDED if not facts.is_live else NO_STATE_DIR)
        return
    full = {folder.path: text for folder in folders if (text := _shortage(folder))}
    for path, text in full.items():
        yield fail(
            f"disk-space:{path}",
            text,
            impact="state of the agent is not stored: the ledger, minors and health of devices",
            remedy="free space on that file system; see crictl rmi --prune and large logs",
        )
    if not full:
        yield ok("disk-space", join_names([folder.path for folder in folders]))


def _shortage(folder: FolderFacts) -> str:
    """Return what is short on the file system of a folder; empty if nothing is."""
    if folder.free_bytes is not None and folder.free_bytes < MIN_FREE_BYTES:
        return f"{folder.path}: {folder.free_bytes >> 20} MiB free"
    if folder.free_inodes is not None and folder.free_inodes < MIN_FREE_INODES:
        return f"{folder.path}: {folder.free_inodes} inodes free"
    return ""


def check_ledger(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the ledger of original values can be read."""
    ledger = facts.ledger
    if ledger is None:
        yield skip("ledger", "no ledger: the agent has changed no file here" if facts.is_live
                   else RECORDED)  # fmt: skip
        return
    impact = "what the agent changed may not be put back when it leaves"
    if ledger.problem:
        yield fail("ledger", f"{ledger.path}: {ledger.problem}", impact=impact,
                   remedy="make the file readable; the agent never overwrites one that it cannot "
                   "read")  # fmt: skip
    elif ledger.damaged or ledger.is_put_aside:
        lines = f"{ledger.damaged} of {ledger.lines} lines are damaged"
        text = lines if ledger.damaged else "a damaged copy was put aside"
        yield warn("ledger", f"{ledger.path}: {text}", impact=impact,
                   remedy=f"look at {ledger.path}.bad, put its values back by hand, and remove "
                   "it; check the disk")  # fmt: skip
    elif ledger.newer:
        yield warn("ledger", f"{ledger.path}: {ledger.newer} lines of a newer version",
                   impact="this version keeps them and cannot put their values back",
                   remedy="run xpu-agent restore of the newer version")  # fmt: skip
    else:
        yield ok("ledger", f"{ledger.path}: {ledger.lines} lines")


def check_state_files(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the other files of the agent's state can be decoded."""
    problems = facts.state_problems
    if problems is None:
        yield skip("state-files", NO_STATE_DIR if facts.is_live else RECORDED)
        return
    bad = {name: text for name, text in problems.items() if text}
    for name, text in bad.items():
        yield warn(
            f"state-files:{name}",
            text,
            impact="the agent starts without it: numbers of devices may change, and faults and "
            "predictions begin anew",
            remedy="nothing: the agent writes it again; check the disk if it happens again",
        )
    if not bad:
        yield ok("state-files", f"{count_of(len(problems), 'file')} can be decoded")


def check_clock_sync(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the kernel's clock is synchronised."""
    clock = facts.clock
    if clock is None:
        yield skip("clock-sync", RECORDED if not facts.is_live else "the kernel does not report it")
        return
    if clock.is_synchronised and clock.max_error_s <= MAX_CLOCK_ERROR_S:
        yield ok("clock-sync", f"synchronised within {clock.max_error_s * 1000:.0f} ms")
        return
    text = "not synchronised"
    if clock.is_synchronised:
        text = f"synchronised within {clock.max_error_s:.1f} s only"
    yield warn(
        "clock-sync",
        text,
        impact="ages of NodeMetric and NodeSLO are wrong: pods are placed by old usage, and "
        "certificates and tokens may be refused",
        remedy="start chrony or systemd-timesyncd, and let it reach its servers",
    )


def check_clock_skew(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check how far the API server's clock is from this machine's."""
    skew_s = facts.api.clock_skew_s
    if skew_s is None:
        yield skip("clock-skew", facts.api.absence or facts.api.problem or "it sent no time")
    elif abs(skew_s) < MAX_CLOCK_ERROR_S:
        yield ok("clock-skew", "within a second of the API server's")
    else:
        yield warn(
            "clock-skew",
            f"the API server's clock is {skew_s:+.0f} s from this machine's",
            impact="koord-manager and schedulers judge the age of NodeMetric by their own clock",
            remedy="synchronise both clocks: chronyc tracking",
        )


CHECKS = (
    Check(
        id="agent",
        group=CheckGroup.AGENT,
        question="Does the agent of this node answer?",
        run=check_agent,
        absence=RECORDED,
    ),
    Check(
        id="agent-version",
        group=CheckGroup.AGENT,
        question="Has the running agent the version of this command?",
        run=check_version,
        absence="no lock names a version",
    ),
    Check(
        id="self-checks",
        group=CheckGroup.AGENT,
        question="Are the running agent's checks on itself well?",
        run=check_self_checks,
        absence=NO_AGENT,
    ),
    Check(
        id="lock",
        group=CheckGroup.AGENT,
        question="Does the running agent hold the lock, and did the last one stop in order?",
        run=check_lock,
    ),
    Check(
        id="agent-restarts",
        group=CheckGroup.AGENT,
        question="Does the agent's pod run without restarts again and again?",
        run=check_agent_restarts,
    ),
    Check(
        id="worker-restarts",
        group=CheckGroup.AGENT,
        question="Do the vendors' worker processes run without restarts again and again?",
        run=check_worker_restarts,
        absence=NO_AGENT,
    ),
    Check(
        id="privileges",
        group=CheckGroup.AGENT,
        question="May this command read everything?",
        run=check_privileges,
    ),
    Check(
        id="protobuf",
        group=CheckGroup.AGENT,
        question="Are the runtime's messages decoded by compiled code?",
        run=check_protobuf,
    ),
    Check(
        id="clock-sync",
        group=CheckGroup.TIME,
        question="Is this machine's clock synchronised?",
        run=check_clock_sync,
    ),
    Check(
        id="clock-skew",
        group=CheckGroup.TIME,
        question="Is the API server's clock near this machine's?",
        run=check_clock_skew,
    ),
    Check(
        id="state-dir",
        group=CheckGroup.STATE,
        question="Can the folder of the agent's state be written?",
        run=check_state_folder,
    ),
    Check(
        id="run-dir",
        group=CheckGroup.STATE,
        question="Can the folder of the lock be written?",
        run=check_run_folder,
    ),
    Check(
        id="disk-space",
        group=CheckGroup.STATE,
        question="Is there room for the agent's files?",
        run=check_disk_space,
    ),
    Check(
        id="ledger",
        group=CheckGroup.STATE,
        question="Can the ledger of original values be read?",
        run=check_ledger,
    ),
    Check(
        id="state-files",
        group=CheckGroup.STATE,
        question="Can the other files of the agent's state be decoded?",
        run=check_state_files,
    ),
)
