"""The health of all devices of one vendor, and the effect of a worker that does not answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from agent.config.health import VENDOR_KEY, HealthSettings, decode_policy_row
from agent.devices.health import (
    OUT_OF_SERVICE,
    HealthTrack,
    TimePoint,
    clear_flapping,
    observe,
    record_missing,
    render_health,
    severity,
)
from agent.errors import NO_PERMISSION
from agent.snapshot.device import Health, HealthState, VendorDevice
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory
from agent.snapshot.node import VendorState
from agent.snapshot.settings import HealthOverrides, HealthPolicy

NO_OVERRIDES = HealthOverrides()


def resolve_policy(
    health: HealthSettings, vendor: str, overrides: HealthOverrides = NO_OVERRIDES
) -> HealthPolicy:
    """Return one vendor's policy: rows of settings before its overrides before the section."""
    values = {name: getattr(health, name) for name in HealthPolicy.__struct_fields__}
    values.update(overrides.values())
    for index, row in enumerate(health.vendors):
        if row.get(VENDOR_KEY) == vendor:
            values.update(decode_policy_row(row, f"health.vendors[{index}]"))
    return HealthPolicy(**values)


STALLED = "DriverStalled"

RELEASED = "DriverReleased"

_SILENT_STATES = ("stalled", "restarting", "quarantined", "released")

_RELEASED_TEXT = "the agent let go of the driver because it was asked to"

_NO_PERMISSION_TEXT = "the kernel refuses the agent the files of this vendor's driver"


class VendorOutage(msgspec.Struct, frozen=True, kw_only=True):
    """A vendor that answered once and does not now."""

    since_s: float  # monotonic
    why: str = ""
    is_released: bool = False  # somebody asked for it: no sign of a fault
    is_forbidden: bool = False  # the kernel refuses the worker: no sign of a device's fault either

    def verdict(self, health: HealthSettings, now_s: float) -> Health | None:
        """Return what the silence says of each device; `None` while it is short."""
        if self.is_released:
            return Health(reason=RELEASED, message=_RELEASED_TEXT, certain=False)
        if self.is_forbidden:
            message = f"{_NO_PERMISSION_TEXT}: {self.why}" if self.why else _NO_PERMISSION_TEXT
            return Health(reason=NO_PERMISSION, message=message, certain=False)
        silent_s = now_s - self.since_s
        for limit_s, state, certain in (
            (health.stalled_failed_s, HealthState.FAILED, True),
            (health.stalled_unknown_s, HealthState.HEALTHY, False),
        ):
            if silent_s >= limit_s:
                message = f"no answer from its vendor's worker for more than {limit_s:g} s"
                message = f"{message}: {self.why}" if self.why else message
                return Health(state=state, reason=STALLED, message=message, certain=certain)
        return None


def find_outage(
    previous: VendorOutage | None, state: VendorState, now_s: float
) -> VendorOutage | None:
    """Return the silence that a vendor's state shows; one that goes on keeps its beginning."""
    if state.state not in _SILENT_STATES:
        return None
    released, forbidden = state.state == "released", state.reason == NO_PERMISSION
    if previous is not None and (previous.is_released, previous.is_forbidden) == (
        released,
        forbidden,
    ):
        return previous
    why = state.message
    return VendorOutage(since_s=now_s, why=why, is_released=released, is_forbidden=forbidden)


FORGET_S = 86_400.0  # a device that was not well and is gone is remembered that long

MAX_CHECK_PAUSE_S = 60.0  # the longest pause between two looks at a device that stays failed

EASING_CHECKS = 10  # so many looks in a row that see the same lengthen the pause by one more

MAX_TRACKS = 8192  # of one vendor


