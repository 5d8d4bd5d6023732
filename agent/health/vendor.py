"""The health of all devices of one vendor: every look goes through the machine, none around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from agent.config.health import HealthPolicy, HealthSettings
from agent.health.machine import missed, observe, pardoned, shown
from agent.health.policy import policy_of
from agent.health.stall import Silence, silence_of
from agent.health.track import OUT_OF_SERVICE, Moment, Track, level
from agent.model.device import Health, HealthState, VendorDevice
from agent.model.inventory import DeviceEvent, DeviceSample, Inventory
from agent.model.snapshot import VendorState

FORGET_S = 86_400.0  # a device that was not well and is gone is remembered that long
SELDOM_S = 60.0  # the longest pause between two looks at a device that stays failed
EASING_LOOKS = 10  # so many looks in a row that see the same lengthen the pause by one more
MAX_TRACKS = 8192  # of one vendor


def slice_key(device: VendorDevice, uuid: str) -> str:
    """Name a slice of a device."""
    return f"{device.key}/{uuid}"


class VendorHealth:
    """Belongs to one thread. What it returns is frozen, and the same object while nothing changed.

    `sighted` is what sysfs showed before the first answer: no look, and passed on as it is, except
    for devices that had failed before the agent began anew.
    """

    def __init__(
        self,
        vendor: str,
        health: HealthSettings,
        sighted: Inventory | None = None,
        known: Mapping[str, Track] | None = None,
    ) -> None:
        self._health = health
        self._policy: HealthPolicy = policy_of(health, vendor)
        self._sighted = sighted
        self._tracks: dict[str, Track] = dict(known or {})
        self._remembered = sighted and self._with_known(sighted)
        self._told: dict[str, Health] = {}
        self._happened: dict[str, str] = {}  # reason of the last event, by key of the device
        self._events: dict[str, str] = {}  # those of them that are told
        self._answer: Inventory | None = None
        self._keys: tuple[str, ...] = ()  # of what it lists
        self._dirty = False  # looks or events came since the last rendering
        self._rendered: Inventory | None = None  # the answer that `_shown` was made of
        self._shown: Inventory | None = None
        self._samples: tuple[DeviceSample, ...] | None = None
        self._silence: Silence | None = None
        self._asked_s: float | None = None  # when a look was wanted that has not come yet

    @property
    def tracks(self) -> Mapping[str, Track]:
        """Return what is remembered, by key of the device or slice."""
        return self._tracks

    def heard(self, state: VendorState, now: Moment) -> VendorState:
        """Return the vendor's state with the health that others are told."""
        answer = state.inventory.value
        if answer is None:
            return state
        if answer is self._sighted:
            return replace(state, inventory=replace(state.inventory, value=self._remembered))
        self._silence = silence_of(self._silence, state, now.mono_s)
        if answer is not self._answer:
            self._answer = answer
            self._look_at(answer, now)
        if state.samples.value is not self._samples:
            self._samples = state.samples.value
            self._take_samples(state.samples.value, now)
        return replace(state, inventory=replace(state.inventory, value=self._render(answer)))

    def happened(self, events: Iterable[DeviceEvent], now: Moment) -> bool:
        """Take events in; say whether they changed what is told.

        One that decides nothing shows with the next look. Nothing is known to happen to a device
        before the vendor has answered.
        """
        if self._answer is None:
            return False
        for event in events:
            for device in self._answer.devices:
                if event.key in ("", device.key):
                    self._happened_to(device, event, now)
        return self._dirty and self._told != self._all()

    def tick(self, now: Moment) -> bool:
        """Let time pass; say whether that changed what is told."""
        if self._answer is None or self._silence is None:
            return False
        verdict = self._silence.verdict(self._health, now.mono_s)
        if verdict is not None:
            for key in self._keys:
                self._look(key, verdict, now, at_once=True)
        return self._dirty and self._told != self._all()

    def pardon(self, key: str) -> bool:
        """Hold a device and its slices no longer for flapping; say whether one was held."""
        named = [k for k in self._tracks if k == key or k.startswith(f"{key}/")]
        held = any(self._tracks[k].flapping for k in named)
        self._tracks.update((k, pardoned(self._tracks[k])) for k in named)
        self._dirty = True
        return held

    def wants_look(self, now: Moment) -> bool:
        """Say whether a device in doubt was not looked at for too long.

        It is said once; again after an answer, or when none came for a minute.
        """
        if self._asked_s is not None and now.mono_s - self._asked_s < SELDOM_S:
            return False
        wanted = any(
            now.mono_s - track.looked_s >= self._pause_s(track)
            for track in map(self._tracks.get, self._keys)
            if track is not None
        )
        self._asked_s = now.mono_s if wanted else None
        return wanted

    def _pause_s(self, track: Track) -> float:
        again_s = self._health.look_again_s
        if track.state is HealthState.FAILED:
            return min(max(again_s, SELDOM_S), again_s * (1 + track.streak // EASING_LOOKS))
        return again_s if track.raw is not track.state else float("inf")

    def _with_known(self, sighted: Inventory) -> Inventory:
        known = {
            key: shown(track, self._policy)
            for key, track in self._tracks.items()
            if track.state in OUT_OF_SERVICE
        }
        devices = tuple(
            replace(device, health=known[device.key])
            if device.managed and device.key in known
            else device
            for device in sighted.devices
        )
        return replace(sighted, devices=devices)

    def _look_at(self, answer: Inventory, now: Moment) -> None:
        """Take an answer in: what it examined was looked at, the rest was not."""
        verdicts = _verdicts(answer)
        self._keys, self._asked_s = tuple(verdicts), None
        subjects = None if answer.subjects is None else frozenset(answer.subjects)
        for key, health in verdicts.items():
            looked = subjects is None or key.partition("/")[0] in subjects
            if looked or key not in self._tracks:
                self._look(key, health, now)
        for key in [key for key in self._tracks if key not in verdicts]:
            self._miss(key, now)
        self._happened = {key: r for key, r in self._happened.items() if key in verdicts}
        self._events = dict(self._happened)

    def _look(self, key: str, verdict: Health, now: Moment, *, at_once: bool = False) -> None:
        self._dirty = True
        known = self._tracks.get(key)
        if known is not None or len(self._tracks) < MAX_TRACKS:
            self._tracks[key] = observe(known, verdict, self._policy, now, at_once=at_once)

    def _miss(self, key: str, now: Moment) -> None:
        track = self._tracks[key]
        well = track.state is HealthState.HEALTHY and not track.turns
        if well or now.mono_s - track.looked_s > FORGET_S:
            del self._tracks[key]
        else:
            self._tracks[key] = missed(track, now)

    def _take_samples(self, samples: Iterable[DeviceSample], now: Moment) -> None:
        verdicts: dict[str, Health] = {}
        for sample in samples:
            if sample.health is not None and sample.key in self._tracks:
                _note(verdicts, sample.key, sample.health)
        for key, health in verdicts.items():
            self._look(key, health, now)

    def _happened_to(self, device: VendorDevice, event: DeviceEvent, now: Moment) -> None:
        self._happened[device.key] = event.reason
        if event.state is None or not device.managed:
            return
        self._events[device.key] = event.reason
        verdict = Health(state=event.state, reason=event.reason, message=event.message)
        if not event.partition:
            self._look(device.key, verdict, now)
        elif any(part.uuid == event.partition for part in device.partitions):
            self._look(slice_key(device, event.partition), verdict, now)

    def _all(self) -> dict[str, Health]:
        """Return what is told now, by key."""
        return {key: self._now(key) for key in self._keys}

    def _now(self, key: str) -> Health:
        track = self._tracks.get(key)
        if track is None:  # one of more than can be kept: it is not granted
            return Health(state=HealthState.FAILED, reason="TooManyDevices", message="not followed")
        health = shown(track, self._policy)
        return replace(health, last_event=self._events[key]) if key in self._events else health

    def _render(self, answer: Inventory) -> Inventory:
        """Return the answer with what is told; the same object as before if it says the same."""
        if self._shown is not None and answer is self._rendered and not self._dirty:
            return self._shown
        told, self._dirty = self._all(), False
        if self._shown is None or answer is not self._rendered or told != self._told:
            devices = tuple(_with_health(device, told) for device in answer.devices)
            shown_now = replace(answer, devices=devices)
            self._shown = self._shown if shown_now == self._shown else shown_now
            self._rendered, self._told = answer, told
        return self._shown


def _verdicts(answer: Inventory) -> dict[str, Health]:
    """Return what the vendor says of each device and slice; somebody else's are not judged."""
    found: dict[str, Health] = {}
    for device in answer.devices:
        for key, health in _parts(device):
            _note(found, key, health)
    return found


def _note(verdicts: dict[str, Health], key: str, health: Health) -> None:
    """Note a verdict; of two on one key the graver."""
    if key not in verdicts or level(health.state) > level(verdicts[key].state):
        verdicts[key] = health


def _parts(device: VendorDevice) -> Iterator[tuple[str, Health]]:
    if device.managed:
        yield device.key, device.health
        for part in device.partitions:
            yield slice_key(device, part.uuid), part.health


def _with_health(device: VendorDevice, told: Mapping[str, Health]) -> VendorDevice:
    if not device.managed:
        return device
    parts = tuple(
        replace(part, health=told[slice_key(device, part.uuid)]) for part in device.partitions
    )
    return replace(device, health=told[device.key], partitions=parts)
