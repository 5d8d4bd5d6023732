from __future__ import annotations

import asyncio
import gzip
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from agent.web.body import (
    RENDER_DEADLINE_S,
    SLICE_S,
    SharedBodies,
    SlicedBody,
    deadline_s,
    render_body,
)


def slow_chunks(count: int) -> Iterator[bytes]:
    for number in range(count):
        time.sleep(SLICE_S / 2)
        yield b"%d\n" % number


def test_a_body_that_takes_long_is_rendered_in_several_slices() -> None:
    for compress in (False, True):
        body = SlicedBody(lambda: slow_chunks(8), compress=compress)
        slices: list[bytes | None] = []
        while not slices or slices[-1] is None:
            slices.append(body.render_slice())
        assert len(slices) >= 4
        whole = slices[-1]
        assert (gzip.decompress(whole) if compress else whole) == b"0\n1\n2\n3\n4\n5\n6\n7\n"


def test_other_work_of_the_thread_waits_for_one_slice() -> None:
    """Two bodies at once on one thread: their slices alternate."""
    order: list[str] = []

    def chunks(name: str) -> Iterator[bytes]:
        for _ in range(3):
            time.sleep(SLICE_S)
            order.append(name)
            yield b""

    async def run() -> None:
        async def offload(work: Callable[[], bytes | None]) -> bytes | None:
            await asyncio.sleep(0)
            return work()

        bodies = [SlicedBody(lambda n=name: chunks(n), compress=False) for name in "ab"]  # type: ignore[misc]
        await asyncio.gather(*(render_body(body, offload, 60) for body in bodies))

    asyncio.run(run())
    assert order == ["a", "b"] * 3


def test_chunks_are_rendered_on_the_thread_of_the_slice_and_not_before() -> None:
    threads: list[int] = []

    def chunks() -> list[bytes]:
        threads.append(threading.get_ident())
        return [b"x"]

    body = SlicedBody(chunks, compress=False)
    assert threads == []

    async def run() -> bytes:
        return await render_body(body, asyncio.to_thread, 60)

    assert asyncio.run(run()) == b"x"
    assert threads != [threading.get_ident()]


def test_a_body_that_is_late_is_given_up_between_two_slices() -> None:
    rendered = 0

    def endless() -> Iterator[bytes]:
        nonlocal rendered
        while True:
            rendered += 1
            time.sleep(SLICE_S)
            yield b"x"

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await render_body(SlicedBody(endless, compress=False), asyncio.to_thread, 0.05)

    asyncio.run(run())
    count = rendered
    time.sleep(10 * SLICE_S)
    assert rendered == count


@pytest.mark.parametrize(
    ("timeout_s", "wanted"), [(None, RENDER_DEADLINE_S), (60.0, RENDER_DEADLINE_S), (2.0, 1.8)]
)
def test_rendering_ends_before_the_scraper_stops_waiting(
    timeout_s: float | None, wanted: float
) -> None:
    assert deadline_s(timeout_s) == pytest.approx(wanted)


def test_readers_of_one_second_share_a_page_and_one_that_goes_ends_nobodys() -> None:
    async def run() -> tuple[int, list[bytes]]:
        bodies, count = SharedBodies(), 0
        go = asyncio.Event()

        async def render() -> bytes:
            nonlocal count
            count += 1
            await go.wait()
            return b"%d" % count

        readers = [asyncio.ensure_future(bodies.get("page", render, 1.0)) for _ in range(50)]
        await asyncio.sleep(0)
        readers[0].cancel()  # the one whose request began the page
        go.set()
        await asyncio.wait(readers)
        rest = [reader.result() for reader in readers[1:]]
        rest.append(await bodies.get("page", render, 1.0))
        rest.append(await bodies.get("other", render, 1.0))
        return count, rest

    count, answers = asyncio.run(run())
    assert count == 2
    assert answers == [b"1"] * 50 + [b"2"]


def test_a_page_that_failed_or_is_old_is_rendered_again() -> None:
    async def run() -> list[str]:
        bodies, answers = SharedBodies(), iter((ValueError("stuck"), b"first", b"second"))

        async def render() -> bytes:
            answer = next(answers)
            if isinstance(answer, ValueError):
                raise answer
            return answer

        seen = []
        for share_s in (1.0, 1.0, 1.0, 0.0):
            try:
                seen.append((await bodies.get("page", render, share_s)).decode())
            except ValueError as error:
                seen.append(str(error))
        return seen

    assert asyncio.run(run()) == ["stuck", "first", "first", "second"]