def partition_key(device: VendorDevice, uuid: str) -> str:
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
        known: Mapping[str, HealthTrack] | None = None,
        overrides: HealthOverrides = NO_OVERRIDES,
    ) -> None:
        self._health = health
        self._policy: HealthPolicy = resolve_policy(health, vendor, overrides)
        self._sighted = sighted
        self._tracks: dict[str, HealthTrack] = dict(known or {})
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
        self._silence: VendorOutage | None = None
        self._asked_s: float | None = None  # when a look was wanted that has not come yet

    @property
    def tracks(self) -> Mapping[str, HealthTrack]:
        """Return what is remembered, by key of the device or slice."""
        return self._tracks

    def update(self, state: VendorState, now: TimePoint) -> VendorState:
        """Return the vendor's state with the health that others are told."""
        answer = state.inventory.value
        if answer is None:
            return state
        if answer is self._sighted:
            return replace(state, inventory=replace(state.inventory, value=self._remembered))
        self._silence = find_outage(self._silence, state, now.mono_s)
        if answer is not self._answer:
            self._answer = answer
            self._look_at(answer, now)
        if state.samples.value is not self._samples:
            self._samples = state.samples.value
            self._take_samples(state.samples.value, now)
        return replace(state, inventory=replace(state.inventory, value=self._render(answer)))

    def record_events(self, events: Iterable[DeviceEvent], now: TimePoint) -> bool:
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

    def tick(self, now: TimePoint) -> bool:
        """Let time pass; say whether that changed what is told."""
        if self._answer is None or self._silence is None:
            return False
        verdict = self._silence.verdict(self._health, now.mono_s)
        if verdict is not None:
            for key in self._keys:
                self._look(key, verdict, now, at_once=True)
        return self._dirty and self._told != self._all()

    def clear_flapping(self, key: str) -> bool:
        """Hold a device and its slices no longer for flapping; say whether one was held."""
        named = [k for k in self._tracks if k == key or k.startswith(f"{key}/")]
        held = any(self._tracks[k].is_flapping for k in named)
        self._tracks.update((k, clear_flapping(self._tracks[k])) for k in named)
        self._dirty = True
        return held

    def needs_check(self, now: TimePoint) -> bool:
        """Say whether a device in doubt was not looked at for too long.

        It is said once; again after an answer, or when none came for a minute.
        """
        if self._asked_s is not None and now.mono_s - self._asked_s < MAX_CHECK_PAUSE_S:
            return False
        wanted = any(
            now.mono_s - track.last_check_s >= self._pause_s(track)
            for track in map(self._tracks.get, self._keys)
            if track is not None
        )
        self._asked_s = now.mono_s if wanted else None
        return wanted

    def _pause_s(self, track: HealthTrack) -> float:
        again_s = self._health.look_again_s
        if track.state is HealthState.FAILED:
            return min(
                max(again_s, MAX_CHECK_PAUSE_S), again_s * (1 + track.streak // EASING_CHECKS)
            )
        return again_s if track.last_state is not track.state else float("inf")

    def _with_known(self, sighted: Inventory) -> Inventory:
        known_links = {
            key: render_health(track, self._policy)
            for key, track in self._tracks.items()
            if track.state in OUT_OF_SERVICE
        }
        devices = tuple(
            replace(device, health=known_links[device.key])
            if device.managed and device.key in known_links
            else device
            for device in sighted.devices
        )
        return replace(sighted, devices=devices)

    def _look_at(self, answer: Inventory, now: TimePoint) -> None:
        """Take an answer in: what it examined was looked at, the rest was not."""
        verdicts = _verdicts(answer)
        self._keys, self._asked_s = tuple(verdicts), None
        subjects = None if answer.subjects is None else frozenset(answer.subjects)
        for key, health in verdicts.items():
            is_subject = subjects is None or key.partition("/")[0] in subjects
            if is_subject or key not in self._tracks:
                self._look(key, health, now)
        for key in [key for key in self._tracks if key not in verdicts]:
            self._miss(key, now)
        self._happened = {key: r for key, r in self._happened.items() if key in verdicts}
        self._events = dict(self._happened)

    def _look(self, key: str, verdict: Health, now: TimePoint, *, at_once: bool = False) -> None:
        self._dirty = True
        track = self._tracks.get(key)
        if track is not None or len(self._tracks) < MAX_TRACKS:
            self._tracks[key] = observe(track, verdict, self._policy, now, at_once=at_once)

    def _miss(self, key: str, now: TimePoint) -> None:
        track = self._tracks[key]
        well = track.state is HealthState.HEALTHY and not track.turn_times_s
        if well or now.mono_s - track.last_check_s > FORGET_S:
            del self._tracks[key]
        else:
            self._tracks[key] = record_missing(track, now)

    def _take_samples(self, samples: Iterable[DeviceSample], now: TimePoint) -> None:
        verdicts: dict[str, Health] = {}
        for sample in samples:
            if sample.health is not None and sample.key in self._tracks:
                _note_worst(verdicts, sample.key, sample.health)
        for key, health in verdicts.items():
            self._look(key, health, now)

    def _happened_to(self, device: VendorDevice, event: DeviceEvent, now: TimePoint) -> None:
        self._happened[device.key] = event.reason
        if event.state is None or not device.managed:
            return
        self._events[device.key] = event.reason
        verdict = Health(state=event.state, reason=event.reason, message=event.message)
        if not event.partition:
            self._look(device.key, verdict, now)
        elif any(part.uuid == event.partition for part in device.partitions):
            self._look(partition_key(device, event.partition), verdict, now)

    def _all(self) -> dict[str, Health]:
        """Return what is told now, by key."""
        return {key: self._now(key) for key in self._keys}

    def _now(self, key: str) -> Health:
        track = self._tracks.get(key)
        if track is None:  # one of more than can be kept: it is not granted
            return Health(state=HealthState.FAILED, reason="TooManyDevices", message="not followed")
        health = render_health(track, self._policy)
        return replace(health, last_event=self._events[key]) if key in self._events else health

    def _render(self, answer: Inventory) -> Inventory:
        """Return the answer with what is told; the same object as before if it says the same."""
        if self._shown is not None and answer is self._rendered and not self._dirty:
            return self._shown
        healths, self._dirty = self._all(), False
        if self._shown is None or answer is not self._rendered or healths != self._told:
            devices = tuple(_with_health(device, healths) for device in answer.devices)
            shown_now = replace(answer, devices=devices)
            self._shown = self._shown if shown_now == self._shown else shown_now
            self._rendered, self._told = answer, healths
        return self._shown


def _verdicts(answer: Inventory) -> dict[str, Health]:
    """Return what the vendor says of each device and slice; somebody else's are not judged."""
    verdicts: dict[str, Health] = {}
    for device in answer.devices:
        for key, health in _health_by_key(device):
            _note_worst(verdicts, key, health)
    return verdicts


def _note_worst(verdicts: dict[str, Health], key: str, health: Health) -> None:
    """Note a verdict; of two on one key the graver."""
    if key not in verdicts or severity(health.state) > severity(verdicts[key].state):
        verdicts[key] = health


def _health_by_key(device: VendorDevice) -> Iterator[tuple[str, Health]]:
    if device.managed:
        yield device.key, device.health
        for part in device.partitions:
            yield partition_key(device, part.uuid), part.health


def _with_health(device: VendorDevice, healths: Mapping[str, Health]) -> VendorDevice:
    if not device.managed:
        return device
    partitions = tuple(
        replace(part, health=healths[partition_key(device, part.uuid)])
        for part in device.partitions
    )
    return replace(device, health=healths[device.key], partitions=partitions)
