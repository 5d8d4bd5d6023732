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
    """Return one vendor's policy: rows of the settings, else its overrides, else the section."""
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
    """A vendor that answered once and does not answer now."""

    since_s: float  # monotonic
    why: str = ""
    is_released: bool = False  # requested by a person: no sign of a fault
    # the kernel refuses the worker its files: no sign of a device's fault either
    is_forbidden: bool = False

    def verdict(self, health: HealthSettings, now_s: float) -> Health | None:
        """Return the health of each device during the outage; `None` while it is short."""
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
    """Return the outage that a vendor's state shows; a lasting one keeps its start time."""
    if state.state not in _SILENT_STATES:
        return None
    is_released, is_forbidden = state.state == "released", state.reason == NO_PERMISSION
    if previous is not None and (previous.is_released, previous.is_forbidden) == (
        is_released,
        is_forbidden,
    ):
        return previous
    reason = state.message
    return VendorOutage(
        since_s=now_s, why=reason, is_released=is_released, is_forbidden=is_forbidden
    )


# a device that was not healthy and is not listed any more is remembered that long
MAX_ABSENCE_S = 86_400.0
MAX_CHECK_PAUSE_S = 60.0  # between two checks of a device that stays failed
EASING_CHECKS = 10  # after so many equal results in a row the pause grows by one step
MAX_TRACKS = 8192  # of one vendor


def partition_key(device: VendorDevice, uuid: str) -> str:
    """Return the key of a slice of a device."""
    return f"{device.key}/{uuid}"


