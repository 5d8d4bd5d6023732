"""Sessions by kubeconfig at a real API server, beside the independent client with the same file."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import yaml

from agent.clock import ManualClock
from agent.kube.api import ApiRequest
from agent.kube.endpoint import InClusterTarget, KubeconfigTarget, find_api_target
from agent.kube.errors import Forbidden, NotFound, Unauthorized, Unreachable
from agent.kube.resources import NODES
from agent.kube.session import open_session
from tests.apiserver import ApiServer, Fault
from tests.patience import PATIENCE_S
from tests.unit.kube_session.conftest import authority
from tests.unit.kube_session.kubeconfigs import kubeconfig, plug_in, runs
from tests.unit.kube_session.servers import Authority

__all__ = ["authority"]

NODE = ApiRequest(method="GET", path=NODES.path("node-a"), deadline_s=PATIENCE_S)


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with ApiServer(nodes=("node-a",)) as server:
        yield server


def session_answers(
    target: KubeconfigTarget | InClusterTarget, *requests: ApiRequest
) -> list[Mapping[str, Any]]:
    """Return what our session gets for these requests."""

    async def run() -> list[Mapping[str, Any]]:
        session = await open_session(target, ManualClock(), {})
        try:
            return [json.loads((await session.call(request)).body) for request in requests]
        finally:
            await session.close()

    return asyncio.run(run())


def theirs(target: KubeconfigTarget) -> Mapping[str, Any]:
    """Return what the Python client gets for the Node with the same file."""
    client_of: Any = kubernetes.config.new_client_from_config  # has no types
    core: Any = kubernetes.client.CoreV1Api(client_of(target.paths, persist_config=False))
    response = core.read_node("node-a", _preload_content=False)
    body: Mapping[str, Any] = json.loads(response.data)
    return body


def kubeconfig_of(api: ApiServer, folder: Path, user: Mapping[str, object]) -> KubeconfigTarget:
    data = base64.b64encode(api.ca_file.read_bytes()).decode()
    return kubeconfig(folder, user, {"server": api.url, "certificate-authority-data": data})


def token_of(api: ApiServer) -> str:
    config = yaml.safe_load(api.kubeconfig.read_text())
    token: str = config["users"][0]["user"]["token"]
    return token


@pytest.mark.parametrize("kind", ["token", "tokenFile", "exec", "of the server"])
def test_each_kind_of_kubeconfig_gets_what_the_independent_client_gets(
    api: ApiServer, tmp_path: Path, kind: str
) -> None:
    token = token_of(api)
    (tmp_path / "token").write_text(token)
    users: dict[str, Mapping[str, object]] = {
        "token": {"token": token},
        "tokenFile": {"tokenFile": "token"},
        "exec": plug_in(tmp_path, {"token": token}),
    }
    target = KubeconfigTarget(paths=str(api.kubeconfig))
    if kind in users:
        target = kubeconfig_of(api, tmp_path, users[kind])
    (node,) = session_answers(target, NODE)
    assert node["metadata"]["name"] == "node-a"
    assert node == theirs(target)


def test_a_pods_account_is_found_by_its_environment(api: ApiServer) -> None:
    environ = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(api.port),
        "XPU_AGENT_SERVICE_ACCOUNT": str(api.serviceaccount_dir),
    }
    target = find_api_target(environ)
    (node,) = session_answers(target, NODE)
    assert node["metadata"]["name"] == "node-a"


def test_a_rotated_token_goes_unnoticed(api: ApiServer) -> None:
    async def run() -> None:
        target = InClusterTarget(url=api.url, folder=str(api.serviceaccount_dir))
        session = await open_session(target, ManualClock(), {})
        await session.call(NODE)
        api.rotate_token()
        await session.call(NODE)
        assert session.state.requests == {("GET", "200"): 2}
        assert session.state.retries == 1
        await session.close()

    asyncio.run(run())


def test_a_plug_in_runs_again_after_a_401(api: ApiServer, tmp_path: Path) -> None:
    async def run() -> None:
        clock = ManualClock()
        target = kubeconfig_of(api, tmp_path, plug_in(tmp_path, {"token": "out of date"}))
        session = await open_session(target, clock, {})
        with pytest.raises(Unauthorized):
            await session.call(NODE)
        plug_in(tmp_path, {"token": token_of(api)})
        clock.advance(10)
        await session.call(NODE)
        assert runs(tmp_path) == 2
        await session.close()

    asyncio.run(run())


def test_the_kubeconfig_of_another_authority_is_out_of_reach(
    api: ApiServer, tmp_path: Path, authority: Authority
) -> None:
    cluster = {"server": api.url, "certificate-authority": str(authority.ca_file)}
    target = kubeconfig(tmp_path, {"token": "x"}, cluster)
    with pytest.raises(Unreachable, match=str(authority.ca_file)):
        session_answers(target, NODE)


def test_a_server_that_is_not_to_be_verified_is_not(api: ApiServer, tmp_path: Path) -> None:
    cluster = {"server": api.url, "insecure-skip-tls-verify": True}
    (node,) = session_answers(kubeconfig(tmp_path, {"token": token_of(api)}, cluster), NODE)
    assert node["metadata"]["name"] == "node-a"


def test_a_proxy_of_the_kubeconfig_is_gone_by(api: ApiServer, tmp_path: Path) -> None:
    cluster = {"server": "https://api.test:6443", "proxy-url": "http://us:pass@127.0.0.1:1"}
    with pytest.raises(Unreachable, match=r"the proxy http://127\.0\.0\.1:1: ") as caught:
        session_answers(kubeconfig(tmp_path, {"token": token_of(api)}, cluster), NODE)
    assert "pass" not in str(caught.value)


def test_what_the_server_refuses_has_its_words(api: ApiServer) -> None:
    target = KubeconfigTarget(paths=str(api.kubeconfig))
    with pytest.raises(NotFound, match='nodes "gone" not found') as missing:
        session_answers(target, ApiRequest(method="GET", path=NODES.path("gone")))
    assert (missing.value.code, missing.value.reason) == (404, "NotFound")
    fault = api.faults.add(Fault(status=403, message="not you", reason="Forbidden"))
    with pytest.raises(Forbidden, match="not you"):
        session_answers(target, NODE)
    api.faults.remove(fault)


def jwt(expires_s: float) -> str:
    def part(body: Mapping[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(body).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'})}.{part({'exp': int(expires_s)})}.c2ln"


class Issuer(http.server.BaseHTTPRequestHandler):
    """An OIDC issuer that gives one token for each refresh token."""

    token = ""

    def do_GET(self) -> None:
        host = self.headers["Host"]
        self._respond({"issuer": f"https://{host}", "token_endpoint": f"https://{host}/token"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        assert "refresh_token=refresh-1" in body
        answer = {"id_token": self.token, "refresh_token": "refresh-2", "access_token": "a"}
        self._respond({**answer, "token_type": "bearer", "expires_in": 3600})

    def _respond(self, body: Mapping[str, object]) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Say nothing."""


