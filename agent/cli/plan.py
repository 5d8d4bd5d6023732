"""`xpu-agent plan`: the changes that hooks and strategies would make on this host now, and why."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agent.app.composition import AgentInputs, build_layout_locator
from agent.app.oneshot import build_host_device_reader, inspect_host
from agent.app.pod_files import create_ledger
from agent.cgroup.enforcement import EnforcementPlan
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import LEDGER_FILE, MAX_LEDGER_BYTES, ChangeLedger, LedgerError
from agent.cgroup.values import CgroupFiles, CgroupValues, KernelFiles
from agent.cli.context import command_inputs
from agent.cli.output import format_document, format_table
from agent.cli.terminal import standard_output, write_document
from agent.command_line import ExitStatus
from agent.containers.cpu_quota import NormalizationHook
from agent.containers.dispatch import ON, PLAN, hook_modes
from agent.containers.hooks import node_hooks
from agent.doctor.inputs import fetch_agent_snapshot
from agent.durable import read_file
from agent.errors import AgentError, BadConfig, ParseError
from agent.host.files import LiveHostFiles
from agent.qos.engine import QosEngine, strategy_modes
from agent.qos.inputs import LiveValues
from agent.qos.strategies import strategies
from agent.reconcile.host_plan import HostPlan, HostPlanner, PlannedChange, ReadOnlyFiles
from agent.resctrl.files import KernelResctrlFiles, ResctrlFiles
from agent.resctrl.host_plan import HostResctrlPlan, HostResctrlPlanner, ReadOnlyResctrlFiles
from agent.slo.requests import RESCTRL
from agent.slo.status import build_slo_view
from agent.snapshot.cluster import ClusterView, KubeletView, NodeView
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import EvictionRequest, PodView
from agent.snapshot.self_check import (
    EnforcementView,
    ResctrlActionKind,
    StrategyState,
    StrategyStatus,
)
from agent.snapshot.slo import NodeSloView
from agent.wire_formats.kernel_text import parse_cpu_list
from agent.wire_formats.plain_yaml import decode_yaml
from agent.wire_formats.snapshot_json import slo_from_json

MAX_SLO_BYTES = 4 << 20
MAX_DEPTH = 64
EMPTY = "(empty)"
EVICTION_WAIT_S = 30.0  # the longest wait before a first eviction is 20 seconds, for CPU
# a kubelet whose settings are not known
DEFAULT_KUBELET = KubeletView(cpu_manager_policy="none", topology_policy="none")
BAD_STATES = (StrategyState.FAILED, StrategyState.UNSUPPORTED)


class NoCgroups(AgentError):
    """The host has no cgroup file system."""


def plan(arguments: argparse.Namespace) -> int:
    """Print all changes; status 1 if a strategy or hook cannot do what is requested."""
    inputs = command_inputs(arguments)
    slo = None if arguments.slo is None else read_slo_file(arguments.slo)
    cluster = _cluster(inputs, slo)
    inputs.store.put(cluster=cluster)
    inspect_host(inputs, usage=True)
    now_s = inputs.clock.monotonic()
    host_devices = build_host_device_reader(inputs).read(inputs.store.current)
    cluster = msgspec.structs.replace(cluster, slo=SnapshotPart(cluster.slo.value, now_s))
    snapshot = inputs.store.put(cluster=cluster, host_devices=SnapshotPart(host_devices, now_s))
    locator = build_layout_locator(inputs, inputs.host_source.files)
    layout = locator.layout(now_s)
    if layout is None:
        raise NoCgroups(f"{snapshot.node.source}: no cgroup file system: nothing can be planned")
    with tempfile.TemporaryDirectory() as folder:
        enforcement, changes = _plan_host(inputs, snapshot, layout, _ledger(inputs, folder))
    if arguments.output == "table":
        sys.stdout.write(_plan_text(layout, enforcement, changes, cluster.slo.value))
    else:
        document = _plan_document(layout, enforcement, changes, cluster.slo.value)
        write_document(format_document(document, arguments.output))
    is_bad = any(strategy.state in BAD_STATES for strategy in enforcement.view.strategies)
    is_bad = is_bad or bool(changes.failures or cluster.slo.value.refused_count)
    return ExitStatus.PROBLEM_FOUND if is_bad else ExitStatus.OK


def read_slo_file(path: str) -> NodeSloView:
    """Return the NodeSLO of a file in JSON or YAML; raise `BadConfig`."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_SLO_BYTES + 1)
    except OSError as error:
        remedy = "name a NodeSLO in JSON or YAML that this user can read"
        raise BadConfig(f"--slo {path}: {error.strerror}; {remedy}") from error
    if len(data) > MAX_SLO_BYTES:
        raise BadConfig(f"--slo {path}: more than {MAX_SLO_BYTES} bytes")
    try:
        document = decode_yaml(data, MAX_DEPTH)  # JSON is YAML
    except ValueError as error:
        raise BadConfig(f"--slo {path}: {str(error)[:200]}") from error
    if not isinstance(document, dict) or not ("spec" in document or "kind" in document):
        raise BadConfig(f"--slo {path}: no NodeSLO: it has neither kind nor spec")
    if document.get("kind", "NodeSLO") != "NodeSLO":
        raise BadConfig(f"--slo {path}: no NodeSLO: its kind is {str(document['kind'])[:80]!r}")
    view = build_slo_view(document, NodeSloView())
    if view.problem:
        raise BadConfig(f"--slo {path}: {view.problem}")
    return view


