"""The health machine of all vendors: healthy, suspect, failed, probing, and healthy again. Pure.

A fault takes a device out of service at once. It comes back only after so many looks in a row
that did not fail, and so long after the last that did; until then it is probing. One that turns
for the worse and back too often in a while is held where it is.
"""

from __future__ import annotations

from msgspec.structs import replace

from agent.config.health import HealthPolicy
from agent.health.track import NEVER_S, OUT_OF_SERVICE, Cause, Moment, Track, level
from agent.model.device import Health, HealthState

FLAPPING = "Flapping"
STEPS = 4  # in which a probing device tells how far it is: each step is a write of the object
HEALTHY, SUSPECT = HealthState.HEALTHY, HealthState.SUSPECT
PROBING, FAILED = HealthState.PROBING, HealthState.FAILED
_WELL = Cause(Health().reason, Health().message)


def observe(
    track: Track | None,
    verdict: Health,
    policy: HealthPolicy,
    now: Moment,
    *,
    at_once: bool = False,
) -> Track:
    """Take one look in. `now` must not be before the last look; the first one counts at once.

    With `at_once` no second look has to confirm a bad verdict. A verdict that is not certain is
    no look: the state stays, and nobody knows whether it still holds.
    """
    raw = FAILED if verdict.state is PROBING else verdict.state
    if track is None:
        return _first(verdict, raw, now)
    if not verdict.certain:
        return _doubted(track, _cause(verdict), now)
    seen = _counted(track, raw, now)
    if level(raw) >= level(seen.state):
        return _moved(seen, _worse(seen, raw, policy, at_once=at_once), verdict, policy, now)
    if _held(seen, policy, now):
        target = SUSPECT if seen.state is SUSPECT else FAILED
        return replace(_moved(seen, target, verdict, policy, now), flapping=True)
    if seen.flapping:
        seen = replace(seen, flapping=False, turns=())
    return _moved(seen, _better(seen, raw, policy, now), verdict, policy, now)


def missed(track: Track, now: Moment) -> Track:
    """Take in that a look did not find the device: what comes after is no longer in a row."""
    bad_s = now.mono_s if track.state in OUT_OF_SERVICE else track.bad_s
    return replace(track, streak=0, clean=0, bad_s=bad_s)


def pardoned(track: Track) -> Track:
    """Take in that a person wants the device held no longer; its looks have to be clean still."""
    return replace(track, turns=(), flapping=False)


def shown(track: Track, policy: HealthPolicy) -> Health:
    """Return what others are told; the words of the last cause are always in the message."""
    reason, message = track.cause.reason, track.cause.message
    if track.unsure is not None:
        reason = track.unsure.reason
        message = f"{track.unsure.message}; before that {track.cause.reason}: {message}"
    elif track.flapping:
        message = (
            f"changed more than {policy.flap_changes} times within {policy.flap_window_s:g} s, held"
            f" until {policy.flap_hold_s:g} s after the last fault; {reason}: {message}"
        )
        reason = FLAPPING
    elif track.state is PROBING:
        message = f"{message}; {_progress(track, policy)}"
    elif track.state is SUSPECT and track.raw is FAILED:
        message = f"{message}; failed if {policy.failed_looks} looks in a row find it so"
    return Health(
        state=track.state,
        reason=reason,
        message=message,
        since_s=track.since_s,
        changes=track.changes,
        certain=track.unsure is None,
    )


def _cause(verdict: Health) -> Cause:
    return Cause(verdict.reason, verdict.message)


def _first(verdict: Health, raw: HealthState, now: Moment) -> Track:
    bad = raw is not HEALTHY
    return Track(
        state=raw,
        cause=_cause(verdict) if bad or verdict.certain else _WELL,
        since_s=verdict.since_s,
        raw=raw,
        looked_s=now.mono_s,
        bad_s=now.mono_s if bad else NEVER_S,
        clean=int(raw is not FAILED),
        worse=bad,
        unsure=None if verdict.certain else _cause(verdict),
    )


def _doubted(track: Track, why: Cause, now: Moment) -> Track:
    """Nobody can tell now: looks that were in a row are so no more."""
    found = replace(missed(track, now), unsure=why, looked_s=now.mono_s)
    return found if track.unsure is not None else replace(found, since_s=now.wall_s)


