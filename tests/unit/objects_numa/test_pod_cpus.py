"""Annotations of the Node and of pods as hostile input."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocation.cpus import allocated_cpus
from agent.snapshot.pod import PodView
from agent.wire_formats.annotations import (
    RESERVATION,
    SYSTEM_QOS,
    AnnotationError,
    NodeReservation,
    SystemQos,
    parse_node_annotations,
)
from tests.clustered import RESOURCE_STATUS, node, pod

MACHINE = frozenset(range(8))
HOSTILE = [
    "{",
    "null",
    "[]",
    "7",
    '"0-3"',
    "nan",
    "\ud800",
    "[" * 100_000,
    '{"a":' * 50_000,
    " " * 70_000,
    "\0",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("key", [RESERVATION, SYSTEM_QOS])
def test_what_is_no_object_is_refused_whole_and_counts_as_nothing(key: str, text: str) -> None:
    annotations = parse_node_annotations(node({key: text}), MACHINE)
    assert (annotations.reservation, annotations.system_qos) == (NodeReservation(), SystemQos())
    (refused,) = annotations.invalid
    assert refused.path == key
    assert refused.why


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("reservedCPUs", "3-1"),
        ("reservedCPUs", 5),
        ("reservedCPUs", ["0"]),
        ("reservedCPUs", "0-99999999999"),
        ("reservedCPUs", "64-127"),
        ("resources", "cpu"),
        ("resources", {"cpu": "-1"}),
        ("resources", {"cpu": True}),
        ("resources", {"cpu": None}),
        ("resources", {"cpu": {}}),
        ("resources", {"cpu\n": "1"}),
        ("resources", {"cpu": "1" * 100}),
        ("resources", {str(n): "1" for n in range(100)}),
        ("applyPolicy", "Never"),
        ("applyPolicy", ["Default"]),
    ],
)
def test_a_bad_member_of_a_reservation_costs_itself_only(member: str, value: object) -> None:
    good = {"resources": {"memory": "1Gi"}, "reservedCPUs": "7", "applyPolicy": "Default"}
    annotations = parse_node_annotations(
        node({RESERVATION: json.dumps({**good, member: value})}), MACHINE
    )
    is_correct = {
        "resources": annotations.reservation.resources == (("memory", "1Gi"),),
        "reservedCPUs": annotations.reservation.cpus == {7},
        "applyPolicy": annotations.reservation.policy == "Default",
    }
    assert is_correct == {name: name != member for name in is_correct}
    assert [r.path for r in annotations.invalid] == [f"{RESERVATION}.{member}"]


def test_cpus_that_the_machine_lacks_are_left_out_and_reported() -> None:
    annotations = parse_node_annotations(node({RESERVATION: '{"reservedCPUs":"6-9"}'}), MACHINE)
    assert annotations.reservation.cpus == {6, 7}
    assert "no CPU 8-9" in annotations.invalid[0].why


def test_more_cpus_than_there_are_are_not_reserved() -> None:
    annotations = parse_node_annotations(
        node({RESERVATION: '{"resources":{"cpu":"7500m"}}'}), MACHINE
    )
    assert (annotations.reservation.count, annotations.invalid) == (8, ())
    annotations = parse_node_annotations(
        node({RESERVATION: '{"resources":{"cpu":"8001m"}}'}), MACHINE
    )
    assert annotations.reservation.count == 0
    assert [r.path for r in annotations.invalid] == [f"{RESERVATION}.resources.cpu"]


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ('{"cpuset":"1,3-4"}', {1, 3, 4}),
        ('{"cpuset":""}', set()),
        ('{"cpuset":null}', set()),
        ('{"numaNodeResources":[{"node":0,"resources":{"cpu":"2"}}]}', set()),
        ("{}", set()),
    ],
)
def test_the_schedulers_annotation_of_a_pod(text: str, cpus: set[int]) -> None:
    assert allocated_cpus(pod("p", annotations=((RESOURCE_STATUS, text),))) == cpus


@pytest.mark.parametrize("text", [*HOSTILE, '{"cpuset":3}', '{"cpuset":["1"]}', '{"cpuset":"x"}'])
def test_a_meaningless_annotation_is_refused(text: str) -> None:
    with pytest.raises(AnnotationError) as refused:
        allocated_cpus(pod("p", annotations=((RESOURCE_STATUS, text),)))
    assert len(str(refused.value)) < 100


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
MEMBERS = st.sampled_from(
    ["resources", "reservedCPUs", "applyPolicy", "cpuset", "cpusetExclusive", "x"]
)


@given(st.text(max_size=60) | st.dictionaries(MEMBERS, ANYTHING).map(json.dumps))
def test_whatever_stands_there_what_is_used_fits_the_machine(text: str) -> None:
    annotations = parse_node_annotations(node({RESERVATION: text, SYSTEM_QOS: text}), MACHINE)
    assert annotations.reservation.cpus <= MACHINE
    assert 0 <= annotations.reservation.count <= len(MACHINE)
    assert annotations.system_qos is not None
    assert annotations.system_qos.exclusive_cpus <= MACHINE
    assert len(annotations.invalid) <= 200


def listing(cpus: str) -> PodView:
    return pod("p", annotations=((RESOURCE_STATUS, json.dumps({"cpuset": cpus})),))


@pytest.mark.parametrize(
    "cpus", ["0-65535", "0-8191:1/2", ",".join(["0-8191"] * 5), "0," * 2049, "8192"]
)
def test_a_list_of_cpus_that_would_take_long_is_refused_before(cpus: str) -> None:
    with pytest.raises(AnnotationError):
        allocated_cpus(listing(cpus))


def test_all_cpus_of_the_largest_machine_are_a_list() -> None:
    cpus = allocated_cpus(listing("0-8191"))
    assert len(cpus) == 8192
