"""The session on a real card, where there is one."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import pytest

from agent.snapshot.device import HealthState
from agent.workers.tape import TapeSession, TapeWriter, parse_tape
from plugins.vendors.nvidia.library.nvml import SONAME, find_library
from plugins.vendors.nvidia.settings import NvidiaSettings
from plugins.vendors.nvidia.vendor import NvidiaVendor
from tests.stubs.child import Child

WORKER = ["-m", "agent.workers.worker", "--vendor", "nvidia"]


def _why_not() -> str | None:
    """Return what is missing for these tests: the library, or a driver that answers."""
    path = find_library(NvidiaSettings())
    try:
        library = ctypes.CDLL(path)
    except OSError:
        return f"no GPU: {SONAME} is not here"
    code = library.nvmlInitWithFlags(0)
    count = ctypes.c_uint()
    if code == 0:
        library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        library.nvmlShutdown()
    return None if count.value else f"no GPU: NVML answers {code} with {count.value} cards"


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif((WHY_NOT := _why_not()) is not None, reason=WHY_NOT or ""),
]


def test_a_real_card_is_described() -> None:
    with Child("nvidia", WORKER, {}) as child:
        inventory = child.discover()
    healthy = [d for d in inventory.devices if d.health.state is HealthState.HEALTHY]
    assert healthy
    for card in healthy:
        assert card.uuid is not None
        assert card.uuid.startswith("GPU-")
        assert card.minor is not None
        assert card.model
        assert card.memory_bytes is not None
        assert card.memory_bytes > 1 << 30
        assert dict(card.facts).get("unschedulable") or card.resources
    assert inventory.driver_version
    assert inventory.library


def test_a_real_card_is_sampled() -> None:
    families = {f.name: f for f in NvidiaVendor.description.families}
    with Child("nvidia", WORKER, {}) as child:
        keys = {d.key for d in child.discover().devices}
        child.sample()
        samples = child.sample()
    assert samples
    for sample in samples:
        assert sample.key in keys
        assert sample.memory_total_bytes
        assert sample.core_percent is None or 0 <= sample.core_percent <= 100
        assert sample.readings
        for reading in sample.readings:
            assert len(families[reading.family].labels) == len(reading.labels)


def test_a_real_cards_answers_play_back_from_a_tape_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "nvidia.jsonl"
    with path.open("wb") as file, Child("nvidia", WORKER, {}) as child:
        writer = TapeWriter("nvidia", file.write)
        started_s = time.monotonic()
        inventory = child.discover()
        writer.write_inventory(inventory, time.monotonic() - started_s)
        samples = child.sample()
        writer.write_samples(samples, 0.0)
    played = TapeSession(parse_tape(path.read_bytes(), "nvidia"))
    assert played.discover() == inventory
    assert played.sample() == samples
