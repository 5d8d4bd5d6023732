from __future__ import annotations

import contextlib
import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import WorkerError
from agent.snapshot.device import (
    DeviceKind,
    HealthState,
    VendorDevice,
    VirtualFunction,
    VirtualFunctionGroup,
)
from agent.snapshot.inventory import (
    DeviceEvent,
    DeviceSample,
    Inventory,
    MetricValue,
    ProcessSample,
    Rejection,
)
from agent.snapshot.settings import VendorSettings
from agent.snapshot.vendor import SessionContext
from agent.workers import protocol


class OddSettings(VendorSettings, frozen=True, kw_only=True):
    """One value of any type."""

    value: object


DEVICE = VendorDevice(
    kind=DeviceKind.RDMA,
    vendor="mlx5",
    bus_id="0000:3b:00.0",
    resources=(("koordinator.sh/rdma", "100"),),
    vf_groups=(
        VirtualFunctionGroup(labels=(("a", "b"),), vfs=(VirtualFunction(bus_id="0000:3b:00.1"),)),
    ),
)
SAMPLE = DeviceSample(
    key=DEVICE.key,
    core_percent=12.5,
    processes=(ProcessSample(pid=1),),
    readings=(MetricValue(family="f_total", value=2.0**53, labels=("x",)),),
)
REPLIES: list[protocol.WorkerMessage] = [
    protocol.OpenReply(),
    protocol.DiscoverReply(1, Inventory(vendor="x", devices=(DEVICE,))),
    protocol.SampleReply(2, (SAMPLE,)),
    protocol.EmptyReply(3),
    protocol.ErrorReply(4, "DeviceGone", "gone — really"),
    protocol.EventsMessage((DeviceEvent(key="", reason="Xid79", state=HealthState.FAILED),)),
]


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: type(reply).__name__)
def test_a_reply_survives_the_wire_unchanged(reply: protocol.WorkerMessage) -> None:
    line = protocol.encode_message(reply)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert protocol.decode_reply("x", line[:-1]) == reply


def test_requests_survive_the_wire_unchanged() -> None:
    context = SessionContext(state_dir="/s")
    start = protocol.encode_start("x", OddSettings(value={"on": [1]}), context, events=False)
    decoded = protocol.decode_request("x", start)
    assert isinstance(decoded, protocol.StartMessage)
    assert (decoded.context, decoded.events) == (context, False)
    assert msgspec.json.decode(decoded.settings) == {"value": {"on": [1]}}
    ask = protocol.MethodRequest(7, "sample")
    assert protocol.decode_request("x", protocol.encode_message(ask)) == ask


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"[" * 100_000,
        b'{"type":"launch"}',
        b'{"type":"sampled","id":"1","samples":[]}',
        b'{"type":"sampled","id":1.5,"samples":[]}',
        b'{"type":"sampled","id":1}',
        b'{"type":"sampled","id":1,"samples":[{"key":"a","core_percent":"12"}]}',
        b'{"type":"happened","events":[{"key":"a","reason":"b","state":"sick"}]}',
        b'{"type":"discovered","id":1,"inventory":{"vendor":"x","devices":[{"kind":"tpu"}]}}',
        b'{"type":"done","id":1}{"type":"done","id":2}',
    ],
)
def test_anything_else_is_garbage(line: bytes) -> None:
    with pytest.raises(WorkerError) as caught:
        protocol.decode_reply("x", line)
    assert caught.value.reason == protocol.GARBAGE


@given(st.binary(max_size=300))
def test_a_hostile_line_never_raises_anything_else(line: bytes) -> None:
    for decode in (protocol.decode_reply, protocol.decode_request):
        with contextlib.suppress(WorkerError):
            decode("x", line)


@pytest.mark.parametrize("value", [object(), "\udc80"])
def test_settings_that_cannot_be_sent_are_bad_settings(value: object) -> None:
    with pytest.raises(WorkerError, match=r"BadConfig: discovery\.x"):
        protocol.encode_start("x", OddSettings(value=value), events=True)


def test_settings_are_bounded() -> None:
    with pytest.raises(WorkerError, match="bytes of settings"):
        protocol.encode_start("x", OddSettings(value="y" * protocol.MAX_LINE), events=True)


@given(
    st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")), max_size=8),
    st.lists(st.integers(1, 7), min_size=1, max_size=8),
)
def test_lines_do_not_depend_on_how_they_are_cut(lines: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(line + b"\n" for line in lines) + b"rest"
    splitter = protocol.LineSplitter("x")
    result, sizes = [], itertools.cycle(cuts)
    while stream:
        size = next(sizes)
        result += splitter.feed(stream[:size])
        stream = stream[size:]
    assert result == lines
    assert splitter.pending_bytes == len(b"rest")


@pytest.mark.parametrize(
    "chunks", [[b"x" * 11], [b"x" * 6, b"x" * 5], [b"a\n" + b"x" * 11 + b"\n"], [b"x" * 9, b"xx\n"]]
)
def test_a_line_over_the_limit_is_refused_and_not_stored(chunks: list[bytes]) -> None:
    splitter = protocol.LineSplitter("x", limit=10)
    *first, last = chunks
    for chunk in first:
        splitter.feed(chunk)
    with pytest.raises(WorkerError) as caught:
        splitter.feed(last)
    assert caught.value.reason == protocol.TOO_LONG
    assert splitter.pending_bytes == 0


def test_a_line_at_the_limit_passes() -> None:
    assert protocol.LineSplitter("x", limit=10).feed(b"x" * 10 + b"\n") == [b"x" * 10]


def test_readings_that_are_no_number_become_rejections() -> None:
    good = MetricValue(family="a", value=1.0)
    bad = [MetricValue(family="b", value=v) for v in (float("nan"), float("inf"), float("-inf"))]
    mixed = DeviceSample(key="k", readings=(good, *bad))
    rejections = tuple(Rejection(family="b", value=text) for text in ("nan", "inf", "-inf"))
    expected = DeviceSample(key="k", readings=(good,), rejections=rejections)
    assert protocol.reject_non_finite([mixed]) == (expected,)
