"""Other writers: told once, never fought, and what a writer that is gone left becomes ours."""

from __future__ import annotations

import asyncio

from agent.kube.writer.context import WriterTiming
from agent.snapshot.publications import WriterPhase
from tests.apiserver.faults import Fault
from tests.apiserver.server import ApiServer
from tests.fault.publish.publishing import (
    LATER,
    NODE,
    device,
    metric,
    node_metric,
    of_koordlet,
    publishing,
    uid_of,
)


def test_a_running_koordlet_is_reported_once_and_not_overwritten() -> None:
    async def case(server: ApiServer) -> None:
        server.put(of_koordlet(uid_of(server)), manager="koordlet")
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            await bench.advance(200)
            await bench.offer(device(bench.uid, healthy=False))
            await bench.advance(30)
            assert bench.phase() is WriterPhase.IN_CONFLICT
            ((reason, message),) = bench.messages
            assert reason == "WriteConflict"
            assert "koordlet" in message
            assert ".spec.devices" in message
            (rival,) = bench.state().conflicts
            assert rival.manager == "koordlet"
            assert ".spec.devices" in rival.fields
            assert bench.writes() == []

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_koordlet_that_starts_to_write_is_noticed_at_the_next_read_or_write() -> None:
    async def case(server: ApiServer) -> None:
        for looks in (True, False):
            server.delete("Device", NODE)
            async with publishing(server) as bench:
                await bench.offer(device(bench.uid))
                server.put(of_koordlet(bench.uid), manager="koordlet")
                bench.clear()
                if looks:
                    await bench.advance(70)
                    assert bench.writes() == []
                else:
                    await bench.offer(device(bench.uid, healthy=False))
                    assert [entry.status for entry in bench.writes()] == [409]
                assert bench.phase() is WriterPhase.IN_CONFLICT
                assert bench.reasons == ["WriteConflict"]

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_fields_of_a_removed_koordlet_are_taken_over_by_the_servers_clock() -> None:
    async def case(server: ApiServer) -> None:
        server.put(of_koordlet(uid_of(server)), manager="koordlet")
        server.faults.add(LATER)
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            assert bench.phase() is WriterPhase.IDLE
            (write,) = bench.writes()
            assert write.query["force"] == "true"
            assert bench.reasons == ["WriteTakenOver"]
            assert bench.device()["spec"]["devices"][0]["conditions"]

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_koordlet_that_writes_again_after_that_is_left_alone_for_longer_each_time() -> None:
    async def case(server: ApiServer) -> None:
        skew = server.faults.add(Fault(date_skew_s=1800, times=0))
        server.put(of_koordlet(uid_of(server)), manager="koordlet")
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            for hours in (1, 12, 24, 24):
                assert bench.phase() is WriterPhase.IDLE
                server.pass_time(1)
                server.put(of_koordlet(bench.uid), manager="koordlet")
                bench.clear()
                for hours_on in (0, hours - 0.5):
                    server.faults.remove(skew)
                    skew = server.faults.add(Fault(date_skew_s=hours_on * 3600, times=0))
                    await bench.advance(70)
                    assert bench.phase() is WriterPhase.IN_CONFLICT
                    assert bench.writes() == []
                server.faults.remove(skew)
                skew = server.faults.add(Fault(date_skew_s=(hours + 0.5) * 3600, times=0))
                await bench.advance(70)
                assert len(bench.writes()) == 1
            assert bench.reasons.count("WriteConflict") == 3
            assert "wrote again" in dict(bench.messages)["WriteConflict"]

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_nobody_is_taken_over_from_where_the_settings_forbid_it() -> None:
    async def case(server: ApiServer) -> None:
        server.put(of_koordlet(uid_of(server)), manager="koordlet")
        server.faults.add(LATER)
        async with publishing(server, WriterTiming(takeover_s=0)) as bench:
            await bench.offer(device(bench.uid))
            assert bench.phase() is WriterPhase.IN_CONFLICT
            assert bench.writes() == []

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_label_that_a_person_changed_holds_up_only_itself() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            edited = bench.device()
            edited["metadata"]["labels"]["node.koordinator.sh/gpu-vendor"] = "mine"
            server.put(edited, manager="kubectl-edit")
            await bench.advance(70)
            assert bench.phase() is WriterPhase.IN_CONFLICT
            await bench.offer(device(bench.uid, healthy=False))
            stored = bench.device()
            assert stored["spec"]["devices"][0]["health"] is False
            assert stored["metadata"]["labels"]["node.koordinator.sh/gpu-vendor"] == "mine"
            assert bench.phase() is WriterPhase.IN_CONFLICT
            assert bench.reasons == ["WriteConflict"]
            server.faults.add(LATER)
            await bench.advance(70)
            assert bench.phase() is WriterPhase.IDLE
            labels = bench.device()["metadata"]["labels"]
            assert labels["node.koordinator.sh/gpu-vendor"] == "nvidia"

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_an_erased_object_is_written_again_and_counted() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            erased = bench.device()
            del erased["metadata"]["annotations"]
            server.put(erased, manager="kubectl-edit")
            await bench.advance(70)
            assert bench.device()["metadata"]["annotations"]
            assert bench.state().repaired == 1
            server.delete("Device", NODE)
            await bench.advance(70)
            assert server.get("Device", NODE) is not None
            assert bench.state().repaired == 2
            assert bench.messages == []

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_an_object_that_is_erased_each_time_is_left_alone() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            bench.clear()
            for _ in range(60):
                erased = bench.device()
                erased["metadata"].pop("annotations", None)
                server.put(erased, manager="cleaner")
                await bench.advance(60)
            assert len(bench.writes()) <= 15
            assert bench.reasons == ["WriteUndone"]

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_writer_that_reverts_the_uncontested_fields_is_left_alone_too() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as bench:
            await bench.offer(device(bench.uid))
            bench.clear()
            for minute in range(60):
                edited = bench.device()
                edited["metadata"]["labels"]["node.koordinator.sh/gpu-vendor"] = f"m{minute}"
                edited["metadata"].pop("annotations", None)
                server.put(edited, manager="cleaner")
                await bench.advance(60)
            assert len(bench.writes()) <= 15
            assert bench.reasons == ["WriteConflict", "WriteUndone"]

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_of_two_agents_on_one_object_the_first_gives_way() -> None:
    async def case(server: ApiServer) -> None:
        async with publishing(server) as first:
            await first.offer(device(first.uid, cards=1))
            server.pass_time(1)
            async with publishing(server) as second:
                await second.offer(device(second.uid, cards=2))
                first.clear()
                for _ in range(3):
                    await first.advance(70)
                    await second.advance(70)
                assert first.phase() is WriterPhase.IN_CONFLICT
                assert second.phase() is WriterPhase.IDLE
                assert first.writes() == []
                assert first.reasons == ["WriteConflict"]
                assert "another xpu-agent" in first.messages[0][1]

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))


def test_a_koordlet_that_reports_node_metrics_is_left_to_it() -> None:
    async def case(server: ApiServer) -> None:
        theirs = dict(metric(0, cpu="7").body)
        server.put({**node_metric(), "status": theirs["status"]}, manager="koordlet")
        async with publishing(server) as bench:
            for minute in range(5):
                await bench.offer(metric(minute))
                await bench.advance(30)
            assert bench.phase() is WriterPhase.IN_CONFLICT
            assert bench.writes("nodemetrics") == []
            assert bench.reasons == ["WriteConflict"]

    with ApiServer(nodes=(NODE,)) as server:
        asyncio.run(case(server))
