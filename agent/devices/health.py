"""The health machine of all vendors: healthy, suspect, failed, probing. Pure.

A fault takes a device out of service at once. The device returns after enough good reports in a
row and enough time since the last bad one; until then it is probing. A device that changes its
state too often within a time is held in its last bad state.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from agent.snapshot.device import Health, HealthState
from agent.snapshot.settings import HealthPolicy

NEVER_S = float("-inf")

OUT_OF_SERVICE = (HealthState.FAILED, HealthState.PROBING)


class TimePoint(msgspec.Struct, frozen=True):
    """One moment on two clocks: durations use the monotonic time, dates the wall time."""

    mono_s: float
    wall_s: float


class HealthCause(msgspec.Struct, frozen=True):
    """Why a device is in its state, in its vendor's words."""

    reason: str
    message: str


class HealthTrack(msgspec.Struct, frozen=True, kw_only=True):
    """The health of one device, or of one slice; `state` is what is published.

    Seconds are monotonic except `since_s`, which is wall time. A check is bad if it failed or, for
    a device in service, returned SUSPECT.
    """

    state: HealthState
    cause: HealthCause
    since_s: float | None = None  # of the last change of state or certainty; None: unknown
    changes: int = 0  # of the state, since the agent's start
    last_state: HealthState = HealthState.HEALTHY  # result of the last check
    last_check_s: float = NEVER_S  # time of the last check
    last_bad_s: float = NEVER_S  # time of the last bad check
    streak: int = 1  # number of equal results in a row
    good_checks: int = 0  # number of checks in a row that did not fail
    turn_times_s: tuple[float, ...] = ()  # times at which it became worse, or good again
    is_worse: bool = False  # the last turn was for the worse
    is_flapping: bool = False  # held in its state because it turned too often
    # why the present state is unknown; None: the last check was certain
    uncertainty: HealthCause | None = None
    is_restored: bool = False  # restored from an earlier run, and not checked since


def severity(state: HealthState) -> int:
    """Return how bad a state is: 0 healthy, 1 suspect but in service, 2 out of service."""
    if state in OUT_OF_SERVICE:
        return 2
    return 1 if state is HealthState.SUSPECT else 0


FLAPPING = "Flapping"

HEALTHY, SUSPECT = HealthState.HEALTHY, HealthState.SUSPECT
PROBING, FAILED = HealthState.PROBING, HealthState.FAILED
_HEALTHY_CAUSE = HealthCause(Health().reason, Health().message)


def observe(
    track: HealthTrack | None,
    verdict: Health,
    policy: HealthPolicy,
    now: TimePoint,
    *,
    at_once: bool = False,
) -> HealthTrack:
    """Return the track after one check. `now` must not be before the last check.

    The first check decides at once; with `at_once` a bad result needs no confirmation. A result
    that is not certain is no check: the state stays, but is uncertain.
    """
    raw = FAILED if verdict.state is PROBING else verdict.state
    if track is None:
        return _new_track(verdict, raw, now)
    if not verdict.certain:
        return _mark_uncertain(track, _cause(verdict), now)
    checked = _count_check(track, raw, now)
    if severity(raw) >= severity(checked.state):
        return _move_to(
            checked, _worse_state(checked, raw, policy, at_once=at_once), verdict, policy, now
        )
    if _is_held(checked, policy, now):
        target = SUSPECT if checked.state is SUSPECT else FAILED
        return replace(_move_to(checked, target, verdict, policy, now), is_flapping=True)
    if checked.is_flapping:
        checked = replace(checked, is_flapping=False, turn_times_s=())
    return _move_to(checked, _better_state(checked, raw, policy, now), verdict, policy, now)


def record_missing(track: HealthTrack, now: TimePoint) -> HealthTrack:
    """Return the track after a check that did not find the device; counts in a row start again."""
    bad_s = now.mono_s if track.state in OUT_OF_SERVICE else track.last_bad_s
    return replace(track, streak=0, good_checks=0, last_bad_s=bad_s)


def clear_flapping(track: HealthTrack) -> HealthTrack:
    """Return the track no longer held for flapping; the device still needs good checks in a row."""
    return replace(track, turn_times_s=(), is_flapping=False)


def render_health(track: HealthTrack, policy: HealthPolicy) -> Health:
    """Return the published health; the message always has that of the last cause."""
    reason, message = track.cause.reason, track.cause.message
    if track.uncertainty is not None:
        reason = track.uncertainty.reason
        message = f"{track.uncertainty.message}; before that {track.cause.reason}: {message}"
    elif track.is_flapping:
        message = (
            f"changed more than {policy.flap_changes} times within {policy.flap_window_s:g} s, held"
            f" until {policy.flap_hold_s:g} s after the last fault; {reason}: {message}"
        )
        reason = FLAPPING
    elif track.state is PROBING:
        message = f"{message}; {_recovery_text(policy)}"
    elif track.state is SUSPECT and track.last_state is FAILED:
        message = f"{message}; failed if {policy.failed_looks} looks in a row find it so"
    return Health(
        state=track.state,
        reason=reason,
        message=message,
        since_s=track.since_s,
        changes=track.changes,
        certain=track.uncertainty is None,
    )


def _cause(verdict: Health) -> HealthCause:
    return HealthCause(verdict.reason, verdict.message)


