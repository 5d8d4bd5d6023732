"""The admin socket of an agent that is stopped, or whose folder does not answer, in its start."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent.app.admin import AdminService

NOT_USED: Any = None  # nothing is served before the socket is there


class SlowFolder(ThreadPoolExecutor):
    """Threads whose calls end only when the folder answers."""

    def __init__(self) -> None:
        super().__init__(2)
        self.answer = threading.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        def wait_and_call() -> Any:
            self.answer.wait()
            return fn(*args, **kwargs)

        return super().submit(wait_and_call)


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_socket_that_comes_late_is_neither_served_nor_left(
    tmp_path: Path, is_cancelled: bool
) -> None:
    path = tmp_path / "admin.sock"

    async def act() -> None:
        folder = SlowFolder()
        asyncio.get_running_loop().set_default_executor(folder)
        service = AdminService(str(path), NOT_USED)
        start = asyncio.create_task(service.start("", NOT_USED))
        await asyncio.sleep(0)
        if is_cancelled:
            start.cancel()
        await asyncio.wait({start})
        assert start.cancelled() == is_cancelled
        assert not service.check().ok
        folder.answer.set()
        await service.stop()

    asyncio.run(act())
    assert not list(tmp_path.iterdir())
