"""What a hook is: a pure function of a question and the snapshot, with a name and a policy."""

from __future__ import annotations

from typing import Protocol

from agent.model.runtime.adjustment import Adjustment
from agent.model.runtime.request import HookRequest, Stage
from agent.model.snapshot import NodeSnapshot


class Hook(Protocol):
    """One concern. Equal arguments, equal answer: nothing is kept but what `Remembered` keeps.

    A hook says no by `GrantRefused`, and leaves an annotation that means nothing unused by
    `BadAnnotation`, which people are told. Whatever else it raises is a bug: it is counted, its
    fields are dropped, those of the others stay; a container of a pod with a grant does not start
    without what a required one sets.
    """

    @property
    def name(self) -> str:
        """Return the name, as in `enforce.hooks` where there is a switch for it."""
        ...

    @property
    def stages(self) -> frozenset[Stage]:
        """Return when it is asked."""
        ...

    @property
    def required(self) -> bool:
        """Say whether a container that cannot get this must not start."""
        ...

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return what this hook changes; `NOTHING` where it has no say. No I/O, no waiting."""
        ...
