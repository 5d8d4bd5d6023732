"""Two replicas that both take themselves for the leader, with and without marks on Devices."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from agent.clock import SystemClock
from agent.kube.endpoint import InClusterTarget
from agent.kube.session import ApiSession, open_session
from agent.wire_formats.device_allocated import ANNOTATION
from plugins.scheduler.server.binding import BindFailed
from plugins.scheduler.server.device_ledger import LEDGER_ANNOTATION, DeviceLedger, LedgerRefused
from plugins.scheduler.server.extender_wire import BindRequest
from plugins.scheduler.server.service import LeaderTerm
from plugins.scheduler.server.settings import SchedulerSettings
from tests.apiserver import ApiServer, Fault
from tests.patience import PATIENCE_S
from tests.unit.allocation.made import GPUS
from tests.unit.allocation.test_overlap import two

NODE = "n"
STRICT = SchedulerSettings(strict_ledger=True)
Object = dict[str, Any]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """A node with one card, which is one of those that the agent's tests know."""
    amounts = {"gpu-core": "100", "gpu-memory-ratio": "100", "gpu-memory": "80Gi"}
    resources = {f"koordinator.sh/{name}": value for name, value in amounts.items()}
    card = {"type": "gpu", "minor": 0, "id": GPUS[0].info.uuid, "health": True}
    device = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": NODE},
        "spec": {"devices": [{**card, "resources": resources}]},
    }
    with ApiServer(nodes=(NODE,), objects=(device,)) as api:
        yield api


def put(api: ApiServer, name: str) -> BindRequest:
    resources = {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]},
    }
    uid = api.put(body)["metadata"]["uid"]
    return BindRequest(namespace="default", name=name, uid=uid, node=NODE)


def annotation(api: ApiServer, name: str) -> str:
    pod = api.get("pod", name, "default")
    assert pod is not None
    return str((pod["metadata"].get("annotations") or {}).get(ANNOTATION, ""))


def mark(api: ApiServer) -> str:
    device = api.get("device", NODE)
    assert device is not None
    return str((device["metadata"].get("annotations") or {}).get(LEDGER_ANNOTATION, ""))


async def synced(term: LeaderTerm) -> asyncio.Task[None]:
    work = asyncio.create_task(term.run())
    while not term.feed.is_synced:
        await asyncio.sleep(0.005)
    return work


async def stop(work: asyncio.Task[None]) -> None:
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work


def run(api: ApiServer, scenario: Callable[[ApiSession], Awaitable[None]]) -> None:
    async def play() -> None:
        target = InClusterTarget(url=api.url, folder=str(api.serviceaccount_dir))
        session = await open_session(target, SystemClock(), {})
        try:
            await scenario(session)
        finally:
            await session.close()

    asyncio.run(asyncio.wait_for(play(), PATIENCE_S))


async def two_leaders(session: ApiSession, api: ApiServer, settings: SchedulerSettings) -> None:
    """Bind a pod by a new leader, then another one by an old one whose watches stand still.

    The old leader does not ask its clock whether it still is one.
    """
    old = LeaderTerm(session, settings, SystemClock(), term=1)
    await stop(await synced(old))
    new = LeaderTerm(session, settings, SystemClock(), term=2)
    work = await synced(new)
    try:
        await new.binder.bind(put(api, "first"))
        await old.binder.bind(put(api, "second"))
    finally:
        await stop(work)


def test_with_the_ledger_an_old_leader_gives_no_device_twice(server: ApiServer) -> None:
    async def scenario(session: ApiSession) -> None:
        with pytest.raises(BindFailed, match="another replica is the leader"):
            await two_leaders(session, server, STRICT)

    run(server, scenario)
    assert annotation(server, "first")
    assert not annotation(server, "second")
    assert mark(server) == "2/1"


def test_without_it_both_pods_have_the_card_and_the_agent_refuses_the_second(
    server: ApiServer,
) -> None:
    async def scenario(session: ApiSession) -> None:
        await two_leaders(session, server, SchedulerSettings())

    run(server, scenario)
    grants = annotation(server, "first"), annotation(server, "second")
    assert [json.loads(text)["gpu"][0]["minor"] for text in grants] == [0, 0]
    assert two(*grants, GPUS[0]) == ["held", "DeviceTaken"]


def test_what_an_earlier_leader_gave_meanwhile_fails_one_try_only(server: ApiServer) -> None:
    async def scenario(session: ApiSession) -> None:
        new, old = DeviceLedger(session, 2), DeviceLedger(session, 1)
        await new.start()
        await old.start()
        await old.mark(NODE)
        with pytest.raises(LedgerRefused, match="meanwhile"):
            await new.mark(NODE)
        await new.mark(NODE)
        with pytest.raises(LedgerRefused, match="another replica is the leader"):
            await old.mark(NODE)

    run(server, scenario)


def test_other_writers_of_the_device_do_not_stop_a_binding(server: ApiServer) -> None:
    async def scenario(session: ApiSession) -> None:
        ledger = DeviceLedger(session, 1)
        await ledger.start()
        device = server.get("device", NODE)
        assert device is not None
        device["metadata"]["labels"] = {"a": "b"}
        server.put(device)
        await ledger.mark(NODE)
        await asyncio.gather(*(ledger.mark(NODE) for _ in range(5)))

    run(server, scenario)
    assert mark(server) == "1/7"  # the first write was refused


def test_a_lost_answer_is_no_other_replica(server: ApiServer) -> None:
    async def scenario(session: ApiSession) -> None:
        ledger = DeviceLedger(session, 1)
        await ledger.start()
        server.faults.add(Fault(method="PATCH", lose_answer=True))
        await ledger.mark(NODE)

    run(server, scenario)
    assert mark(server) == "1/2"  # the first one was written, too


def test_a_lease_that_counts_from_0_again_does_not_stop_bindings(server: ApiServer) -> None:
    async def scenario(session: ApiSession) -> None:
        before = DeviceLedger(session, 41)
        await before.start()
        await before.mark(NODE)
        ledger = DeviceLedger(session, 0)
        await ledger.start()
        await ledger.mark(NODE)

    run(server, scenario)
    assert mark(server) == "42/1"


def test_a_node_without_a_device_object_gives_nothing(server: ApiServer) -> None:
    async def scenario(session: ApiSession) -> None:
        ledger = DeviceLedger(session, 1)
        await ledger.start()
        with pytest.raises(LedgerRefused, match="cannot be marked"):
            await ledger.mark("elsewhere")

    run(server, scenario)