def _counted(track: Track, raw: HealthState, now: Moment) -> Track:
    odd = raw is SUSPECT and track.state not in OUT_OF_SERVICE
    return replace(
        track,
        raw=raw,
        looked_s=now.mono_s,
        bad_s=now.mono_s if raw is FAILED or odd else track.bad_s,
        streak=track.streak + 1 if raw is track.raw else 1,
        clean=0 if raw is FAILED else track.clean + 1,
    )


def _worse(track: Track, raw: HealthState, policy: HealthPolicy, *, at_once: bool) -> HealthState:
    """Return the state after a look that saw the device no better than it is known."""
    if raw is FAILED:
        out = at_once or track.state in OUT_OF_SERVICE or track.streak >= policy.failed_looks
        return FAILED if out else SUSPECT
    if raw is SUSPECT and not at_once and track.streak < policy.suspect_looks:
        return track.state
    return raw


def _better(track: Track, raw: HealthState, policy: HealthPolicy, now: Moment) -> HealthState:
    """Return the state after a look that saw the device better than it is known."""
    if track.state is SUSPECT:
        return HEALTHY if track.streak >= policy.clear_looks else SUSPECT
    quiet_s = now.mono_s - track.bad_s
    back = track.clean >= policy.clean_probes and quiet_s >= policy.clean_s
    return raw if back else PROBING


def _held(track: Track, policy: HealthPolicy, now: Moment) -> bool:
    """Say whether getting better now would be a turn too many, or the hold for that still runs."""
    often = len(_recent(track, policy, now)) >= policy.flap_changes
    return (often or track.flapping) and now.mono_s - track.bad_s < policy.flap_hold_s


def _recent(track: Track, policy: HealthPolicy, now: Moment) -> tuple[float, ...]:
    return tuple(at_s for at_s in track.turns if now.mono_s - at_s < policy.flap_window_s)


def _moved(
    track: Track, target: HealthState, verdict: Health, policy: HealthPolicy, now: Moment
) -> Track:
    """Return the track in its target state, with date, number and direction of the change."""
    # what had failed in the earlier run has not failed again only because this one began
    again = track.restored and track.state is PROBING and target is FAILED
    changed = target is not track.state and not again
    since_s = track.since_s
    if changed:
        since_s = _date(track, target, verdict, now)
    elif track.unsure is not None:
        since_s = now.wall_s
    elif since_s is None and target is track.raw:
        since_s = verdict.since_s
    step = level(target) - level(track.state)
    turned = step > 0 if not track.worse else step < 0
    turns = _recent(track, policy, now)
    return replace(
        track,
        state=target,
        cause=_cause(verdict) if _supports(track.raw, target) else track.cause,
        since_s=since_s,
        changes=track.changes + changed,
        turns=(*turns, now.mono_s)[-policy.flap_changes :] if turned else turns,
        worse=track.worse != turned,
        unsure=None,
        restored=False,
    )


def _supports(raw: HealthState, target: HealthState) -> bool:
    """Say whether a verdict is the reason for a state, rather than at odds with it."""
    return raw is target or (raw is FAILED and target is SUSPECT)


def _date(track: Track, target: HealthState, verdict: Health, now: Moment) -> float:
    """Believe a vendor that dates the change it saw, unless that was before the last one."""
    dated_s = verdict.since_s if target is track.raw else None
    if dated_s is None or not (track.since_s or dated_s) <= dated_s <= now.wall_s:
        return now.wall_s
    return dated_s


def _progress(track: Track, policy: HealthPolicy) -> str:
    """Say in words what a probing device still needs; in few steps, not with every look."""
    done = min(1.0, track.clean / policy.clean_probes)
    if policy.clean_s > 0:
        done = min(done, (track.looked_s - track.bad_s) / policy.clean_s)
    percent = int(done * STEPS) * 100 // STEPS
    needs = f"{policy.clean_probes} looks in a row" + (
        f" and {policy.clean_s:g} s" if policy.clean_s > 0 else ""
    )
    return f"looks well again, in service after {needs} without a fault: {percent} %"
