"""Runs all checks in order and computes the exit status."""

from __future__ import annotations

from collections.abc import Iterable

from agent.doctor import container_checks, device_checks, enforcement_checks, host_checks
from agent.doctor.check import CheckInputs, CheckResult, CheckStatus

CHECKS = (
    *device_checks.CHECKS,
    *host_checks.CHECKS,
    *container_checks.CHECKS,
    *enforcement_checks.CHECKS,
)


def run_checks(facts: CheckInputs) -> tuple[CheckResult, ...]:
    """Return the results of all checks."""
    return tuple(result for check in CHECKS for result in check(facts))


def result_rows(results: Iterable[CheckResult]) -> list[dict[str, object]]:
    """Return findings as data for programs."""
    return [
        {
            "id": result.id,
            "result": result.status.value,
            "seen": result.observation,
            "why": result.impact or None,
            "do": result.remedy or None,
        }
        for result in results
    ]


def is_bad_news(results: Iterable[CheckResult], *, strict: bool) -> bool:
    """Return whether the result is a problem: a failed check, or with `strict` a warning."""
    bad_statuses = (CheckStatus.FAIL, CheckStatus.WARN) if strict else (CheckStatus.FAIL,)
    return any(result.status in bad_statuses for result in results)
