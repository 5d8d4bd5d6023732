"""Answers of several hooks as one. Who wins is written down here; nothing is settled by order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from agent.model.grant.edits import NONE, ContainerEdits
from agent.model.grant.merge import merged as merged_edits
from agent.model.grant.refusal import GrantRefused
from agent.model.runtime.adjustment import NOTHING, Adjustment, Resources

T = TypeVar("T")
Answers = tuple[tuple[str, Adjustment], ...]  # by hook, in the order they were asked

# the pinned are not throttled, whatever else is said; a scaled quota stands for the one it scales
QUOTA_WINNERS = ("cpuset", "cpu_normalization", "batch_resources")


class Failure(msgspec.Struct, frozen=True):
    """A bug of a hook, or of two that say different things of one field."""

    hook: str  # its name; several are joined by commas
    error: str


class _Merging:
    """One merge in progress."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.failures: list[Failure] = []

    def only(self, field: str, said: Iterable[T | None]) -> T | None:
        """Return the value that all who set the field agree on; `None` for two values."""
        given = [
            (hook, value)
            for (hook, _), value in zip(self.answers, said, strict=True)
            if value is not None
        ]
        if len({value for _, value in given}) > 1:
            hooks = ",".join(hook for hook, _ in given)
            self.failures.append(Failure(hooks, f"different values of {field}"))
            return None
        return given[0][1] if given else None

    def quota(self) -> Resources:
        """Return quota and period of one hook: each means nothing without the other."""
        every = [(hook, answer.resources) for hook, answer in self.answers]
        said = {hook: one for hook, one in every if one.quota_us is not None}
        if said.keys() <= set(QUOTA_WINNERS):
            return next((said[name] for name in QUOTA_WINNERS if name in said), Resources())
        pairs = [
            None if one.quota_us is None else (one.quota_us, one.period_us) for _, one in every
        ]
        quota_us, period_us = self.only("quota_us", pairs) or (None, None)
        return Resources(quota_us=quota_us, period_us=period_us)

    def edits(self) -> tuple[ContainerEdits, str, str]:
        """Return all edits, or why they cannot be made together: reason and message."""
        try:
            return merged_edits([answer.edits for _, answer in self.answers]), "", ""
        except GrantRefused as refused:
            hooks = ",".join(hook for hook, answer in self.answers if answer.edits != NONE)
            self.failures.append(Failure(hooks, str(refused)))
            return NONE, refused.reason, str(refused)


def _is_whole(said: Resources) -> bool:
    """Say whether a period comes with its quota, without which it means nothing."""
    return said.period_us is None or said.quota_us is not None


def merged(answers: Answers) -> tuple[Adjustment, tuple[Failure, ...]]:
    """Return one adjustment, and the fields that two hooks set to different values.

    Such a field is left out: neither is right. Edits that contradict each other refuse the
    container, as those of two vendors do; so does any hook's refusal, in the words of the first.
    """
    if not answers:
        return NOTHING, ()
    if len(answers) == 1 and _is_whole(answers[0][1].resources):
        return answers[0][1], ()  # as nearly always
    merging = _Merging(answers)
    all_of = [answer for _, answer in answers]
    edits, reason, failed = merging.edits()
    quota = merging.quota()
    for answer in reversed(all_of):
        if answer.failed:
            reason, failed = answer.reason, answer.failed
    whole = Adjustment(
        edits=edits,
        resources=Resources(
            shares=merging.only("shares", [a.resources.shares for a in all_of]),
            quota_us=quota.quota_us,
            period_us=quota.period_us,
            cpus=merging.only("cpus", [a.resources.cpus for a in all_of]),
            memory_bytes=merging.only("memory_bytes", [a.resources.memory_bytes for a in all_of]),
        ),
        rdt_class=merging.only("rdt_class", [a.rdt_class for a in all_of]),
        oom_score_adj=merging.only("oom_score_adj", [a.oom_score_adj for a in all_of]),
        bvt_warp_ns=merging.only("bvt_warp_ns", [a.bvt_warp_ns for a in all_of]),
        core_group=merging.only("core_group", [a.core_group for a in all_of]),
        reason=reason,
        failed=failed,
    )
    return whole, tuple(merging.failures)
