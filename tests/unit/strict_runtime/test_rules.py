"""The strict runtime tells of each broken rule, and does to a plug-in what the real one does."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from proto.gen import nri_plugin_pb2 as nri
from tests.runtime import CONTAINERD_1_7_24, CONTAINERD_2_3, Failed, Rival, Runtime, Version
from tests.unit.strict_runtime.raw import RawPlugin

Play = Callable[[Runtime, RawPlugin], Awaitable[None]]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: a socket's address has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="nri-") as name:
        yield Path(name)


def play(
    folder: Path, scene: Play, version: Version = CONTAINERD_2_3, **limits: float
) -> list[str]:
    """Play a scene with one plug-in; return the rules that it broke."""

    async def run() -> list[str]:
        async with Runtime(folder, version, **limits) as runtime:  # type: ignore[arg-type]  # limits are seconds
            async with RawPlugin(runtime.socket) as plugin:
                await scene(runtime, plugin)
            return runtime.take_broken()

    return asyncio.run(run())


def test_a_plug_in_that_obeys_the_rules_is_registered_and_called(folder: Path) -> None:
    async def scene(runtime: Runtime, raw: RawPlugin) -> None:
        await raw.register()
        plugin = await runtime.plugged()
        assert (plugin.name, plugin.index, plugin.events) == ("raw", "10", 0x8D)
        creation = asyncio.ensure_future(runtime.create(runtime.pod("p"), "main"))
        stream, request = await raw.next_request()
        assert request.method == "CreateContainer"
        adjustment = nri.CreateContainerResponse()
        adjustment.adjust.env.add(key="A", value="1")
        raw.answer(stream, adjustment)
        assert (await creation).spec.env["A"] == "1"

    assert play(folder, scene) == []


@pytest.mark.parametrize(
    ("name", "index", "wrong"),
    [("", "10", "name"), ("a/b", "10", "name"), ("raw", "1", "index"), ("raw", "1a", "index")],
)
def test_a_wrong_name_or_index_is_refused(folder: Path, name: str, index: str, wrong: str) -> None:
    async def scene(_: Runtime, raw: RawPlugin) -> None:
        raw.call("RegisterPlugin", nri.RegisterPluginRequest(plugin_name=name, plugin_idx=index))
        data = (await raw.frame())[-1]
        assert wrong in data.decode(errors="replace")

    assert wrong in play(folder, scene)[0]


@pytest.mark.parametrize(
    ("events", "version"), [(0x4000, CONTAINERD_2_3), (0x88D, CONTAINERD_1_7_24)]
)
def test_events_that_the_version_does_not_know_close_the_plug_in(
    folder: Path, events: int, version: Version
) -> None:
    async def scene(_: Runtime, raw: RawPlugin) -> None:
        with pytest.raises(asyncio.IncompleteReadError):
            await raw.register(events=events)

    assert play(folder, scene, version) == [f"invalid plugin events: {events:#x}"]


def test_no_events_are_all_events(folder: Path) -> None:
    async def scene(runtime: Runtime, raw: RawPlugin) -> None:
        await raw.register(events=0)
        assert (await runtime.plugged()).events == 0x3FFF

    assert play(folder, scene) == []


def test_an_answer_that_comes_late_costs_the_connection_and_not_the_container(
    folder: Path,
) -> None:
    async def scene(runtime: Runtime, raw: RawPlugin) -> None:
        await raw.register()
        plugin = await runtime.plugged()
        container = await runtime.create(runtime.pod("p"), "main")
        assert container.missed
        assert plugin.state == "closed"

    assert play(folder, scene, request_s=0.1) == []


def test_an_error_costs_the_container_and_not_the_connection(folder: Path) -> None:
    async def scene(runtime: Runtime, raw: RawPlugin) -> None:
        await raw.register()
        plugin = await runtime.plugged()
        creation = asyncio.ensure_future(runtime.create(runtime.pod("p"), "main"))
        stream, _ = await raw.next_request()
        raw.answer(stream, code=2)
        with pytest.raises(Failed):
            await creation
        assert plugin.state == "synchronized"

    assert play(folder, scene) == []


def test_an_update_from_inside_a_request_is_reported_as_a_deadlock(folder: Path) -> None:
    async def scene(runtime: Runtime, raw: RawPlugin) -> None:
        await raw.register()
        await runtime.plugged()
        creation = asyncio.ensure_future(runtime.create(runtime.pod("p"), "main"))
        await raw.next_request()
        raw.call("UpdateContainers", nri.UpdateContainersRequest())
        assert (await creation).missed

    broken = play(folder, scene, request_s=0.2)
    assert "deadlock: UpdateContainers while CreateContainer is unanswered" in broken


def test_a_part_of_synchronize_without_more_closes_the_plug_in(folder: Path) -> None:
    async def scene(runtime: Runtime, raw: RawPlugin) -> None:
        runtime.populate(pods=3)
        runtime.ways.part_objects = 1
        await raw.register()
        await runtime.seen[0].closed.wait()

    assert play(folder, scene) == ["plugin does not handle split sync requests"]


def test_two_plug_ins_that_set_one_variable_fail_the_creation(folder: Path) -> None:
    async def scene(runtime: Runtime, raw: RawPlugin) -> None:
        answer = nri.CreateContainerResponse()
        answer.adjust.env.add(key="A", value="1")
        runtime.rivals.append(Rival("90", "rival", lambda *_: answer.adjust))
        await raw.register()
        await runtime.plugged()
        creation = asyncio.ensure_future(runtime.create(runtime.pod("p"), "main"))
        stream, _ = await raw.next_request()
        raw.answer(stream, answer)
        with pytest.raises(Failed, match='"raw" and "rival" both tried to set'):
            await creation

    assert play(folder, scene) == []


def test_events_have_their_own_calls_until_one_is_not_known(folder: Path) -> None:
    async def scene(runtime: Runtime, raw: RawPlugin) -> None:
        await raw.register()
        await runtime.plugged()
        run = asyncio.ensure_future(runtime.run_pod(runtime.pod("p")))
        methods = []
        for code in (12, 0):
            stream, request = await raw.next_request()
            methods.append(request.method)
            raw.answer(stream, code=code)
        await run
        second = asyncio.ensure_future(runtime.run_pod(runtime.pod("q")))
        stream, request = await raw.next_request()
        raw.answer(stream)
        await second
        assert [*methods, request.method] == ["RunPodSandbox", "StateChange", "StateChange"]

    assert play(folder, scene) == []


def test_a_stream_id_that_does_not_rise_is_reported(folder: Path) -> None:
    async def scene(runtime: Runtime, raw: RawPlugin) -> None:
        await raw.register()
        await runtime.plugged()
        raw.write(2, 1, 1, b"")
        await raw.frame()

    assert play(folder, scene) == ["stream 1 after 1"]


def test_the_second_plug_in_waits_until_the_first_is_done(folder: Path) -> None:
    async def scene(runtime: Runtime, _: RawPlugin) -> None:
        async with RawPlugin(runtime.socket) as second:
            registration = asyncio.ensure_future(second.register(name="second"))
            await runtime.dialled()
            assert not registration.done()
            plugin = await runtime.plugged()
            assert plugin.name == "second"
            assert "registered in time" in runtime.seen[0].reason
            await registration

    assert play(folder, scene, registration_s=0.2) == []


def test_a_waiting_client_of_a_killed_runtime_is_disconnected_too(folder: Path) -> None:
    async def scene(runtime: Runtime, raw: RawPlugin) -> None:
        async with RawPlugin(runtime.socket) as waiting:
            await runtime.dialled()
            await asyncio.sleep(0)
            runtime.kill()
            for plugin in (raw, waiting):
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await plugin.frame()

    assert play(folder, scene) == []
