"""A session with fake devices; it reads only its file and the clock."""

from __future__ import annotations

import threading
from pathlib import Path

import yaml

from agent.clock import SYSTEM_CLOCK, Clock
from agent.errors import BadConfig
from agent.snapshot.device import HealthState
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory
from plugins.vendors.fake import answers
from plugins.vendors.fake.misbehaviour import Misbehaviour
from plugins.vendors.fake.scene import Scene, parse_scene

MAX_FILE = 4 * 1024 * 1024  # bytes; a thousand devices need a tenth of it


def read_scene(file: str) -> Scene:
    """Read and decode the file; raises `BadConfig` with the file's name for any error."""
    try:
        with Path(file).open("rb") as stream:
            data = stream.read(MAX_FILE + 1)
    except OSError as error:
        raise BadConfig(f"{file}: {error.strerror}") from error
    if len(data) > MAX_FILE:
        raise BadConfig(f"{file}: more than {MAX_FILE} bytes")
    try:
        # the C loader is ten times faster and as safe
        loaded = yaml.load(data, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadConfig(f"{file}: {error}") from error
    return parse_scene(loaded, file)


class FakeSession:
    """Plays a scene from the moment at which it is opened."""

    def __init__(self, file: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._file = file
        self._clock = clock
        self._scene = read_scene(file)
        self._opened_s = clock.monotonic()
        self._reported_until_s = -1.0  # events up to this time have been returned
        self._closed = threading.Event()
        self._misbehaviour = Misbehaviour(self._scene.misbehave)
        self._misbehaviour.enter("open")

    def discover(self) -> Inventory:
        """Return the devices as the file describes them now."""
        self._misbehaviour.enter("discover")
        self._scene = read_scene(self._file)
        return answers.build_inventory(self._scene)

    def sample(self) -> tuple[DeviceSample, ...]:
        """Return the samples of the devices now."""
        self._misbehaviour.enter("sample")
        return answers.build_samples(self._scene, self._elapsed_s())

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Return the due events; wait for the next one at most `wait_s` seconds."""
        self._misbehaviour.enter("events")
        next_s = answers.next_event_s(self._scene, self._reported_until_s)
        until_s = wait_s if next_s is None else min(wait_s, next_s - self._elapsed_s())
        if until_s > 0:
            self._closed.wait(until_s)
        now_s = self._elapsed_s()
        due = answers.events_between(self._scene, self._reported_until_s, now_s)
        self._reported_until_s = now_s
        return due

    def clear(self, key: str) -> bool:
        """Return whether the device is not healthy; the file still decides its health."""
        self._misbehaviour.enter("clear")
        devices = answers.build_inventory(self._scene).devices
        match = next((device for device in devices if device.key == key), None)
        return match is not None and match.health.state is not HealthState.HEALTHY

    def close(self) -> None:
        """End a wait in `events`."""
        self._misbehaviour.enter("close")
        self._closed.set()

    def _elapsed_s(self) -> float:
        return self._clock.monotonic() - self._opened_s
