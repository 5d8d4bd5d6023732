"""Streams that break, go quiet or repeat themselves: the view follows the server all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.apiserver.faults import Fault
from tests.apiserver.server import ApiServer
from tests.fault.apiserver.watching import NODE, pod, watching


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer(nodes=(NODE,), objects=(pod("a"), pod("b"), pod("x", "other"))) as server:
        yield server


STREAMS = [
    "close",
    "silence",
    "gone",
    "html",
    "garbage",
    "duplicate",
    "reorder",
    "truncate",
    "reset",
    "truncate-reset",
]


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("after_lines", [0, 2])
def test_a_stream_that_misbehaves_costs_no_object(
    api: ApiServer, stream: str, after_lines: int
) -> None:
    async def follow() -> None:
        fault = Fault(
            verb="watch", resource="pods", stream=stream, after_lines=after_lines, times=3
        )
        api.faults.add(fault)
        async with watching(api, idle_s=0.3) as watcher:
            await watcher.shows("default/a", "default/b")
            for i in range(4):
                api.put(pod(f"new-{i}"))
                api.put(pod("b", note=str(i)))
            api.delete("pods", "a", "default")
            await watcher.shows("default/b", *(f"default/new-{i}" for i in range(4)))
            await watcher.until(lambda: watcher.watch.view["default/b"].annotation("note") == "3")
            assert api.faults.hits(fault) > 0
            assert all(wait_s >= 0.08 for wait_s in watcher.waits)
            assert watcher.requests("watch") + watcher.requests("list") < 40

    asyncio.run(follow())


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(verb="watch", resource="pods", status=410, reason="Expired"), id="410"),
        pytest.param(Fault(verb="watch", resource="pods", status=503, times=3), id="503"),
        pytest.param(Fault(verb="watch", resource="pods", status=429, retry_after_s=7), id="429"),
        pytest.param(Fault(verb="watch", resource="pods", status=500, html=True), id="a page"),
        pytest.param(Fault(verb="watch", resource="pods", status=403), id="403"),
        pytest.param(Fault(verb="watch", resource="pods", status=404), id="404"),
        pytest.param(Fault(verb="watch", resource="pods", status=401), id="401"),
        pytest.param(Fault(verb="watch", resource="pods", status=413), id="413"),
        pytest.param(Fault(verb="watch", resource="pods", status=422), id="422"),
        pytest.param(Fault(verb="watch", resource="pods", reset=True), id="reset"),
    ],
)
def test_a_watch_that_is_not_opened_is_opened_later(api: ApiServer, fault: Fault) -> None:
    async def follow() -> None:
        api.faults.add(fault)
        async with watching(api) as watcher:
            await watcher.shows("default/a", "default/b")
            await watcher.until(lambda: api.faults.hits(fault) == fault.times)
            api.put(pod("c"))
            await watcher.shows("default/a", "default/b", "default/c")
            if fault.retry_after_s is not None:
                assert max(watcher.waits) >= fault.retry_after_s

    asyncio.run(follow())


def test_a_silent_stream_is_opened_anew_and_its_view_ages_meanwhile(api: ApiServer) -> None:
    async def follow() -> None:
        api.faults.add(Fault(verb="watch", resource="pods", stream="silence", times=2))
        async with watching(api, idle_s=0.2) as watcher:
            await watcher.until(lambda: watcher.watch.state.watches == 3)
            assert watcher.requests("list") == 1
            contact_s = watcher.watch.state.last_contact_s
            api.put(pod("c"))
            await watcher.shows("default/a", "default/b", "default/c")
            assert contact_s is not None
            assert (watcher.watch.state.last_contact_s or 0) > contact_s

    asyncio.run(follow())


def test_bookmarks_keep_a_quiet_watch_fresh_and_are_no_data() -> None:
    async def follow(api: ApiServer) -> None:
        async with watching(api) as watcher:
            await watcher.until(lambda: watcher.watch.state.bookmarks >= 3)
            assert len(watcher.views) == 1
            api.compact()  # what came before the last bookmark is gone: it need not be
            api.close_watches()
            await watcher.until(lambda: watcher.watch.state.watches >= 2)
            assert watcher.watch.state.lists == 1

    with ApiServer(nodes=(NODE,), objects=(pod("a"),), bookmark_interval_s=0.05) as api:
        asyncio.run(follow(api))


def test_a_server_that_ends_its_streams_in_order_is_not_listed_anew(api: ApiServer) -> None:
    async def follow() -> None:
        async with watching(api) as watcher:
            for i in range(5):
                await watcher.until(lambda i=i: watcher.watch.state.watches == i + 1)  # type: ignore[misc]  # bound now
                api.close_watches()
            api.put(pod("c"))
            await watcher.shows("default/a", "default/b", "default/c")
            assert watcher.requests("list") == 1
            assert watcher.watch.state.errors == 0

    asyncio.run(follow())


def test_a_server_that_was_away_and_has_forgotten_the_past_is_listed_once(api: ApiServer) -> None:
    async def follow() -> None:
        async with watching(api) as watcher:
            await watcher.shows("default/a", "default/b")
            before = watcher.watch.view["default/b"]
            await asyncio.to_thread(api.stop)
            await watcher.until(lambda: watcher.watch.state.errors >= 3)
            assert watcher.names == ["default/a", "default/b"]
            api.delete("pods", "a", "default")
            api.put(pod("c"))
            api.compact()
            api.clear_requests()
            await asyncio.to_thread(api.start)
            await watcher.shows("default/b", "default/c")
            assert watcher.requests("list") == 1
            assert watcher.watch.view["default/b"] is before
            assert watcher.watch.state.relists == 1

    asyncio.run(follow())


def test_a_token_that_changed_costs_the_watch_nothing(api: ApiServer) -> None:
    async def follow() -> None:
        async with watching(api) as watcher:
            await watcher.shows("default/a", "default/b")
            api.rotate_token()
            api.close_watches()
            api.put(pod("c"))
            await watcher.shows("default/a", "default/b", "default/c")
            assert watcher.watch.state.errors == 0

    asyncio.run(follow())
