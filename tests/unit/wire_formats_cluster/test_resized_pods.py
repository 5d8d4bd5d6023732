"""The resources of a pod whose spec the kubelet has not put into force, or not yet."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.snapshot.pod import ContainerResources, PodView
from agent.wire_formats.pod import decode_pod

MIB = 1 << 20
SMALL = {
    "limits": {"cpu": "1", "memory": "512Mi"},
    "requests": {"cpu": "500m", "memory": "256Mi"},
}
LARGE = {
    "limits": {"cpu": "2", "memory": "1Gi"},
    "requests": {"cpu": "1500m", "memory": "768Mi"},
}
PENDING = {"type": "PodResizePending", "status": "True", "reason": "Deferred"}
IN_PROGRESS = {"type": "PodResizeInProgress", "status": "True"}


def decode(spec: object, reported: object, /, allocated: object = None, **status: Any) -> PodView:
    container: dict[str, object] = {"name": "app", "containerID": f"containerd://{1:064x}"}
    if reported is not None:
        container["resources"] = reported
    if allocated is not None:
        container["allocatedResources"] = allocated
    generation = status.pop("generation", None)
    meta = {"uid": "a1", "name": "p", "namespace": "n"}
    pod = {
        "metadata": meta if generation is None else {**meta, "generation": generation},
        "spec": {"containers": [{"name": "app", "resources": spec}]},
        "status": {"qosClass": "Burstable", "containerStatuses": [container], **status},
    }
    return decode_pod(json.dumps(pod).encode())


def resources(view: PodView) -> ContainerResources:
    assert view.resources is not None
    (only,) = view.resources
    return only


def has_small(view: PodView) -> bool:
    one = resources(view)
    assert view.compute_request is not None
    of_container = (
        one.cpu_limit_milli,
        one.memory_limit_bytes,
        one.cpu_request_milli,
        one.memory_request_bytes,
    )
    of_pod = view.compute_request.cpu_cores, view.compute_request.memory_bytes
    return of_container == (1000, 512 * MIB, 500, 256 * MIB) and of_pod == (0.5, 256 * MIB)


@pytest.mark.parametrize(
    "evidence",
    [
        {"conditions": [{"type": "Ready", "status": "True"}, PENDING]},
        {"conditions": [{**PENDING, "reason": "Infeasible"}, IN_PROGRESS]},
        {"resize": "Deferred"},  # before Kubernetes 1.33
        {"resize": "Infeasible"},
    ],
    ids=str,
)
def test_a_resize_that_the_kubelet_does_not_accept_does_not_count(evidence: dict[str, Any]) -> None:
    assert has_small(decode(LARGE, SMALL, **evidence))
    assert resources(decode(SMALL, LARGE, **evidence)) == resources(decode(LARGE, None))


@pytest.mark.parametrize(
    "evidence",
    [
        {"conditions": [IN_PROGRESS]},
        {"resize": "Proposed"},  # before Kubernetes 1.33
        {"resize": "InProgress"},
        {"generation": 3, "observedGeneration": 2},  # the kubelet has not seen the spec yet
        {"allocated": {"cpu": "1", "memory": "256Mi"}},
    ],
    ids=str,
)
@pytest.mark.parametrize(("spec", "reported"), [(LARGE, SMALL), (SMALL, LARGE)])
def test_of_a_resize_in_progress_the_smaller_resources_count(
    spec: object, reported: object, evidence: dict[str, Any]
) -> None:
    assert has_small(decode(spec, reported, **evidence))


def test_what_a_runtime_reports_otherwise_does_not_count_without_a_resize() -> None:
    scaled = {**SMALL, "limits": {"cpu": "833m", "memory": "512Mi"}}  # by a plug-in of the runtime
    ended = {"type": "PodResizeInProgress", "status": "False"}
    for status in ({}, {"conditions": [ended]}, {"generation": 2, "observedGeneration": 2}):
        assert has_small(decode(SMALL, scaled, SMALL["requests"], **status))


@pytest.mark.parametrize(
    "reported", [None, "x", {**SMALL, "limits": {"cpu": "x", "memory": "512Mi"}}]
)
def test_a_kubelet_that_reports_no_usable_resources_leaves_those_of_the_spec(
    reported: object,
) -> None:
    for evidence in ("Deferred", "InProgress"):
        assert has_small(decode(SMALL, reported, resize=evidence))


def test_quantities_are_compared_as_amounts() -> None:
    spec = {"limits": {"cpu": "900m", "memory": "2Gi"}}
    reported = {"limits": {"cpu": "1", "memory": "536870912"}}
    one = resources(decode(spec, reported, resize="InProgress"))
    assert (one.cpu_limit_milli, one.memory_limit_bytes) == (900, 512 * MIB)


def test_a_request_or_limit_that_a_resize_adds_or_removes() -> None:
    one = resources(decode({**SMALL, "limits": {}}, SMALL, resize="InProgress"))
    assert (one.cpu_limit_milli, one.memory_limit_bytes) == (1000, 512 * MIB)
    one = resources(decode(SMALL, {}, resize="Proposed"))
    assert (one.cpu_limit_milli, one.cpu_request_milli) == (1000, None)
    one = resources(decode(SMALL, {}, resize="Deferred"))
    assert (one.cpu_limit_milli, one.cpu_request_milli) == (None, None)


def test_resources_that_cannot_be_resized_are_those_of_the_spec() -> None:
    limits = {"cpu": "2", "nvidia.com/gpu": "1"}
    view = decode({"limits": limits}, {"limits": {"cpu": "1"}}, conditions=[PENDING])
    assert resources(view).cpu_limit_milli == 1000
    assert [ask.resource for ask in view.asks] == ["nvidia.com/gpu"]
