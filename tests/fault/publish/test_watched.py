"""A Device that is watched by name: read where somebody else changed it, and not each minute."""

from __future__ import annotations

import asyncio

from agent.snapshot.publications import WriterPhase
from tests.apiserver.rbac import ALL, Rule
from tests.apiserver.server import ApiServer
from tests.fault.publish.publishing import NODE, Bench, device, no_device, of_koordlet, publishing

READ_ONLY_BY_NAME = Rule(
    api_groups=("scheduling.koordinator.sh",),
    resources=("devices",),
    verbs=("get", "create", "patch", "delete"),
)


def reads(bench: Bench) -> int:
    return sum(entry.verb == "get" for entry in bench.requests())


async def watch_opened(bench: Bench) -> None:
    await bench.until(lambda: bench.watches["device"].state.streaming)


def test_an_object_that_nobody_changes_is_not_read_again_for_an_hour() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server, watched=True) as bench:
            await watch_opened(bench)
            await bench.offer(device(bench.uid))
            await bench.until(lambda: bench.watches["device"].state.events == 1)
            bench.clear()
            await bench.advance(3000)
            assert bench.requests() == []
            await bench.advance(1200)
            assert reads(bench) == 1

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_on_a_node_without_devices_nothing_is_read() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server, watched=True) as bench:
            await watch_opened(bench)
            await bench.offer(no_device())
            bench.clear()
            await bench.advance(3000)
            assert bench.requests() == []

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_removed_object_is_created_again_at_once() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server, watched=True) as bench:
            await watch_opened(bench)
            await bench.offer(device(bench.uid))
            server.delete("Device", NODE)
            await bench.until(lambda: server.get("Device", NODE) is not None)
            assert bench.state().repaired == 1

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_changed_object_is_corrected_at_once() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server, watched=True) as bench:
            await watch_opened(bench)
            await bench.offer(device(bench.uid))
            server.put(of_koordlet(bench.uid), manager="koordlet")
            await bench.until(lambda: bench.phase() is WriterPhase.IN_CONFLICT)
            ((reason, message),) = bench.messages
            assert reason == "WriteConflict"
            assert "koordlet has" in message
            assert "stop the other one" in message

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_the_events_of_our_own_writes_cost_no_reads() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server, watched=True) as bench:
            await watch_opened(bench)
            for cards in (1, 2, 3, 4):
                await bench.offer(device(bench.uid, cards=cards))
            await bench.until(lambda: bench.watches["device"].state.events == 4)
            assert reads(bench) == 1  # before the first write

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_without_the_right_to_watch_an_object_is_read_each_minute() -> None:
    async def case(server: ApiServer) -> None:
        server.revoke(ALL)
        server.grant(READ_ONLY_BY_NAME)
        async with publishing(server, watched=True) as bench:
            await bench.offer(device(bench.uid))
            await bench.until(lambda: bench.watches["device"].state.errors > 0)
            bench.clear()
            await bench.advance(600)
            assert 9 <= reads(bench) <= 11

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_missing_crd_is_seldom_checked() -> None:
    async def case(server: ApiServer) -> None:
        server.remove_crd("devices")
        async with publishing(server, watched=True) as bench:
            await bench.until(lambda: bench.watches["device"].state.errors > 0)
            await bench.offer(device(bench.uid))
            assert bench.phase() is WriterPhase.ABSENT
            bench.clear()
            await bench.advance(1800)
            assert len(bench.requests()) <= 14  # a read and a write each five minutes
            server.add_crd("devices")
            bench.outbox.note_version("Device", None)  # as the watch does, with its next list
            await bench.until(lambda: bench.phase() is WriterPhase.IDLE)

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))
