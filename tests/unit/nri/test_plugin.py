"""The life of the plug-in: waiting, registering, being refused, losing its runtime, ending."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from agent.clock import ManualClock
from agent.config.containers import NriSettings
from agent.model.grant.edits import ContainerEdits
from agent.model.runtime.adjustment import Adjustment
from agent.model.runtime.request import HookRequest
from agent.model.runtime.seen import RuntimeView
from agent.nri import plugin as module
from agent.nri.plugin import NriPlugin
from tests.runtime import CONTAINERD_1_7_24, CONTAINERD_2_3, Runtime, Version
from tests.unit.nri.talk import never, nothing


class Life:
    """A plug-in whose waits are written down, and take no time unless `gate` is cleared."""

    def __init__(self, folder: Path, *, lock: str = "", answer: Any = nothing) -> None:
        self.views: list[RuntimeView] = []
        self.waits: list[float] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.plugin = NriPlugin(
            NriSettings(socket=str(folder / "nri.sock")),
            ask=answer,
            seen=self.views.append,
            clock=ManualClock(),
            sleep=self._sleep,
            uniform=lambda low, high: (low + high) / 2,
            lock_path=lock,
        )
        self.running = asyncio.create_task(self.plugin.run())

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await self.gate.wait()
        await asyncio.sleep(0.001)

    async def until(self, state: str, reason: str = "") -> RuntimeView:
        """Wait until it stands so."""
        async with asyncio.timeout(10):
            while (self.plugin.view.state, self.plugin.view.reason) != (state, reason):
                assert not self.running.done()
                await asyncio.sleep(0.001)
        return self.plugin.view

    async def end(self) -> None:
        """End it as the daemon does."""
        self.running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.running


@contextlib.asynccontextmanager
async def life(folder: Path, **how: Any) -> AsyncIterator[Life]:
    """Give a plug-in that runs."""
    ours = Life(folder, **how)
    try:
        yield ours
    finally:
        await ours.end()


def play(through: Callable[[Path], Coroutine[Any, Any, None]]) -> None:
    """Run a test in a folder whose name is short enough for a socket's."""
    with tempfile.TemporaryDirectory(prefix="nri") as folder:
        asyncio.run(through(Path(folder)))


@pytest.mark.parametrize("version", [CONTAINERD_1_7_24, CONTAINERD_2_3])
def test_it_registers_and_shows_what_there_was_before(version: Version) -> None:
    async def through(folder: Path) -> None:
        async with Runtime(folder, version) as runtime, life(folder) as ours:
            await runtime.plugged()
            view = await ours.until("synchronized")
            assert view.in_force
            assert view.runtime == "containerd"
            states = [one.state for one in ours.views]
            assert states.index("registered") < states.index("synchronized")
            state = ours.plugin.state
            assert (state.connections, state.registrations, state.since_s) == (1, 1, 1000.0)

    play(through)


def test_it_waits_for_the_socket_with_one_look_a_second() -> None:
    async def through(folder: Path) -> None:
        async with life(folder) as ours:
            view = await ours.until("waiting", "NoSocket")
            assert "is NRI enabled in the runtime?" in view.message
            async with asyncio.timeout(10):
                while len(ours.waits) < 5:
                    await asyncio.sleep(0.001)
            assert set(ours.waits) == {1.0}
            assert len(ours.views) == 1  # that it waits is told once
            async with Runtime(folder, CONTAINERD_2_3) as runtime:
                await runtime.plugged()
                await ours.until("synchronized")

    play(through)


def test_a_socket_that_nobody_listens_at_is_tried_ever_more_seldom() -> None:
    async def through(folder: Path) -> None:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(folder / "nri.sock"))
            async with life(folder) as ours:
                await ours.until("waiting", "NoConnection")
                async with asyncio.timeout(10):
                    while len(ours.waits) < 8:
                        await asyncio.sleep(0.001)
                assert ours.waits[:8] == [1, 2, 4, 8, 16, 30, 30, 30]

    play(through)


def test_a_runtime_that_refuses_is_shown_with_its_words_and_tried_again() -> None:
    async def through(folder: Path) -> None:
        async with Runtime(folder, CONTAINERD_2_3) as runtime:
            runtime.ways.registration = "refuse"
            async with life(folder) as ours:
                view = await ours.until("refused", "RegistrationRefused")
                assert view.message
                runtime.ways.registration = "answer"
                await runtime.plugged()
                await ours.until("synchronized")
                assert ours.plugin.state.ends[0][0] == "RegistrationRefused"

    play(through)


@pytest.mark.parametrize("way", ["registration", "configure", "synchronize"])
def test_a_runtime_that_stops_half_way_is_left_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(module, "REGISTER_S", 0.05)
    monkeypatch.setattr(module, "READY_S", 0.05)

    async def through(folder: Path) -> None:
        async with Runtime(folder, CONTAINERD_2_3) as runtime:
            setattr(runtime.ways, way, "hang")
            async with life(folder) as ours:
                await ours.until("waiting", "RuntimeSilent")
                setattr(runtime.ways, way, "answer")
                await ours.until("synchronized")
            runtime.take_broken()

    play(through)


