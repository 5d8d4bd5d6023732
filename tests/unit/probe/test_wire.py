from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import WorkerError
from agent.model.device import DeviceKind, HealthState, VendorDevice, VfGroup, VirtualFunction
from agent.model.inventory import DeviceEvent, DeviceSample, Inventory, ProcessSample, Reading
from agent.probe import wire

DEVICE = VendorDevice(
    kind=DeviceKind.RDMA,
    vendor="mlx5",
    bus_id="0000:3b:00.0",
    resources=(("koordinator.sh/rdma", "100"),),
    vf_groups=(VfGroup(labels=(("a", "b"),), vfs=(VirtualFunction(bus_id="0000:3b:00.1"),)),),
)
SAMPLE = DeviceSample(
    key=DEVICE.key,
    core_percent=12.5,
    processes=(ProcessSample(pid=1),),
    readings=(Reading(family="f_total", value=2.0**53, labels=("x",)),),
)
REPLIES: list[wire.Reply] = [
    wire.Opened(),
    wire.Discovered(1, Inventory(vendor="x", devices=(DEVICE,))),
    wire.Sampled(2, (SAMPLE,)),
    wire.Done(3),
    wire.Failed(4, "DeviceGone", "gone — really"),
    wire.Happened((DeviceEvent(key="", reason="Xid79", state=HealthState.FAILED),)),
]


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: type(reply).__name__)
def test_a_reply_survives_the_wire_unchanged(reply: wire.Reply) -> None:
    line = wire.encode(reply)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert wire.decode_reply("x", line[:-1]) == reply


def test_requests_survive_the_wire_unchanged() -> None:
    settings: dict[str, object] = {"dirs": ["/a", "/b"], "deep": {"on": True, "none": None}}
    start = wire.encode_start("x", settings, events=False)
    assert wire.decode_request("x", start) == wire.Start(settings, events=False)
    ask = wire.Ask(7, "sample")
    assert wire.decode_request("x", wire.encode(ask)) == ask


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
        wire.decode_reply("x", line)
    assert caught.value.reason == wire.GARBAGE


@given(st.binary(max_size=300))
def test_a_hostile_line_never_raises_anything_else(line: bytes) -> None:
    for decode in (wire.decode_reply, wire.decode_request):
        with contextlib.suppress(WorkerError):
            decode("x", line)


@pytest.mark.parametrize("settings", [{"f": object()}, {"s": "\udc80"}])
def test_settings_that_cannot_be_sent_are_bad_settings(settings: dict[str, object]) -> None:
    with pytest.raises(WorkerError, match=r"BadConfig: discovery\.x"):
        wire.encode_start("x", settings, events=True)


def test_settings_are_bounded() -> None:
    with pytest.raises(WorkerError, match="bytes of settings"):
        wire.encode_start("x", {"f": "y" * wire.MAX_LINE}, events=True)


@given(
    st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")), max_size=8),
    st.lists(st.integers(1, 7), min_size=1, max_size=8),
)
def test_lines_do_not_depend_on_how_they_are_cut(lines: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(line + b"\n" for line in lines) + b"rest"
    splitter = wire.LineSplitter("x")
    found, sizes = [], itertools.cycle(cuts)
    while stream:
        size = next(sizes)
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    assert found == lines
    assert splitter.unfinished == len(b"rest")


@pytest.mark.parametrize(
    "chunks", [[b"x" * 11], [b"x" * 6, b"x" * 5], [b"a\n" + b"x" * 11 + b"\n"], [b"x" * 9, b"xx\n"]]
)
def test_a_line_over_the_limit_is_refused_and_not_kept(chunks: list[bytes]) -> None:
    splitter = wire.LineSplitter("x", limit=10)
    *first, last = chunks
    for chunk in first:
        splitter.feed(chunk)
    with pytest.raises(WorkerError) as caught:
        splitter.feed(last)
    assert caught.value.reason == wire.TOO_LONG
    assert splitter.unfinished == 0


def test_a_line_at_the_limit_passes() -> None:
    assert wire.LineSplitter("x", limit=10).feed(b"x" * 10 + b"\n") == [b"x" * 10]


def test_readings_that_are_no_number_are_left_out() -> None:
    good = Reading(family="a", value=1.0)
    bad = [Reading(family="b", value=v) for v in (float("nan"), float("inf"), float("-inf"))]
    mixed = DeviceSample(key="k", readings=(good, *bad))
    assert wire.finite([mixed]) == (DeviceSample(key="k", readings=(good,)),)
