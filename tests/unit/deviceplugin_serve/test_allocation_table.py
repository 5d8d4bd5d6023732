"""Who holds which devices, out of a file that the kubelet writes and anybody may have damaged."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.clock import ManualClock
from agent.deviceplugin.allocations import MAX_PENDING_ANSWERS, PENDING_ANSWER_S, AllocationTable
from agent.errors import ParseError
from agent.snapshot.device_plugin import KubeletAllocation
from agent.wire_formats import device_checkpoint
from agent.wire_formats.device_checkpoint import parse_device_checkpoint
from proto.gen import deviceplugin_v1beta1_pb2 as pb

ENTRY = {
    "PodUID": "u1",
    "ContainerName": "main",
    "ResourceName": "nvidia.com/gpu",
    "DeviceIDs": {"0": ["GPU-0"], "-1": ["GPU-2"]},
    "AllocResp": "",
}


def checkpoint(*entries: object) -> bytes:
    return json.dumps({"Data": {"PodDeviceEntries": list(entries)}, "Checksum": 1}).encode()


def test_a_checkpoint_names_the_holder_of_each_device() -> None:
    assert parse_device_checkpoint(checkpoint(ENTRY)) == (
        KubeletAllocation(
            pod_uid="u1", resource="nvidia.com/gpu", ids=("GPU-0", "GPU-2"), container="main"
        ),
    )


@pytest.mark.parametrize("ids", [["GPU-2", "GPU-0"], {"0": None, "1": ["GPU-0", "GPU-2"]}])
def test_kubelets_of_old_and_empty_nodes_are_understood(ids: object) -> None:
    (entries,) = parse_device_checkpoint(checkpoint({**ENTRY, "DeviceIDs": ids}))
    assert entries.ids == ("GPU-0", "GPU-2")


def test_a_kubelet_that_gave_nothing_away_yet() -> None:
    text = b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":7}'
    assert parse_device_checkpoint(text) == ()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[" * 100_000,
        b'{"Data": 1}',
        b'{"Data": {"PodDeviceEntries": [{}]}}',
        checkpoint({**ENTRY, "DeviceIDs": {"0": [1]}}),
        checkpoint({**ENTRY, "PodUID": None}),
        b"\xff\xfe",
    ],
)
def test_what_is_damaged_is_refused_whole(data: bytes) -> None:
    with pytest.raises(ParseError):
        parse_device_checkpoint(data)


@given(st.binary(max_size=300), st.integers(0, 200))
def test_no_checkpoint_crashes_us(noise: bytes, at: int) -> None:
    whole = checkpoint(ENTRY, ENTRY)
    try:
        parse_device_checkpoint(whole[:at] + noise + whole[at + 1 :])
    except ParseError:
        return


def answer(**annotations: str) -> str:
    """An answer of ours as the kubelet writes it into its checkpoint."""
    response = pb.ContainerAllocateResponse(annotations=annotations)
    return base64.b64encode(response.SerializeToString()).decode()


def test_what_was_exchanged_stands_in_the_answer_that_the_kubelet_keeps() -> None:
    text = answer(**{"xpu-agent.io/exchange-nvidia.com-gpu": '{"GPU-2":"GPU-7","GPU-9":"GPU-3"}'})
    (entries,) = parse_device_checkpoint(checkpoint({**ENTRY, "AllocResp": text}))
    assert entries.exchanges == (("GPU-2", "GPU-7"),)  # the container reuses one of two devices
    assert entries.ids == ("GPU-0", "GPU-2")
    assert entries.device_ids == ("GPU-0", "GPU-7")
    (other,) = parse_device_checkpoint(checkpoint({**ENTRY, "AllocResp": answer(a="b")}))
    assert other.device_ids == other.ids


def test_the_device_nodes_of_an_answer_are_read_on_request() -> None:
    response = pb.ContainerAllocateResponse()
    response.devices.add(container_path="/dev/nvidia0", host_path="/root/dev/nvidia0")
    response.devices.add(container_path="/dev/nvidiactl", host_path="/dev/nvidiactl")
    text = base64.b64encode(response.SerializeToString()).decode()
    data = checkpoint({**ENTRY, "AllocResp": text}, {**ENTRY, "AllocResp": "AAAA"})
    assert [one.nodes for one in parse_device_checkpoint(data)] == [(), ()]
    assert [one.nodes for one in parse_device_checkpoint(data, with_nodes=True)] == [
        ("/root/dev/nvidia0", "/dev/nvidiactl"),
        (),
    ]


@pytest.mark.parametrize("value", ["", "[]", '{"GPU-2": 1}', "[" * 100_000])
def test_a_damaged_answer_of_the_agent_is_refused_with_the_whole_file(value: str) -> None:
    text = answer(**{"xpu-agent.io/exchange-nvidia.com-gpu": value})
    with pytest.raises(ParseError, match="an answer of ours"):
        parse_device_checkpoint(checkpoint({**ENTRY, "AllocResp": text}))


def test_an_exchange_for_a_pod_that_was_not_known_is_remembered_until_the_kubelet_names_it() -> (
    None
):
    allocation_table = AllocationTable(ManualClock(), lambda: None)
    allocation_table.update_from_checkpoint(())
    kubelet_allocation = KubeletAllocation(
        pod_uid="", resource="r/x", ids=("a",), exchanges=(("a", "b"),)
    )
    allocation_table.add_answer(kubelet_allocation)
    assert allocation_table.allocations == (kubelet_allocation,)
    named = replace(kubelet_allocation, pod_uid="u1", container="main")
    assert allocation_table.update_from_checkpoint((named,)) == ()
    assert allocation_table.allocations == (named,)


def test_too_many_entries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_checkpoint, "MAX_CHECKPOINT_ENTRIES", 2)
    with pytest.raises(ParseError, match="more than 2 entries"):
        parse_device_checkpoint(checkpoint(ENTRY, ENTRY, ENTRY))


def test_answers_are_remembered_until_the_checkpoint_has_them() -> None:
    clock, changes = ManualClock(), list[int]()
    allocation_table = AllocationTable(clock, lambda: changes.append(1))
    answered = KubeletAllocation(pod_uid="u1", resource="r/x", ids=("b", "a"))
    allocation_table.add_answer(answered)
    assert list(allocation_table.allocations) == [answered]
    other = KubeletAllocation(pod_uid="u2", resource="r/x", ids=("a", "b"), container="main")
    allocation_table.update_from_checkpoint((other,))
    assert list(allocation_table.allocations) == [other, answered]
    written = KubeletAllocation(pod_uid="u1", resource="r/x", ids=("a", "b"), container="main")
    allocation_table.update_from_checkpoint((written,))
    assert list(allocation_table.allocations) == [written]
    assert len(changes) == 3


def test_answers_that_came_to_nothing_are_forgotten_and_never_too_many() -> None:
    clock = ManualClock()
    allocation_table = AllocationTable(clock, lambda: None)
    for index in range(MAX_PENDING_ANSWERS + 10):
        allocation_table.add_answer(
            KubeletAllocation(pod_uid=f"u{index}", resource="r/x", ids=("a",))
        )
    assert len(allocation_table.allocations) == MAX_PENDING_ANSWERS
    allocation_table.remove_old_answers()
    assert len(allocation_table.allocations) == MAX_PENDING_ANSWERS
    clock.advance(PENDING_ANSWER_S + 1)
    allocation_table.remove_old_answers()
    assert not allocation_table.allocations


def test_a_device_of_two_memory_nodes_is_one_device() -> None:
    (entries,) = parse_device_checkpoint(
        checkpoint({**ENTRY, "DeviceIDs": {"0": ["a"], "1": ["a", "b"]}})
    )
    assert entries.ids == ("a", "b")


def test_every_answer_counts_where_the_containers_of_a_pod_have_the_same_devices() -> None:
    allocation_table = AllocationTable(ManualClock(), lambda: None)
    allocation_table.update_from_checkpoint(())
    answer = KubeletAllocation(pod_uid="u1", resource="r/x", ids=("a",))
    allocation_table.add_answer(answer)
    allocation_table.add_answer(KubeletAllocation(pod_uid="u1", resource="r/x", ids=("a",)))
    assert allocation_table.allocations == (answer, answer)
    init = KubeletAllocation(pod_uid="u1", resource="r/x", ids=("a",), container="init")
    assert allocation_table.update_from_checkpoint((init,)) == ()
    assert allocation_table.allocations == (init, answer)
    main = KubeletAllocation(pod_uid="u1", resource="r/x", ids=("a",), container="main")
    allocation_table.update_from_checkpoint((init, main))
    assert allocation_table.allocations == (init, main)


def test_an_answer_that_went_to_another_pod_is_reported_and_counts_for_none() -> None:
    allocation_table = AllocationTable(ManualClock(), lambda: None)
    allocation_table.update_from_checkpoint(())
    answer = KubeletAllocation(pod_uid="u1", resource="r/x", ids=("a",))
    allocation_table.add_answer(answer)
    other = KubeletAllocation(pod_uid="u2", resource="r/x", ids=("a",), container="main")
    assert allocation_table.update_from_checkpoint((other,)) == ((answer, other),)
    assert allocation_table.allocations == (other,)
    assert allocation_table.update_from_checkpoint((other,)) == ()


def test_of_the_same_devices_the_answer_to_the_pod_itself_is_the_one() -> None:
    allocation_table = AllocationTable(ManualClock(), lambda: None)
    allocation_table.update_from_checkpoint(())
    removed, now = (
        KubeletAllocation(pod_uid=uid, resource="r/x", ids=("a",)) for uid in ("u1", "u2")
    )
    allocation_table.add_answer(removed)
    allocation_table.add_answer(now)
    late = KubeletAllocation(pod_uid="u1", resource="r/x", ids=("a",), container="main")
    assert allocation_table.update_from_checkpoint((late,)) == ()
    assert allocation_table.allocations == (late, now)


def test_what_a_kubelet_that_is_no_more_was_answered_is_forgotten_unless_it_wrote_it() -> None:
    changes = list[int]()
    allocation_table = AllocationTable(ManualClock(), lambda: changes.append(1))
    written = KubeletAllocation(pod_uid="u1", resource="r/x", ids=("a",), container="main")
    allocation_table.update_from_checkpoint((written,))
    allocation_table.add_answer(KubeletAllocation(pod_uid="u2", resource="r/x", ids=("b",)))
    allocation_table.clear_answers()
    allocation_table.clear_answers()
    assert allocation_table.allocations == (written,)
    assert len(changes) == 3
