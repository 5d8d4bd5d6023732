"""The outbox apart from any server: what it takes, and a bug in one object's writing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest
from msgspec.structs import replace

from agent.clock import ManualClock
from agent.kube.api import ApiRequest, ApiResponse
from agent.kube.errors import Unreachable
from agent.kube.writer.api_writer import ApiWriter
from agent.kube.writer.context import WriterContext
from agent.messages import MessageQueue
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore
from agent.snapshot.publications import WriterPhase
from tests.unit.kube_writer.objects import NODE, UID, desired


class Unplugged:
    """An API server at the other end of a cut cable; a path that is asked for may be a bug."""

    def __init__(self, bug: str = "") -> None:
        self.requests: list[str] = []
        self._bug = bug

    async def call(self, request: ApiRequest) -> ApiResponse:
        self.requests.append(str(request))
        if self._bug and self._bug in request.path:
            raise LookupError("a bug")
        raise Unreachable(str(request), "no route to host")

    def stream(
        self, request: ApiRequest, idle_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise Unreachable(str(request), f"no route to host for {idle_s} s")


def outbox(api: Unplugged) -> ApiWriter:
    async def sleep(seconds: float) -> None:
        assert seconds >= 0
        await asyncio.Event().wait()

    return ApiWriter(
        WriterContext(
            api=api,
            clock=ManualClock(),
            store=SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n", uid=UID))),
            messages=MessageQueue(),
            sleep=sleep,
        )
    )


async def passes(running: ApiWriter, rounds: int = 40) -> asyncio.Task[None]:
    task = asyncio.create_task(running.run())
    for _ in range(rounds):
        await asyncio.sleep(0)
    return task


def test_a_kind_that_nobody_knows_is_a_bug_of_its_publisher() -> None:
    box = outbox(Unplugged())
    with pytest.raises(ValueError, match="nothing that is published"):
        box.offer("test", (desired(kind="Secret"),))


def test_one_slot_for_each_object_however_often_it_is_offered() -> None:
    async def case() -> None:
        box = outbox(Unplugged())
        for _ in range(100):
            box.offer("test", (desired(),))
        assert len(box.states()) == 1
        (state,) = box.states()
        assert (state.kind, state.name, state.publisher) == ("Device", NODE, "test")
        assert state.phase is WriterPhase.PENDING

    asyncio.run(case())


def test_what_is_no_longer_offered_is_no_longer_pending() -> None:
    async def case() -> None:
        api = Unplugged()
        box = outbox(api)
        box.offer("test", (desired(),))
        box.offer("test", ())
        task = await passes(box)
        assert api.requests == []
        assert box.states()[0].phase is WriterPhase.IDLE
        await box.close(1.0)
        await task

    asyncio.run(case())


def test_an_object_whose_version_changes_has_one_state_in_its_current_version() -> None:
    async def case() -> None:
        box = outbox(Unplugged())
        old, new = (
            replace(desired(), api_version=f"topology.node.k8s.io/{v}", kind="NodeResourceTopology")
            for v in ("v1alpha1", "v1alpha2")
        )
        for offered in (old, new, old):
            box.offer("test", (offered,))
            (state,) = box.states()
            assert state.phase is WriterPhase.PENDING

    asyncio.run(case())


def test_a_bug_in_writing_one_object_leaves_the_others_alone() -> None:
    async def case() -> None:
        api = Unplugged(bug="noderesourcetopologies")
        box = outbox(api)
        topology = replace(
            desired(), api_version="topology.node.k8s.io/v1alpha1", kind="NodeResourceTopology"
        )
        box.offer("test", (topology, desired()))
        task = await passes(box)
        broken, fine = box.states()
        assert "a bug" in broken.error
        assert "no route to host" in fine.error
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(case())


def test_closing_does_not_wait_for_a_server_that_is_not_there() -> None:
    async def case() -> None:
        api = Unplugged()
        box = outbox(api)
        box.offer("test", (desired(),))
        task = await passes(box)
        assert len(api.requests) == 1
        await box.close(5.0)
        assert len(api.requests) == 2
        await task

    asyncio.run(case())
