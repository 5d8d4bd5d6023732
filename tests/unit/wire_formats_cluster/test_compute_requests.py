"""A pod's request of CPU and memory is what the scheduler sets aside for it."""

from __future__ import annotations

import json

import pytest

from agent.snapshot.pod import ComputeRequest
from agent.wire_formats.pod import decode_pod

MIB = 2**20


def container(cpu: object = None, memory: object = None, *, sidecar: bool = False) -> object:
    amounts = {"cpu": cpu, "memory": memory}
    requests = {name: value for name, value in amounts.items() if value is not None}
    policy = {"restartPolicy": "Always"} if sidecar else {}
    return {"name": "c", "resources": {"requests": requests}, **policy}


def request(*main: object, init: tuple[object, ...] = (), **spec: object) -> ComputeRequest | None:
    meta = {"uid": "a1", "name": "p", "namespace": "n"}
    spec = {"containers": list(main), "initContainers": list(init), **spec}
    pod = {"metadata": meta, "spec": spec, "status": {"qosClass": "Burstable"}}
    return decode_pod(json.dumps(pod).encode()).compute_request


def amounts(cpu_cores: float, memory_mib: float) -> ComputeRequest:
    return ComputeRequest(cpu_cores=cpu_cores, memory_bytes=memory_mib * MIB)


def test_containers_are_added() -> None:
    assert request(container("500m", "64Mi"), container(2, "1Gi")) == amounts(2.5, 1088)


def test_an_init_container_counts_where_it_requests_more_than_all_others_together() -> None:
    init = (container("3", "16Mi"), container("1", "32Mi"))
    assert request(container("1", "64Mi"), init=init) == amounts(3, 64)


def test_a_sidecar_counts_with_the_main_containers_and_with_init_containers_after_it() -> None:
    init = (container("4", "8Mi"), container("1", "8Mi", sidecar=True), container("4", "8Mi"))
    assert request(container("2", "64Mi"), init=init) == amounts(5, 72)


def test_the_overhead_of_the_runtime_class_is_added() -> None:
    overhead = {"cpu": "250m", "memory": "120Mi"}
    assert request(container("1", "8Mi"), overhead=overhead) == amounts(1.25, 128)


def test_a_limit_is_no_request() -> None:
    limited = {"name": "c", "resources": {"limits": {"cpu": "4", "memory": "1Gi"}}}
    assert request(limited) == amounts(0, 0)


@pytest.mark.parametrize("value", ["-1", "x", "", "1e999", ["1"], {"a": 1}])
def test_an_amount_that_is_none_counts_as_nothing(value: object) -> None:
    assert request(container(value, "8Mi")) in (amounts(0, 8), amounts(0, 0))


def test_an_amount_beyond_64_bits_is_bounded() -> None:
    computed = request(container("1", "999999999999E"))
    assert computed is not None
    assert computed.memory_bytes == 2.0**63


def test_a_pod_without_a_spec_has_no_request() -> None:
    meta = {"uid": "a1", "name": "p", "namespace": "n"}
    assert decode_pod(json.dumps({"metadata": meta}).encode()).compute_request is None
