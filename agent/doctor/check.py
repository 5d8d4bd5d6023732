"""A check: one question about a node, answered by a pure function of the inputs of all checks."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping

import msgspec

from agent.config.settings import Settings
from agent.doctor.facts import (
    ApiFacts,
    ClockFacts,
    ContainerRequest,
    EndpointFacts,
    FolderFacts,
    LedgerFacts,
    LockFacts,
    VendorFacts,
)
from agent.doctor.node_report import NodeReport
from agent.errors import ParseError
from agent.runbook.runbook import OWN_RUNBOOK, Runbook
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.slo import NodeSlo
from agent.wire_formats.snapshot_json import slo_from_json


class CheckStatus(enum.Enum):
    """Status of one check; `SKIP` means that it could not be done, never that all is well."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


class CheckGroup(enum.Enum):
    """The groups of checks, in the order in which they are done."""

    AGENT = "agent"
    API_SERVER = "api-server"
    RIGHTS = "rights"
    NODE = "node"
    KERNEL = "kernel"
    CGROUP = "cgroup"
    DRIVERS = "drivers"
    DEVICES = "devices"
    TOPOLOGY = "topology"
    GPUDIRECT = "gpudirect"
    KUBELET = "kubelet"
    RUNTIME = "runtime"
    CDI = "cdi"
    CONTAINERS = "containers"
    ENFORCEMENT = "enforcement"
    OTHER_AGENTS = "other-agents"
    TIME = "time"
    STATE = "state"
    METRICS = "metrics"


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The observation of one check, its impact, and the remedy.

    A check that has one result for each device or pod puts its name behind that of the check.
    """

    id: str
    status: CheckStatus
    observation: str
    impact: str = ""
    remedy: str = ""
    reason: str = ""  # CamelCase reason of the agent that the result is about; empty: none
    vendor: str = ""  # the plug-in that reported the reason; empty: the agent itself
    message: str = ""  # of the reason


class RuntimeProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A container runtime whose process runs here."""

    name: str  # containerd, crio
    pid: int
    memlock_bytes: int | None = None  # its soft limit, which containers get; None: unlimited
    is_memlock_known: bool = False
    is_nri_disabled: bool | None = None  # by its settings; None: they do not set it


