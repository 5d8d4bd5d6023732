"""TLS of the extender: renewed certificates, and clients by name."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme
from aiohttp import ClientConnectionError, ClientSession

from agent.errors import BadConfig
from plugins.scheduler.server.http_server import ExtenderServer, Term, tls_context, tls_files
from plugins.scheduler.server.settings import TlsSettings
from tests.unit.access.certificates import SecretVolume, client_context

AUTHORITY, CLIENTS = trustme.CA(), trustme.CA()
NAME = "kube-scheduler"


class Silent:
    """A replica that is not the leader."""

    def current_term(self) -> Term | None:
        return None

    def why_silent(self) -> str:
        return "a test"


async def status(url: str, context: ssl.SSLContext) -> int:
    async with ClientSession() as session, session.get(url, ssl=context) as answer:
        return answer.status


def test_each_handshake_uses_the_present_files_and_only_named_clients_are_served(
    tmp_path: Path,
) -> None:
    volume = SecretVolume(tmp_path / "tls")
    volume.mount(AUTHORITY, ca_crt=CLIENTS.cert_pem.bytes())
    folder = volume.folder
    settings = TlsSettings(
        cert_file=str(folder / "tls.crt"),
        key_file=str(folder / "tls.key"),
        client_ca_file=str(folder / "ca.crt"),
        client_names=[NAME],
    )
    renewed, other_clients = trustme.CA(), trustme.CA()

    async def test() -> None:
        files = tls_files(settings)
        assert files is not None
        server = ExtenderServer(Silent(), tls_context(files), settings.client_names)
        url = await server.open("127.0.0.1", 0) + "/livez"
        try:
            assert await status(url, client_context(AUTHORITY, CLIENTS, NAME)) == 200
            assert await status(url, client_context(AUTHORITY, CLIENTS, "other")) == 403
            with pytest.raises(ClientConnectionError):
                await status(url, client_context(AUTHORITY))
            volume.mount(renewed, ca_crt=other_clients.cert_pem.bytes())
            await files.reread()
            assert await status(url, client_context(renewed, other_clients, NAME)) == 200
            with pytest.raises(ClientConnectionError):
                await status(url, client_context(renewed, CLIENTS, NAME))
            volume.mount(AUTHORITY, tls_key=b"broken", ca_crt=CLIENTS.cert_pem.bytes())
            await files.reread()
            assert await status(url, client_context(renewed, other_clients, NAME)) == 200
        finally:
            await server.close()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_names_without_an_authority_are_wrong_settings() -> None:
    with pytest.raises(BadConfig, match=r"tls.client_names: needs tls.client_ca_file"):
        tls_files(TlsSettings(cert_file="a", key_file="b", client_names=[NAME]))