def _cluster(inputs: AgentInputs, slo: NodeSloView | None) -> ClusterView:
    """Return the requests of the cluster: of the files, else of the agent on this machine."""
    pods = () if inputs.pod_file is None else inputs.pod_file.read()
    node, kubelet = None, DEFAULT_KUBELET
    is_running = False
    if inputs.is_live and (slo is None or inputs.pod_file is None):
        agent, problem = fetch_agent_snapshot(inputs.settings)
        if agent is None:
            files = {"--slo": slo, "--pods": inputs.pod_file}
            options = " and ".join(option for option, file in files.items() if file is None)
            text = f"{problem}: what the cluster asks for is not known; name it with {options}"
            print(f"xpu-agent: {text}", file=sys.stderr)
        else:
            is_running = True
            slo = _agent_slo(agent) if slo is None else slo
            pods = _agent_pods(agent) if inputs.pod_file is None else pods
            node, kubelet = _agent_node(agent), _agent_kubelet(agent) or kubelet
    has_pods = inputs.pod_file is not None or is_running
    return ClusterView(
        is_clustered=has_pods or slo is not None,
        slo=SnapshotPart(slo or NodeSloView(), inputs.clock.monotonic()),
        pods=pods,
        has_pod_list=has_pods,
        node=SnapshotPart(node, inputs.clock.monotonic()),
        kubelet=SnapshotPart(kubelet, inputs.clock.monotonic()),
    )


def _member(data: object, *names: str) -> object:
    for name in names:
        data = data.get(name) if isinstance(data, Mapping) else None
    return data


def _agent_slo(agent: Mapping[str, object]) -> NodeSloView | None:
    value = _member(agent, "cluster", "slo", "value")
    if not _member(value, "found"):
        return None
    try:
        return NodeSloView(found=True, slo=slo_from_json(_member(value, "slo")))
    except ParseError:
        return None  # of another version


def _agent_pods(agent: Mapping[str, object]) -> tuple[PodView, ...]:
    try:
        pods = msgspec.convert(_member(agent, "parts", "pods", "value"), tuple[PodView, ...])
    except msgspec.ValidationError:
        return ()  # of another version
    return tuple(pod for pod in pods if pod.name)


def _agent_node(agent: Mapping[str, object]) -> NodeView | None:
    try:
        return msgspec.convert(_member(agent, "cluster", "node", "value"), NodeView | None)
    except msgspec.ValidationError:
        return None


def _agent_kubelet(agent: Mapping[str, object]) -> KubeletView | None:
    """Return what decides over CPUs of the kubelet's settings; `None`: they are not known."""
    value = _member(agent, "cluster", "kubelet", "value")
    policy, pods = _member(value, "cpu_manager_policy"), _member(value, "pod_cpus")
    topology, reserved = _member(value, "topology_policy"), _member(value, "reserved_cpus")
    if not isinstance(policy, str):
        return None
    try:
        rows = msgspec.convert(pods or (), tuple[tuple[str, str], ...])
        return KubeletView(
            cpu_manager_policy=policy,
            topology_policy=topology if isinstance(topology, str) else None,
            reserved_cpus=parse_cpu_list(reserved) if isinstance(reserved, str) else None,
            pod_cpus=tuple((uid, parse_cpu_list(text)) for uid, text in rows),
        )
    except (msgspec.ValidationError, ParseError):
        return None


