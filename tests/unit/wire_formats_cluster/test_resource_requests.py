from __future__ import annotations

import json

import pytest

from agent.snapshot.pod import ResourceRequest
from agent.wire_formats.pod import decode_pod


def pod(*limits: object, init: tuple[object, ...] = ()) -> bytes:
    def named(start: str, inputs: tuple[object, ...]) -> list[object]:
        return [
            {"name": f"{start}{i}", "resources": {"limits": one}} for i, one in enumerate(inputs)
        ]

    spec = {"containers": named("c", limits), "initContainers": named("i", init)}
    meta = {"uid": "a1", "name": "p", "namespace": "n"}
    return json.dumps(
        {"metadata": meta, "spec": spec, "status": {"qosClass": "Burstable"}}
    ).encode()


def test_limits_of_device_plugins_are_requests_init_containers_first() -> None:
    result = decode_pod(pod({"nvidia.com/gpu": "2", "cpu": "4"}, init=({"rdma/hca": 1},)))
    assert result.asks == (
        ResourceRequest(container="i0", resource="rdma/hca", count=1, init=True),
        ResourceRequest(container="c0", resource="nvidia.com/gpu", count=2),
    )


@pytest.mark.parametrize(
    "limits",
    [
        {"cpu": "1", "hugepages-2Mi": "4Mi"},
        {"kubernetes.io/batch-cpu": "1000", "koordinator.sh/gpu": "100"},
        {"attachable-volumes.kubernetes.io/x": "1"},
        {"nvidia.com/gpu": "0"},
        {"nvidia.com/gpu": "1k"},
        {"nvidia.com/gpu": 1.5},
        {"nvidia.com/gpu": "99999999999999"},
        {"nvidia.com/gpu": ["1"]},
        {"nvidia.com/gpu": None},
        {"a" * 400 + "/gpu": "1"},
        ["a/b"],
    ],
)
def test_invalid_requests_of_a_device_plugin_do_not_affect_the_pod(limits: object) -> None:
    result = decode_pod(pod(limits))
    assert result.uid == "a1"
    assert result.asks == ()


def test_requests_of_one_pod_are_bounded() -> None:
    assert len(decode_pod(pod(*({"a.b/c": "1"} for _ in range(200)))).asks) == 64
