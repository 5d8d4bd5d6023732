"""Runs all checks in the order of their groups; computes rows, counts and the exit status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from agent.doctor import (
    agent_checks,
    api_checks,
    container_checks,
    device_checks,
    driver_checks,
    enforcement_checks,
    host_checks,
    kubelet_checks,
    neighbour_checks,
    topology_checks,
)
from agent.doctor.check import Check, CheckGroup, CheckInputs, CheckResult, CheckStatus, skip

_GROUPS = tuple(CheckGroup)
CHECKS: tuple[Check, ...] = tuple(
    sorted(
        (
            *agent_checks.CHECKS,
            *api_checks.CHECKS,
            *host_checks.CHECKS,
            *device_checks.CHECKS,
            *driver_checks.CHECKS,
            *topology_checks.CHECKS,
            *kubelet_checks.CHECKS,
            *container_checks.CHECKS,
            *enforcement_checks.CHECKS,
            *neighbour_checks.CHECKS,
        ),
        key=lambda check: _GROUPS.index(check.group),
    )
)

# the reason of the running agent that a bad result of a check is about, if the result names none:
# its entry of the runbook explains it
REASONS: Mapping[str, str] = MappingProxyType(
    {
        "agent": "AgentDown",
        "self-checks": "SelfCheckFailed",
        "lock": "AgentEndedUnexpectedly",
        "agent-restarts": "AgentEndedUnexpectedly",
        "worker-restarts": "VendorWorkerRestarting",
        "clock-skew": "ClockSkew",
        "state-dir": "StateNotWritten",
        "disk-space": "StateNotWritten",
        "ledger": "LedgerDamaged",
        "state-files": "StateFileDamaged",
        "api-server": "ApiServerUnreachable",
        "crds": "ResourceMissing",
        "rights": "WriteForbidden",
        "component-rights": "WriteForbidden",
        "node": "NodeAbsent",
        "node-identity": "NodeOfAnotherMachine",
        "other-writers": "WriteConflict",
        "node-slo": "EnforcementFrozen",
        "node-metric": "ObjectNotWritten",
        "core-scheduling": "StrategyUnsupported",
        "cpu-burst": "StrategyUnsupported",
        "driver-version": "LibraryUnfit",
        "driver-library": "LibraryMissing",
        "device-nodes": "DeviceNodeMissing",
        "char-links": "DeviceDenied",
        "readings": "ImplausibleReadings",
        "numa": "UnknownNumaNode",
        "pcie-links": "SlowLink",
        "pci-config": "AcsUnreadable",
        "topology-file": "TopologyFileOdd",
        "peer-memory": "PeerMemoryMissing",
        "access-control": "AcsRedirect",
        "iommu": "IommuTranslating",
        "nic-distance": "FarApart",
        "kubelet-process": "KubeletAbsent",
        "kubelet-health": "KubeletHanging",
        "kubelet-pods": "KubeletAbsent",
        "plugin-folder": "KubeletAway",
        "kubelet-resources": "ResourceNotServed",
        "nri": "RuntimeDoesNotAsk",
        "missed-containers": "NotAsked",
        "ungranted": "UngrantedDevices",
        "image-devices": "UngrantedDevices",
        "cdi-folder": "CdiFileNotWritten",
        "cdi-enabled": "CDINameMissing",
        "grants": "GrantRefused",
        "containers": "AllocationNotVerified",
        "enforcement-controllers": "StrategyUnsupported",
        "resctrl": "ResctrlNotMounted",
        "resctrl-groups": "ResctrlExhausted",
        "device-plugins": "AnotherPlugin",
        "metrics-series": "MetricsCut",
    }
)

# the worst first
_ORDER = (CheckStatus.FAIL, CheckStatus.WARN, CheckStatus.OK, CheckStatus.SKIP)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A result with the check that it is of, and its entry in the runbook."""

    check: Check
    result: CheckResult
    anchor: str = ""


def run_checks(facts: CheckInputs) -> tuple[CheckResult, ...]:
    """Return the results of all checks."""
    return tuple(finding.result for finding in find_all(facts))


def find_all(facts: CheckInputs) -> tuple[Finding, ...]:
    """Return the results of all checks, by group, with the check of each.

    A check without a result had nothing to check: it is skipped.
    """
    return tuple(
        Finding(
            check=check,
            result=result,
            anchor=_anchor(facts, check, result),
        )
        for check in CHECKS
        for result in tuple(check.run(facts)) or (skip(check.id, check.absence),)
    )


def _anchor(facts: CheckInputs, check: Check, result: CheckResult) -> str:
    """Return the anchor of a bad result's reason in the runbook; empty if it has no entry."""
    if result.status not in (CheckStatus.WARN, CheckStatus.FAIL):
        return ""
    for reason in filter(None, (result.reason, REASONS.get(check.id))):
        entry = facts.runbook.find(result.vendor, reason, result.message)
        if entry is not None:
            return entry.anchor
    return ""


def result_rows(findings: Iterable[Finding]) -> list[dict[str, object]]:
    """Return findings as data for programs."""
    return [
        {
            "id": finding.result.id,
            "group": finding.check.group.value,
            "check": finding.check.id,
            "result": finding.result.status.value,
            "seen": finding.result.observation,
            "why": finding.result.impact or None,
            "do": finding.result.remedy or None,
            "runbook": finding.anchor or None,
        }
        for finding in findings
    ]


def check_rows() -> list[dict[str, object]]:
    """Return all checks as data for programs."""
    return [
        {"group": check.group.value, "id": check.id, "question": check.question} for check in CHECKS
    ]


def by_group(findings: Iterable[Finding]) -> Mapping[CheckGroup, list[Finding]]:
    """Return the findings of each group, the worst first; groups with a failure come first."""
    groups: dict[CheckGroup, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.check.group, []).append(finding)
    ordered = {
        group: sorted(members, key=lambda one: _ORDER.index(one.result.status))
        for group, members in groups.items()
    }
    return dict(sorted(ordered.items(), key=lambda item: _ORDER.index(item[1][0].result.status)))


def count_results(findings: Iterable[Finding]) -> Mapping[CheckStatus, int]:
    """Return the number of results by status, the worst first."""
    counts = Counter(finding.result.status for finding in findings)
    return {status: counts[status] for status in _ORDER}


def is_bad_news(results: Iterable[CheckResult], *, strict: bool) -> bool:
    """Return whether the result is a problem: a failed check, or with `strict` a warning."""
    bad_statuses = (CheckStatus.FAIL, CheckStatus.WARN) if strict else (CheckStatus.FAIL,)
    return any(result.status in bad_statuses for result in results)
