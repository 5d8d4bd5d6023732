"""All hooks asked one question: what is changed, what would be, and which hook has a bug."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from agent.config.containers import MODES, EnforceSettings
from agent.grants.claims import claim_text
from agent.hooks.base import Hook
from agent.hooks.merge import Answers, Failure, merged
from agent.model.cluster.annotation import BadAnnotation
from agent.model.grant.edits import ContainerEdits, Note
from agent.model.grant.refusal import GrantRefused
from agent.model.runtime.adjustment import NOTHING, Adjustment
from agent.model.runtime.request import HookRequest
from agent.model.snapshot import NodeSnapshot

OFF, PLAN, ON = MODES
BAD_ANNOTATION = "BadAnnotation"
HOOK_FAILED = "HookFailed"
MAX_ERROR = 200  # characters of what a hook raised


class Dispatched(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one question.

    `answers` has, by hook, what `adjustment` was put together from, and `planned` what hooks in
    `plan` mode would have changed: nothing of that is in `adjustment`. `failures` are bugs, to be
    counted. `spent_s` has every hook that was asked.
    """

    adjustment: Adjustment = NOTHING
    answers: Answers = ()
    planned: Answers = ()
    failures: tuple[Failure, ...] = ()
    spent_s: tuple[tuple[str, float], ...] = ()


def modes_of(hooks: Iterable[Hook], enforce: EnforceSettings) -> Mapping[str, str]:
    """Return each hook's mode, which is never more than `enforce.mode`.

    A hook without a switch of its own follows that one.
    """
    return {
        hook.name: min(getattr(enforce.hooks, hook.name, ON), enforce.mode, key=MODES.index)
        for hook in hooks
    }


def dispatch(
    hooks: Iterable[Hook],
    request: HookRequest,
    snapshot: NodeSnapshot,
    modes: Mapping[str, str],
    now_s: Callable[[], float],
) -> Dispatched:
    """Ask the hooks of this stage, in their order, and put their answers together. Never raises.

    The order decides nothing: see `merge` for who wins. A hook that is not in `modes` is off.
    `now_s` is monotonic, for what each took.
    """
    asked: list[tuple[str, str, _Answer]] = []
    spent_s: list[tuple[str, float]] = []
    for hook in hooks:
        mode = modes.get(hook.name, OFF)
        if mode == OFF or request.stage not in hook.stages:
            continue
        begun_s = now_s()
        asked.append((mode, hook.name, _ask(hook, request, snapshot)))
        spent_s.append((hook.name, now_s() - begun_s))
    on, planned = _said(asked, ON), _said(asked, PLAN)
    whole, conflicts = merged(on)
    bugs = (Failure(name, answer.bug) for _, name, answer in asked if answer.bug)
    return Dispatched(
        adjustment=whole,
        answers=on,
        planned=planned,
        failures=(*bugs, *conflicts),
        spent_s=tuple(spent_s),
    )


def _said(asked: Iterable[tuple[str, str, _Answer]], mode: str) -> Answers:
    """Return what the hooks of a mode have to say, without those that say nothing."""
    return tuple(
        (name, answer.adjustment)
        for of_mode, name, answer in asked
        if of_mode == mode and answer.adjustment is not NOTHING and answer.adjustment != NOTHING
    )


class _Answer(msgspec.Struct, frozen=True):
    adjustment: Adjustment = NOTHING
    bug: str = ""


def _ask(hook: Hook, request: HookRequest, snapshot: NodeSnapshot) -> _Answer:
    try:
        return _Answer(hook.adjust(request, snapshot))
    except GrantRefused as refused:
        return _Answer(_refusal(hook, refused.reason, str(refused)))
    except BadAnnotation as bad:
        return _Answer(_refusal(hook, BAD_ANNOTATION, f"{hook.name}: {bad}"))
    except Exception as error:  # noqa: BLE001 - a hook's bug must not cost the others their say
        bug = f"{type(error).__name__}: {error}"[:MAX_ERROR]
        if hook.required and claim_text(request.pod) is not None:
            # to run without what was granted is worse than not to run
            words = f"{hook.name} has a bug ({type(error).__name__}): see the agent's log"
            return _Answer(Adjustment(failed=f"{HOOK_FAILED}: {words}", reason=HOOK_FAILED), bug)
        note = f"the hook {hook.name} has failed, what it sets is missing ({type(error).__name__})"
        return _Answer(_told(HOOK_FAILED, note), bug)


def _refusal(hook: Hook, reason: str, message: str) -> Adjustment:
    if hook.required:
        return Adjustment(failed=message, reason=reason)
    return _told(reason, message)


def _told(reason: str, message: str) -> Adjustment:
    return Adjustment(edits=ContainerEdits(notes=(Note(reason=reason, message=message),)))
