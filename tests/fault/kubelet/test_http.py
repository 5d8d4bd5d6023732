"""The kubelet's HTTP server, asked over real TLS: what is sent, what is believed, what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from agent.clock import ManualClock
from agent.config.cluster import KubeletSettings
from agent.kube.credentials import TokenFile
from agent.kube.errors import (
    ApiError,
    BadResponse,
    Forbidden,
    NotFound,
    ServerError,
    Unauthorized,
    Unreachable,
)
from agent.kubelet.client import KubeletClient, classify_error
from agent.snapshot.cluster import (
    KUBELET_ABSENT,
    KUBELET_FAILING,
    KUBELET_FORBIDDEN,
    KUBELET_HANGING,
    KUBELET_UNAUTHORISED,
    ClusterView,
    NodeView,
)
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore
from agent.snapshot.part import SnapshotPart
from tests.fault.kubelet.fake_http import HALF, HANG, RESET, TOKEN, FakeKubelet, pod
from tests.patience import PATIENCE_S

Test = Callable[[FakeKubelet, KubeletClient], Awaitable[None]]


def client_of(kubelet: FakeKubelet, folder: Path, **settings: object) -> KubeletClient:
    token = folder / "token"
    if not token.exists():
        token.write_text(TOKEN)
    node = NodeView(
        name="node-a",
        uid="u",
        addresses=(("Hostname", "node-a.invalid"), ("InternalIP", kubelet.host)),
        kubelet_port=kubelet.port,
    )
    store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="node-a")))
    store.put(cluster=ClusterView(node=SnapshotPart(node, 1.0)))
    clock = ManualClock()
    created = msgspec.convert(settings, KubeletSettings)
    return KubeletClient(created, TokenFile(str(token), clock), store, clock)


def on_kubelet(folder: Path, test: Test, **settings: object) -> FakeKubelet:
    kubelet = FakeKubelet(folder)

    async def live() -> None:
        async with kubelet.running():
            client = client_of(kubelet, folder, **settings)
            try:
                await test(kubelet, client)
            finally:
                await client.close()

    asyncio.run(live())
    return kubelet


async def error_of(call: Awaitable[object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await call
    return caught.value


def test_the_pods_are_those_that_the_kubelet_lists_and_an_odd_one_costs_itself(
    tmp_path: Path,
) -> None:
    async def test(kubelet: FakeKubelet, client: KubeletClient) -> None:
        kubelet.pods = [pod("b"), {"metadata": {"uid": 7}}, pod("a"), None]
        pods = await client.pods()
        assert [view.name for view in pods.pods] == ["a", "b"]
        assert pods.malformed == 2

    on_kubelet(tmp_path, test)


def test_one_connection_serves_all_questions(tmp_path: Path) -> None:
    async def test(kubelet: FakeKubelet, client: KubeletClient) -> None:
        kubelet.pods = [pod("a")]
        for _ in range(3):
            await client.pods()
            await client.config()
        assert len(kubelet.connections) == 1

    on_kubelet(tmp_path, test)


def test_a_kubelet_is_reached_over_ipv6(tmp_path: Path) -> None:
    kubelet = FakeKubelet(tmp_path, "::1")
    kubelet.pods = [pod("a")]

    async def live() -> None:
        try:
            await kubelet.start()
        except OSError:
            pytest.skip("no IPv6 on this machine")
        client = client_of(kubelet, tmp_path, ca_file=str(kubelet.ca_file))
        assert (await client.pods()).pods
        await client.close()
        await kubelet.stop()

    asyncio.run(live())


def test_a_ca_that_is_named_is_checked_and_another_is_not_believed(tmp_path: Path) -> None:
    async def test(kubelet: FakeKubelet, client: KubeletClient) -> None:
        kubelet.pods = [pod("a")]
        assert (await client.pods()).pods  # self-signed, and none named
        for ca, good in ((kubelet.ca_file, True), (kubelet.wrong_ca_file, False)):
            careful = client_of(kubelet, tmp_path, ca_file=str(ca))
            if good:
                assert (await careful.pods()).pods
            else:
                assert isinstance(await error_of(careful.pods()), Unreachable)
            await careful.close()

    kubelet = on_kubelet(tmp_path, test)
    assert [requests.status for requests in kubelet.asked] == [
        200,
        200,
    ]  # no token to the unbelieved


def test_a_missing_ca_file_is_reported_with_its_path(tmp_path: Path) -> None:
    async def test(kubelet: FakeKubelet, client: KubeletClient) -> None:
        del kubelet
        assert "/nowhere/ca.crt" in str(await error_of(client.pods()))

    on_kubelet(tmp_path, test, ca_file="/nowhere/ca.crt")


def test_a_token_that_was_rotated_is_read_again_at_once(tmp_path: Path) -> None:
    async def test(kubelet: FakeKubelet, client: KubeletClient) -> None:
        kubelet.pods = [pod("a")]
        await client.pods()
        kubelet.users = {"another": "agent"}
        (tmp_path / "token").write_text("another")
        assert (await client.pods()).pods

    kubelet = on_kubelet(tmp_path, test)
    assert [requests.status for requests in kubelet.asked] == [200, 401, 200]


def test_a_token_that_stays_wrong_is_unauthorised(tmp_path: Path) -> None:
    async def test(kubelet: FakeKubelet, client: KubeletClient) -> None:
        kubelet.users = {}
        error = await error_of(client.pods())
        assert isinstance(error, Unauthorized)
        assert classify_error(error) == KUBELET_UNAUTHORISED
        assert TOKEN not in str(error)

    on_kubelet(tmp_path, test)


@pytest.mark.parametrize(
    ("rights", "fine_grained", "pods_known", "config_known"),
    [
        ({"nodes/pods", "nodes/configz"}, True, True, True),
        ({"nodes/pods"}, True, True, False),
        ({"nodes/proxy"}, True, True, True),
        ({"nodes/pods", "nodes/configz"}, False, False, False),
        ({"nodes/proxy"}, False, True, True),
        (set(), True, False, False),
    ],
)
def test_each_right_opens_what_the_kubelet_says_it_opens_and_a_lacking_one_is_named(
    tmp_path: Path, rights: set[str], fine_grained: bool, pods_known: bool, config_known: bool
) -> None:
    async def test(kubelet: FakeKubelet, client: KubeletClient) -> None:
        kubelet.pods, kubelet.config = [pod("a")], {"cgroupDriver": "systemd"}
        kubelet.rights["agent"], kubelet.fine_grained = rights, fine_grained
        for entries, ask, right in (
            (pods_known, client.pods, "nodes/pods"),
            (config_known, client.config, "nodes/configz"),
        ):
            if entries:
                assert await ask()
                continue
            error = await error_of(ask())
            assert isinstance(error, Forbidden)
            assert classify_error(error) == KUBELET_FORBIDDEN
            assert right in str(error)
            assert "nodes/proxy" in str(error)

    on_kubelet(tmp_path, test)


def test_the_read_only_port_is_spoken_to_without_a_token_and_has_no_settings(
    tmp_path: Path,
) -> None:
    kubelet = FakeKubelet(tmp_path, tls=False)
    kubelet.pods = [pod("a")]

    async def live() -> None:
        async with kubelet.running():
            client = client_of(kubelet, tmp_path, read_only_port=kubelet.port)
            assert (await client.pods()).pods
            assert await client.config() is None
            await client.close()

    asyncio.run(live())
    assert [(requests.path, requests.status) for requests in kubelet.asked] == [("/pods/", 200)]


def test_an_absent_kubelet_is_distinguished_from_a_hanging_one(tmp_path: Path) -> None:
    async def test(kubelet: FakeKubelet, client: KubeletClient) -> None:
        kubelet.faults["/pods/"] = HANG
        assert classify_error(await error_of(client.pods())) == KUBELET_HANGING
        await kubelet.stop()
        assert classify_error(await error_of(client.pods())) == KUBELET_ABSENT

    on_kubelet(tmp_path, test, timeout_s=2.0)


def test_a_restarted_kubelet_is_called_over_a_new_connection(tmp_path: Path) -> None:
    async def test(kubelet: FakeKubelet, client: KubeletClient) -> None:
        kubelet.pods = [pod("a")]
        await client.pods()
        await kubelet.stop()
        assert classify_error(await error_of(client.pods())) == KUBELET_ABSENT
        await kubelet.start()
        assert (await client.pods()).pods

    on_kubelet(tmp_path, test)


def test_without_an_address_of_the_node_no_request_is_made(tmp_path: Path) -> None:
    async def test(kubelet: FakeKubelet, client: KubeletClient) -> None:
        error = await error_of(client.pods())
        assert "ExternalIP" in str(error)
        assert classify_error(error) == KUBELET_ABSENT
        assert not kubelet.asked

    on_kubelet(tmp_path, test, address_type="ExternalIP")


@pytest.mark.parametrize("fault", [RESET, HALF])
def test_half_an_answer_is_none(tmp_path: Path, fault: str) -> None:
    async def test(kubelet: FakeKubelet, client: KubeletClient) -> None:
        kubelet.pods = [pod(f"pod-{number}") for number in range(500)]
        kubelet.faults["/pods/"] = fault
        assert isinstance(await error_of(client.pods()), Unreachable)

    on_kubelet(tmp_path, test)


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"{}", b'{"kind":"Status","items":[]}', b"\xff", b"[" * 5000]
)
@pytest.mark.parametrize("path", ["/pods/", "/configz"])
def test_an_answer_that_is_invalid_is_an_error(tmp_path: Path, body: bytes, path: str) -> None:
    async def test(kubelet: FakeKubelet, client: KubeletClient) -> None:
        kubelet.bodies[path] = body
        error = await error_of(client.pods() if path == "/pods/" else client.config())
        assert isinstance(error, BadResponse)
        assert classify_error(error) == KUBELET_FAILING

    on_kubelet(tmp_path, test)


def test_an_answer_of_any_size_costs_a_bounded_memory(tmp_path: Path) -> None:
    async def test(kubelet: FakeKubelet, client: KubeletClient) -> None:
        kubelet.bodies["/pods/"] = b'{"kind":"PodList","items":["' + b"x" * (17 << 20) + b'"]}'
        assert isinstance(await error_of(client.pods()), BadResponse)

    on_kubelet(tmp_path, test, timeout_s=PATIENCE_S)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, NotFound), (500, ServerError), (503, ServerError), (307, BadResponse)],
)
def test_a_status_that_is_no_success_is_an_error_of_its_class(
    tmp_path: Path, status: int, kind: type[ApiError]
) -> None:
    async def test(kubelet: FakeKubelet, client: KubeletClient) -> None:
        kubelet.statuses["/pods/"] = status
        error = await error_of(client.pods())
        assert type(error) is kind
        assert classify_error(error) == KUBELET_FAILING

    kubelet = on_kubelet(tmp_path, test)
    assert len(kubelet.asked) == 1  # a redirect is not followed
