from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.clock import ManualClock
from agent.errors import NotSupported, ParseError
from agent.snapshot.device import DeviceKind, VendorDevice
from agent.snapshot.inventory import DeviceSample, Inventory, MetricValue
from agent.workers import tape
from agent.workers.protocol import MAX_LINE

HEADER = b'{"tape": 1, "vendor": "x"}\n'
DISCOVER = b'{"method": "discover", "elapsed_s": 0.8, "answer": {"vendor": "x"}}\n'
EVENTS = (
    b'{"method": "events", "at_s": 20.0, "answer": [{"key": "a", "reason": "Late"}]}\n'
    b'{"method": "events", "at_s": 10.0, "answer": [{"key": "a", "reason": "Early"}]}\n'
)


def _inventory(uuid: str) -> Inventory:
    device = VendorDevice(kind=DeviceKind.GPU, vendor="x", bus_id=None, uuid=uuid)
    return Inventory(vendor="x", devices=(device,))


def _recorded() -> bytes:
    data = bytearray()
    writer = tape.TapeWriter("x", data.extend)
    writer.write_inventory(_inventory("a"), 0.5)
    writer.write_samples((DeviceSample(key="a", core_percent=1.0),), 0.1)
    data.extend(EVENTS)
    writer.write_samples((DeviceSample(key="a", core_percent=2.0),), 0.1)
    writer.write_inventory(_inventory("b"), 0.5)
    return bytes(data)


def _session(clock: ManualClock) -> tape.TapeSession:
    return tape.TapeSession(tape.parse_tape(_recorded(), "x"), clock)


def test_inventories_follow_each_other_and_the_last_one_stays() -> None:
    session = _session(ManualClock())
    assert [session.discover() for _ in range(3)] == [_inventory(u) for u in ("a", "b", "b")]


def test_a_tape_of_an_earlier_version_has_the_drivers_numbers_as_minors() -> None:
    line = b'{"method":"discover","elapsed_s":0.1,"answer":{"vendor":"x","devices":[%s]}}\n'
    old = b'{"kind":"gpu","vendor":"x","bus_id":null,"uuid":"a","minor":3}'
    new = b'{"kind":"gpu","vendor":"x","bus_id":null,"uuid":"b","minor":3,"vendor_minor":5}'
    tapes = [tape.parse_tape(HEADER + line % t, "x") for t in (old, new, old + b"," + new)]
    devices = [one.inventories[0].devices for one in tapes]
    numbers = [[device.vendor_minor for device in listed] for listed in devices]
    assert numbers == [[3], [5], [None, 5]]


def test_samples_start_over() -> None:
    session = _session(ManualClock())
    assert [session.sample()[0].core_percent for _ in range(3)] == [1.0, 2.0, 1.0]


def _counted(value: float, key: str = "a") -> tuple[DeviceSample, ...]:
    return (
        DeviceSample(
            key=key,
            memory_used_bytes=int(value),
            readings=(
                MetricValue(family="xpu_x_errors_total", value=value, labels=("link",)),
                MetricValue(family="xpu_x_celsius", value=value),
            ),
        ),
    )


def _readings(played: tuple[DeviceSample, ...], family: str) -> list[float]:
    return [r.value for sample in played for r in sample.readings if r.family == family]


def test_counters_go_on_where_the_tape_starts_over() -> None:
    data = bytearray()
    writer = tape.TapeWriter("x", data.extend)
    writer.write_inventory(_inventory("a"), 0.5)
    for value in (5.0, 6.0, 9.0):
        writer.write_samples(_counted(value), 0.1)
    session = tape.TapeSession(tape.parse_tape(bytes(data), "x"))
    played = [session.sample() for _ in range(8)]
    counters = [_readings(one, "xpu_x_errors_total")[0] for one in played]
    assert counters == [5.0, 6.0, 9.0, 9.0, 10.0, 13.0, 13.0, 14.0]
    assert [_readings(one, "xpu_x_celsius")[0] for one in played[:5]] == [5.0, 6.0, 9.0, 5.0, 6.0]
    assert [one[0].memory_used_bytes for one in played[3:5]] == [5, 6]


def test_a_counter_that_is_not_in_every_sample_goes_on_as_well() -> None:
    data = bytearray()
    writer = tape.TapeWriter("x", data.extend)
    writer.write_inventory(_inventory("a"), 0.5)
    for samples in ((), _counted(3.0), _counted(7.0), _counted(2.0, "b")):
        writer.write_samples(samples, 0.1)
    session = tape.TapeSession(tape.parse_tape(bytes(data), "x"))
    played = [session.sample() for _ in range(8)]
    family = "xpu_x_errors_total"
    assert [_readings(one, family) for one in played[4:]] == [[], [7.0], [11.0], [2.0]]


def test_events_come_at_their_offsets_once_and_in_order() -> None:
    clock = ManualClock()
    session = _session(clock)
    assert session.events(0.0) == ()
    clock.advance(10.0)
    assert [event.reason for event in session.events(0.0)] == ["Early"]
    clock.advance(100.0)
    assert [event.reason for event in session.events(0.0)] == ["Late"]
    assert session.events(0.0) == ()


def test_closing_ends_the_wait_for_events() -> None:
    session = _session(ManualClock())
    session.close()
    session.close()
    assert session.events(3600.0) == ()


def test_a_tape_without_samples_cannot_tell() -> None:
    session = tape.TapeSession(tape.parse_tape(HEADER + DISCOVER, "x"))
    with pytest.raises(NotSupported):
        session.sample()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(DISCOVER, id="no header"),
        pytest.param(HEADER, id="no inventory"),
        pytest.param(HEADER.replace(b"1", b"2") + DISCOVER, id="another version"),
        pytest.param(HEADER.replace(b"x", b"y") + DISCOVER, id="another vendor"),
        pytest.param(HEADER + DISCOVER + b'{"method": "reboot"}', id="unknown method"),
        pytest.param(HEADER + DISCOVER + b"\xff", id="no text"),
        pytest.param(HEADER + DISCOVER + b"[" * 100_000, id="deep"),
        pytest.param(HEADER + DISCOVER + b" " * (MAX_LINE + 1), id="long line"),
        pytest.param(HEADER + DISCOVER + b"\n" * (tape.MAX_ANSWERS + 1), id="many lines"),
    ],
)
def test_a_hostile_tape_is_refused(data: bytes) -> None:
    with pytest.raises(ParseError, match="tape"):
        tape.parse_tape(data, "x")


@given(st.lists(st.sampled_from([HEADER, DISCOVER, b"{}\n", b"\n"]) | st.binary(max_size=60)))
def test_a_tape_is_read_or_refused(parts: list[bytes]) -> None:
    with contextlib.suppress(ParseError):
        assert tape.parse_tape(b"".join(parts), "x").inventories