def _ledger(inputs: AgentInputs, folder: str) -> ChangeLedger:
    """Return a copy of this machine's ledger: loading the file itself would repair it."""
    state_dir = inputs.settings.node.state_dir
    if not inputs.is_live or not state_dir:
        return ChangeLedger(None, "")
    source = os.path.join(state_dir, LEDGER_FILE)
    try:
        Path(folder, LEDGER_FILE).write_bytes(read_file(source, MAX_LEDGER_BYTES + 1))
    except FileNotFoundError:
        return ChangeLedger(None, "")
    except PermissionError as error:
        text = f"{source}: {error.strerror}: what would be restored is not known; run it as root"
        print(f"xpu-agent: {text}", file=sys.stderr)
        return ChangeLedger(None, "")
    except OSError as error:
        raise LedgerError(source, error) from error
    ledger = create_ledger(folder, inputs.store.current.node.boot_id)
    ledger.load()
    return ledger


def _plan_host(
    inputs: AgentInputs, snapshot: NodeSnapshot, layout: CgroupLayout, ledger: ChangeLedger
) -> tuple[EnforcementPlan, HostPlan]:
    settings, host = inputs.settings, inputs.host_source.files
    resctrl = _plan_resctrl(inputs, snapshot, ledger)
    if layout.root is None:
        view = EnforcementView(strategies=(resctrl.status,))
        return EnforcementPlan(view=view), HostPlan(changes=_resctrl_changes(resctrl))
    files: CgroupFiles = KernelFiles(LiveHostFiles()) if inputs.is_live else ReadOnlyFiles(host)
    values = CgroupValues(files, layout)
    hooks = node_hooks(reads_kubelet=settings.kubelet.enabled, hooks=settings.hooks)
    scales_quota = hook_modes(hooks, settings.enforce).get(NormalizationHook.name) == ON
    all_strategies = strategies(settings.enforce, own_uid="", scales_quota=scales_quota)
    modes = strategy_modes((strategy.name for strategy in all_strategies), settings.enforce)
    engine = QosEngine(
        all_strategies,
        modes,
        settings.collect.interval_s,
        settings.api.slo_stale_s,
        protected_namespaces=settings.enforce.protected_namespaces,
    )
    now_s = inputs.clock.monotonic()
    current = LiveValues(values, ledger)
    enforcement = engine.plan(snapshot, layout, current, now_s)
    # an eviction needs more than one sample: this is who goes if the usage stays as it is
    later_s = now_s + EVICTION_WAIT_S
    later = engine.plan(_snapshot_at(snapshot, later_s), layout, current, later_s)
    evictions = {one.pod.uid: one for one in (*enforcement.evictions, *later.evictions)}
    enforcement = msgspec.structs.replace(enforcement, evictions=tuple(evictions.values()))
    all_modes = {**hook_modes(hooks, settings.enforce), **modes}
    planner = HostPlanner(values, host, ledger, hooks, all_modes, inputs.clock)
    changes = planner.plan(snapshot, enforcement)
    view = enforcement.view
    view = msgspec.structs.replace(view, strategies=(*view.strategies, resctrl.status))
    return (
        msgspec.structs.replace(enforcement, view=view),
        msgspec.structs.replace(changes, changes=changes.changes + _resctrl_changes(resctrl)),
    )


def _plan_resctrl(
    inputs: AgentInputs, snapshot: NodeSnapshot, ledger: ChangeLedger
) -> HostResctrlPlan:
    files: ResctrlFiles = (
        KernelResctrlFiles() if inputs.is_live else ReadOnlyResctrlFiles(inputs.host_source.files)
    )
    settings = inputs.settings
    mode = strategy_modes((RESCTRL,), settings.enforce)[RESCTRL]
    protected = settings.enforce.protected_namespaces
    planner = HostResctrlPlanner(files, ledger, settings.resctrl, mode, protected)
    return planner.plan(snapshot, inputs.clock.monotonic())


def _resctrl_changes(plan: HostResctrlPlan) -> tuple[PlannedChange, ...]:
    # groups of a strategy that is off are removed, as other changes of it are restored
    mode = PLAN if plan.status.mode == PLAN else ON
    return tuple(
        PlannedChange(
            action=change.action.kind.value,
            path=change.path,
            key="schemata" if change.action.kind is ResctrlActionKind.WRITE else "group",
            current=change.current,
            desired=change.action.text.strip() or change.action.kind.value,
            owner=RESCTRL,
            mode=mode,
            source=change.action.reason,
        )
        for change in plan.changes
    )


