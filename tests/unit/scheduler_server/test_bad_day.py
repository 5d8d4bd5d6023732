"""Two hundred pods at an API server that fails and hangs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from plugins.scheduler.devices.device_table import GPU, GPU_CORE
from plugins.scheduler.pod_object import SchedulerPod, decode_scheduler_pod
from plugins.scheduler.server import binding
from tests.apiserver import ApiServer, Fault
from tests.unit.scheduler.test_binding import POST, Scene, run

PODS, AT_ONCE, PERCENT = 200, 50, 10  # of a card each: 160 fit on two nodes of eight cards
QUIET_S = 600.0


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(nodes=("node-a", "node-b")) as api:
        yield api


def put(scene: Scene, name: str) -> SchedulerPod:
    """Create a pod that shares a card, and report it as the watch does."""
    amounts = {f"koordinator.sh/{one}": str(PERCENT) for one in ("gpu-core", "gpu-memory-ratio")}
    container = {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container]},
    }
    pod = decode_scheduler_pod(json.dumps(scene.api.put(body)).encode())
    scene.reported[f"default/{name}"] = pod
    return pod


def test_no_card_is_given_above_its_whole_and_nothing_stays_held_after_a_bad_day(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "DEADLINE_S", 0.3)

    async def scenario(scene: Scene) -> None:
        faults = (
            Fault(subresource=POST, status=500, probability=0.05, seed=1, times=0),
            Fault(method="GET", status=503, probability=0.05, seed=2, times=0),
            Fault(subresource=POST, hang=True, probability=0.03, seed=3, times=0),
            Fault(subresource=POST, after_s=0.6, probability=0.03, seed=4, times=0),
        )
        for fault in faults:
            server.faults.add(fault)
        rng = random.Random(5)
        pods = [put(scene, f"p{number}") for number in range(PODS)]
        for _ in range(4):  # kube-scheduler tries again what failed
            for first in range(0, PODS, AT_ONCE):
                await asyncio.gather(
                    *(
                        scene.bind(pod, rng.choice(("node-a", "node-b")))
                        for pod in pods[first : first + AT_ONCE]
                    ),
                    return_exceptions=True,
                )
        assert all(map(server.faults.hits, faults))
        server.faults.clear()
        scene.clock.advance(QUIET_S)
        await scene.binder.resolve_uncertain()
        assert not scene.binder.uncertain
        monkeypatch.setattr(binding, "DEADLINE_S", 30.0)
        for node in ("node-a", "node-b"):  # a slow machine missed more deadlines than the faults
            for pod in pods:
                with contextlib.suppress(binding.BindFailed):
                    await scene.bind(pod, node)
        assert scene.binder.hold_count == 0
        stored = Counter[tuple[str, int]]()
        for pod in pods:
            node = scene.server_pod(pod.key.name)["spec"].get("nodeName")
            for minor in scene.server_minors(pod.key.name) if node else ():
                stored[node, minor] += PERCENT
        assert len(stored) == 16
        assert set(stored.values()) == {100}
        counted = {
            (node, minor): amounts[GPU_CORE]
            for node in ("node-a", "node-b")
            for (kind, minor), amounts in scene.state.state(node).usage.amounts.items()
            if kind == GPU
        }
        assert counted == stored

    run(server, scenario)
