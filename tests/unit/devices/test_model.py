"""The health machine against a model that knows only the promises, over arbitrary histories."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from agent.devices.health import HealthTrack, TimePoint, observe, record_missing, render_health
from agent.devices.health_file import decode_health, encode_health, select_records
from agent.snapshot.device import Health, HealthState
from agent.snapshot.settings import HealthPolicy
from tests.unit.devices.looks import BAD, GOOD, ODD, UNSURE, WALL_S

IN_SERVICE = (HealthState.HEALTHY, HealthState.SUSPECT)
LEVELS = {HealthState.HEALTHY: 0, HealthState.SUSPECT: 1}
small = st.integers(1, 4)
pauses = st.sampled_from((0.0, 0.5, 1.0, 5.0, 30.0, 400.0, 2000.0, 4000.0))


@st.composite
def policies(draw: st.DrawFn) -> HealthPolicy:
    window_s = draw(st.sampled_from((10.0, 600.0, 3600.0)))
    return HealthPolicy(
        failed_looks=draw(small),
        suspect_looks=draw(small),
        clear_looks=draw(small),
        clean_probes=draw(st.integers(1, 6)),
        clean_s=draw(st.sampled_from((0.0, 3.0, 60.0))),
        flap_changes=draw(st.integers(1, 5)),
        flap_window_s=window_s,
        flap_hold_s=draw(st.sampled_from((0.0, 5.0, window_s, 3600.0))),
    )


class HealthModel(RuleBasedStateMachine):
    """Looks, doubts, absences and restarts in any order; what must hold is kept beside."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = HealthPolicy()
        self.now = TimePoint(1000.0, WALL_S)
        self.track: HealthTrack | None = None
        self.clean = 0  # looks in a row that did not fail
        self.quiet_from_s = float("-inf")  # since when nothing disturbed the row
        self.bad_s = float("-inf")  # of the last bad look, as the hold counts
        self.turns: list[float] = []
        self.worse = False
        self.changes = 0
        self.boots = 0

    @initialize(policy=policies())
    def begin(self, policy: HealthPolicy) -> None:
        self.policy = policy

    @property
    def state(self) -> HealthState | None:
        return None if self.track is None else self.track.state

    def pass_time(self, seconds: float) -> None:
        self.now = TimePoint(self.now.mono_s + seconds, self.now.wall_s + seconds)

    def disturb(self) -> None:
        """Nobody looked, or could: whatever was in a row is so no more."""
        self.clean = 0
        if self.state is not None and self.state not in IN_SERVICE:
            self.quiet_from_s = self.bad_s = self.now.mono_s

    @rule(verdict=st.sampled_from((GOOD, ODD, BAD)), seconds=pauses, times=st.integers(1, 8))
    def look(self, verdict: Health, seconds: float, times: int) -> None:
        for _ in range(times):
            self.pass_time(seconds)
            self.look_once(verdict)

    def look_once(self, verdict: Health) -> None:
        before, track = self.state, self.track
        failed = verdict.state is HealthState.FAILED
        self.clean = 0 if failed else self.clean + 1
        if failed:
            self.quiet_from_s = self.bad_s = self.now.mono_s
        elif verdict.state is HealthState.SUSPECT and before in (*IN_SERVICE, None):
            self.bad_s = self.now.mono_s
        self.track = observe(track, verdict, self.policy, self.now)
        if track is None or before is None:
            self.worse = verdict.state is not HealthState.HEALTHY
            return
        self.check_step(before, track, verdict)

    def check_step(self, before: HealthState, old: HealthTrack, verdict: Health) -> None:
        after = self.track
        assert after is not None
        step = LEVELS.get(after.state, 2) - LEVELS.get(before, 2)
        if before not in IN_SERVICE and after.state in IN_SERVICE:
            assert self.clean >= self.policy.clean_probes
            assert self.now.mono_s - self.quiet_from_s >= self.policy.clean_s
        if verdict.state is HealthState.FAILED and self.policy.failed_looks == 1:
            assert after.state is HealthState.FAILED
        if step < 0:
            self.check_hold()
        if step and (step > 0) is not self.worse:
            self.turns.append(self.now.mono_s)
            self.worse = step > 0
        if after.state is not before and not old.is_restored:
            self.changes += 1
        elif old.is_restored:
            self.changes += after.changes  # what had failed before has not changed by failing

    def check_hold(self) -> None:
        """A device gets better only if it did not turn too often, or was held long enough."""
        window_s, hold_s = self.policy.flap_window_s, self.policy.flap_hold_s
        recent = [at_s for at_s in self.turns if self.now.mono_s - at_s < window_s]
        if self.now.mono_s - self.bad_s < hold_s:
            assert len(recent) < self.policy.flap_changes
        elif self.track is not None and len(recent) >= self.policy.flap_changes:
            self.turns.clear()  # the hold is over, and the count begins anew

    @rule(seconds=pauses)
    def doubt(self, seconds: float) -> None:
        self.pass_time(seconds)
        if self.track is None:
            return
        before = self.track
        self.disturb()
        self.track = observe(before, UNSURE, self.policy, self.now)
        health = render_health(self.track, self.policy)
        assert (health.state, health.changes) == (before.state, before.changes)
        assert not health.certain
        assert before.cause.message in health.message

    @rule(seconds=pauses)
    def miss(self, seconds: float) -> None:
        self.pass_time(seconds)
        if self.track is not None:
            self.disturb()
            self.track = record_missing(self.track, self.now)

    @rule(seconds=pauses, reboot=st.booleans())
    def restart(self, seconds: float, reboot: bool) -> None:
        if self.track is None:
            return
        data = encode_health(
            select_records({"v": {"k": self.track}}), f"boot{self.boots}", self.now
        )
        was = self.track
        self.pass_time(seconds)
        if reboot:
            self.boots += 1
            moved_s = 500.0 - self.now.mono_s
            self.now = replace(self.now, mono_s=500.0)
            self.turns = [at_s + moved_s for at_s in self.turns]
            self.bad_s += moved_s
        self.track = decode_health(data, f"boot{self.boots}", self.now).get("v", {}).get("k")
        self.disturb()
        self.changes = 0
        if self.track is None:
            assert was.state is HealthState.HEALTHY
            self.turns, self.worse = [], False
            return
        if was.state is not HealthState.HEALTHY:
            self.bad_s = self.now.mono_s
        assert self.track.since_s == was.since_s
        assert self.track.state is (
            HealthState.PROBING if was.state is HealthState.FAILED else was.state
        )

    @invariant()
    def what_is_told_is_consistent(self) -> None:
        if self.track is None:
            return
        health = render_health(self.track, self.policy)
        assert health.changes == self.changes
        assert health.reason
        assert health.since_s is None or health.since_s <= self.now.wall_s
        if health.state not in IN_SERVICE and health.certain:
            assert BAD.message in health.message
            assert health.reason in (BAD.reason, "Flapping")

    @invariant()
    def memory_is_bounded_and_in_the_past(self) -> None:
        if self.track is not None:
            assert max(self.track.last_bad_s, self.track.last_check_s) <= self.now.mono_s
            assert len(self.track.turn_times_s) <= self.policy.flap_changes


HealthModel.TestCase.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)
TestHealthModel = HealthModel.TestCase