def _snapshot_at(snapshot: NodeSnapshot, now_s: float) -> NodeSnapshot:
    """Return the snapshot as if its usage and its NodeSLO were of this time."""
    cluster = snapshot.cluster
    return msgspec.structs.replace(
        snapshot,
        usage=SnapshotPart(snapshot.usage.value, now_s),
        cluster=msgspec.structs.replace(cluster, slo=SnapshotPart(cluster.slo.value, now_s)),
    )


def _strategy_row(one: StrategyStatus) -> dict[str, object]:
    return {
        "strategy": one.name,
        "mode": one.mode,
        "state": one.state.value,
        "files": one.values,
        "why": one.message or None,
    }


def _change_row(one: PlannedChange) -> dict[str, object]:
    return {
        "file": one.path if one.action != "process" else f"{one.path}: {one.key}",
        "current": EMPTY if one.current == "" else one.current,
        "desired": one.desired or EMPTY,
        "by": one.owner if one.mode == "on" else f"{one.owner} ({one.mode})",
        "because": one.source or one.message or None,
    }


def _eviction_row(one: EvictionRequest) -> dict[str, object]:
    return {
        "pod": f"{one.pod.namespace}/{one.pod.name}",
        "rule": one.feature,
        "by": "the container runtime" if one.container_ids else "the API server",
        "mode": "plan" if one.is_planned else "on",
        "why": one.message,
    }


def _plan_text(
    layout: CgroupLayout, enforcement: EnforcementPlan, changes: HostPlan, slo: NodeSloView
) -> str:
    terminal = standard_output()
    blocks = []
    if layout.root is None:
        blocks.append("no cgroup of the kubelet is here: there is nothing to plan for")
    if not slo.found:
        blocks.append("no NodeSLO: only pods ask for something (--slo FILE names one)")
    strategy_rows = [_strategy_row(strategy) for strategy in enforcement.view.strategies]
    if strategy_rows:
        blocks.append(format_table(strategy_rows, terminal))
    rows = [_change_row(change) for change in changes.changes]
    if rows:
        blocks.append(format_table(rows, terminal, spare=("because",)))
    evictions = [_eviction_row(eviction) for eviction in enforcement.evictions]
    if evictions:
        blocks.append(format_table(evictions, terminal))
    if changes.missing:
        lines = [
            f"not on this host: {one.path}: {one.owner} wants {one.desired}"
            for one in changes.missing
        ]
        blocks.append("\n".join(lines))
    problems = [f"{one.path}: {one.why}" for one in slo.refused]
    problems += [f"hook {hook}: {error}" for hook, error in changes.failures]
    problems += [f"{pod}: {note}" for pod, note in changes.notes]
    if problems:
        blocks.append("\n".join(problems))
    count = len(changes.changes)
    files = f"{changes.compared} file" + ("" if changes.compared == 1 else "s")
    blocks.append(f"{count} {'change' if count == 1 else 'changes'}; {files} compared")
    return "\n\n".join(blocks) + "\n"


def _plan_document(
    layout: CgroupLayout, enforcement: EnforcementPlan, changes: HostPlan, slo: NodeSloView
) -> dict[str, object]:
    return {
        "cgroups": {
            "version": layout.version,
            "driver": layout.driver or None,
            "root": layout.root,
        },
        "nodeslo": {
            "found": slo.found,
            "ignored": [{"field": one.path, "why": one.why} for one in slo.refused],
        },
        "strategies": [
            {**_strategy_row(strategy), "figures": dict(strategy.figures)}
            for strategy in enforcement.view.strategies
        ],
        "changes": [_change_document(change) for change in changes.changes],
        "missing": [_change_document(one) for one in changes.missing],
        "evictions": [_eviction_row(eviction) for eviction in enforcement.evictions],
        "compared": changes.compared,
        "failures": [{"hook": hook, "error": error} for hook, error in changes.failures],
        "notes": [{"pod": pod, "message": message} for pod, message in changes.notes],
    }


def _change_document(one: PlannedChange) -> dict[str, object]:
    document: dict[str, object] = json.loads(msgspec.json.encode(one))
    return {**document, "message": one.message or None, "source": one.source or None}