def test_a_runtime_that_restarts_is_joined_again_after_a_second_and_what_ran_is_kept() -> None:
    async def through(folder: Path) -> None:
        async with Runtime(folder, CONTAINERD_2_3) as runtime, life(folder) as ours:
            await runtime.plugged()
            pod = runtime.pod("web")
            await runtime.run_pod(pod)
            await ours.until("synchronized")
            ours.gate.clear()
            runtime.kill()
            view = await ours.until("waiting", "ClosedByRuntime")
            assert (len(view.sandboxes), ours.plugin.state.since_s) == (1, None)
            assert ours.waits == [1.0]
            await runtime.listen()
            ours.gate.set()
            await runtime.plugged()
            view = await ours.until("synchronized")
            assert ours.plugin.state.registrations == 2

    play(through)


def test_a_socket_that_another_runtime_put_in_the_place_of_ours_is_dialled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.02)

    async def through(folder: Path) -> None:
        async with Runtime(folder, CONTAINERD_2_3) as first, life(folder) as ours:
            await first.plugged()
            await ours.until("synchronized")
            async with Runtime(folder, CONTAINERD_1_7_24) as second:
                await second.plugged()
                await ours.until("synchronized")
                assert dict(ours.plugin.state.ends) == {"SocketReplaced": 1}
                assert ours.plugin.view.version == "v1.7.24"

    play(through)


def test_the_old_connection_is_closed_before_there_is_a_new_one() -> None:
    async def through(folder: Path) -> None:
        async with Runtime(folder, CONTAINERD_2_3) as runtime, life(folder) as ours:
            for _ in range(3):
                await runtime.plugged()
                assert len(runtime.plugins) == 1
                runtime.plugins[0].close("a test's wish")
                runtime.plugins.clear()
            await runtime.plugged()
            assert ours.plugin.state.connections == 4

    play(through)


def test_two_agents_of_one_node_have_one_connection_and_the_second_takes_over() -> None:
    async def through(folder: Path) -> None:
        lock = str(folder / "nri.lock")
        async with (
            Runtime(folder, CONTAINERD_2_3) as runtime,
            life(folder, lock=lock) as first,
            life(folder, lock=lock) as second,
        ):
            await runtime.plugged()
            await first.until("synchronized")
            await second.until("waiting", "AnotherAgent")
            await first.plugin.stop()
            await first.running
            await runtime.plugged()
            await second.until("synchronized")
            assert len(runtime.seen) == 2

    play(through)


def test_a_lock_that_cannot_be_had_is_said_and_nothing_is_dialled() -> None:
    async def through(folder: Path) -> None:
        async with Runtime(folder, CONTAINERD_2_3) as runtime:
            async with life(folder, lock=str(folder / "none" / "lock")) as ours:
                view = await ours.until("waiting", "NoLock")
                assert "No such file or directory; see node.run_dir" in view.message
            assert runtime.seen == []

    play(through)


@pytest.mark.parametrize("while_asked", [False, True])
def test_it_ends_soon_in_whatever_it_waits(while_asked: bool) -> None:
    async def through(folder: Path) -> None:
        async with (
            Runtime(folder, CONTAINERD_2_3) as runtime,
            life(folder, answer=never) as ours,
        ):
            await runtime.plugged()
            await ours.until("synchronized")
            pod = runtime.pod("web")
            asked = asyncio.create_task(runtime.run_pod(pod))
            if while_asked:
                async with asyncio.timeout(10):
                    while not ours.plugin.state.in_flight:
                        await asyncio.sleep(0.001)
            await ours.plugin.stop()
            await ours.running
            assert (ours.plugin.view.state, ours.plugin.view.reason) == ("waiting", "Stopped")
            await asked  # the runtime goes on without us

    play(through)


def test_what_was_asked_before_the_end_is_still_answered() -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def slow(request: HookRequest) -> Adjustment:
        begun.set()
        await gate.wait()
        return Adjustment(edits=ContainerEdits(env=(("GRANTED", request.stage.value),)))

    async def through(folder: Path) -> None:
        async with (
            Runtime(folder, CONTAINERD_2_3) as runtime,
            life(folder, answer=slow) as ours,
        ):
            await runtime.plugged()
            pod = runtime.pod("web")
            runtime.pods.append(pod)
            asked = asyncio.create_task(runtime.create(pod, "main"))
            await begun.wait()
            stopping = asyncio.create_task(ours.plugin.stop())
            await asyncio.sleep(0)
            gate.set()
            assert (await asked).spec.env["GRANTED"] == "PreCreateContainer"
            await stopping

    play(through)


def test_it_may_be_stopped_before_it_began() -> None:
    async def through(folder: Path) -> None:
        settings = NriSettings(socket=str(folder / "nri.sock"))
        idle = NriPlugin(settings, ask=nothing, seen=lambda _: None, clock=ManualClock())
        await idle.stop()
        await idle.run()
        assert idle.state.connections == 0

    play(through)
