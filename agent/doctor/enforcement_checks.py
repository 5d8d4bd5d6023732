"""Checks of strategies: what a NodeSLO requests, and whether agent and kernel can do it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from agent.doctor.check import (
    NO_REQUEST,
    RECORDED,
    Check,
    CheckGroup,
    CheckInputs,
    CheckResult,
    CheckStatus,
    ok,
    skip,
    warn,
)
from agent.slo.requests import RESCTRL, requested_strategies, required_controllers
from agent.snapshot.self_check import FileCondition, StrategyState, StrategyStatus

CLOSID_FILES = tuple(
    f"/sys/fs/resctrl/info/{resource}/num_closids" for resource in ("L3", "L3CODE", "MB")
)
MODES_OFF = ("off", "plan")
V1_NAMES = {"io": "blkio"}  # of controllers that version 1 calls otherwise
_UNREADABLE = "/proc/filesystems cannot be read"
_DEFAULT_REMEDY = "see the message, and xpu-agent explain file PATH"
_FILES_IMPACT = "files of pods or of the node are not as they should be"


class _EnforcementPart(msgspec.Struct, frozen=True, kw_only=True):
    strategies: tuple[StrategyStatus, ...] = ()
    is_frozen: bool = False
    brake: str = ""
    conditions: tuple[FileCondition, ...] = ()


def check_strategies(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check each strategy that the NodeSLO requests, and each that cannot work."""
    view, slo = _view(facts), facts.node_slo
    if view is None:
        return
    requests = {} if slo is None else requested_strategies(slo)
    is_well = True
    for strategy in view.strategies:
        result = _strategy_result(strategy, requests.get(strategy.name, ""))
        if result is not None:
            is_well = False
            yield result
    if is_well and view.strategies:
        active = [
            strategy.name for strategy in view.strategies if strategy.state is StrategyState.ACTIVE
        ]
        observation = f"active: {', '.join(active) or 'none, nothing is asked for'}"
        yield CheckResult(id="enforcement", status=CheckStatus.OK, observation=observation)


def _strategy_result(one: StrategyStatus, source: str) -> CheckResult | None:
    check = f"enforcement:{one.name}"
    if one.state is StrategyState.FAILED:
        return CheckResult(
            id=check,
            status=CheckStatus.FAIL,
            observation=f"it fails: {one.message}",
            impact="its files keep the values that it set last",
            remedy="this is a bug of the agent: report it with xpu-agent doctor --bundle FILE; "
            f"enforce.strategies.{one.name}: off restores its files",
        )
    if one.state is StrategyState.UNSUPPORTED:
        return CheckResult(
            id=check,
            status=CheckStatus.WARN,
            observation=f"the kernel cannot do it: {one.message}",
            impact="what the NodeSLO or a pod asks for is not done",
            remedy="use a kernel that has what is missing, take it out of the NodeSLO, or set "
            f"enforce.strategies.{one.name}: off",
        )
    if one.mode in MODES_OFF and source:
        verb = "writes nothing" if one.mode == "plan" else "is off"
        return CheckResult(
            id=check,
            status=CheckStatus.WARN,
            observation=f"NodeSLO {source} asks for it, and by the settings it {verb}",
            impact="what the cluster asks for is not done on this node",
            remedy=f"set enforce.strategies.{one.name} and enforce.mode to on, or take it out of "
            "the NodeSLO",
        )
    return None


def check_conditions(facts: CheckInputs) -> Iterator[CheckResult]:
    """Report each lasting problem with files."""
    view = _view(facts)
    if view is None:
        return
    # the others are reported with their strategy
    conditions = [
        condition
        for condition in view.conditions
        if condition.reason not in ("StrategyFailed", "StrategyUnsupported")
    ]
    if not conditions:
        yield ok("enforcement-conditions", "no lasting problem with files")
    for condition in conditions:
        entry = facts.runbook.find("", condition.reason, condition.message)
        yield CheckResult(
            id=f"enforcement:{condition.reason}",
            status=CheckStatus.WARN,
            observation=condition.message,
            impact=_FILES_IMPACT if entry is None else entry.impact,
            remedy=_DEFAULT_REMEDY if entry is None else entry.remedy,
            reason=condition.reason,
            message=condition.message,
        )


