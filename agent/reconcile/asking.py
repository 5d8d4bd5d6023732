"""What the hooks want of one pod's files, and which hook wants what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from agent.hooks.base import Hook
from agent.hooks.dispatch import dispatch
from agent.hooks.merge import QUOTA_WINNERS, Answers, Failure, merged
from agent.model.grant.edits import Note
from agent.model.runtime.adjustment import NOTHING, Adjustment
from agent.model.runtime.request import HookRequest
from agent.model.snapshot import NodeSnapshot


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to one question: of hooks that are on, as one, and of those in plan mode."""

    answers: Answers = ()
    whole: Adjustment = NOTHING
    planned: Answers = ()
    failures: tuple[Failure, ...] = ()

    @property
    def notes(self) -> tuple[Note, ...]:
        """Return what the hooks have to say to people."""
        refused = self.whole.failed
        said = self.whole.edits.notes
        return (*said, Note(reason=self.whole.reason, message=refused)) if refused else said

    def as_planned(self) -> Asked:
        """Return the answers of hooks in plan mode as if they were on."""
        return Asked(answers=self.planned, whole=merged(self.planned)[0])

    def owner(self, field: Callable[[Adjustment], object]) -> str:
        """Return the hook whose value of a field is in the whole."""
        value = field(self.whole)
        names = [name for name, answer in self.answers if field(answer) == value]
        winner = next((name for name in QUOTA_WINNERS if name in names), None)
        return winner or next(iter(names), "")


def ask(
    hooks: Iterable[Hook],
    request: HookRequest,
    snapshot: NodeSnapshot,
    modes: Mapping[str, str],
    now_s: Callable[[], float],
) -> Asked:
    """Ask the hooks of the stage; the answer of each can be told from the others'."""
    said = dispatch(hooks, request, snapshot, modes, now_s)
    return Asked(
        answers=said.answers,
        whole=said.adjustment,
        planned=said.planned,
        failures=said.failures,
    )
