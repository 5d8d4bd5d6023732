"""What a kubeconfig says, of each kind."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.kube.endpoint import KubeconfigTarget
from agent.kube.errors import NoApiServer
from agent.kube.kubeconfig import KubeconfigAccount, read_account
from tests.unit.kube_session.kubeconfigs import EXEC_API, SERVER, kubeconfig, plug_in, runs
from tests.unit.kube_session.servers import Authority


def test_a_token_is_a_bearers(tmp_path: Path) -> None:
    account = read_account(kubeconfig(tmp_path, {"token": "abc"}))
    assert (account.url, account.authorization) == (SERVER, "Bearer abc")
    assert account.renew_token is None


def test_a_password_is_a_basic_one(tmp_path: Path) -> None:
    account = read_account(kubeconfig(tmp_path, {"username": "u", "password": "p"}))
    assert account.authorization == "Basic dTpw"


def test_a_token_file_stays_a_file_found_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("abc")
    account = read_account(kubeconfig(tmp_path, {"tokenFile": "secret"}))
    assert account.token_file == str(tmp_path / "secret")
    assert read_account(kubeconfig(tmp_path, {"tokenFile": "/dev/null"})).token_file == "/dev/null"


def test_certificates_are_files_or_data(tmp_path: Path, authority: Authority) -> None:
    cert, key = authority.client_files("kubectl")
    ca = authority.ca_file
    by_file = read_account(
        kubeconfig(
            tmp_path,
            {"client-certificate": str(cert), "client-key": str(key)},
            {"certificate-authority": str(ca), "tls-server-name": "api.test"},
        )
    )
    assert by_file.tls.ca_file == str(ca)
    assert (by_file.tls.cert_file, by_file.tls.key_file) == (str(cert), str(key))
    assert (by_file.server_name, by_file.authorization) == ("api.test", None)
    assert not by_file.tls.insecure
    by_data = read_account(
        kubeconfig(
            tmp_path,
            {
                "client-certificate-data": base64.b64encode(cert.read_bytes()).decode(),
                "client-key-data": base64.b64encode(key.read_bytes()).decode(),
            },
            {"certificate-authority-data": base64.b64encode(ca.read_bytes()).decode()},
        )
    )
    assert Path(by_data.tls.ca_file).read_bytes() == ca.read_bytes()
    assert Path(by_data.tls.key_file).read_bytes() == key.read_bytes()


def test_tls_settings_and_proxies_of_a_cluster_are_used(tmp_path: Path) -> None:
    cluster = {"insecure-skip-tls-verify": True, "proxy-url": "http://p:3128"}
    account = read_account(kubeconfig(tmp_path, {}, cluster))
    assert account.tls.insecure
    assert (account.proxy, account.authorization) == ("http://p:3128", None)


def test_a_plug_in_gives_a_token(tmp_path: Path) -> None:
    account = read_account(kubeconfig(tmp_path, plug_in(tmp_path, {"token": "made"})))
    assert account.authorization == "Bearer made"
    assert account.renew_token is not None
    assert (account.renew_token(), runs(tmp_path)) == (
        "Bearer made",
        1,
    )  # it does not say till when


def test_a_plug_in_runs_again_when_its_token_has_expired(tmp_path: Path) -> None:
    status = {"token": "one", "expirationTimestamp": "2020-01-01T00:00:00Z"}
    account = read_account(kubeconfig(tmp_path, plug_in(tmp_path, status)))
    plug_in(tmp_path, {"token": "two", "expirationTimestamp": "2999-01-01T00:00:00Z"})
    assert account.renew_token is not None
    assert [account.renew_token(), account.renew_token()] == ["Bearer two", "Bearer two"]
    assert runs(tmp_path) == 2


def test_a_plug_in_gives_a_certificate(tmp_path: Path, authority: Authority) -> None:
    cert, key = authority.client_files("made")
    status = {"clientCertificateData": cert.read_text(), "clientKeyData": key.read_text()}
    account = read_account(kubeconfig(tmp_path, plug_in(tmp_path, status)))
    assert Path(account.tls.cert_file).read_text() == cert.read_text()
    assert account.authorization is None


@pytest.mark.parametrize(
    ("status", "says", "ends_with"),
    [
        ({"token": "x"}, "", 1),
        ({}, "", 0),
        (None, "", 0),
        ({"clientCertificateData": "x"}, "", 0),
        ({}, "no JSON", 0),
        ({}, '{"kind":"ExecCredential"}', 0),
    ],
)
def test_a_plug_in_that_gives_nothing_is_named(
    tmp_path: Path, status: object, says: str, ends_with: int
) -> None:
    user = plug_in(tmp_path, status, says=says, ends_with=ends_with)
    with pytest.raises(NoApiServer, match="gave no credentials") as caught:
        read_account(kubeconfig(tmp_path, user))
    assert str(tmp_path / "plug-in") in str(caught.value)


def test_a_plug_in_that_is_not_there_is_named(tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": EXEC_API, "command": "/nowhere/plug-in"}}
    with pytest.raises(NoApiServer, match="/nowhere/plug-in"):
        read_account(kubeconfig(tmp_path, user))


def test_several_files_are_one_and_the_first_one_wins(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    first = kubeconfig(tmp_path, {"token": "one"})
    second = kubeconfig(tmp_path / "b", {"token": "two"})
    both = KubeconfigTarget(paths=f"{tmp_path}/gone:{first.paths}:{second.paths}")
    assert read_account(both).authorization == "Bearer one"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "text",
        "apiVersion: v1",
        "{contexts: {}, current-context: x}",
        "{contexts: [{name: x}], current-context: x}",
        "{contexts: [{name: x, context: {cluster: c}}], current-context: x, clusters: []}",
        "{contexts: [{name: x, context: {cluster: c}}], current-context: x, "
        "clusters: [{name: c, cluster: {}}]}",
        "{contexts: [{name: x, context: {cluster: c}}], current-context: x, "
        "clusters: [{name: c, cluster: {server: 7}}]}",
        "{contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x, "
        "users: [{name: u, user: {token: 7}}], clusters: [{name: c, cluster: {server: 'https://x'}}]}",
    ],
)
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    target = KubeconfigTarget(paths=str(tmp_path / "config"))
    try:
        account = read_account(target)
    except NoApiServer as error:
        message = str(error)
    else:
        message = f"{target} {account.authorization}"  # 7 is as good a token as any
    assert str(tmp_path / "config") in message


def test_a_context_that_is_not_there_is_named(tmp_path: Path) -> None:
    target = kubeconfig(tmp_path, {"token": "secret-token"})
    with pytest.raises(NoApiServer, match="blue") as caught:
        read_account(KubeconfigTarget(paths=target.paths, context="blue"))
    assert "secret-token" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoApiServer, match="no such file"):
        read_account(KubeconfigTarget(paths=str(tmp_path / "gone")))


def test_without_the_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(NoApiServer, match=r"xpu-node-agent\[kubeconfig\]"):
        read_account(kubeconfig(tmp_path, {"token": "abc"}))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2)
    ),
    max_leaves=6,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    user=ANYTHING,
    key=st.sampled_from(["token", "exec", "auth-provider", "tokenFile", "client-certificate-data"]),
    server=ANYTHING,
)
def test_no_wrong_type_breaks_it(tmp_path: Path, user: object, key: str, server: object) -> None:
    target = kubeconfig(tmp_path, {key: user}, {"server": server})
    try:
        account = read_account(target)
    except NoApiServer as error:
        assert str(target) in str(error)  # noqa: PT017 - either is right
    else:
        assert isinstance(account, KubeconfigAccount)
        assert isinstance(yaml.safe_load(Path(target.paths).read_text()), dict)


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 20_000, "a: " + "9" * 5000 + "\n"])
def test_a_file_that_no_reader_takes_apart_is_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(NoApiServer, match="cannot be used"):
        read_account(KubeconfigTarget(paths=str(path)))