def check_controllers(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether pods have the cgroup controllers that the requested strategies write."""
    slo = facts.node_slo
    if slo is None or facts.cgroup_version is None or facts.cgroup_driver is None:
        return
    if facts.controllers is None:
        yield skip(
            "enforcement-controllers", "the controllers of the cgroups of pods cannot be read"
        )
        return
    missing: dict[str, list[str]] = {}
    for strategy in requested_strategies(slo):
        for controller in required_controllers(slo, strategy):
            name = V1_NAMES.get(controller, controller) if facts.cgroup_version == 1 else controller
            if name not in facts.controllers:
                missing.setdefault(name, []).append(strategy)
    for controller, names in sorted(missing.items()):
        where = "mounted" if facts.cgroup_version == 1 else "enabled for the cgroups of pods"
        yield CheckResult(
            id=f"enforcement:controller:{controller}",
            status=CheckStatus.WARN,
            observation=f"the NodeSLO asks for {', '.join(names)}, and the controller {controller} "
            f"is not {where}",
            impact="the files that these strategies write are not there",
            remedy=f"let the kubelet or systemd enable {controller} in cgroup.subtree_control"
            if facts.cgroup_version == 2
            else f"mount the {controller} hierarchy",
        )
    if not missing:
        yield ok("enforcement-controllers", "all that the NodeSLO needs")


def check_resctrl(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether resctrl is mounted if the NodeSLO requests it."""
    slo = facts.node_slo
    if slo is None or (source := requested_strategies(slo).get(RESCTRL)) is None:
        return
    if not facts.resctrl:
        yield skip("resctrl", f"NodeSLO {source} asks for it, and {_UNREADABLE}")
        return
    if facts.resctrl == "mounted":
        yield ok("resctrl", f"mounted, and NodeSLO {source} asks for it")
        return
    unsupported = facts.resctrl == "unsupported"
    yield CheckResult(
        id="enforcement:resctrl-mount",
        status=CheckStatus.WARN,
        observation=f"NodeSLO {source} asks for it, and "
        + ("this kernel has no resctrl" if unsupported else "/sys/fs/resctrl is not mounted"),
        impact="cache and memory bandwidth are not divided between QoS classes",
        remedy="use a processor and a kernel that have it, or take it out of the NodeSLO"
        if unsupported
        else "mount -t resctrl resctrl /sys/fs/resctrl",
    )


def check_resctrl_groups(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether there are control groups left for the classes."""
    if not facts.resctrl:
        yield skip("resctrl-groups", _UNREADABLE if facts.is_live else RECORDED)
        return
    if facts.resctrl != "mounted":
        return
    limit = _closids(facts)
    if facts.resctrl_groups is None or limit is None:
        yield skip("resctrl-groups", "their number cannot be read")
    elif facts.resctrl_groups + 1 < limit:  # the root group is one of them
        yield ok("resctrl-groups", f"{facts.resctrl_groups + 1} of {limit} are in use")
    else:
        yield warn(
            "resctrl-groups",
            f"all of {limit} are in use",
            impact="a further class or pod with values of its own stays in the root group",
            remedy="remove groups of programs that have ended (rmdir /sys/fs/resctrl/NAME), or "
            "ask for fewer different values",
        )


def _closids(facts: CheckInputs) -> int | None:
    """Return how many groups the processor has; `None` if that is unknown."""
    values = [facts.texts[path] for path in CLOSID_FILES if path in facts.texts]
    return min((int(value) for value in values if re.fullmatch("[0-9]{1,9}", value)), default=None)


def _view(facts: CheckInputs) -> _EnforcementPart | None:
    """Return the enforcement of the running agent.

    `None` without one, or if its answer is invalid.
    """
    try:
        part = msgspec.convert(facts.container_part("enforcement"), _EnforcementPart)
    except msgspec.ValidationError:
        return None
    return part if part != _EnforcementPart() else None


CHECKS = (
    Check(
        id="enforcement",
        group=CheckGroup.ENFORCEMENT,
        question="Can each strategy that the NodeSLO asks for do its work?",
        run=check_strategies,
        absence="no agent answers, or it enforces nothing",
    ),
    Check(
        id="enforcement-conditions",
        group=CheckGroup.ENFORCEMENT,
        question="Are files of pods and of the node as they should be, and written by nobody else?",
        run=check_conditions,
        absence="no agent answers, or it enforces nothing",
    ),
    Check(
        id="enforcement-controllers",
        group=CheckGroup.ENFORCEMENT,
        question="Have pods the cgroup controllers that requested strategies write?",
        run=check_controllers,
        absence="no agent answers, or there is no NodeSLO or no cgroup of pods",
    ),
    Check(
        id="resctrl",
        group=CheckGroup.ENFORCEMENT,
        question="Is resctrl mounted, if the NodeSLO asks for it?",
        run=check_resctrl,
        absence=NO_REQUEST,
    ),
    Check(
        id="resctrl-groups",
        group=CheckGroup.ENFORCEMENT,
        question="Are there resctrl groups left?",
        run=check_resctrl_groups,
        absence="resctrl is not mounted",
    ),
)
