"""The life of the plug-in: waiting, registering, being refused, losing its runtime."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from agent.nri import plugin as module
from tests.patience import PATIENCE_S
from tests.runtime import CONTAINERD_1_7_24, CONTAINERD_2_3, Runtime, Version
from tests.unit.nri_life.plugin_scene import life, play


@pytest.mark.parametrize("version", [CONTAINERD_1_7_24, CONTAINERD_2_3])
def test_it_registers_and_shows_what_there_was_before(version: Version) -> None:
    async def through(folder: Path) -> None:
        async with Runtime(folder, version) as runtime, life(folder) as own_values:
            await runtime.plugged()
            view = await own_values.until("synchronized")
            assert view.is_synchronized
            assert view.runtime == "containerd"
            states = [one.state for one in own_values.views]
            assert states.index("registered") < states.index("synchronized")
            state = own_values.plugin.statistics
            assert (state.connections, state.registrations, state.since_s) == (1, 1, 1000.0)

    play(through)


def test_it_waits_for_the_socket_with_one_check_a_second() -> None:
    async def through(folder: Path) -> None:
        async with life(folder) as own_values:
            view = await own_values.until("waiting", "NoSocket")
            assert "is NRI enabled in the runtime?" in view.message
            async with asyncio.timeout(PATIENCE_S):
                while len(own_values.waits) < 5:
                    await asyncio.sleep(0.001)
            assert set(own_values.waits) == {1.0}
            assert len(own_values.views) == 1  # that it waits is told once
            async with Runtime(folder, CONTAINERD_2_3) as runtime:
                await runtime.plugged()
                await own_values.until("synchronized")

    play(through)


def test_a_socket_that_cannot_be_reached_is_not_taken_for_one_that_is_not_there() -> None:
    async def through(folder: Path) -> None:
        (folder / "nri.sock").symlink_to("nri.sock")  # leads to itself
        async with life(folder) as own_values:
            view = await own_values.until("waiting", "NoAccess")
            assert "Too many levels of symbolic links" in view.message

    play(through)


def test_a_socket_that_nobody_listens_at_is_tried_ever_more_seldom() -> None:
    async def through(folder: Path) -> None:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(folder / "nri.sock"))
            async with life(folder) as own_values:
                await own_values.until("waiting", "NoConnection")
                async with asyncio.timeout(PATIENCE_S):
                    while len(own_values.waits) < 8:
                        await asyncio.sleep(0.001)
                assert own_values.waits[:8] == [1, 2, 4, 8, 16, 30, 30, 30]

    play(through)


def test_a_runtime_that_comes_back_ends_the_pause_after_failed_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It makes the containers of waiting pods at once: without us they lack their devices."""
    monkeypatch.setattr(module, "POLL_S", 0.02)

    async def through(folder: Path) -> None:
        async with Runtime(folder, CONTAINERD_2_3) as runtime, life(folder) as own_values:
            await runtime.plugged()
            await own_values.until("synchronized")
            runtime.kill()
            await own_values.until("waiting", "NoConnection")
            own_values.gate.clear()  # from here on a pause lasts for ever
            async with asyncio.timeout(PATIENCE_S):
                while own_values.paused < 1:
                    await asyncio.sleep(0.001)
            await runtime.listen()
            await runtime.plugged()
            await own_values.until("synchronized")

    play(through)


def test_a_runtime_that_refuses_is_shown_with_its_words_and_tried_again() -> None:
    async def through(folder: Path) -> None:
        async with Runtime(folder, CONTAINERD_2_3) as runtime:
            runtime.ways.registration = "refuse"
            async with life(folder) as own_values:
                view = await own_values.until("refused", "RegistrationRefused")
                assert view.message
                runtime.ways.registration = "answer"
                await runtime.plugged()
                await own_values.until("synchronized")
                assert own_values.plugin.statistics.ends[0][0] == "RegistrationRefused"

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
            async with life(folder) as own_values:
                await own_values.until("waiting", "RuntimeSilent")
                setattr(runtime.ways, way, "answer")
                await own_values.until("synchronized")
            runtime.take_broken()

    play(through)


def test_a_restarted_runtime_is_registered_again_after_a_second_and_containers_stay() -> None:
    async def through(folder: Path) -> None:
        async with Runtime(folder, CONTAINERD_2_3) as runtime, life(folder) as own_values:
            await runtime.plugged()
            pod = runtime.pod("web")
            await runtime.run_pod(pod)
            await own_values.until("synchronized")
            own_values.gate.clear()
            runtime.kill()
            view = await own_values.until("waiting", "ClosedByRuntime")
            assert (len(view.sandboxes), own_values.plugin.statistics.since_s) == (1, None)
            assert own_values.waits == [1.0]
            await runtime.listen()
            own_values.gate.set()
            await runtime.plugged()
            view = await own_values.until("synchronized")
            assert own_values.plugin.statistics.registrations == 2

    play(through)


def test_a_socket_that_another_runtime_put_in_place_is_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.02)

    async def through(folder: Path) -> None:
        async with Runtime(folder, CONTAINERD_2_3) as first, life(folder) as own_values:
            await first.plugged()
            await own_values.until("synchronized")
            async with Runtime(folder, CONTAINERD_1_7_24) as second:
                await second.plugged()
                await own_values.until("synchronized")
                assert dict(own_values.plugin.statistics.ends) == {"SocketReplaced": 1}
                assert own_values.plugin.view.version == "v1.7.24"

    play(through)


def test_the_old_connection_is_closed_before_there_is_a_new_one() -> None:
    async def through(folder: Path) -> None:
        async with Runtime(folder, CONTAINERD_2_3) as runtime, life(folder) as own_values:
            for _ in range(3):
                await runtime.plugged()
                assert len(runtime.plugins) == 1
                runtime.plugins[0].close("a test's wish")
                runtime.plugins.clear()
            await runtime.plugged()
            assert own_values.plugin.statistics.connections == 4

    play(through)
