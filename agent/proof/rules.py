"""What the rules of a device cgroup let a container open."""

from __future__ import annotations

from collections.abc import Iterable

from agent.proof.evidence import Rule


def allowed(rules: Iterable[Rule], major: int, minor: int, kind: str = "c") -> frozenset[str]:
    """Return what of r, w and m is allowed on one device; later rules win over earlier ones."""
    may: set[str] = set()
    for rule in rules:
        if rule.kind not in ("a", kind):
            continue
        if rule.major not in (None, major) or rule.minor not in (None, minor):
            continue
        if rule.allow:
            may.update(rule.access)
        else:
            may.difference_update(rule.access)
    return frozenset(may)


def everything(rules: Iterable[Rule]) -> bool:
    """Say whether the rules let every device be opened, as those of a privileged container do."""
    return "r" in allowed((rule for rule in rules if rule.major is rule.minor is None), -1, -1)
