"""The machine and the view against a server that misbehaves in every way we know."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent.kube.watch import machine
from agent.kube.watch.cache import DecodedObject, WatchCache
from agent.kube.watch.machine import (
    CacheEffect,
    DelayCommand,
    DelayOver,
    ListCommand,
    ListWatchState,
    PageSummary,
    ReadCommand,
    StreamCommand,
    StreamEnd,
    WatchEvent,
    WatchFailure,
    WatchFailureReason,
    WatchInput,
    WatchTransition,
)
from agent.snapshot.cluster import WatchPhase
from tests.unit.kube_watch.model import Change, Server, make

LEAST_WAIT_S = 0.08
keys = st.sampled_from(["a", "b", "c", "d", "e"])
why = st.sampled_from(list(WatchFailureReason))
lasted_s = st.sampled_from([0.0, 1.0, 100.0])


class Followed(RuleBasedStateMachine):
    """One client and one server; each rule is one thing that happens to either."""

    @initialize(opaque=st.booleans(), hurried=st.booleans())
    def begin(self, opaque: bool, hurried: bool) -> None:
        self.server = Server(opaque=opaque)
        self.uniform = (lambda low, _: low) if hurried else (lambda _, high: high)
        self.view: WatchCache[int, int] = WatchCache("model", make)
        self.step = WatchTransition(ListWatchState(), DelayCommand(0.0))
        self.pending: list[Change] = []
        self.sent: list[Change] = []
        self.unspaced = 0  # requests since the last wait
        self.orderly = True  # no event was left out or sent in another order
        for key in "abcde":
            self.server.store(key, 0)
        self.feed(DelayOver())

    # what happens at the server

    @rule(key=keys, value=st.integers(0, 3))
    def put(self, key: str, value: int) -> None:
        self.arrives(lambda: self.server.store(key, value))

    @rule(key=keys)
    def delete(self, key: str) -> None:
        self.arrives(lambda: self.server.delete(key))

    @rule(key=keys, value=st.integers(0, 3))
    def recreate(self, key: str, value: int) -> None:
        self.arrives(lambda: self.server.recreate(key, value))

    @rule()
    def compact(self) -> None:
        self.server.compact()

    @rule()
    def touch(self) -> None:
        self.server.touch()

    # what becomes of what the client asks

    @rule(stale=st.integers(0, 3), times=st.integers(1, 8))
    def goes_well(self, stale: int, times: int) -> None:
        for _ in range(times):
            self.well(stale)

    @precondition(lambda self: not isinstance(self.step.command, DelayCommand))
    @rule(reason=st.none() | why, lasted=lasted_s)
    def breaks(self, reason: WatchFailureReason | None, lasted: float) -> None:
        if reason is not None:
            self.feed(WatchFailure(reason=reason, lasted_s=lasted if self.streaming else 0.0))
        elif self.streaming:
            self.feed(StreamEnd(lasted_s=lasted))

    @precondition(lambda self: self.streaming and not self.pending)
    @rule()
    def bookmark(self) -> None:
        self.feed(WatchEvent(type="BOOKMARK", version=self.server.version(self.server.revision)))

    @precondition(lambda self: self.streaming)
    @rule(type_=st.sampled_from(["BOOKMARK", "ADDED", "NEWS"]))
    def nonsense(self, type_: str) -> None:
        self.feed(WatchEvent(type=type_, version=""))

    @precondition(lambda self: self.streaming and self.sent)
    @rule()
    def the_last_event_again(self) -> None:
        self.feed(*self.server.event(self.sent[-1]))

    @precondition(lambda self: self.streaming and self.sent and not self.server.opaque)
    @rule(data=st.data())
    def an_old_event_again(self, data: st.DataObject) -> None:
        self.feed(*self.server.event(data.draw(st.sampled_from(self.sent))))

    @precondition(lambda self: self.streaming and len(self.pending) > 1 and not self.server.opaque)
    @rule()
    def out_of_order(self) -> None:
        self.orderly = False
        self.pending[0], self.pending[1] = self.pending[1], self.pending[0]

    # what must hold

    @invariant()
    def requests_are_spaced(self) -> None:
        assert self.unspaced <= 4  # three pages and the stream after them

    @invariant()
    def no_wait_is_too_short(self) -> None:
        if isinstance(self.step.command, DelayCommand):
            assert LEAST_WAIT_S <= self.step.command.seconds <= 300.0

    @invariant()
    def the_view_was_the_servers_at_one_moment(self) -> None:
        if self.orderly:
            assert self.server.was(dict(self.view.mapping))

    def teardown(self) -> None:
        """Let everything go well from now on: the view becomes the server's."""
        if not hasattr(self, "server"):
            return
        for _ in range(60):
            if self.streaming and not self.pending:
                break
            self.well(stale=0)
        else:
            raise AssertionError(f"never quiet: {self.step}")
        if self.orderly or self.server.opaque:
            assert dict(self.view.mapping) == self.server.now()
        else:  # a bookmark tells that something was amiss, at the latest the next list does
            self.feed(WatchFailure(reason=WatchFailureReason.EXPIRED))
            self.quiet_again()

    def quiet_again(self) -> None:
        while not (self.streaming and not self.pending):
            self.well(stale=0)
        assert dict(self.view.mapping) == self.server.now()

    # how it is done

    @property
    def streaming(self) -> bool:
        return isinstance(self.step.command, ReadCommand) or (
            isinstance(self.step.command, StreamCommand) and self.opened
        )

    opened = False

    def arrives(self, change: Callable[[], None]) -> None:
        """Change the server; an open stream will tell of it."""
        before = len(self.server.log)
        change()
        if self.streaming:
            self.pending += self.server.log[before:]

    def well(self, stale: int) -> None:
        match self.step.command:
            case DelayCommand():
                self.unspaced = 0
                self.feed(DelayOver())
            case ListCommand() as command:
                answer = self.server.listed(command, stale)
                if isinstance(answer, WatchFailure):
                    self.feed(answer)
                else:
                    self.page(*answer)
            case StreamCommand() as command if not self.opened:
                begun = self.server.stream(command)
                if isinstance(begun, WatchFailure):
                    self.feed(begun)
                else:
                    self.pending, self.sent, self.opened = begun, [], True
            case _:
                if self.pending:
                    self.sent.append(self.pending.pop(0))
                    self.feed(*self.server.event(self.sent[-1]))

    def page(self, page: PageSummary, expected: list[DecodedObject[int]]) -> None:
        before = dict(self.view.mapping)
        self.view.stage(expected)
        assert dict(self.view.mapping) == before  # a list that is not complete is not shown
        self.feed(page)

    def feed(self, watch_input: WatchInput, decoded: DecodedObject[int] | None = None) -> None:
        before = dict(self.view.mapping)
        self.step = machine.step(self.step.state, watch_input, self.uniform)
        command = self.step.command
        if isinstance(command, ListCommand | StreamCommand):
            self.unspaced += 1
        if not isinstance(command, ReadCommand):
            self.opened, self.pending = False, []
        self.apply(decoded)
        if self.step.effect in (CacheEffect.NONE, CacheEffect.STAGE, CacheEffect.DROP):
            assert dict(self.view.mapping) == before
        slow = self.step.state.phase in (WatchPhase.ABSENT, WatchPhase.FORBIDDEN)
        assert not slow or isinstance(command, DelayCommand)

    def apply(self, decoded: DecodedObject[int] | None) -> None:
        match self.step.effect:
            case CacheEffect.REPLACE:
                self.view.replace()
                assert self.server.was(dict(self.view.mapping))
            case CacheEffect.DROP:
                self.view.drop()
            case CacheEffect.UPDATE if decoded is not None:
                self.view.update(decoded)
            case CacheEffect.REMOVE if decoded is not None:
                self.view.remove(decoded)


TestFollowed = Followed.TestCase
TestFollowed.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
