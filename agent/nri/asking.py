"""Asks the hooks within the budget: the runtime gets an answer in time whatever they do."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial

import msgspec

from agent.grants.claims import claim_text
from agent.model.runtime.adjustment import Adjustment
from agent.model.runtime.request import HookRequest, Stage
from agent.nri.figures import Figures
from agent.nri.picture import Picture
from agent.nri.versions import Peer
from agent.nri.wire.errors import FAILED_PRECONDITION, INTERNAL, CallFailed

log = logging.getLogger(__name__)

MARGIN_S = 0.2  # before the runtime's own patience ends, which would cost the connection
LAST_S = 2.0  # at the end, for hooks that do not even end when they are told to

# an answer that needs no waiting is best given at once: it costs no turn of the loop
Ask = Callable[[HookRequest], Adjustment | Awaitable[Adjustment]]
Reply = Callable[[str, "bytes | CallFailed"], None]  # how it went, and the answer


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the hooks are asked, about which sandbox or container, and how it is answered."""

    request: HookRequest
    subject: str  # its id
    render: Callable[[Adjustment], bytes]
    refusable: bool = True  # False: the runtime can do nothing with a refusal


def patience_s(budget_s: float, call_timeout_s: float, peer: Peer) -> float:
    """Return how long the hooks may take: the budget, or less where the runtime waits for less."""
    limit_s = min(call_timeout_s or peer.request_timeout_s, peer.request_timeout_s)
    return min(budget_s, max(limit_s - MARGIN_S, limit_s / 2))


class Asking:
    """The questions of one connection that are open. Belongs to the loop thread."""

    def __init__(self, ask: Ask, picture: Picture, figures: Figures) -> None:
        """Ask by `ask`, which must not block; mark in the picture who goes on without an answer."""
        self._ask = ask
        self._picture = picture
        self._figures = figures
        self._loop = asyncio.get_running_loop()
        self._open: dict[asyncio.Task[None], tuple[asyncio.TimerHandle, Question]] = {}
        self.settled = asyncio.Event()  # cleared while the picture is being replaced
        self.settled.set()

    def ask(self, question: Question, until_s: float, reply: Reply) -> None:
        """Have `reply` called once, by the loop's time `until_s` with no change if need be.

        It is called before this returns if the hooks answer without waiting.
        """
        said: Adjustment | Awaitable[Adjustment] | None = None
        if self.settled.is_set():
            try:
                said = self._ask(question.request)
            except Exception as error:  # noqa: BLE001 - a hook's boundary: a bug stops no pod
                reply(*self._broken(question, error))
                return
        if isinstance(said, Adjustment):
            reply(*self._answer(question, said))
            return
        self._picture.show()
        task = self._loop.create_task(self._decide(question, said, reply))
        if inspect.iscoroutine(said):  # a task that is cancelled before its first turn leaves it
            task.add_done_callback(partial(_closed, said))
        timer = self._loop.call_at(until_s, self._late, task, reply)
        self._open[task] = timer, question
        self._figures.in_flight += 1

    async def last_answers(self) -> None:
        """Wait for what is open now: a pod that starts just then is not to start without us."""
        if self._open:
            await asyncio.wait(tuple(self._open), timeout=LAST_S)

    def drop(self) -> None:
        """End all that is open: nobody waits for the answers any more."""
        for task in tuple(self._open):
            question = self._forget(task)
            task.cancel()
            if question is not None:
                self._went_on(question, "ConnectionLost")

    async def _decide(
        self, question: Question, said: Awaitable[Adjustment] | None, reply: Reply
    ) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - within a coroutine that is one
        try:
            result, answer = self._answer(question, await self._waited(question, said))
        except asyncio.CancelledError as error:
            if task not in self._open:
                raise  # by us: it is answered, or nobody waits
            result, answer = self._broken(question, error)
        except Exception as error:  # noqa: BLE001 - as in `ask`
            result, answer = self._broken(question, error)
        self._forget(task)
        reply(result, answer)

    async def _waited(self, question: Question, said: Awaitable[Adjustment] | None) -> Adjustment:
        if said is not None:
            return await said
        await self.settled.wait()
        found = self._ask(question.request)
        return found if isinstance(found, Adjustment) else await found

    def _broken(self, question: Question, error: BaseException) -> tuple[str, bytes | CallFailed]:
        stage = question.request.stage.value
        log.error("nri_hooks_failed", extra={"stage": stage}, exc_info=error)
        asked = question.request
        if asked.stage is Stage.CREATE and claim_text(asked.pod) is not None:
            # to run without what was granted is worse than not to run
            text = f"HookFailed: {type(error).__name__}: see the agent's log"
            return self._refused(question, INTERNAL, text)
        self._went_on(question, "HookFailed")
        return "broken", b""

    def _answer(self, question: Question, adjustment: Adjustment) -> tuple[str, bytes | CallFailed]:
        """Return how it went and the answer; never raises."""
        if adjustment.failed:
            return self._refused(question, FAILED_PRECONDITION, _why(adjustment))
        try:
            answer = question.render(adjustment)
        except CallFailed as error:
            return self._refused(question, error.code, error.message)
        except Exception as error:  # a bug, and without the answer the container would lack things
            log.exception("nri_answer_failed", extra={"stage": question.request.stage.value})
            return self._refused(question, INTERNAL, f"{type(error).__name__}: see the agent's log")
        self._count(question.request.stage, answer)
        if question.request.stage is Stage.CREATE:
            self._picture.created(question.subject)
        return "ok", answer

    def _refused(
        self, question: Question, code: int, message: str
    ) -> tuple[str, bytes | CallFailed]:
        if not question.refusable:
            return "ok", b""
        if question.request.stage is Stage.CREATE:
            self._picture.ended(question.subject)
        return "refused", CallFailed(code, message)

    def _late(self, task: asyncio.Task[None], reply: Reply) -> None:
        question = self._forget(task)
        if question is None:
            return
        task.cancel()
        stage = question.request.stage.value
        log.warning("nri_answer_late", extra={"stage": stage, "subject": question.subject})
        self._went_on(question, "BudgetExceeded")
        reply("late", b"")

    def _went_on(self, question: Question, reason: str) -> None:
        self._picture.missed(question.subject, reason)

    def _forget(self, task: asyncio.Task[None]) -> Question | None:
        timer, question = self._open.pop(task, (None, None))
        if timer is not None:
            timer.cancel()
            self._figures.in_flight -= 1
        return question

    def _count(self, stage: Stage, answer: bytes) -> None:
        if not answer:
            return
        if stage is Stage.CREATE:
            self._figures.adjustments += 1
        elif stage is Stage.UPDATE:
            self._figures.updates += 1


def _closed(said: Coroutine[object, object, object], _: asyncio.Task[None]) -> None:
    said.close()


def _why(adjustment: Adjustment) -> str:
    """Return the message for the runtime, with the reason in it once."""
    reason, message = adjustment.reason, adjustment.failed
    return message if reason in message else f"{reason}: {message}"
