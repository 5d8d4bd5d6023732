"""Registration with a kubelet that is late, silent, old, away, or of another opinion."""

from __future__ import annotations

import msgspec

from agent.deviceplugin.resources import KubeletResource
from tests.fault.deviceplugin.stage import GPU, QUICK, Stage, gpus, on_stage
from tests.kubelet.endpoint import Endpoint


def test_a_resource_is_registered_listed_and_reported() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        plugin = await stage.start()
        endpoint = await stage.kubelet.resource(GPU, healthy=8)
        assert endpoint.nodes()["GPU-0"] == {0}
        assert endpoint.nodes()["GPU-7"] == {1}
        await stage.kubelet.until(lambda: stage.stands("watched"), "watched")
        served = stage.served()
        assert (served.devices, served.healthy, served.registrations) == (8, 8, 1)
        assert stage.views[-1] == plugin.view()
        assert stage.sockets() == ["xpu-agent-nvidia.com-gpu.1.sock"]
        assert [requests.endpoint for requests in stage.kubelet.registered] == stage.sockets()

    on_stage(test)


def test_options_are_the_same_in_both_places() -> None:
    async def test(stage: Stage) -> None:
        one = msgspec.structs.replace(gpus(2), check_start=True, choose=False)
        stage.table.offered = (one,)
        await stage.kubelet.start()
        await stage.start()
        endpoint = await stage.kubelet.resource(GPU)
        assert endpoint.options == stage.kubelet.registered[0].options
        assert endpoint.options.pre_start_required
        assert not endpoint.options.get_preferred_allocation_available

    on_stage(test)  # the kubelet complains of a difference


def test_the_folder_may_come_after_us() -> None:
    async def test(stage: Stage) -> None:
        await stage.start()
        await stage.kubelet.start()
        await stage.kubelet.resource(GPU, healthy=8)

    on_stage(test)


def test_a_kubelet_that_is_not_ready_is_called_again_without_end() -> None:
    async def test(stage: Stage) -> None:
        stage.kubelet.unavailable = True
        await stage.kubelet.start()
        plugin = await stage.start()
        await stage.kubelet.until(lambda: len(stage.kubelet.registered) > 4, "asked again")
        assert stage.stands("waiting", "KubeletAway") or stage.stands("registering")
        assert len(stage.sockets()) == 1  # it goes on serving
        stage.kubelet.unavailable = False
        await stage.kubelet.resource(GPU, healthy=8)
        (figures,) = plugin.statistics()
        assert dict(figures.registrations)["KubeletAway"] > 4
        assert stage.reported_events == []

    on_stage(test)


def test_a_register_call_that_hangs_is_cancelled_and_repeated() -> None:
    async def test(stage: Stage) -> None:
        stage.kubelet.hold_register.set()
        await stage.kubelet.start()
        plugin = await stage.start()
        await stage.kubelet.until(lambda: len(stage.kubelet.registered) > 1, "a second try")
        assert dict(plugin.statistics()[0].registrations) == {"KubeletSilent": 1}
        stage.kubelet.hold_register.clear()
        await stage.kubelet.resource(GPU, healthy=8)

    on_stage(test, msgspec.structs.replace(QUICK, register_s=0.2))


def test_a_refused_version_is_reported_once_and_retried_slowly() -> None:
    async def test(stage: Stage) -> None:
        stage.kubelet.refuse_version = True
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.until(lambda: len(stage.kubelet.registered) > 2, "asked again")
        assert [reason for reason, _ in stage.reported_events] == ["DevicePluginRefused"]
        assert "is not supported by kubelet" in stage.reported_events[0][1]
        stage.kubelet.refuse_version = False
        await stage.kubelet.resource(GPU, healthy=8)

    on_stage(test)


