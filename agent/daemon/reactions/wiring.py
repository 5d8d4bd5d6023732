"""Puts together what reacts to the kernel's events and to people at the admin socket."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from agent.daemon.reactions.hardware import Hardware
from agent.daemon.schedule import Timed
from agent.loop import Loop
from agent.model.selfcheck import Check
from agent.node.fleet import Fleet
from agent.node.parts import Parts
from agent.state_writer import HANGS
from agent.web.unix_socket import NoAdminSocket, bind, file_of, remove, socket_path

if TYPE_CHECKING:
    from aiohttp import web

    from agent.web.connections import Listener

log = logging.getLogger(__name__)

HEARD_FACTOR = 5.0  # the full look is that much rarer while the kernel tells of changes
BIND_S = 1.0  # for the file of the admin socket
HOST_LOOPS = ("host", "vendors")

Tell = Callable[[str, str], None]  # reason and message of an event for people; quick


def _bind(path: str) -> tuple[socket.socket, tuple[int, int] | None]:
    """Return the listening socket, and which file it is."""
    return bind(path), file_of(path)


class Reactions:
    """Belongs to the loop thread."""

    def __init__(
        self,
        parts: Parts,
        fleet: Fleet,
        executor: Executor,
        read_host: Callable[[], None],
        tell: Tell,
    ) -> None:
        """`read_host` runs on `executor`, the thread that reads the host."""
        self._parts = parts
        self._fleet = fleet
        self._executor = executor
        self._tell = tell
        self._hardware = Hardware(parts, fleet, executor, read_host)
        self._looks: list[Loop] = []
        self._runner: web.AppRunner | None = None
        self._listener: Listener | None = None
        self._path = ""
        self._file: tuple[int, int] | None = None  # of the socket that we made
        self._problem = "switched off"

    def welcoming(self) -> Timed:
        """Return the loop that looks for vendors that had nothing here at the start."""
        look_s = self._parts.settings.discovery.host_interval_s
        return Timed(self._hardware.find_loop(look_s), look_s)

    def hotplug(self, loops: Iterable[Loop]) -> Coroutine[None, None, None] | None:
        """Return what listens to the kernel for ever; `None` on a recorded host or if it is off.

        Of `loops`, those that look at the host have longer periods while it hears something.
        """
        if self._parts.opened.spec is not None or not self._parts.settings.discovery.hotplug:
            return None
        from agent.daemon.reactions.uevents import Uevents  # noqa: PLC0415 - no start waits for it

        self._looks = [loop for loop in loops if loop.name in HOST_LOOPS]
        return Uevents(
            self._parts.store,
            self._parts.clock,
            self._hardware,
            self._executor,
            tell=self._tell,
            on_pace=self._pace,
        ).run()

    def _pace(self, heard: bool) -> None:
        every_s = self._parts.settings.discovery.host_interval_s
        for loop in self._looks:
            loop.interval_s = every_s * HEARD_FACTOR if heard else every_s

    async def serve_admin(self, out: str) -> None:
        """Listen at the admin socket; that it is not possible is a failed check and no more."""
        path = socket_path(self._parts.settings.admin.socket, out)
        if path is None:
            return
        from aiohttp import web  # noqa: PLC0415 - as the HTTP server

        from agent.daemon.reactions.control import Control  # noqa: PLC0415 - as above
        from agent.web.admin import create_admin_app  # noqa: PLC0415 - as above
        from agent.web.connections import MIN_CONNECTIONS, Listener  # noqa: PLC0415 - as above

        control = Control(self._parts, self._fleet, self._hardware.look, self._tell)
        runner = web.AppRunner(create_admin_app(control), access_log=None, shutdown_timeout=1.0)
        try:
            # not on the loop's thread: the folder may be on a file system that hangs
            async with asyncio.timeout(BIND_S):
                listening, self._file = await asyncio.to_thread(_bind, path)
        except TimeoutError:
            self._problem = f"{path}: {HANGS}"
            log.warning("admin_socket_missing", extra={"error": self._problem})
            return
        except NoAdminSocket as error:
            self._problem = str(error)
            log.warning("admin_socket_missing", extra={"error": self._problem})
            return
        self._runner, self._path = runner, path
        await runner.setup()
        assert runner.server is not None  # noqa: S101 - made by `setup`
        self._listener = Listener(runner.server, listening, MIN_CONNECTIONS)
        self._listener.open()
        self._problem = ""

    def check(self) -> Check:
        """Return whether people can act on the agent; for them, it gates nothing."""
        ok = not self._problem
        return Check(name="admin-socket", ok=ok, message=self._problem, gates_ready=False)

    async def stop(self) -> None:
        """Serve nobody any more."""
        if self._runner is not None:
            # first: who comes after us may listen at once
            removing = asyncio.ensure_future(asyncio.to_thread(remove, self._path, self._file))
            await asyncio.wait({removing}, timeout=BIND_S)
            if self._listener is not None:
                self._listener.close()
            await self._runner.cleanup()
