"""The full list of pods and containers: in parts, kept as bytes, read in slices."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from agent.nri import synchronization
from agent.nri.messages import parse_runtime_container, parse_sandbox
from agent.nri.synchronization import SynchronizationList, message_fields
from agent.nri.versions import RuntimePeer
from proto.gen import nri_container_pb2 as wire
from proto.gen import nri_plugin_pb2 as calls
from tests.unit.nri.messages import container, pod
from tests.unit.nri_wire.vectors import V13

CONTAINERD = RuntimePeer(name="containerd", version="v1.7.24")


def listed(pods: int, containers: int, *, more: bool = False, first: int = 0) -> bytes:
    return calls.SynchronizeRequest(
        pods=[pod(f"p{first + number}") for number in range(pods)],
        containers=[container(f"c{first + number}") for number in range(containers)],
        more=more,
    ).SerializeToString()


def test_the_vector_of_a_part_says_that_more_comes_and_an_empty_message_that_none_does() -> None:
    assert SynchronizationList().add(V13) is True
    assert SynchronizationList().add(b"") is False


def test_parts_are_joined_whatever_is_in_which() -> None:
    parts = SynchronizationList()
    answers = [
        parts.add(listed(0, 3, more=True)),
        parts.add(listed(2, 0, more=True)),
        parts.add(listed(1, 1, first=9)),
    ]
    pods, containers = asyncio.run(parts.read(CONTAINERD))
    assert answers == [True, True, False]
    assert [one.id for one in pods] == ["p0", "p1", "p9"]
    assert [one.id for one in containers] == ["c0", "c1", "c2", "c9"]
    assert pods[0] == parse_sandbox(pod("p0"))
    assert containers[0] == parse_runtime_container(container("c0"))


def test_what_has_ended_is_left_out() -> None:
    ended = container("c1")
    ended.state = wire.CONTAINER_STOPPED
    parts = SynchronizationList()
    parts.add(calls.SynchronizeRequest(containers=[ended]).SerializeToString())
    assert asyncio.run(parts.read(CONTAINERD)) == ([], [])
    assert parts.dropped == 0


def test_a_sandbox_without_a_process_has_stopped_unless_a_container_in_it_lives() -> None:
    """As containerd lists those that the kubelet has not removed yet."""
    stopped, crowded, running = pod("p1"), pod("p2"), pod("p3")
    stopped.pid = crowded.pid = 0
    ended = container("c1", "p1")
    ended.state = wire.CONTAINER_STOPPED
    parts = SynchronizationList()
    parts.add(
        calls.SynchronizeRequest(
            pods=[stopped, crowded, running], containers=[ended, container("c2", "p2")]
        ).SerializeToString()
    )
    pods, _ = asyncio.run(parts.read(CONTAINERD))
    assert {one.id: one.stopped for one in pods} == {"p1": True, "p2": False, "p3": False}


def test_a_sandbox_with_namespaces_and_without_a_process_runs_where_pods_need_none() -> None:
    """As CRI-O runs pods; containerd has lists with the namespaces of stopped sandboxes."""
    bare = pod("p2")
    bare.pid = 0
    nowhere = pod("p3")
    nowhere.pid = 0
    nowhere.linux.ClearField("namespaces")
    parts = SynchronizationList()
    message = calls.SynchronizeRequest(pods=[pod("p1"), bare, nowhere])
    parts.add(message.SerializeToString())
    for name, stopped in (("cri-o", ["p3"]), ("containerd", ["p2", "p3"])):
        pods, _ = asyncio.run(parts.read(RuntimePeer(name=name)))
        assert [one.id for one in pods if one.stopped] == stopped


def test_a_malformed_pod_costs_only_itself() -> None:
    good, bad = listed(1, 1), bytes.fromhex("0a020a09")
    parts = SynchronizationList()
    parts.add(bad + good)
    pods, containers = asyncio.run(parts.read(CONTAINERD))
    assert (len(pods), len(containers), parts.dropped) == (1, 1, 1)


def test_more_than_a_node_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synchronization, "MAX_BYTES", 2000)
    parts = SynchronizationList()
    parts.add(listed(3, 3, more=True))
    with pytest.raises(ParseError, match="more than 2000 bytes"):
        parts.add(listed(9, 9))


def test_others_have_their_turn_while_a_long_list_is_read() -> None:
    async def through() -> int:
        parts, turns = SynchronizationList(), 0
        parts.add(listed(100, 500))
        reading = asyncio.create_task(parts.read(CONTAINERD))
        while not reading.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(through()) > 30


@pytest.mark.parametrize(
    "data",
    [
        "0a",  # no length
        "0a05",  # shorter than it says
        "0affffffffffffffffff7f",  # a length that lies
        "18",  # no value
        "18ffffffffffffffffffffffff",  # a number without end
        "ffffffffffffffffffffff",
        "0b",  # a group
        "0e",
        "0200",  # field 0
        "0d0000",  # fixed width, cut
        "09000000",
    ],
)
def test_what_is_no_message_is_refused(data: str) -> None:
    with pytest.raises(ParseError):
        SynchronizationList().add(bytes.fromhex(data))


def test_unknown_fields_are_passed_over() -> None:
    unknown = bytes.fromhex("20012a026869350a0a0a0a390a0a0a0a0a0a0a0a")
    parts = SynchronizationList()
    assert parts.add(unknown + listed(1, 0, more=True) + unknown)
    assert len(asyncio.run(parts.read(CONTAINERD))[0]) == 1


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    try:
        result = list(message_fields(data))
    except ParseError:
        return
    assert sum(len(one) for _, one in result if not isinstance(one, int)) <= len(data)


@given(st.binary(max_size=60))
def test_what_protobuf_takes_is_taken_alike(data: bytes) -> None:
    parts = SynchronizationList()
    try:
        more = parts.add(data)
    except ParseError:
        return
    pods, containers = asyncio.run(parts.read(CONTAINERD))
    if parts.dropped == 0 and pods:
        whole = calls.SynchronizeRequest.FromString(data)
        assert [one.id for one in pods] == [one.id for one in whole.pods]
        assert len(containers) <= len(whole.containers)
        assert more == whole.more