def test_an_oidc_token_that_has_expired_is_renewed_and_the_next_refresh_token_is_kept(
    api: ApiServer, tmp_path: Path, authority: Authority
) -> None:
    Issuer.token = jwt(time.time() + 3600)
    api.access.users[Issuer.token] = "kubernetes-admin"
    issuer = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Issuer)
    issuer.socket = authority.server.wrap_socket(issuer.socket, server_side=True)
    thread = threading.Thread(target=issuer.serve_forever)
    thread.start()
    try:
        provider = {
            "idp-issuer-url": f"https://127.0.0.1:{issuer.server_address[1]}",
            "idp-certificate-authority": str(authority.ca_file),
            "client-id": "xpu",
            "client-secret": "s",
            "id-token": jwt(time.time() - 3600),
            "refresh-token": "refresh-1",
        }
        user = {"auth-provider": {"name": "oidc", "config": provider}}
        target = kubeconfig_of(api, tmp_path, user)
        (node,) = session_answers(target, NODE)
    finally:
        issuer.shutdown()
        thread.join()
        issuer.server_close()
    assert node["metadata"]["name"] == "node-a"
    stored_user = yaml.safe_load(Path(target.paths).read_text())["users"][0]["user"]
    assert stored_user["auth-provider"]["config"]["refresh-token"] == "refresh-2"
    assert theirs(target) == node
