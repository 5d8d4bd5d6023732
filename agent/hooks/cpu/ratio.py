"""How much more this node's CPUs do than the cluster's measure, as its manager notes."""

from __future__ import annotations

import re

from agent.grants.remember import Remembered
from agent.model.snapshot import NodeSnapshot

RATIO = "node.koordinator.sh/cpu-normalization-ratio"
MIN_CHANGE = 0.01
MAX_RATIO = 1000.0
_DECIMAL = re.compile(r"[0-9]{1,4}(\.[0-9]{1,17})?")

Ratio = Remembered[float | None]


def next_ratio(text: str | None, before: float | None) -> float | None:
    """Return the ratio in force; `None`: the Node does not say.

    A text that is no positive number leaves the old one in force, as does a change of less than
    a hundredth: quotas of all pods would be written for nothing.
    """
    if text is None:
        return None
    found = float(text) if _DECIMAL.fullmatch(text) else 0.0
    if not 0.0 < found <= MAX_RATIO:
        return before
    # of binary fractions: 2.01 is not quite a hundredth more than 2.00
    near = before is not None and round(abs(found - before), 6) < MIN_CHANGE
    return before if near else found


def node_ratio() -> Ratio:
    """Return a function that tells the ratio; hooks that scale share one, and so agree."""
    return Remembered(lambda now: (now.cluster.node.value,), _of_node)


def _of_node(snapshot: NodeSnapshot, before: float | None) -> float | None:
    node = snapshot.cluster.node.value
    return None if node is None else next_ratio(node.annotation(RATIO), before)
