"""The life of the plug-in: waiting, registering, being refused, losing its runtime."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from agent.nri import plugin as module
from tests.patience import PATIENCE_S
from tests.runtime import CONTAINERD_1_7_24, CONTAINERD_2_3, Runtime, Version
from tests.unit.nri_life.life import life, play


@pytest.mark.parametrize("version", [CONTAINERD_1_7_24, CONTAINERD_2_3])
def test_it_registers_and_shows_what_there_was_before(version: Version) -> None:
    async def through(folder: Path) -> None:
        async with Runtime(folder, version) as runtime, life(folder) as ours:
            await runtime.plugged()
            view = await ours.until("synchronized")
            assert view.is_synchronized
            assert view.runtime == "containerd"
            states = [one.state for one in ours.views]
            assert states.index("registered") < states.index("synchronized")
            state = ours.plugin.statistics
            assert (state.connections, state.registrations, state.since_s) == (1, 1, 1000.0)

    play(through)


def test_it_waits_for_the_socket_with_one_check_a_second() -> None:
    async def through(folder: Path) -> None:
        async with life(folder) as ours:
            view = await ours.until("waiting", "NoSocket")
            assert "is NRI enabled in the runtime?" in view.message
            async with asyncio.timeout(PATIENCE_S):
                while len(ours.waits) < 5:
                    await asyncio.sleep(0.001)
            assert set(ours.waits) == {1.0}
            assert len(ours.views) == 1  # that it waits is told once
            async with Runtime(folder, CONTAINERD_2_3) as runtime:
                await runtime.plugged()
                await ours.until("synchronized")

    play(through)


def test_a_socket_that_cannot_be_reached_is_not_taken_for_one_that_is_not_there() -> None:
    async def through(folder: Path) -> None:
        (folder / "nri.sock").symlink_to("nri.sock")  # leads to itself
        async with life(folder) as ours:
            view = await ours.until("waiting", "NoAccess")
            assert "Too many levels of symbolic links" in view.message

    play(through)


def test_a_socket_that_nobody_listens_at_is_tried_ever_more_seldom() -> None:
    async def through(folder: Path) -> None:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(folder / "nri.sock"))
            async with life(folder) as ours:
                await ours.until("waiting", "NoConnection")
                async with asyncio.timeout(PATIENCE_S):
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
                assert ours.plugin.statistics.ends[0][0] == "RegistrationRefused"

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


def test_a_restarted_runtime_is_registered_again_after_a_second_and_containers_stay() -> None:
    async def through(folder: Path) -> None:
        async with Runtime(folder, CONTAINERD_2_3) as runtime, life(folder) as ours:
            await runtime.plugged()
            pod = runtime.pod("web")
            await runtime.run_pod(pod)
            await ours.until("synchronized")
            ours.gate.clear()
            runtime.kill()
            view = await ours.until("waiting", "ClosedByRuntime")
            assert (len(view.sandboxes), ours.plugin.statistics.since_s) == (1, None)
            assert ours.waits == [1.0]
            await runtime.listen()
            ours.gate.set()
            await runtime.plugged()
            view = await ours.until("synchronized")
            assert ours.plugin.statistics.registrations == 2

    play(through)


def test_a_socket_that_another_runtime_put_in_place_is_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.02)

    async def through(folder: Path) -> None:
        async with Runtime(folder, CONTAINERD_2_3) as first, life(folder) as ours:
            await first.plugged()
            await ours.until("synchronized")
            async with Runtime(folder, CONTAINERD_1_7_24) as second:
                await second.plugged()
                await ours.until("synchronized")
                assert dict(ours.plugin.statistics.ends) == {"SocketReplaced": 1}
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
            assert ours.plugin.statistics.connections == 4

    play(through)
