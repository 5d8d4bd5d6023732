"""Rules that follow their files: certificates that are renewed, and files that cannot be used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import bcrypt
import pytest
import trustme

from agent.access.certificates import ACCEPT, REQUIRE, TlsConfig
from agent.access.rules import AccessFiles, AccessSettings
from agent.errors import BadConfig
from tests.unit.access.certificates import SecretVolume, write_pair

HASH = bcrypt.hashpw(b"p", bcrypt.gensalt(4)).decode()
AUTHORITY = trustme.CA()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def pair(folder: Path, **more: object) -> TlsConfig:
    files = {"cert_file": str(folder / "tls.crt"), "key_file": str(folder / "tls.key")}
    return TlsConfig(**{**files, **more})  # type: ignore[arg-type]  # of the struct


def test_an_exchanged_volume_is_read_again_and_an_unchanged_one_is_not(tmp_path: Path) -> None:
    volume = SecretVolume(tmp_path / "tls")
    volume.mount(AUTHORITY)

    async def test() -> None:
        files = AccessFiles(AccessSettings(tls=pair(volume.folder)))
        first = files.context
        await files.reread()
        assert files.context is first
        volume.mount(AUTHORITY)
        await files.reread()
        assert files.context is not first
        assert (files.reloads, files.check().ok) == (1, True)

    run(test)


@pytest.mark.parametrize("damage", ["half", "foreign key", "gone", "empty", "a folder"])
def test_a_broken_pair_leaves_the_old_one_in_force_and_says_so(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_pair(tmp_path, AUTHORITY)
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    async def test() -> None:
        files = AccessFiles(AccessSettings(tls=pair(tmp_path)))
        first = files.context
        if damage == "half":
            certificate.write_bytes(certificate.read_bytes()[:300])
        elif damage == "foreign key":
            key.write_bytes(AUTHORITY.issue_cert("b").private_key_pem.bytes())
        elif damage == "empty":
            certificate.write_bytes(b"")
        else:
            certificate.unlink()
            if damage == "a folder":
                certificate.mkdir()
        for _ in range(3):
            await files.reread()
        assert files.context is first
        check = files.check()
        assert not check.ok
        assert check.reason == "MetricsAccessStale"
        assert not check.gates_ready  # devices are published with an old certificate, too
        assert "tls.crt" in check.message
        reports = [one for one in caplog.records if one.message == "access_rules_not_read"]
        assert len(reports) == 1
        if damage == "a folder":
            certificate.rmdir()
        write_pair(tmp_path, AUTHORITY)
        await files.reread()
        assert files.context is not first
        assert files.check().ok

    run(test)


def test_a_web_configuration_follows_its_file_and_the_files_that_it_names(tmp_path: Path) -> None:
    write_pair(tmp_path, AUTHORITY)
    (tmp_path / "other").mkdir()
    write_pair(tmp_path / "other", AUTHORITY)
    config = tmp_path / "web.yaml"

    def text(folder: str, user: str) -> str:
        section = f"{{cert_file: {folder}tls.crt, key_file: {folder}tls.key}}"
        return f"tls_server_config: {section}\nbasic_auth_users: {{{user}: {HASH}}}\n"

    async def test() -> None:
        config.write_text(text("", "alice"))
        files = AccessFiles(AccessSettings(web_config_file=str(config)))
        assert set(files.rules.users) == {"alice"}
        config.write_text(text("other/", "bob"))
        await files.reread()
        assert set(files.rules.users) == {"bob"}
        before = files.context
        write_pair(tmp_path / "other", AUTHORITY)
        await files.reread()
        assert files.context is not before
        config.write_text("basic_auth_user: {}")
        await files.reread()
        assert set(files.rules.users) == {"bob"}
        assert "unknown field `basic_auth_user`" in files.check().message

    run(test)


@pytest.mark.parametrize("text", ["", "basic_auth_users: {}"])
def test_a_file_that_would_open_the_metrics_is_not_followed(tmp_path: Path, text: str) -> None:
    config = tmp_path / "web.yaml"
    config.write_text(f"basic_auth_users: {{alice: {HASH}}}")

    async def test() -> None:
        files = AccessFiles(AccessSettings(web_config_file=str(config)))
        config.write_text(text)
        await files.reread()
        assert set(files.rules.users) == {"alice"}
        assert "no credentials" in files.check().message

    run(test)


def test_tls_is_not_switched_by_a_changed_file(tmp_path: Path) -> None:
    write_pair(tmp_path, AUTHORITY)
    config = tmp_path / "web.yaml"
    section = "tls_server_config: {cert_file: tls.crt, key_file: tls.key}\n"
    users = f"basic_auth_users: {{alice: {HASH}}}\n"

    async def test() -> None:
        for first, second in ((section + users, users), (users, section + users)):
            config.write_text(first)
            files = AccessFiles(AccessSettings(web_config_file=str(config)))
            context = files.context
            config.write_text(second)
            await files.reread()
            assert files.context is context
            assert "by a restart only" in files.check().message

    run(test)


@pytest.mark.parametrize(
    ("tls", "message"),
    [
        ({"cert_file": "/none/tls.crt"}, "/none/tls.crt: No such file or directory"),
        ({"cert_file": "", "key_file": "/none"}, "metrics.tls: needs a certificate"),
        ({"client_ca_file": "/none"}, "asks clients for no certificate"),
        ({"client_auth": REQUIRE}, "needs the CA of clients"),
        ({"client_auth": ACCEPT, "client_ca_file": "/none"}, "/none: No such file"),
        ({"client_names": ("a",)}, "names of clients need"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path, tls: dict[str, object], message: str
) -> None:
    write_pair(tmp_path, AUTHORITY)
    with pytest.raises(BadConfig) as refusal:
        AccessFiles(AccessSettings(tls=pair(tmp_path, **tls)))
    assert message in str(refusal.value)


@pytest.mark.parametrize("days", [-3, 90])
def test_the_end_of_the_certificate_is_known_also_when_it_is_over(
    tmp_path: Path, days: int
) -> None:
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    begins = ends - timedelta(days=365)
    certificate = AUTHORITY.issue_cert("127.0.0.1", not_before=begins, not_after=ends)
    (tmp_path / "tls.crt").write_bytes(certificate.cert_chain_pems[0].bytes())
    (tmp_path / "tls.key").write_bytes(certificate.private_key_pem.bytes())
    files = AccessFiles(AccessSettings(tls=pair(tmp_path)))
    assert files.rules.expires_s == ends.timestamp()


def test_two_sources_of_tls_are_refused(tmp_path: Path) -> None:
    write_pair(tmp_path, AUTHORITY)
    config = tmp_path / "web.yaml"
    config.write_text("tls_server_config: {cert_file: tls.crt, key_file: tls.key}")
    with pytest.raises(BadConfig, match=r"metrics.tls is set as well"):
        AccessFiles(AccessSettings(tls=pair(tmp_path), web_config_file=str(config)))


def test_certificates_may_be_written_into_the_file_itself(tmp_path: Path) -> None:
    write_pair(tmp_path, AUTHORITY)
    certificate, key = ((tmp_path / name).read_text() for name in ("tls.crt", "tls.key"))
    tls = TlsConfig(
        cert=certificate,
        key=key,
        client_ca=AUTHORITY.cert_pem.bytes().decode(),
        client_auth=REQUIRE,
    )
    context = AccessFiles(AccessSettings(tls=tls)).context
    assert context is not None
    assert len(context.get_ca_certs()) == 1


def test_no_message_has_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_pair(tmp_path, AUTHORITY)
    key = (tmp_path / "tls.key").read_text()
    secret = key.splitlines()[1]
    with pytest.raises(BadConfig) as refusal:
        AccessFiles(AccessSettings(tls=TlsConfig(cert="no PEM", key=key)))
    assert secret not in str(refusal.value)
    assert secret not in caplog.text
