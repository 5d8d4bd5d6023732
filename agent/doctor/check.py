"""A check: a pure function of its inputs that returns a result with a remedy."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

import msgspec

from agent.config.settings import Settings
from agent.doctor.node_report import NodeReport
from agent.snapshot.node import NodeSnapshot


class CheckStatus(enum.Enum):
    """Status of one check; `SKIP` means that it could not be done, never that all is well."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one check saw, why it matters, and what to do."""

    id: str
    status: CheckStatus
    observation: str
    impact: str = ""
    remedy: str = ""


class RuntimeProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A container runtime that runs here."""

    name: str  # containerd, crio
    pid: int
    memlock_bytes: int | None = None  # its soft limit, which containers get; None: unlimited
    is_memlock_known: bool = False
    is_nri_disabled: bool | None = None  # by its settings; None: they do not say


RemedyLookup = Callable[[str, str, str], str]  # name of the vendor plug-in, reason, message


def no_remedy(_vendor: str, _reason: str, _message: str) -> str:
    """Return an empty text: no vendor names a remedy."""
    return ""


class CheckInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that checks look at.

    `node` is what checks of vendors and devices go by: the report of the running agent if one
    answers, because a single discovery does not see events and earlier failures.
    """

    settings: Settings
    snapshot: NodeSnapshot  # of one look, with what the host has for containers
    node: NodeReport
    discovery: NodeReport | None = None  # by this command, for a comparison; None: `node` is it
    remedy: RemedyLookup = no_remedy
    is_live: bool  # this machine, not a recording
    is_root: bool = False  # this process may look everywhere
    agent: Mapping[str, object] | None = None  # snapshot of the running agent; None: none answers
    agent_problem: str = ""  # why none answered, or why its answer is not used
    runtimes: tuple[RuntimeProcess, ...] = ()
    process_states: Mapping[int, str] = {}  # of the vendors' workers, by pid, as psutil names them
    paths: frozenset[str] = frozenset()  # that exist, of those that checks look for
    device_runtimes: tuple[
        str, ...
    ] = ()  # parts of names of runtimes that give devices by variables
    char_links: Mapping[str, bool] = {}  # device node: whether systemd finds it by its number
    cgroup_version: int | None = None
    cgroup_driver: str | None = None  # None: there is no group of a kubelet
    # of the cgroups of pods, as their version names them; None: they are not known
    controllers: frozenset[str] | None = None
    resctrl: str = ""  # mounted, unmounted, unsupported; empty: not known
    kubelet: str = ""  # evidence that this node has one, as text; empty: there is none
    protobuf: str = ""  # implementation

    def container_part(self, name: str) -> Mapping[str, object]:
        """Return a part about containers of the running agent's snapshot; empty if unknown."""
        groups = (self.agent or {}).get("containers")
        part = groups.get(name) if isinstance(groups, Mapping) else None
        value = part.get("value") if isinstance(part, Mapping) else None
        return value if isinstance(value, Mapping) else {}
