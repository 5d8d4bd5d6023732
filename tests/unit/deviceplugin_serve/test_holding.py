"""Who holds which devices, out of a file that the kubelet writes and anybody may have damaged."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.clock import ManualClock
from agent.deviceplugin.serve import holding
from agent.deviceplugin.serve.holding import FORGET_S, MAX_ANSWERED, Holding, parse_checkpoint
from agent.errors import ParseError
from agent.model.runtime.served import Held
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


def test_a_checkpoint_says_who_holds_what() -> None:
    assert parse_checkpoint(checkpoint(ENTRY)) == (
        Held(pod_uid="u1", resource="nvidia.com/gpu", ids=("GPU-0", "GPU-2"), container="main"),
    )


@pytest.mark.parametrize("ids", [["GPU-2", "GPU-0"], {"0": None, "1": ["GPU-0", "GPU-2"]}])
def test_kubelets_of_old_and_empty_nodes_are_understood(ids: object) -> None:
    (held,) = parse_checkpoint(checkpoint({**ENTRY, "DeviceIDs": ids}))
    assert held.ids == ("GPU-0", "GPU-2")


def test_a_kubelet_that_gave_nothing_away_yet() -> None:
    text = b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":7}'
    assert parse_checkpoint(text) == ()


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
        parse_checkpoint(data)


@given(st.binary(max_size=300), st.integers(0, 200))
def test_no_checkpoint_crashes_us(noise: bytes, at: int) -> None:
    whole = checkpoint(ENTRY, ENTRY)
    try:
        parse_checkpoint(whole[:at] + noise + whole[at + 1 :])
    except ParseError:
        return


def answer(**annotations: str) -> str:
    """An answer of ours as the kubelet writes it into its checkpoint."""
    response = pb.ContainerAllocateResponse(annotations=annotations)
    return base64.b64encode(response.SerializeToString()).decode()


def test_what_was_exchanged_stands_in_the_answer_that_the_kubelet_keeps() -> None:
    text = answer(**{"xpu-agent.io/exchange-nvidia.com-gpu": '{"GPU-2":"GPU-7","GPU-9":"GPU-3"}'})
    (held,) = parse_checkpoint(checkpoint({**ENTRY, "AllocResp": text}))
    assert held.exchanges == (("GPU-2", "GPU-7"),)  # the container reuses one of two devices
    assert held.ids == ("GPU-0", "GPU-2")
    assert held.device_ids == ("GPU-0", "GPU-7")
    (other,) = parse_checkpoint(checkpoint({**ENTRY, "AllocResp": answer(a="b")}))
    assert other.device_ids == other.ids


@pytest.mark.parametrize("value", ["", "[]", '{"GPU-2": 1}', "[" * 100_000])
def test_an_answer_of_ours_that_is_damaged_is_refused_with_the_whole_file(value: str) -> None:
    text = answer(**{"xpu-agent.io/exchange-nvidia.com-gpu": value})
    with pytest.raises(ParseError, match="an answer of ours"):
        parse_checkpoint(checkpoint({**ENTRY, "AllocResp": text}))


def test_an_exchange_for_a_pod_that_was_not_known_is_remembered_until_the_kubelet_names_it() -> (
    None
):
    known = Holding(ManualClock().monotonic, lambda: None)
    known.written(())
    given = Held(pod_uid="", resource="r/x", ids=("a",), exchanges=(("a", "b"),))
    known.answered(given)
    assert known.held == (given,)
    named = replace(given, pod_uid="u1", container="main")
    assert known.written((named,)) == ()
    assert known.held == (named,)


def test_too_many_entries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "MAX_ENTRIES", 2)
    with pytest.raises(ParseError, match="more than 2 entries"):
        parse_checkpoint(checkpoint(ENTRY, ENTRY, ENTRY))


def test_answers_are_remembered_until_the_checkpoint_has_them() -> None:
    clock, changes = ManualClock(), list[int]()
    known = Holding(clock.monotonic, lambda: changes.append(1))
    answered = Held(pod_uid="u1", resource="r/x", ids=("b", "a"))
    known.answered(answered)
    assert list(known.held) == [answered]
    other = Held(pod_uid="u2", resource="r/x", ids=("a", "b"), container="main")
    known.written((other,))
    assert list(known.held) == [other, answered]
    written = Held(pod_uid="u1", resource="r/x", ids=("a", "b"), container="main")
    known.written((written,))
    assert list(known.held) == [written]
    assert len(changes) == 3


def test_answers_that_came_to_nothing_are_forgotten_and_never_too_many() -> None:
    clock = ManualClock()
    known = Holding(clock.monotonic, lambda: None)
    for index in range(MAX_ANSWERED + 10):
        known.answered(Held(pod_uid=f"u{index}", resource="r/x", ids=("a",)))
    assert len(known.held) == MAX_ANSWERED
    known.forget_old()
    assert len(known.held) == MAX_ANSWERED
    clock.advance(FORGET_S + 1)
    known.forget_old()
    assert not known.held


def test_a_device_of_two_memory_nodes_is_one_device() -> None:
    (held,) = parse_checkpoint(checkpoint({**ENTRY, "DeviceIDs": {"0": ["a"], "1": ["a", "b"]}}))
    assert held.ids == ("a", "b")


def test_every_answer_counts_where_the_containers_of_a_pod_have_the_same_devices() -> None:
    known = Holding(ManualClock().monotonic, lambda: None)
    known.written(())
    answer = Held(pod_uid="u1", resource="r/x", ids=("a",))
    known.answered(answer)
    known.answered(Held(pod_uid="u1", resource="r/x", ids=("a",)))
    assert known.held == (answer, answer)
    init = Held(pod_uid="u1", resource="r/x", ids=("a",), container="init")
    assert known.written((init,)) == ()
    assert known.held == (init, answer)
    main = Held(pod_uid="u1", resource="r/x", ids=("a",), container="main")
    known.written((init, main))
    assert known.held == (init, main)


def test_an_answer_that_went_to_another_pod_is_told_of_and_counts_for_nobody() -> None:
    known = Holding(ManualClock().monotonic, lambda: None)
    known.written(())
    answer = Held(pod_uid="u1", resource="r/x", ids=("a",))
    known.answered(answer)
    other = Held(pod_uid="u2", resource="r/x", ids=("a",), container="main")
    assert known.written((other,)) == ((answer, other),)
    assert known.held == (other,)
    assert known.written((other,)) == ()


def test_of_the_same_devices_the_answer_to_the_pod_itself_is_the_one() -> None:
    known = Holding(ManualClock().monotonic, lambda: None)
    known.written(())
    gone, now = (Held(pod_uid=uid, resource="r/x", ids=("a",)) for uid in ("u1", "u2"))
    known.answered(gone)
    known.answered(now)
    late = Held(pod_uid="u1", resource="r/x", ids=("a",), container="main")
    assert known.written((late,)) == ()
    assert known.held == (late, now)


def test_what_a_kubelet_that_is_no_more_was_answered_is_forgotten_unless_it_wrote_it() -> None:
    changes = list[int]()
    known = Holding(ManualClock().monotonic, lambda: changes.append(1))
    written = Held(pod_uid="u1", resource="r/x", ids=("a",), container="main")
    known.written((written,))
    known.answered(Held(pod_uid="u2", resource="r/x", ids=("b",)))
    known.forget()
    known.forget()
    assert known.held == (written,)
    assert len(changes) == 3
