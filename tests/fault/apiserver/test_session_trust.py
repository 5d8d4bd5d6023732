"""Certificates of a server that is not the one we mean, or cannot prove it."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from pathlib import Path

import pytest

from agent.clock import ManualClock, SystemClock
from agent.kube.credentials import TlsContextCache, TlsFiles
from agent.kube.endpoint import Endpoint
from agent.kube.errors import ApiError, Unreachable
from agent.kube.session import ApiSession
from tests.fault.anonymous import Anonymous
from tests.unit.kube_session.conftest import account, authority, other_authority
from tests.unit.kube_session.servers import (
    GET,
    OK,
    Authority,
    ServedRequest,
    serving,
    session_with,
)

__all__ = ["account", "authority", "other_authority"]


async def fine(request: ServedRequest) -> None:
    await request.answer(OK)


def distrusted(account: Path, tls: ssl.SSLContext | None) -> ApiError:
    async def run() -> ApiError:
        async with serving(fine, tls) as server, session_with(server.url, account) as session:
            with pytest.raises(ApiError) as caught:
                await session.call(GET)
            assert server.requests == []  # neither the token nor anything else went there
            assert server.url in str(caught.value)
            return caught.value

    error = asyncio.run(run())
    assert isinstance(error, Unreachable)
    return error


def test_a_wrong_ca_is_out_of_reach_and_says_whose_ca_was_expected(
    account: Path, other_authority: Authority
) -> None:
    error = distrusted(account, other_authority.server)
    assert f"is not signed by the CA in {account}/ca.crt" in str(error)


def test_a_certificate_for_another_name_is_out_of_reach_and_says_so(
    account: Path, authority: Authority
) -> None:
    error = distrusted(account, authority.context("other.test"))
    assert "its certificate is for another name" in str(error)
    assert "127.0.0.1" in str(error)


def test_an_expired_certificate_is_out_of_reach_and_points_at_the_clock(
    account: Path, authority: Authority
) -> None:
    long_ago = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    error = distrusted(account, authority.context("127.0.0.1", not_after=long_ago))
    assert "has expired" in str(error)
    assert "clock" in str(error)


def test_a_server_without_tls_is_out_of_reach(account: Path) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent no HTTP request")
        writer.close()

    async def run() -> None:
        listener = await asyncio.start_server(refuse, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        async with listener, session_with(f"https://127.0.0.1:{port}", account) as session:
            with pytest.raises(Unreachable, match="no TLS"):
                await session.call(GET)

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_a_server_of_old_tls_only_is_out_of_reach(account: Path, authority: Authority) -> None:
    old = authority.context("127.0.0.1")
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    distrusted(account, old)


def test_an_authority_that_was_replaced_is_believed_at_the_next_call(
    account: Path, authority: Authority, other_authority: Authority
) -> None:
    async def run() -> None:
        (account / "ca.crt").write_bytes(other_authority.ca_file.read_bytes())
        async with (
            serving(fine, authority.server) as server,
            session_with(server.url, account, ManualClock()) as session,
        ):
            with pytest.raises(Unreachable):
                await session.call(GET)
            (account / "ca.crt").write_bytes(authority.ca_file.read_bytes())
            await session.call(GET)

    asyncio.run(run())


def test_connections_stay_while_the_bundle_is_renewed_and_new_ones_use_the_new_one(
    account: Path, authority: Authority, other_authority: Authority
) -> None:
    clock = ManualClock()

    async def run() -> None:
        async with (
            serving(fine, authority.server) as server,
            session_with(server.url, account, clock) as session,
        ):
            await session.call(GET)
            async with session.stream(GET, 20):
                both = authority.ca_file.read_bytes() + other_authority.ca_file.read_bytes()
                (account / "ca.crt").write_bytes(both)
                clock.advance(60)
                await session.call(GET)
            assert server.connections == 2

    asyncio.run(run())


def session_of(url: str, files: TlsFiles, server_name: str = "") -> ApiSession:
    clock = SystemClock()
    endpoint = Endpoint(url=url, server_name=server_name)
    return ApiSession(endpoint, Anonymous(), TlsContextCache(lambda: files, clock), clock)


def test_a_server_may_be_known_by_another_name(authority: Authority) -> None:
    async def run() -> None:
        files = TlsFiles(ca_file=str(authority.ca_file))
        async with serving(fine, authority.context("api.test")) as server:
            session = session_of(server.url, files, server_name="api.test")
            await session.call(GET)
            await session.close()

    asyncio.run(run())


def test_any_certificate_is_accepted_if_the_settings_say_so(other_authority: Authority) -> None:
    async def run() -> None:
        async with serving(fine, other_authority.server) as server:
            session = session_of(server.url, TlsFiles(insecure=True))
            await session.call(GET)
            await session.close()

    asyncio.run(run())


def test_a_client_certificate_identifies_the_agent(authority: Authority) -> None:
    asking = authority.context("127.0.0.1")
    asking.verify_mode = ssl.CERT_REQUIRED
    authority.ca.configure_trust(asking)
    cert, key = authority.client_files("agent")

    async def run() -> None:
        async with serving(fine, asking) as server:
            session = session_of(
                server.url,
                TlsFiles(ca_file=str(authority.ca_file), cert_file=str(cert), key_file=str(key)),
            )
            await session.call(GET)
            await session.close()
            nobody = session_of(server.url, TlsFiles(ca_file=str(authority.ca_file)))
            with pytest.raises(Unreachable):
                await nobody.call(GET)
            await nobody.close()

    asyncio.run(run())