def test_a_kubelet_that_refused_is_called_at_once_after_its_restart() -> None:
    async def test(stage: Stage) -> None:
        stage.kubelet.refuse_version = True
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.until(lambda: stage.stands("refused", "VersionRefused"), "refused")
        stage.kubelet.refuse_version = False
        await stage.kubelet.restart()  # upgraded
        await stage.kubelet.resource(GPU, healthy=8)

    on_stage(test, msgspec.structs.replace(QUICK, refused_retry_s=3600.0))


def test_an_invalid_resource_name_is_reported_and_affects_only_itself() -> None:
    async def test(stage: Stage) -> None:
        odd = KubeletResource(
            name="requests.nvidia.com/gpu", vendor="nvidia", devices=gpus(1).devices
        )
        stage.table.offered = (odd, gpus(8))
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        await stage.kubelet.until(
            lambda: stage.stands("refused", "NameRefused", odd.name), "refused"
        )
        assert [reason for reason, _ in stage.reported_events] == ["DevicePluginRefused"]

    on_stage(test)


def test_a_kubelet_that_answers_before_it_dials_is_believed_only_with_its_stream() -> None:
    async def test(stage: Stage) -> None:
        stage.kubelet.at_once = True
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.resource(GPU, healthy=8)
        await stage.kubelet.until(lambda: stage.stands("watched"), "watched")
        assert len(stage.kubelet.registered) == 1

    on_stage(test)


def test_a_registration_that_no_stream_follows_is_made_again() -> None:
    async def test(stage: Stage) -> None:
        stage.kubelet.half_open = True
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.until(lambda: len(stage.kubelet.registered) > 2, "asked again")
        assert len({requests.endpoint for requests in stage.kubelet.registered}) > 2
        stage.kubelet.half_open = False
        await stage.kubelet.resource(GPU, healthy=8)

    on_stage(test)


def test_a_server_that_is_not_a_kubelet_is_reported() -> None:
    async def test(stage: Stage) -> None:
        import grpc
        from grpc import aio

        stage.folder.mkdir()
        server = aio.server()
        nothing: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", nothing),))
        server.add_insecure_port(f"unix:{stage.folder}/kubelet.sock")
        await server.start()
        await stage.start()
        await stage.kubelet.until(lambda: stage.stands("refused", "NoKubelet"), "refused")
        await server.stop(None)

    on_stage(test)


def test_a_folder_that_is_too_deep_for_a_socket_is_named() -> None:
    async def test(stage: Stage) -> None:
        stage.folder = stage.folder / ("d" * 90)
        stage.folder.mkdir(parents=True)
        await stage.start()
        await stage.kubelet.until(lambda: stage.stands("waiting", "PathTooLong"), "too long")
        assert "kubelet.root_dir" in stage.served().message

    on_stage(test)


def test_other_options_are_registered_anew_with_another_server() -> None:
    async def test(stage: Stage) -> None:
        await stage.kubelet.start()
        await stage.start()
        first = await stage.kubelet.resource(GPU, healthy=8)
        stage.offer(msgspec.structs.replace(gpus(8), check_start=True))
        second = await stage.kubelet.resource(GPU, healthy=8, not_this=first)
        assert second.options.pre_start_required
        assert first.ended == "OK"

    on_stage(test)


def test_a_cancelled_registration_that_succeeded_is_noticed_by_its_stream() -> None:
    async def test(stage: Stage) -> None:
        stage.kubelet.hold_register.set()
        await stage.kubelet.start()
        await stage.start()
        await stage.kubelet.until(lambda: stage.stands("waiting", "KubeletSilent"), "given up")
        endpoint = Endpoint(GPU, str(stage.folder / stage.sockets()[0]))
        await endpoint.dial()
        lists = endpoint.watch(lambda: 0.0)
        await anext(lists)  # the kubelet, late
        await stage.kubelet.until(lambda: stage.stands("watched"), "watched")
        assert len(stage.kubelet.registered) == 1
        await endpoint.close()

    on_stage(test, msgspec.structs.replace(QUICK, register_s=0.1, retry_s=3600, max_retry_s=3600))
