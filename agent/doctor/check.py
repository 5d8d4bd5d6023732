"""A check: a pure function of its inputs that returns a result with a remedy."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from agent.config.settings import Settings
from agent.doctor.node_report import NodeReport
from agent.runbook.runbook import OWN_RUNBOOK, Runbook
from agent.snapshot.node import NodeSnapshot


class CheckStatus(enum.Enum):
    """Status of one check; `SKIP` means that it could not be done, never that all is well."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The observation of one check, its impact, and the remedy."""

    id: str
    status: CheckStatus
    observation: str
    impact: str = ""
    remedy: str = ""


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
    runtimes: tuple[RuntimeProcess, ...] = ()
    # states of the vendors' workers, by pid, as psutil names them
    process_states: Mapping[int, str] = {}
    paths: frozenset[str] = frozenset()  # existing paths, of those that checks need
    device_runtimes: tuple[
        str, ...
    ] = ()  # parts of names of runtimes that give devices by variables
    char_links: Mapping[str, bool] = {}  # device node: whether systemd finds it by its number
    cgroup_version: int | None = None
    cgroup_driver: str | None = None  # None: there is no cgroup of a kubelet
    # of the cgroups of pods, as their version names them; None: they are not known
    controllers: frozenset[str] | None = None
    resctrl: str = ""  # mounted, unmounted, unsupported; empty: unknown
    kubelet: str = ""  # evidence of a kubelet on this node, as text; empty: none
    protobuf: str = ""  # implementation

    def container_part(self, name: str) -> Mapping[str, object]:
        """Return a part about containers of the running agent's snapshot; empty if unknown."""
        groups = (self.agent or {}).get("containers")
        part = groups.get(name) if isinstance(groups, Mapping) else None
        value = part.get("value") if isinstance(part, Mapping) else None
        return value if isinstance(value, Mapping) else {}
