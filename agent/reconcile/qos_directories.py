"""Desired values of the kubelet's QoS directories, and the kernel switches that hooks need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.cgroup.keys import BVT, CPUS, IDLE, CgroupKey
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import SWITCHES, SYSCTL_HIERARCHY, ChangeLedger, LedgerEntry
from agent.cgroup.paths import qos_directory
from agent.cgroup.values import KernelFiles
from agent.cgroup.write_backoff import FIRST_RETRY_S, OverwriteTracker
from agent.cgroup.write_plan import DesiredValue, WritePlan, WriteResult, WriteTarget
from agent.cgroup.writer import CgroupWriter
from agent.clock import Clock
from agent.containers.core_scheduling import core_scheduling_rule, core_switches, directory_idle
from agent.containers.cpuset import CpusetHook
from agent.containers.dispatch import ON
from agent.containers.hooks import Hook
from agent.containers.identity import (
    IdentityRule,
    application_identity,
    directory_identity,
    identity_rule,
    identity_switches,
    is_applicable,
)
from agent.errors import HostFileError
from agent.slo.status import is_frozen
from agent.snapshot.cpu import CpuSet
from agent.snapshot.node import NodeSnapshot, are_same_objects
from agent.snapshot.pod import KubeQos
from agent.snapshot.publications import AuditRecord
from agent.snapshot.slo import HostApplication
from agent.usage.host_applications import application_cgroup, overlaps_pods
from agent.wire_formats.kernel_text import format_cpu_list

IDENTITY, CORES = "group_identity", "core_scheduling"
APPLICATION_KEYS = (BVT.name, CPUS.name)
POD_DIRECTORY = re.compile(r"[/-]pod[0-9a-f]")  # of both drivers
VALUE = "value"  # the key of a switch in the ledger
SUBDIRECTORY_CLASSES = (KubeQos.BURSTABLE, KubeQos.BEST_EFFORT)


def application_cpus(
    hooks: Iterable[Hook], modes: Mapping[str, str], snapshot: NodeSnapshot
) -> CpuSet | None:
    """Return the CPUs of host applications of the class LS; `None`: the hook is not on."""
    hook = next((one for one in hooks if isinstance(one, CpusetHook)), None)
    is_on = hook is not None and modes.get(hook.name) == ON
    return hook.application_cpus(snapshot) if hook is not None and is_on else None


def desired_directory_writes(
    snapshot: NodeSnapshot,
    layout: CgroupLayout,
    modes: Mapping[str, str],
    cpus: CpuSet | None,
) -> tuple[DesiredValue, ...]:
    """Return the values that the hooks which are on set in these directories.

    Host applications have directories of their own, which the NodeSLO names; `cpus` are those of
    `application_cpus`.
    The directory of all pods always stays neutral, because its value would apply to every pod.
    """
    kernel, cluster = snapshot.host_devices.value.kernel, snapshot.cluster
    writes: list[DesiredValue] = []
    rule = identity_rule(cluster.slo.value.slo)
    if modes.get(IDENTITY) == ON and is_applicable(rule, kernel):
        for qos in KubeQos:
            value = directory_identity(rule, qos)
            writes.append(_desired_write(layout, qos, BVT, value, IDENTITY, f"bvt to {value}"))
        writes += _application_writes(rule, cluster.slo.value.slo.host_applications, layout)
    if cpus is not None:
        applications = cluster.slo.value.slo.host_applications
        writes += _application_cpu_writes(cpus, applications, layout)
    core = core_scheduling_rule(cluster.slo.value.slo)
    if modes.get(CORES) == ON and kernel.core_scheduling:
        for qos in SUBDIRECTORY_CLASSES:
            idle = directory_idle(core, qos)
            if idle is not None:
                writes.append(_desired_write(layout, qos, IDLE, idle, CORES, f"cpu idle to {idle}"))
    return tuple(writes)


_SOURCES = {
    (BVT, KubeQos.GUARANTEED): "policies.cpuPolicy",
    (BVT, KubeQos.BURSTABLE): "lsClass.cpuQOS.groupIdentity",
    (BVT, KubeQos.BEST_EFFORT): "beClass.cpuQOS.groupIdentity",
    (IDLE, KubeQos.BURSTABLE): "lsClass.cpuQOS.schedIdle",
    (IDLE, KubeQos.BEST_EFFORT): "beClass.cpuQOS.schedIdle",
}


class KernelSwitch(msgspec.Struct, frozen=True):
    """The desired text of one kernel switch, and the hook that sets it."""

    owner: str
    path: str
    text: str


def desired_switches(snapshot: NodeSnapshot, modes: Mapping[str, str]) -> tuple[KernelSwitch, ...]:
    """Return the kernel switches that are written before any value, in order."""
    slo, kernel = snapshot.cluster.slo.value.slo, snapshot.host_devices.value.kernel
    switches = {
        IDENTITY: identity_switches(identity_rule(slo), kernel),
        CORES: core_switches(core_scheduling_rule(slo), kernel),
    }
    return tuple(
        KernelSwitch(owner, path, text)
        for owner, pairs in switches.items()
        if modes.get(owner) == ON
        for path, text in pairs
    )


def required_switches(snapshot: NodeSnapshot, modes: Mapping[str, str]) -> frozenset[WriteTarget]:
    """Return the switches that are not restored while a rule in force needs them."""
    slo = snapshot.cluster.slo.value.slo
    enabled = {IDENTITY: identity_rule(slo).enabled, CORES: core_scheduling_rule(slo).enabled}
    if not any(on and modes.get(owner) == ON for owner, on in enabled.items()):
        return frozenset()
    return frozenset((path, VALUE) for path in SWITCHES)


class QosDirectories:
    """Writes the values of the QoS directories and the kernel switches.

    Their original values cannot be computed from a pod: without a ledger nothing is written. While
    the NodeSLO is frozen, the values of the last one that was not stay in force.
    """

    def __init__(
        self,
        files: KernelFiles,
        ledger: ChangeLedger,
        modes: Mapping[str, str],
        clock: Clock,
        slo_stale_s: float,
        hooks: Iterable[Hook] = (),
    ) -> None:
        self.writes: tuple[DesiredValue, ...] = ()
        self.required: frozenset[WriteTarget] = frozenset()  # switches that a rule in force needs
        self.problem = ""  # why switches and values differ from the desired ones
        self._files = files
        self._ledger = ledger
        self._modes = modes
        self._clock = clock
        self._slo_stale_s = slo_stale_s
        self._hooks = tuple(hooks)
        self._switches: tuple[KernelSwitch, ...] = ()
        self._refused: dict[KernelSwitch, tuple[float, str]] = {}  # the next attempt, and why
        self._written: dict[str, KernelSwitch] = {}  # by path
        self._overwrites = OverwriteTracker()
        # the managed paths, and the number of entries and the layout that they were read with
        self._paths: tuple[int, CgroupLayout, frozenset[str]] | None = None
        self._inputs: tuple[object, ...] = ()

    def prepare(
        self, snapshot: NodeSnapshot, layout: CgroupLayout, writer: CgroupWriter, now_s: float
    ) -> WritePlan:
        """Compare the values, and record originals in the ledger, which the caller flushes."""
        cpus = application_cpus(self._hooks, self._modes, snapshot)
        inputs = snapshot.cluster.slo.value, snapshot.host_devices.value, layout, cpus
        frozen = is_frozen(snapshot.cluster.slo, now_s, self._slo_stale_s)
        if not frozen and not are_same_objects(inputs, self._inputs):
            self._inputs = inputs
            self.writes = desired_directory_writes(snapshot, layout, self._modes, cpus)
            self._switches = desired_switches(snapshot, self._modes)
            self.required = required_switches(snapshot, self._modes)
        for switch in self._switches:
            self._record_original(switch)
        plan = writer.prepare(self.writes, now_s)
        writer.record_in_ledger(plan)
        if plan.steps:  # the ledger may have a new directory, and as many entries as before
            self._paths = None
        return plan

    def apply(self, plan: WritePlan, writer: CgroupWriter, now_s: float) -> WriteResult:
        """Write the switches that differ, then the values, unless a switch is refused."""
        self.problem = ""
        audits: list[AuditRecord] = []
        for switch in self._switches:
            self.problem = self._set_switch(switch, now_s, audits)
            if self.problem:
                return WriteResult(unwritten=len(plan.desired), audits=tuple(audits))
        result = writer.apply(plan, now_s) if plan.steps else WriteResult()
        return msgspec.structs.replace(result, audits=(*audits, *result.audits))

    def _set_switch(self, switch: KernelSwitch, now_s: float, audits: list[AuditRecord]) -> str:
        """Write a switch that differs; return why it has another value then.

        One that is refused, or that another program keeps changing, is written once a minute.
        """
        path = switch.path
        try:
            current = self._read(path)
        except HostFileError as error:
            return str(error)
        if current == switch.text:
            return ""
        next_s, refusal = self._refused.get(switch, (0.0, ""))
        if now_s < next_s:
            return refusal
        is_own = self._written.get(path) == switch
        if is_own and not self._overwrites.may_write((path, VALUE), now_s):
            return f"{path}: another program writes it, too"
        try:
            self._files.write(path, switch.text)
        except HostFileError as error:
            self._refused[switch] = now_s + FIRST_RETRY_S, str(error)
            audits.append(self._audit(switch, current, error.errno))
            return str(error)
        self._written[path] = switch
        audits.append(self._audit(switch, current))
        return ""

    def _audit(self, switch: KernelSwitch, current: str, number: int = 0) -> AuditRecord:
        return AuditRecord(
            wall_s=self._clock.wall(),
            owner=switch.owner,
            message=f"set {switch.path.rpartition('/')[2]} to {switch.text}",
            path=switch.path,
            key=VALUE,
            old=current,
            new=switch.text,
            errno=number,
        )

    def paths(self, layout: CgroupLayout) -> frozenset[str]:
        """Return all paths that this class manages, with or without a desired value."""
        count = len(self._ledger.entries)
        if self._paths is None or self._paths[:2] != (count, layout):
            self._paths = count, layout, self._managed_paths(layout)
        return self._paths[2]

    def _managed_paths(self, layout: CgroupLayout) -> frozenset[str]:
        applications = (
            entry.path
            for entry in self._ledger.entries.values()
            if entry.key in APPLICATION_KEYS
            and not _is_surely_in_a_pod(entry.path, layout)
            and not overlaps_pods(entry.path, layout)
        )
        directories = (qos_directory(layout, qos) for qos in KubeQos)
        return frozenset((*directories, *applications, *SWITCHES))

    def _record_original(self, switch: KernelSwitch) -> None:
        recorded = self._ledger.entries.get((SYSCTL_HIERARCHY, switch.path, VALUE))
        try:
            current = self._read(switch.path)
        except HostFileError:
            return  # the file is absent and cannot be written either
        if current == switch.text:
            return
        entry = recorded or LedgerEntry(
            hierarchy=SYSCTL_HIERARCHY,
            path=switch.path,
            inode=0,
            key=VALUE,
            owner=switch.owner,
            original=current,
        )
        self._ledger.set(entry.with_own_values([switch.text], switch.owner))

    def _read(self, path: str) -> str:
        try:
            return self._files.read(path, 64).decode("ascii", "replace").strip()
        finally:
            self._files.close(path)


def _is_surely_in_a_pod(cgroup: str, layout: CgroupLayout) -> bool:
    """Return whether a cgroup is one of the many that need no closer look."""
    root = f"{layout.root}/"
    return cgroup.startswith(root) and POD_DIRECTORY.search(cgroup, len(root) - 1) is not None


def _application_writes(
    rule: IdentityRule, applications: Iterable[HostApplication], layout: CgroupLayout
) -> Iterator[DesiredValue]:
    """Yield the values of host applications, except of groups that have pods in them."""
    for application in applications:
        cgroup = application_cgroup(layout, application)
        if cgroup is None or overlaps_pods(cgroup, layout):
            continue
        value = application_identity(rule, application.qos)
        yield DesiredValue(
            cgroup=cgroup,
            key=BVT,
            value=value,
            owner=IDENTITY,
            message=f"set host application bvt to {value}",
            source=f"NodeSLO spec.hostApplications {application.name}",
        )


def _application_cpu_writes(
    cpus: CpuSet, applications: Iterable[HostApplication], layout: CgroupLayout
) -> Iterator[DesiredValue]:
    for application in applications:
        cgroup = application_cgroup(layout, application)
        if application.qos != "LS" or cgroup is None or overlaps_pods(cgroup, layout):
            continue
        yield DesiredValue(
            cgroup=cgroup,
            key=CPUS,
            value=cpus,
            owner=CpusetHook.name,
            message=f"set host application cpuset to {format_cpu_list(cpus)}",
            source=f"NodeSLO spec.hostApplications {application.name}",
        )


def _desired_write(
    layout: CgroupLayout, qos: KubeQos, key: CgroupKey, value: int, owner: str, description: str
) -> DesiredValue:
    return DesiredValue(
        cgroup=qos_directory(layout, qos),
        key=key,
        value=value,
        owner=owner,
        message=f"set kubeqos {description}",
        source=f"NodeSLO spec.resourceQOSStrategy.{_SOURCES[key, qos]}",
    )
