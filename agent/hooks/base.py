"""What a hook is: a pure function of a question and the snapshot, with a name and a policy."""

from __future__ import annotations

from typing import Protocol

from agent.model.runtime.adjustment import Adjustment
from agent.model.runtime.request import HookRequest, Stage
from agent.model.snapshot import NodeSnapshot


class Hook(Protocol):
    """One concern. Implementations are plain classes without state; equal arguments, equal answer.

    A hook that raises anything but `GrantRefused` has a bug: it is counted, its fields are
    dropped, those of the others stay.
    """

    name: str  # as in `enforce.hooks`
    stages: frozenset[Stage]
    required: bool  # a container that cannot get this must not start (if its pod asked for it)

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return what this hook changes; `NOTHING` where it has no say. No I/O, no waiting."""
        ...