class VendorHealth:
    """Tracks the devices of one vendor. Belongs to one thread.

    Results are frozen, and the same object while nothing changed. `sighted` are the devices in
    sysfs before the first answer: that is no check, and they are passed on as they are, except
    devices that had failed before the agent's restart.
    """

    def __init__(
        self,
        vendor: str,
        health: HealthSettings,
        detected_devices: Inventory | None = None,
        tracks: Mapping[str, HealthTrack] | None = None,
        overrides: HealthOverrides = NO_OVERRIDES,
    ) -> None:
        self._health = health
        self._policy: HealthPolicy = resolve_policy(health, vendor, overrides)
        self._detected_devices = detected_devices
        self._tracks: dict[str, HealthTrack] = dict(tracks or {})
        self._restored_devices = detected_devices and self._with_stored_health(detected_devices)
        self._published_health: dict[str, Health] = {}
        self._event_reasons: dict[str, str] = {}  # reason of the last event, by key of the device
        self._published_events: dict[str, str] = {}  # those of them that are published
        self._answer: Inventory | None = None
        self._keys: tuple[str, ...] = ()  # of the devices and slices in it
        self._has_news = False  # checks or events arrived since the last rendering
        self._rendered_answer: Inventory | None = None  # the answer that `_rendered` was made from
        self._rendered_inventory: Inventory | None = None
        self._samples: tuple[DeviceSample, ...] | None = None
        self._outage: VendorOutage | None = None
        self._check_request_s: float | None = (
            None  # when a check was requested that has not happened yet
        )

    @property
    def tracks(self) -> Mapping[str, HealthTrack]:
        """Return the tracks by key of the device or slice."""
        return self._tracks

    def update(self, state: VendorState, now: TimePoint) -> VendorState:
        """Return the vendor's state with the published health of its devices."""
        answer = state.inventory.value
        if answer is None:
            return state
        if answer is self._detected_devices:
            return replace(state, inventory=replace(state.inventory, value=self._restored_devices))
        self._outage = find_outage(self._outage, state, now.mono_s)
        if answer is not self._answer:
            self._answer = answer
            self._record_answer(answer, now)
        if state.samples.value is not self._samples:
            self._samples = state.samples.value
            self._record_samples(state.samples.value, now)
        return replace(state, inventory=replace(state.inventory, value=self._render(answer)))

    def record_events(self, events: Iterable[DeviceEvent], now: TimePoint) -> bool:
        """Record events; return whether they changed the published health.

        An event that changes nothing is published with the next check. Before the vendor's first
        answer events are ignored.
        """
        if self._answer is None:
            return False
        for event in events:
            for device in self._answer.devices:
                if event.key in ("", device.key):
                    self._record_event(device, event, now)
        return self._has_news and self._published_health != self._health_by_key()

    def tick(self, now: TimePoint) -> bool:
        """Apply the time that has passed; return whether the published health changed."""
        if self._answer is None or self._outage is None:
            return False
        verdict = self._outage.verdict(self._health, now.mono_s)
        if verdict is not None:
            for key in self._keys:
                self._record_check(key, verdict, now, at_once=True)
        return self._has_news and self._published_health != self._health_by_key()

    def clear_flapping(self, key: str) -> bool:
        """Stop holding a device and its slices for flapping; return whether one was held."""
        keys = [k for k in self._tracks if k == key or k.startswith(f"{key}/")]
        was_held = any(self._tracks[k].is_flapping for k in keys)
        self._tracks.update((k, clear_flapping(self._tracks[k])) for k in keys)
        self._has_news = True
        return was_held

    def needs_check(self, now: TimePoint) -> bool:
        """Return whether a device with a pending change was not checked for too long.

        The answer is true once; again after an answer of the vendor, or after a minute without one.
        """
        if (
            self._check_request_s is not None
            and now.mono_s - self._check_request_s < MAX_CHECK_PAUSE_S
        ):
            return False
        is_needed = any(
            now.mono_s - track.last_check_s >= self._pause_s(track)
            for track in map(self._tracks.get, self._keys)
            if track is not None
        )
        self._check_request_s = now.mono_s if is_needed else None
        return is_needed

    def _pause_s(self, track: HealthTrack) -> float:
        check_interval_s = self._health.look_again_s
        if track.state is HealthState.FAILED:
            return min(
                max(check_interval_s, MAX_CHECK_PAUSE_S),
                check_interval_s * (1 + track.streak // EASING_CHECKS),
            )
        return check_interval_s if track.last_state is not track.state else float("inf")

    def _with_stored_health(self, detected_devices: Inventory) -> Inventory:
        stored_health = {
            key: render_health(track, self._policy)
            for key, track in self._tracks.items()
            if track.state in OUT_OF_SERVICE
        }
        devices = tuple(
            replace(device, health=stored_health[device.key])
            if device.managed and device.key in stored_health
            else device
            for device in detected_devices.devices
        )
        return replace(detected_devices, devices=devices)

    def _record_answer(self, answer: Inventory, now: TimePoint) -> None:
        """Record an answer: the devices in `subjects` were checked, the others were not."""
        verdicts = _verdicts(answer)
        self._keys, self._check_request_s = tuple(verdicts), None
        subjects = None if answer.subjects is None else frozenset(answer.subjects)
        for key, health in verdicts.items():
            is_subject = subjects is None or key.partition("/")[0] in subjects
            if is_subject or key not in self._tracks:
                self._record_check(key, health, now)
        for key in [key for key in self._tracks if key not in verdicts]:
            self._record_missing(key, now)
        self._event_reasons = {key: r for key, r in self._event_reasons.items() if key in verdicts}
        self._published_events = dict(self._event_reasons)

    def _record_check(
        self, key: str, verdict: Health, now: TimePoint, *, at_once: bool = False
    ) -> None:
        self._has_news = True
        track = self._tracks.get(key)
        if track is not None or len(self._tracks) < MAX_TRACKS:
            self._tracks[key] = observe(track, verdict, self._policy, now, at_once=at_once)

    def _record_missing(self, key: str, now: TimePoint) -> None:
        track = self._tracks[key]
        is_healthy = track.state is HealthState.HEALTHY and not track.turn_times_s
        if is_healthy or now.mono_s - track.last_check_s > MAX_ABSENCE_S:
            del self._tracks[key]
        else:
            self._tracks[key] = record_missing(track, now)

    def _record_samples(self, samples: Iterable[DeviceSample], now: TimePoint) -> None:
        verdicts: dict[str, Health] = {}
        for sample in samples:
            if sample.health is not None and sample.key in self._tracks:
                _note_worst(verdicts, sample.key, sample.health)
        for key, health in verdicts.items():
            self._record_check(key, health, now)

    def _record_event(self, device: VendorDevice, event: DeviceEvent, now: TimePoint) -> None:
        self._event_reasons[device.key] = event.reason
        if event.state is None or not device.managed:
            return
        self._published_events[device.key] = event.reason
        verdict = Health(state=event.state, reason=event.reason, message=event.message)
        if not event.partition:
            self._record_check(device.key, verdict, now)
        elif any(part.uuid == event.partition for part in device.partitions):
            self._record_check(partition_key(device, event.partition), verdict, now)

    def _health_by_key(self) -> dict[str, Health]:
        """Return the published health by key."""
        return {key: self._health_of(key) for key in self._keys}

    def _health_of(self, key: str) -> Health:
        track = self._tracks.get(key)
        if track is None:  # beyond `MAX_TRACKS`: the device cannot be allocated
            return Health(state=HealthState.FAILED, reason="TooManyDevices", message="not followed")
        health = render_health(track, self._policy)
        return (
            replace(health, last_event=self._published_events[key])
            if key in self._published_events
            else health
        )

    def _render(self, answer: Inventory) -> Inventory:
        """Return the answer with the published health; the same object if nothing changed."""
        if (
            self._rendered_inventory is not None
            and answer is self._rendered_answer
            and not self._has_news
        ):
            return self._rendered_inventory
        healths, self._has_news = self._health_by_key(), False
        if (
            self._rendered_inventory is None
            or answer is not self._rendered_answer
            or healths != self._published_health
        ):
            devices = tuple(_with_health(device, healths) for device in answer.devices)
            rendered = replace(answer, devices=devices)
            self._rendered_inventory = (
                self._rendered_inventory if rendered == self._rendered_inventory else rendered
            )
            self._rendered_answer, self._published_health = answer, healths
        return self._rendered_inventory


def _verdicts(answer: Inventory) -> dict[str, Health]:
    """Return the vendor's health of each managed device and slice."""
    verdicts: dict[str, Health] = {}
    for device in answer.devices:
        for key, health in _health_by_key(device):
            _note_worst(verdicts, key, health)
    return verdicts


def _note_worst(verdicts: dict[str, Health], key: str, health: Health) -> None:
    """Record a result; of two for one key the worse one."""
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
