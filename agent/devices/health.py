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
    """One moment on both clocks: durations are taken from the first, dates from the second."""

    mono_s: float
    wall_s: float


class HealthCause(msgspec.Struct, frozen=True):
    """Why a device is in its state, in its vendor's words."""

    reason: str
    message: str


class HealthTrack(msgspec.Struct, frozen=True, kw_only=True):
    """One device, or one slice of one; `state` is what others are told.

    Seconds are monotonic unless called `since_s`, which is wall time. A look that saw something
    bad is one that failed, or of a device in service one that found something odd.
    """

    state: HealthState
    cause: HealthCause
    since_s: float | None = None  # of the last change of state or certainty; None: nobody saw one
    changes: int = 0  # of the state, since the agent's start
    last_state: HealthState = HealthState.HEALTHY  # what the last look saw
    last_check_s: float = NEVER_S  # of the last look
    last_bad_s: float = NEVER_S  # of the last look that saw something bad
    streak: int = 1  # looks in a row that saw `raw`
    good_checks: int = 0  # looks in a row that did not fail
    turn_times_s: tuple[float, ...] = ()  # times at which it turned for the worse or back
    is_worse: bool = False  # the last turn was for the worse
    is_flapping: bool = False  # held in its state because it turned too often
    uncertainty: HealthCause | None = None  # why nobody can tell now; None: the last look could
    is_restored: bool = False  # known from an earlier run, and not looked at since


def severity(state: HealthState) -> int:
    """Return how bad a state is: 0 well, 1 odd but in service, 2 out of service."""
    if state in OUT_OF_SERVICE:
        return 2
    return 1 if state is HealthState.SUSPECT else 0


FLAPPING = "Flapping"

PROGRESS_STEPS = (
    4  # in which a probing device tells how far it is: each step is a write of the object
)

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
    """Take one look in. `now` must not be before the last look; the first one counts at once.

    With `at_once` no second look has to confirm a bad verdict. A verdict that is not certain is
    no look: the state stays, and nobody knows whether it still holds.
    """
    raw = FAILED if verdict.state is PROBING else verdict.state
    if track is None:
        return _new_track(verdict, raw, now)
    if not verdict.certain:
        return _mark_uncertain(track, _cause(verdict), now)
    seen = _count_check(track, raw, now)
    if severity(raw) >= severity(seen.state):
        return _move_to(
            seen, _worse_state(seen, raw, policy, at_once=at_once), verdict, policy, now
        )
    if _is_held(seen, policy, now):
        target = SUSPECT if seen.state is SUSPECT else FAILED
        return replace(_move_to(seen, target, verdict, policy, now), is_flapping=True)
    if seen.is_flapping:
        seen = replace(seen, is_flapping=False, turn_times_s=())
    return _move_to(seen, _better_state(seen, raw, policy, now), verdict, policy, now)


def record_missing(track: HealthTrack, now: TimePoint) -> HealthTrack:
    """Take in that a look did not find the device: what comes after is no longer in a row."""
    bad_s = now.mono_s if track.state in OUT_OF_SERVICE else track.last_bad_s
    return replace(track, streak=0, good_checks=0, last_bad_s=bad_s)


def clear_flapping(track: HealthTrack) -> HealthTrack:
    """Take in that a person wants the device held no longer; its looks have to be clean still."""
    return replace(track, turn_times_s=(), is_flapping=False)


def render_health(track: HealthTrack, policy: HealthPolicy) -> Health:
    """Return what others are told; the words of the last cause are always in the message."""
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
        message = f"{message}; {_progress(track, policy)}"
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
    bad = raw is not HEALTHY
    return HealthTrack(
        state=raw,
        cause=_cause(verdict) if bad or verdict.certain else _HEALTHY_CAUSE,
        since_s=verdict.since_s,
        last_state=raw,
        last_check_s=now.mono_s,
        last_bad_s=now.mono_s if bad else NEVER_S,
        good_checks=int(raw is not FAILED),
        is_worse=bad,
        uncertainty=None if verdict.certain else _cause(verdict),
    )


