"""Questions to the decisions as the kubelet asks them, and what came of each."""

from __future__ import annotations

import pytest

from agent.deviceplugin.resources import AllocationError
from agent.snapshot.node import NodeSnapshot
from tests.unit.deviceplugin.made import GPU, card, deciding

VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def visible(snapshot: NodeSnapshot, *cards: int, last: bool = True) -> str | None:
    """The cards that a container gets for which the kubelet chose these."""
    result = deciding().allocate(GPU, tuple(map(card, cards)), snapshot, last=last)
    return dict(result.edits.env).get(VISIBLE)


def names(*cards: int) -> str:
    return ",".join(map(card, cards))


def refusal(snapshot: NodeSnapshot, *cards: int, last: bool = True) -> AllocationError:
    with pytest.raises(AllocationError) as raised:
        visible(snapshot, *cards, last=last)
    return raised.value