class CheckInputs(msgspec.Struct, frozen=True, kw_only=True):
    """All data that checks need.

    `node` is for checks of vendors and devices: the report of the running agent if one answers,
    because a single discovery does not show events and earlier failures.
    """

    settings: Settings
    snapshot: NodeSnapshot  # one reading of this host, with device nodes and files for containers
    node: NodeReport
    # discovery by this command, for a comparison; None: it is `node`
    discovery: NodeReport | None = None
    runbook: Runbook = OWN_RUNBOOK
    is_live: bool  # this machine, not a recording
    is_root: bool = False  # this process may read all files
    # snapshot of the running agent; None: no agent answers
    agent: Mapping[str, object] | None = None
    agent_problem: str = ""  # why no agent answers, or why its answer is not used
    # checks of the running agent on itself, by name: whether it is well, and a message
    self_checks: Mapping[str, tuple[bool, str]] | None = None
    runtimes: tuple[RuntimeProcess, ...] = ()
    # states of the vendors' workers, by pid, as psutil names them
    process_states: Mapping[int, str] = {}
    # names of this machine's processes, each with the first pid; None: they are not visible
    processes: Mapping[str, int] | None = None
    paths: frozenset[str] = frozenset()  # existing paths, of those that checks need
    texts: Mapping[str, str] = {}  # content of the readable files that checks need, by path
    device_runtimes: tuple[
        str, ...
    ] = ()  # parts of names of runtimes that give devices by variables
    char_links: Mapping[str, bool] = {}  # device node: whether systemd finds it by its number
    cgroup_version: int | None = None
    cgroup_driver: str | None = None  # None: there is no cgroup of a kubelet
    # of the cgroups of pods, as their version names them; None: they are not known
    controllers: frozenset[str] | None = None
    # whether the kubelet's cgroup has the file of CPU burst; None: there is no such cgroup
    has_burst_file: bool | None = None
    resctrl: str = ""  # mounted, unmounted, unsupported; empty: unknown
    resctrl_groups: int | None = None  # number of control groups; None: not mounted
    kubelet: str = ""  # evidence of a kubelet on this node, as text; empty: none
    protobuf: str = ""  # implementation
    vendors: Mapping[str, VendorFacts] = {}  # of the vendors with devices here, by name
    api: ApiFacts = ApiFacts()
    lock: LockFacts | None = None  # None: there is no lock file
    machine_id: str = ""
    clock: ClockFacts | None = None  # None: the kernel was not asked
    folders: Mapping[str, FolderFacts] = {}  # by setting: node.state_dir, node.run_dir, cdi.dir
    ledger: LedgerFacts | None = None  # None: there is no ledger
    state_problems: Mapping[str, str] | None = None  # by file of node.state_dir; None: not read
    metrics_port: EndpointFacts | None = None  # None: not asked
    kubelet_health: EndpointFacts | None = None
    pod_resources: EndpointFacts | None = None
    plugin_sockets: tuple[str, ...] | None = None  # of the kubelet's folder for device plug-ins
    cut_series: float | None = None  # series that the running agent left out of /metrics
    # containers whose environment requests devices; None: they cannot be inspected
    requests: tuple[ContainerRequest, ...] | None = None

    def container_part(self, name: str) -> Mapping[str, object]:
        """Return a part about containers of the running agent's snapshot; empty if unknown."""
        groups = (self.agent or {}).get("containers")
        part = groups.get(name) if isinstance(groups, Mapping) else None
        value = part.get("value") if isinstance(part, Mapping) else None
        return value if isinstance(value, Mapping) else {}

    def cluster_part(self, name: str) -> Mapping[str, object]:
        """Return a part of the cluster of the running agent's snapshot; empty if unknown."""
        value: object = self.agent
        for key in ("cluster", name, "value"):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value if isinstance(value, Mapping) else {}

    @property
    def node_slo(self) -> NodeSlo | None:
        """Return the NodeSLO that the running agent has; `None` if there is none."""
        value = self.cluster_part("slo")
        if not value.get("found"):
            return None
        try:
            return slo_from_json(value.get("slo"))
        except ParseError:
            return None

    def runs(self, name: str) -> int | None:
        """Return the pid of a process of this name; `None` if none runs or none is visible.

        The kernel cuts the names of processes.
        """
        return (self.processes or {}).get(name[:MAX_PROCESS_NAME])


MAX_PROCESS_NAME = 15  # characters of a name that the kernel stores

RECORDED = "a recorded host"
NO_DEVICE = "no accelerator and no RDMA device"
NO_REQUEST = "no agent answers, or no NodeSLO asks for it"
PROCESSES_HIDDEN = "the processes of this machine are not visible: hostPID, or run it on the node"

CheckRun = Callable[[CheckInputs], Iterator[CheckResult]]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One question about a node."""

    id: str
    group: CheckGroup
    question: str  # the answer is yes if all is well
    run: CheckRun
    # why there is nothing to check if `run` yields nothing: the check is then skipped
    absence: str = "nothing to check here"


def ok(check: str, observation: str) -> CheckResult:
    """Return that all is well."""
    return CheckResult(id=check, status=CheckStatus.OK, observation=observation)


def skip(check: str, reason: str) -> CheckResult:
    """Return that a check could not be done."""
    return CheckResult(id=check, status=CheckStatus.SKIP, observation=reason)


def warn(check: str, observation: str, *, impact: str, remedy: str) -> CheckResult:
    """Return something that works, but that a person should check."""
    return CheckResult(
        id=check,
        status=CheckStatus.WARN,
        observation=observation,
        impact=impact,
        remedy=remedy,
    )


def fail(check: str, observation: str, *, impact: str, remedy: str) -> CheckResult:
    """Return something that does not work."""
    return CheckResult(
        id=check,
        status=CheckStatus.FAIL,
        observation=observation,
        impact=impact,
        remedy=remedy,
    )


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun: 1 file, 3 files."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def join_names(names: list[str], most: int = 8) -> str:
    """Return names separated by commas; of many only the first ones and the number of others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
