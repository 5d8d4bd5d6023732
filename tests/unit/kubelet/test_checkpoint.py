"""The CPU manager's checkpoint: whole or not at all, from this machine or a recorded one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import HostFileError, ParseError
from agent.kubelet.poller import read_checkpoint
from agent.recording.tree import TreeFiles
from agent.wire_formats.kubelet import MAX_CHECKPOINT_BYTES, CpuCheckpoint, parse_checkpoint

ROOT = "/var/lib/kubelet"
GOOD = {
    "policyName": "static",
    "defaultCpuSet": "0,4-7",
    "entries": {
        "7b1c-b": {"main": "2-3", "side": "3,1"},
        "0a-a": {"only": "8"},
    },
    "checksum": 1353318690,
}


def host(**files: bytes) -> TreeFiles:
    return TreeFiles.from_entries(
        {f"{ROOT}/{name}": data for name, data in (("pki", b""), *files.items())}
    )


def test_containers_of_a_pod_are_one_set() -> None:
    checkpoint = parse_checkpoint(json.dumps(GOOD).encode())
    assert checkpoint == CpuCheckpoint(
        policy="static",
        default_cpus=frozenset({0, 4, 5, 6, 7}),
        pod_cpus=(("0a-a", frozenset({8})), ("7b1c-b", frozenset({1, 2, 3}))),
    )


@pytest.mark.parametrize("entries", [{}, None, ...])
def test_policy_none_has_given_nothing_away(entries: object) -> None:
    written = {"policyName": "none", "defaultCpuSet": "", "checksum": 1, "newer": [1]}
    if entries is not ...:
        written["entries"] = entries
    assert parse_checkpoint(json.dumps(written).encode()) == CpuCheckpoint(policy="none")


def test_it_is_read_from_recorded_hosts_too() -> None:
    files = host(cpu_manager_state=json.dumps(GOOD).encode())
    checkpoint = read_checkpoint(files, ROOT)
    assert checkpoint is not None
    assert checkpoint.policy == "static"


def test_no_checkpoint_is_not_an_empty_one() -> None:
    assert read_checkpoint(host(), ROOT) is None
    assert read_checkpoint(host(), "/var/lib/elsewhere") is None


def test_one_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(HostFileError):
        read_checkpoint(TreeFiles.from_entries({f"{ROOT}/cpu_manager_state/file": b""}), ROOT)


@pytest.mark.parametrize("cut", range(1, len(json.dumps(GOOD)) - 1, 7))
def test_a_half_written_one_is_refused_whole(cut: int) -> None:
    with pytest.raises(ParseError):
        parse_checkpoint(json.dumps(GOOD).encode()[:cut])


@pytest.mark.parametrize(
    "damaged",
    [
        {**GOOD, "defaultCpuSet": "0-"},
        {**GOOD, "defaultCpuSet": "0-99999999"},
        {**GOOD, "entries": {"../../etc": {"main": "1"}}},
        {**GOOD, "entries": {"a": {"main": "x"}}},
        {**GOOD, "entries": {"a": {"main": 3}}},
        {**GOOD, "entries": {"a": {str(n): "1" for n in range(257)}}},
        {**GOOD, "entries": {f"a{n}": {} for n in range(4097)}},
        {**GOOD, "policyName": None},
    ],
)
def test_damage_anywhere_is_refused_whole(damaged: object) -> None:
    with pytest.raises(ParseError):
        parse_checkpoint(json.dumps(damaged).encode())


def test_one_of_any_size_costs_a_bounded_memory() -> None:
    with pytest.raises(ParseError):
        parse_checkpoint(b" " * (MAX_CHECKPOINT_BYTES + 1))


@given(st.binary(max_size=300))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    try:
        parse_checkpoint(data)
    except ParseError as error:
        assert len(str(error)) < 300  # noqa: PT017 - either way is fine, and both are bounded