def _mark_uncertain(track: HealthTrack, why: HealthCause, now: TimePoint) -> HealthTrack:
    """Nobody can tell now: looks that were in a row are so no more."""
    uncertain = replace(record_missing(track, now), uncertainty=why, last_check_s=now.mono_s)
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
    """Return the state after a look that saw the device no better than it is known."""
    if raw is FAILED:
        out = at_once or track.state in OUT_OF_SERVICE or track.streak >= policy.failed_looks
        return FAILED if out else SUSPECT
    if raw is SUSPECT and not at_once and track.streak < policy.suspect_looks:
        return track.state
    return raw


def _better_state(
    track: HealthTrack, raw: HealthState, policy: HealthPolicy, now: TimePoint
) -> HealthState:
    """Return the state after a look that saw the device better than it is known."""
    if track.state is SUSPECT:
        return HEALTHY if track.streak >= policy.clear_looks else SUSPECT
    quiet_s = now.mono_s - track.last_bad_s
    back = track.good_checks >= policy.clean_probes and quiet_s >= policy.clean_s
    return raw if back else PROBING


def _is_held(track: HealthTrack, policy: HealthPolicy, now: TimePoint) -> bool:
    """Say whether getting better now would be a turn too many, or the hold for that still runs."""
    often = len(_recent_turns(track, policy, now)) >= policy.flap_changes
    return (often or track.is_flapping) and now.mono_s - track.last_bad_s < policy.flap_hold_s


def _recent_turns(track: HealthTrack, policy: HealthPolicy, now: TimePoint) -> tuple[float, ...]:
    return tuple(at_s for at_s in track.turn_times_s if now.mono_s - at_s < policy.flap_window_s)


def _move_to(
    track: HealthTrack, target: HealthState, verdict: Health, policy: HealthPolicy, now: TimePoint
) -> HealthTrack:
    """Return the track in its target state, with date, number and direction of the change."""
    # what had failed in the earlier run has not failed again only because this one began
    again = track.is_restored and track.state is PROBING and target is FAILED
    changed = target is not track.state and not again
    since_s = track.since_s
    if changed:
        since_s = _change_time(track, target, verdict, now)
    elif track.uncertainty is not None:
        since_s = now.wall_s
    elif since_s is None and target is track.last_state:
        since_s = verdict.since_s
    step = severity(target) - severity(track.state)
    turned = step > 0 if not track.is_worse else step < 0
    turns = _recent_turns(track, policy, now)
    return replace(
        track,
        state=target,
        cause=_cause(verdict) if _supports(track.last_state, target) else track.cause,
        since_s=since_s,
        changes=track.changes + changed,
        turn_times_s=(*turns, now.mono_s)[-policy.flap_changes :] if turned else turns,
        is_worse=track.is_worse != turned,
        uncertainty=None,
        is_restored=False,
    )


def _supports(raw: HealthState, target: HealthState) -> bool:
    """Say whether a verdict is the reason for a state, rather than at odds with it."""
    return raw is target or (raw is FAILED and target is SUSPECT)


def _change_time(track: HealthTrack, target: HealthState, verdict: Health, now: TimePoint) -> float:
    """Believe a vendor that dates the change it saw, unless that was before the last one."""
    dated_s = verdict.since_s if target is track.last_state else None
    if dated_s is None or not (track.since_s or dated_s) <= dated_s <= now.wall_s:
        return now.wall_s
    return dated_s


def _progress(track: HealthTrack, policy: HealthPolicy) -> str:
    """Say in words what a probing device still needs; in few steps, not with every look."""
    done = min(1.0, track.good_checks / policy.clean_probes)
    if policy.clean_s > 0:
        done = min(done, (track.last_check_s - track.last_bad_s) / policy.clean_s)
    percent = int(done * PROGRESS_STEPS) * 100 // PROGRESS_STEPS
    needs = f"{policy.clean_probes} looks in a row" + (
        f" and {policy.clean_s:g} s" if policy.clean_s > 0 else ""
    )
    return f"looks well again, in service after {needs} without a fault: {percent} %"
