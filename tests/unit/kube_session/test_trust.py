"""Whom we believe, and what happens when that changes."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from agent.clock import ManualClock
from agent.kube.credentials import TlsContextCache, TlsFiles, tls_context
from agent.kube.errors import Unreachable
from tests.unit.kube_session.servers import Authority


def subjects(context: ssl.SSLContext) -> list[object]:
    return [certificate["subject"] for certificate in context.get_ca_certs()]


def test_tls_before_1_2_is_refused_and_names_are_checked(authority: Authority) -> None:
    context = tls_context(TlsFiles(ca_file=str(authority.ca_file)))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert len(subjects(context)) == 1  # nobody else's word counts


def test_believing_anybody_is_a_setting(authority: Authority) -> None:
    context = tls_context(TlsFiles(ca_file=str(authority.ca_file), insecure=True))
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


def test_a_bundle_is_read_again_when_it_changes(
    account: Path, authority: Authority, other_authority: Authority
) -> None:
    clock = ManualClock()
    files = TlsFiles(ca_file=str(account / "ca.crt"))

    async def run() -> None:
        trust = TlsContextCache(lambda: files, clock)
        first = await trust.context()
        clock.advance(60)
        assert await trust.context() is first  # looked at, and not changed
        both = authority.ca_file.read_bytes() + other_authority.ca_file.read_bytes()
        (account / "ca.crt").write_bytes(both)
        assert await trust.context() is first  # not looked at yet
        clock.advance(60)
        second = await trust.context()
        assert second is not first
        assert len(subjects(second)) == 2

    asyncio.run(run())


def test_after_an_untrusted_certificate_the_files_are_checked_at_once(
    account: Path, other_authority: Authority
) -> None:
    files = TlsFiles(ca_file=str(account / "ca.crt"))

    async def run() -> None:
        trust = TlsContextCache(lambda: files, ManualClock())
        first = await trust.context()
        (account / "ca.crt").write_bytes(other_authority.ca_file.read_bytes())
        trust.expire()
        assert await trust.context() is not first

    asyncio.run(run())


@pytest.mark.parametrize("content", [None, b"", b"no certificate", b"x" * (2 << 20)])
def test_a_bundle_that_cannot_be_used_leaves_the_one_before(
    account: Path, content: bytes | None
) -> None:
    file, clock = account / "ca.crt", ManualClock()
    files = TlsFiles(ca_file=str(file))

    async def run() -> None:
        trust = TlsContextCache(lambda: files, clock)
        first = await trust.context()
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        clock.advance(60)
        assert await trust.context() is first
        assert trust.read_errors == 1
        assert str(file) in trust.problem

    asyncio.run(run())


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_without_any_bundle_ever_nothing_is_believed(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "ca.crt"
    if content is not None:
        file.write_bytes(content)

    async def run() -> None:
        with pytest.raises(Unreachable, match="no server can be believed") as caught:
            await TlsContextCache(lambda: TlsFiles(ca_file=str(file)), ManualClock()).context()
        assert str(file) in str(caught.value)

    asyncio.run(run())


def test_other_files_of_a_plug_in_are_taken_at_once(account: Path, authority: Authority) -> None:
    cert, key = authority.client_files("agent")
    files = [TlsFiles(ca_file=str(account / "ca.crt"))]

    async def run() -> None:
        trust = TlsContextCache(lambda: files[-1], ManualClock())
        first = await trust.context()
        files.append(
            TlsFiles(ca_file=str(account / "ca.crt"), cert_file=str(cert), key_file=str(key))
        )
        assert await trust.context() is not first

    asyncio.run(run())


def test_many_calls_at_once_read_the_files_once(account: Path) -> None:
    files = TlsFiles(ca_file=str(account / "ca.crt"))

    async def run() -> None:
        trust = TlsContextCache(lambda: files, ManualClock())
        contexts = await asyncio.gather(*(trust.context() for _ in range(10)))
        assert len({id(context) for context in contexts}) == 1

    asyncio.run(run())


def test_a_locked_key_is_an_error_and_not_a_question(tmp_path: Path, authority: Authority) -> None:
    from cryptography.hazmat.primitives import serialization  # comes with trustme

    cert, key = authority.client_files("locked")
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    files = TlsFiles(ca_file=str(authority.ca_file), cert_file=str(cert), key_file=str(locked))
    with pytest.raises(ssl.SSLError):
        tls_context(files)
