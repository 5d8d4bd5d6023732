"""One term of a leader at a strict API server: what it forgets, and what it must not."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest

from agent.clock import SystemClock
from agent.kube.session import ApiSession
from agent.snapshot.allocation import AllocatedDevice
from plugins.scheduler.cluster_state import AssignedPod, Plan
from plugins.scheduler.devices.device_table import GPU, GPU_CORE
from plugins.scheduler.pod_object import PodKey
from plugins.scheduler.server.binding import BindFailed
from plugins.scheduler.server.service import LeaderTerm, freeze_synced_cluster
from plugins.scheduler.server.settings import SchedulerSettings
from tests.apiserver import ApiServer, Fault
from tests.unit.scheduler_server.test_device_ledger import (
    NODE,
    annotation,
    put,
    run,
    server,
    stop,
    synced,
)

__all__ = ["server"]


def is_card_free(term: LeaderTerm) -> bool:
    return not term.state.state(NODE).usage.amounts


def test_a_card_of_a_pod_that_was_deleted_while_the_watch_was_broken_is_free_again(
    server: ApiServer,
) -> None:
    async def scenario(session: ApiSession) -> None:
        term = LeaderTerm(session, SchedulerSettings(), SystemClock())
        await stop(await synced(term))
        await term.binder.bind(put(server, "p"))
        server.delete("pod", "p", "default")
        work = await synced(term)
        assert not is_card_free(term)
        for _ in range(2):  # it may only just have been bound
            await term.resolve()
        assert is_card_free(term)
        await term.binder.bind(put(server, "q"))
        await stop(work)

    run(server, scenario)
    assert annotation(server, "q")


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("is_bound_here", [True, False])
def test_a_card_is_free_again_once_its_pod_has_ended(
    server: ApiServer, phase: str, *, is_bound_here: bool
) -> None:
    async def scenario(session: ApiSession) -> None:
        term = LeaderTerm(session, SchedulerSettings(), SystemClock())
        work = await synced(term)
        await term.binder.bind(put(server, "p"))
        if not is_bound_here:  # the next term counts it from its list
            await stop(work)
            term = LeaderTerm(session, SchedulerSettings(), SystemClock())
            work = await synced(term)
        assert not is_card_free(term)
        await until(lambda: not term.feed.pods.unreported())
        stored = server.get("pod", "p", "default")
        assert stored is not None
        server.put({**stored, "status": {"phase": phase}}, checked=False)
        await until(lambda: is_card_free(term))
        await term.binder.bind(put(server, "q"))
        server.delete("pod", "p", "default")  # which must not release the other's
        put(server, "r")
        await until(lambda: term.feed.pods.pending_pod("default", "r") is not None)
        assert not is_card_free(term)
        await stop(work)

    run(server, scenario)
    assert annotation(server, "q")


def test_a_card_that_is_taken_out_from_under_its_pod_is_counted(server: ApiServer) -> None:
    async def scenario(session: ApiSession) -> None:
        term = LeaderTerm(session, SchedulerSettings(), SystemClock())
        work = await synced(term)
        await term.binder.bind(put(server, "p"))
        await until(lambda: not term.feed.pods.unreported())
        device = server.get("device", NODE)
        assert device is not None
        for spec, count in (({"devices": []}, 1), (device["spec"], 0)):
            device = server.put({**device, "spec": spec})
            while term.audit.unknown_device_count != count:
                await asyncio.sleep(0.005)
                async for _ in term.audit.check():
                    pass
        await stop(work)

    run(server, scenario)


def test_a_card_of_a_pod_that_no_watch_has_shown_yet_stays_its_own(server: ApiServer) -> None:
    async def scenario(session: ApiSession) -> None:
        term = LeaderTerm(session, SchedulerSettings(), SystemClock())
        await stop(await synced(term))
        await term.binder.bind(put(server, "p"))
        unreadable = server.faults.add(Fault(method="GET", path="/pods/p$", status=500, times=0))
        for _ in range(3):
            await term.resolve()
            assert not is_card_free(term)
        assert server.faults.hits(unreadable)
        server.faults.clear()
        await term.resolve()
        assert not is_card_free(term)

    run(server, scenario)


def test_what_a_plan_holds_for_a_pod_stays_held(server: ApiServer) -> None:
    async def scenario(session: ApiSession) -> None:
        term = LeaderTerm(session, SchedulerSettings(), SystemClock())
        await stop(await synced(term))
        request = put(server, "p")
        key = PodKey(request.uid, request.namespace, request.name)
        card = AllocatedDevice(type=GPU, minor=0, resources=((GPU_CORE, 100),))
        term.state.hold(AssignedPod(key=key, node=NODE, allocation=(card,)), Plan("gang g/j"))
        for _ in range(3):
            await term.resolve()
        assert not is_card_free(term)
        term.state.release_plan(Plan("gang g/j"))
        assert is_card_free(term)

    run(server, scenario)


def test_a_pod_that_is_being_deleted_is_not_bound_and_holds_nothing(server: ApiServer) -> None:
    async def scenario(session: ApiSession) -> None:
        term = LeaderTerm(session, SchedulerSettings(), SystemClock())
        await stop(await synced(term))
        request = put(server, "p")
        stored = server.get("pod", "p", "default")
        assert stored is not None
        stored["metadata"]["deletionTimestamp"] = "2026-01-05T10:00:00Z"
        server.put(stored, checked=False)
        with pytest.raises(BindFailed, match="is gone"):
            await term.binder.bind(request)
        assert is_card_free(term)

    run(server, scenario)
    stored = server.get("pod", "p", "default")
    assert stored is not None
    assert stored["metadata"]["deletionTimestamp"]
    assert not annotation(server, "p")


def test_a_pod_is_not_bound_to_a_node_that_was_deleted(server: ApiServer) -> None:
    async def scenario(session: ApiSession) -> None:
        term = LeaderTerm(session, SchedulerSettings(), SystemClock())
        await stop(await synced(term))
        request = put(server, "p")
        term.state.remove_node(NODE)
        with pytest.raises(BindFailed, match="the node does not exist"):
            await term.binder.bind(request)

    run(server, scenario)
    assert server.requests(subresource="binding") == []


def test_the_cluster_is_excluded_from_garbage_collection_once_it_is_synced(
    server: ApiServer,
) -> None:
    class Terms:
        def __init__(self) -> None:
            self.term: LeaderTerm | None = None
            self.calls = 0

        def current_term(self) -> LeaderTerm | None:
            self.calls += 1
            return self.term

        def why_silent(self) -> str:
            return "not synced"

    async def scenario(session: ApiSession) -> None:
        terms = Terms()
        freezing = asyncio.create_task(freeze_synced_cluster(terms))
        while terms.calls < 2:
            await asyncio.sleep(0)
        assert gc.get_freeze_count() == before
        term = LeaderTerm(session, SchedulerSettings(), SystemClock())
        work = await synced(term)
        terms.term = term
        await freezing
        assert gc.get_freeze_count() > before
        await stop(work)

    before = gc.get_freeze_count()
    try:
        run(server, scenario)
    finally:
        gc.unfreeze()
