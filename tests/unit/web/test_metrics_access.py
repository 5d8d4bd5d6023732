"""The HTTP server with TLS and credentials: who reads the metrics, and who reads the rest."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import bcrypt
import pytest
import trustme
from aiohttp import ClientConnectionError, ClientSession

from agent.access import connections
from agent.access.certificates import ACCEPT, CHECK_IF_SENT, NO_CERTIFICATES, REQUIRE, TlsConfig
from agent.access.connections import MAX_CONNECTIONS
from agent.access.decision import CheckFailed, TokenUser
from agent.access.gate import AccessGate
from agent.access.rules import AccessFiles, AccessSettings
from agent.config.address import ListenAddress
from agent.errors import BadConfig
from agent.web.http_server import HttpServer
from tests.unit.access.certificates import SecretVolume, client_context, write_pair
from tests.unit.web.view import StillView, eight_cards

AUTHORITY, CLIENTS, STRANGERS = trustme.CA(), trustme.CA(), trustme.CA()
NAME = "prometheus.monitoring.svc"
HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
ALICE = {"Authorization": "Basic " + base64.b64encode(b"alice:secret").decode()}
GUESS = {"Authorization": "Basic " + base64.b64encode(b"alice:guess").decode()}
OPEN_PATHS = ("/livez", "/readyz")


class Tokens:
    """An API server that knows two tokens."""

    async def review_token(self, token: str) -> TokenUser | None:
        if token == "down":
            raise CheckFailed("the API server does not answer")
        return TokenUser(name=token) if token in ("reader", "other") else None

    async def review_access(self, user: TokenUser, path: str) -> bool:
        return user.name == "reader" and path == "/metrics"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def settings(
    folder: Path, users: bool = False, tokens: bool = False, **tls: object
) -> AccessSettings:
    """Write the files, and return settings that name them."""
    write_pair(folder, AUTHORITY)
    (folder / "ca.crt").write_bytes(CLIENTS.cert_pem.bytes())
    config = folder / "web.yaml"
    config.write_text(f"basic_auth_users: {{alice: {HASH}}}" if users else "")
    if tls.get("client_auth", NO_CERTIFICATES) != NO_CERTIFICATES:
        tls["client_ca_file"] = str(folder / "ca.crt")
    files = {"cert_file": str(folder / "tls.crt"), "key_file": str(folder / "tls.key")}
    return AccessSettings(
        tls=TlsConfig(**{**files, **tls}),  # type: ignore[arg-type]  # of the struct
        web_config_file=str(config) if users else "",
        tokens=tokens,
    )


@asynccontextmanager
async def site(files: AccessFiles, *more: ListenAddress) -> AsyncIterator[tuple[str, list[int]]]:
    """Serve at a loopback address, and at others; yield the URL and all ports."""
    server = HttpServer((ListenAddress("127.0.0.1", 0), *more), lambda: files.context)
    gate = AccessGate(files, Tokens() if files.rules.tokens else None)
    url = await server.open(StillView(eight_cards()), gate)
    try:
        yield url, [listener.port for listener in server._listeners]
    finally:
        await server.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


async def status(
    url: str, context: ssl.SSLContext | bool, headers: dict[str, str] | None = None
) -> int:
    async with ClientSession() as session, session.get(url, ssl=context, headers=headers) as answer:
        await answer.read()
        return answer.status


@pytest.mark.parametrize("client_auth", [NO_CERTIFICATES, CHECK_IF_SENT, ACCEPT, REQUIRE])
@pytest.mark.parametrize("users", [False, True], ids=["", "users"])
@pytest.mark.parametrize("tokens", [False, True], ids=["", "tokens"])
def test_each_set_of_credentials_reads_what_the_rules_allow(
    tmp_path: Path, client_auth: str, users: bool, tokens: bool
) -> None:
    nobody = client_context(AUTHORITY)
    named = client_context(AUTHORITY, CLIENTS, NAME)
    others = client_context(AUTHORITY, CLIENTS, "somebody.else")
    names = (NAME,) if client_auth in (ACCEPT, REQUIRE) else ()
    wanted = settings(
        tmp_path, users=users, tokens=tokens, client_auth=client_auth, client_names=names
    )
    has_header = users or tokens

    async def test() -> None:
        files = AccessFiles(wanted)
        async with site(files) as (url, _):
            assert url.startswith("https://")
            for path in OPEN_PATHS:  # of the kubelet, which has no credentials
                assert await status(url + path[1:], nobody) == 200
            for context, sent in ((nobody, False), (named, True), (others, False)):
                for headers in ({}, ALICE, GUESS, bearer("reader"), bearer("other"), bearer("no")):
                    answer = await status(url + "metrics", context, headers)
                    is_right = (users and headers == ALICE) or (
                        tokens and headers == bearer("reader")
                    )
                    allowed = (
                        (not has_header or is_right)
                        if client_auth in (NO_CERTIFICATES, CHECK_IF_SENT)
                        else (is_right or sent)
                        if client_auth == ACCEPT
                        else sent and (not has_header or is_right)
                    )
                    assert (answer == 200) == allowed, (sent, headers, answer)
                    assert answer in (200, 401, 403)
                    if not allowed and tokens and headers == bearer("other"):
                        assert answer == 403

    run(test)


def test_a_certificate_of_strangers_is_no_certificate(tmp_path: Path) -> None:
    strangers = client_context(AUTHORITY, STRANGERS, NAME)

    async def test() -> None:
        files = AccessFiles(settings(tmp_path, client_auth=REQUIRE))
        async with site(files) as (url, _):
            with pytest.raises(ClientConnectionError):
                await status(url + "metrics", strangers)
            assert await status(url + "metrics", client_context(AUTHORITY)) == 403

    run(test)


def test_the_page_stays_with_clients_of_this_machine_whatever_they_present(tmp_path: Path) -> None:
    async def test() -> None:
        files = AccessFiles(settings(tmp_path, users=True))
        async with site(files, ListenAddress("127.0.0.1", 0)) as (url, ports):
            context = client_context(AUTHORITY)
            assert await status(url, context) == 200
            foreign = {**ALICE, "Host": "node-1:9316"}
            assert await status(url, context, foreign) == 403
            # the address for port-forward has no TLS, and the same rule for the metrics
            page = f"http://127.0.0.1:{ports[1]}/"
            assert await status(page, True) == 200
            assert await status(page + "metrics", True) == 401
            assert await status(page + "metrics", True, ALICE) == 200

    run(test)


@pytest.mark.parametrize(("host", "is_plain"), [("localhost", True), ("0.0.0.0", False)])
def test_a_second_address_is_plain_on_the_loopback_only(
    tmp_path: Path, host: str, is_plain: bool
) -> None:
    async def test() -> None:
        files = AccessFiles(settings(tmp_path, users=True))
        async with site(files, ListenAddress(host, 0)) as (_, ports):
            context = client_context(AUTHORITY)
            url = f"http{'' if is_plain else 's'}://127.0.0.1:{ports[1]}/livez"
            assert await status(url, context) == 200

    run(test)


def test_the_challenge_names_the_schemes_and_the_api_server_down_closes(tmp_path: Path) -> None:
    async def test() -> None:
        files = AccessFiles(settings(tmp_path, users=True, tokens=True))
        context = client_context(AUTHORITY)
        async with site(files) as (url, _), ClientSession() as session:
            async with session.get(url + "metrics", ssl=context) as answer:
                assert answer.status == 401
                assert answer.headers["WWW-Authenticate"] == 'Bearer, Basic realm="metrics"'
            async with session.get(url + "metrics", ssl=context, headers=bearer("down")) as answer:
                assert answer.status == 503
                assert answer.headers["Retry-After"]
            assert await status(url + "metrics", context, bearer("reader")) == 200

    run(test)


def test_tokens_without_an_api_server_are_wrong_settings(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="needs a cluster"):
        AccessGate(AccessFiles(settings(tmp_path, tokens=True)))


def test_a_new_connection_gets_the_renewed_certificate(tmp_path: Path) -> None:
    volume = SecretVolume(tmp_path / "tls")
    volume.mount(AUTHORITY)
    renewed = trustme.CA()
    tls = TlsConfig(
        cert_file=str(volume.folder / "tls.crt"), key_file=str(volume.folder / "tls.key")
    )

    async def test() -> None:
        files = AccessFiles(AccessSettings(tls=tls))
        async with site(files) as (url, _):
            assert await status(url + "metrics", client_context(AUTHORITY)) == 200
            volume.mount(renewed)
            await files.reread()
            assert await status(url + "metrics", client_context(renewed)) == 200
            with pytest.raises(ClientConnectionError):
                await status(url + "metrics", client_context(AUTHORITY))

    run(test)


def test_a_client_that_an_earlier_authority_let_in_has_to_come_again(tmp_path: Path) -> None:
    wanted = settings(tmp_path, client_auth=REQUIRE)
    client = client_context(AUTHORITY, CLIENTS, NAME)

    async def test() -> None:
        files = AccessFiles(wanted)
        async with site(files) as (url, _), ClientSession() as session:

            async def scrape() -> tuple[int, str]:
                async with session.get(url + "metrics", ssl=client) as answer:
                    await answer.read()
                    return answer.status, answer.headers.get("Connection", "")

            assert await scrape() == (200, "")
            (tmp_path / "ca.crt").write_bytes(STRANGERS.cert_pem.bytes())
            await files.reread()
            assert await scrape() == (200, "close")
            with pytest.raises(ClientConnectionError):
                await scrape()

    run(test)


def test_headers_and_the_rate_of_the_file_apply_to_the_metrics_only(tmp_path: Path) -> None:
    config = tmp_path / "web.yaml"
    header = "http_server_config: {headers: {Content-Security-Policy: script-src *}}"
    config.write_text(f"{header}\nrate_limit: {{interval: 1h, burst: 2}}\n")

    async def test() -> None:
        files = AccessFiles(AccessSettings(web_config_file=str(config)))
        async with site(files) as (url, _), ClientSession() as session:
            assert url.startswith("http://")
            async with session.get(url + "metrics") as answer:
                assert answer.headers["Content-Security-Policy"] == "script-src *"
            async with session.get(url) as answer:
                assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
            assert await status(url + "metrics", True) == 200
            assert await status(url + "metrics", True) == 429
            assert await status(url + "livez", True) == 200

    run(test)


@pytest.mark.parametrize(
    "sent",
    [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"],
    ids=["nothing", "half", "plain"],
)
def test_handshakes_that_do_not_end_keep_nobody_out(
    tmp_path: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_S", 3600.0)

    async def test() -> None:
        files = AccessFiles(settings(tmp_path))
        async with site(files) as (url, ports):
            peers = []
            for _ in range(3 * MAX_CONNECTIONS):
                peer = socket.create_connection(("127.0.0.1", ports[0]), timeout=30)
                peer.sendall(sent)
                peers.append(peer)
                await asyncio.sleep(0)
            assert await status(url + "livez", client_context(AUTHORITY)) == 200
            for peer in peers:
                peer.close()

    run(test)


def test_a_handshake_has_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_S", 0.1)

    async def test() -> None:
        files = AccessFiles(settings(tmp_path))
        async with site(files) as (_, ports):
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[0])
            assert await reader.read() == b""
            writer.close()

    run(test)


def test_a_peer_that_reads_no_encrypted_answer_is_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 0.4)

    async def test() -> None:
        files = AccessFiles(settings(tmp_path))
        async with site(files) as (_, ports):
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.settimeout(30)
            raw.connect(("127.0.0.1", ports[0]))

            def ask_for_ever() -> None:
                peer = client_context(AUTHORITY).wrap_socket(raw, server_hostname="127.0.0.1")
                request = b"GET /api/v1/snapshot HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100
                while True:
                    peer.sendall(request)

            with pytest.raises(OSError, match=r"reset|Broken pipe|EOF|closed"):
                await asyncio.to_thread(ask_for_ever)
            raw.close()

    run(test)