def _new_track(verdict: Health, raw: HealthState, now: TimePoint) -> HealthTrack:
    is_bad = raw is not HEALTHY
    return HealthTrack(
        state=raw,
        cause=_cause(verdict) if is_bad or verdict.certain else _HEALTHY_CAUSE,
        since_s=verdict.since_s,
        last_state=raw,
        last_check_s=now.mono_s,
        last_bad_s=now.mono_s if is_bad else NEVER_S,
        good_checks=int(raw is not FAILED),
        is_worse=is_bad,
        uncertainty=None if verdict.certain else _cause(verdict),
    )


def _mark_uncertain(track: HealthTrack, cause: HealthCause, now: TimePoint) -> HealthTrack:
    """Return the track as uncertain; counts in a row start again."""
    uncertain = replace(record_missing(track, now), uncertainty=cause, last_check_s=now.mono_s)
    return uncertain if track.uncertainty is not None else replace(uncertain, since_s=now.wall_s)


def _count_check(track: HealthTrack, raw: HealthState, now: TimePoint) -> HealthTrack:
    is_suspect = raw is SUSPECT and track.state not in OUT_OF_SERVICE
    return replace(
        track,
        last_state=raw,
        last_check_s=now.mono_s,
        last_bad_s=now.mono_s if raw is FAILED or is_suspect else track.last_bad_s,
        streak=track.streak + 1 if raw is track.last_state else 1,
        good_checks=0 if raw is FAILED else track.good_checks + 1,
    )


def _worse_state(
    track: HealthTrack, raw: HealthState, policy: HealthPolicy, *, at_once: bool
) -> HealthState:
    """Return the state after a check with a result that is not better than the state."""
    if raw is FAILED:
        is_out = at_once or track.state in OUT_OF_SERVICE or track.streak >= policy.failed_looks
        return FAILED if is_out else SUSPECT
    if raw is SUSPECT and not at_once and track.streak < policy.suspect_looks:
        return track.state
    return raw


def _better_state(
    track: HealthTrack, raw: HealthState, policy: HealthPolicy, now: TimePoint
) -> HealthState:
    """Return the state after a check with a result better than the state."""
    if track.state is SUSPECT:
        return HEALTHY if track.streak >= policy.clear_looks else SUSPECT
    quiet_s = now.mono_s - track.last_bad_s
    is_recovered = track.good_checks >= policy.clean_probes and quiet_s >= policy.clean_s
    return raw if is_recovered else PROBING


def _is_held(track: HealthTrack, policy: HealthPolicy, now: TimePoint) -> bool:
    """Return whether a recovery now would be a turn too many, or the hold for that still lasts."""
    has_many_turns = len(_recent_turns(track, policy, now)) >= policy.flap_changes
    hold_lasts = now.mono_s - track.last_bad_s < policy.flap_hold_s
    return (has_many_turns or track.is_flapping) and hold_lasts


def _recent_turns(track: HealthTrack, policy: HealthPolicy, now: TimePoint) -> tuple[float, ...]:
    return tuple(at_s for at_s in track.turn_times_s if now.mono_s - at_s < policy.flap_window_s)


def _move_to(
    track: HealthTrack, target: HealthState, verdict: Health, policy: HealthPolicy, now: TimePoint
) -> HealthTrack:
    """Return the track in its target state, with time, number and direction of the change."""
    # a device that failed in the earlier run has not failed again just because the agent restarted
    is_repeated = track.is_restored and track.state is PROBING and target is FAILED
    has_changed = target is not track.state and not is_repeated
    since_s = track.since_s
    if has_changed:
        since_s = _change_time(track, target, verdict, now)
    elif track.uncertainty is not None:
        since_s = now.wall_s
    elif since_s is None and target is track.last_state:
        since_s = verdict.since_s
    step = severity(target) - severity(track.state)
    has_turned = step > 0 if not track.is_worse else step < 0
    turns = _recent_turns(track, policy, now)
    return replace(
        track,
        state=target,
        cause=_cause(verdict) if _is_cause(track.last_state, target) else track.cause,
        since_s=since_s,
        changes=track.changes + has_changed,
        turn_times_s=(*turns, now.mono_s)[-policy.flap_changes :] if has_turned else turns,
        is_worse=track.is_worse != has_turned,
        uncertainty=None,
        is_restored=False,
    )


def _is_cause(raw: HealthState, target: HealthState) -> bool:
    """Return whether a result is the reason for a state, and does not contradict it."""
    return raw is target or (raw is FAILED and target is SUSPECT)


def _change_time(track: HealthTrack, target: HealthState, verdict: Health, now: TimePoint) -> float:
    """Return the vendor's time of the change, unless it is before the last change."""
    dated_s = verdict.since_s if target is track.last_state else None
    if dated_s is None or not (track.since_s or dated_s) <= dated_s <= now.wall_s:
        return now.wall_s
    return dated_s


def _recovery_text(policy: HealthPolicy) -> str:
    """Return what a probing device needs. Its progress is left out: each step would be a write."""
    requirement = f"{policy.clean_probes} looks in a row" + (
        f" and {policy.clean_s:g} s" if policy.clean_s > 0 else ""
    )
    return f"looks well again, in service after {requirement} without a fault"
