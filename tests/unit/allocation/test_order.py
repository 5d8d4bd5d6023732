"""Pods as they claim devices: their age, as the API server writes it."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from agent.allocation.check import check_allocations, pod_allocation
from agent.allocation.index import AllocationAnnotation, AllocationIndex, AnnotationReader
from agent.snapshot.allocation import AllocationView
from agent.snapshot.container import ContainerState
from agent.snapshot.part import SnapshotPart
from agent.wire_formats.pod import MAX_TIME, decode_pod
from tests.unit.allocation.made import (
    GPUS,
    WHOLE,
    box,
    container,
    entry,
    pod,
    snapshot,
    text,
    verdict,
)


@pytest.mark.parametrize(
    ("written", "created"),
    [
        ({"creationTimestamp": "2026-01-02T03:04:05Z"}, "2026-01-02T03:04:05Z"),
        ({"creationTimestamp": None}, ""),  # of static pods
        ({}, ""),
        ({"creationTimestamp": "x" * 1000}, "x" * MAX_TIME),
    ],
)
def test_a_pods_age_is_the_time_it_was_made_at(written: dict[str, object], created: str) -> None:
    metadata = {"uid": "6f6f", "name": "a", "namespace": "b", **written}
    assert decode_pod(json.dumps({"metadata": metadata}).encode()).created == created


def test_running_pods_come_first_then_the_older_then_by_uid() -> None:
    ordered = [
        AllocationAnnotation(uid="4", is_holding_devices=True),
        AllocationAnnotation(uid="3", created="2026-01-02T03:04:05Z"),
        AllocationAnnotation(uid="1", created="2026-01-02T03:04:06Z"),
        AllocationAnnotation(uid="5", created="2026-01-02T03:04:06Z"),
        AllocationAnnotation(uid="2"),  # nobody has told how old it is: it has just come
    ]
    mixed = [ordered[at] for at in (3, 1, 4, 0, 2)]
    assert sorted(mixed, key=lambda one: one.sort_key) == ordered


def test_a_requesting_container_counts_although_no_list_has_its_pod() -> None:
    annotation = text(entry(GPUS[0], WHOLE))
    asks = box(pod(1, annotation))
    now = snapshot([pod(2, annotation)])
    desk = AnnotationReader(now, AllocationIndex().tables(now), asks)
    assert [one.uid for one in desk.read({pod(2).uid, asks.uid, "", "nobody"})] == [
        pod(2).uid,
        asks.uid,
    ]
    tables = AllocationIndex().tables(now)
    every = AnnotationReader(now, tables).read(tables.allocated)
    assert [one.uid for one in every] == [pod(2).uid]


def test_a_requesting_pod_has_not_ended_although_its_first_container_has() -> None:
    """Its init container has run, and the API server is behind."""
    asks = box(pod(1, text(entry(GPUS[0], WHOLE))))
    now = snapshot([pod(2)], [asks], [container(asks, ContainerState.STOPPED)])
    assert verdict(pod_allocation(now, asks)) == "PodRequestsUnknown"
    assert verdict(check_allocations(now).pods.get(asks.uid)) == "none"


@pytest.mark.parametrize(("inside", "expected"), [((), "DeviceTaken"), (("c",), "held")])
def test_a_sandbox_made_anew_with_another_annotation_does_not_take_a_card_in_use(
    inside: tuple[str, ...], expected: str
) -> None:
    """A user may write a running pod's annotation and end its sandbox: its status says Running."""
    older, younger = (
        pod(1, text(entry(GPUS[0], WHOLE)), phase="Running"),
        pod(2, text(entry(GPUS[0], WHOLE))),
    )
    anew, owner = box(older), box(younger)
    running = [container(owner)] if not inside else [container(anew)]
    now = snapshot([older, younger], [anew, owner], running)
    assert verdict(pod_allocation(now, anew)) == expected
    assert verdict(check_allocations(now).pods[older.uid]) == expected


def test_pods_and_sandboxes_since_the_last_check_are_noticed() -> None:
    annotation = text(entry(GPUS[0], WHOLE))
    snapshot_parts, created, silent = pod(1, annotation), box(pod(2, annotation)), box(pod(3))
    now = snapshot([snapshot_parts], [created, silent])

    def since(*checked: str) -> frozenset[str]:
        view = AllocationView(looked=frozenset(checked))
        return AllocationIndex().tables(replace(now, allocations=SnapshotPart(view, 1.0))).unchecked

    assert since() == {snapshot_parts.uid, created.uid}
    assert since(snapshot_parts.uid) == {created.uid}
    assert since(snapshot_parts.uid, created.uid) == {created.uid}  # its sandbox is another
    assert since(snapshot_parts.uid, created.id) == frozenset()


@pytest.mark.parametrize("end", ["deleted", "Succeeded", "Failed"])
def test_a_pod_whose_end_freed_its_devices_holds_nothing_though_its_container_runs(
    end: str,
) -> None:
    """A pod that was deleted by force: the kubelet has freed its devices, the process has not."""
    old, new = (pod(index, text(entry(GPUS[0], WHOLE))) for index in (1, 2))
    inside = box(old)
    asks = box(new)
    now = snapshot([old, new], [inside], [container(inside)])
    assert verdict(pod_allocation(now, asks)) == "DeviceTaken"
    if end == "deleted":
        cluster = replace(now.cluster, pods=(new,), deleted_pods=frozenset({old.uid}))
    else:
        cluster = replace(now.cluster, pods=(replace(old, phase=end), new))
    now = replace(now, cluster=cluster)
    assert verdict(pod_allocation(now, asks)) == "held"
    assert verdict(check_allocations(now).pods.get(old.uid)) == "none"


def test_a_pod_that_no_list_has_yet_holds_its_devices_while_its_container_runs() -> None:
    old, new = (pod(index, text(entry(GPUS[0], WHOLE))) for index in (1, 2))
    inside = box(old)
    now = snapshot([new], [inside], [container(inside)])
    assert verdict(pod_allocation(now, box(new))) == "DeviceTaken"
