"""Files of Prometheus' exporter-toolkit: what is read, and what is refused by which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.access.certificates import CHECK_IF_SENT, REQUIRE
from agent.access.web_config import parse_web_config, read_web_config
from agent.errors import BadConfig

HASH = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG"
CA = "client_ca_file: a, client_auth_type"
PAIR = "cert_file: tls.crt, key_file: /keys/tls.key"

WHOLE = f"""
tls_server_config:
  cert_file: tls.crt
  key_file: /keys/tls.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.crt
  client_allowed_sans: [prometheus.monitoring.svc, "spiffe://a/b"]
  min_version: TLS13
  max_version: TLS13
  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]
  prefer_server_cipher_suites: true
  curve_preferences: [X25519]
http_server_config:
  http2: true
  headers:
    Strict-Transport-Security: max-age=63072000
    X-Frame-Options: deny
    X-XSS-Protection: ""
basic_auth_users:
  alice: {HASH}
rate_limit:
  interval: 1m0.5s
  burst: 20
"""


def test_every_key_of_the_format_is_read() -> None:
    config = parse_web_config(WHOLE.encode(), "/etc/web")
    tls = config.tls
    assert tls.files == ("/etc/web/tls.crt", "/keys/tls.key", "/etc/web/ca.crt")
    assert tls.client_auth == REQUIRE
    assert tls.client_names == ("prometheus.monitoring.svc", "spiffe://a/b")
    assert (tls.min_version, tls.max_version) == ("TLS13", "TLS13")
    # suites of TLS 1.3 cannot be chosen, in Go neither
    assert tls.ciphers == ("ECDHE-RSA-AES128-GCM-SHA256",)
    assert tls.curve == "X25519"
    assert config.headers == {
        "Strict-Transport-Security": "max-age=63072000",
        "X-Frame-Options": "deny",
    }
    assert config.users == {"alice": HASH}
    assert (config.interval_s, config.burst) == (60.5, 20)


@pytest.mark.parametrize("text", ["", "{}", "basic_auth_users:\n", "http_server_config: {}\n"])
def test_a_file_without_content_asks_for_nothing(text: str) -> None:
    config = parse_web_config(text.encode(), "/")
    assert not config.tls.is_on
    assert not config.users


def test_a_certificate_that_is_checked_if_sent_is_no_credential() -> None:
    text = f"tls_server_config: {{{PAIR}, {CA}: VerifyClientCertIfGiven}}"
    assert parse_web_config(text.encode(), "/").tls.client_auth == CHECK_IF_SENT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tls_server_conf: {}", "unknown field `tls_server_conf`"),
        ("tls_server_config: {cert: a, certfile: b}", "unknown field `certfile`"),
        ("http_server_config: {http3: true}", "unknown field `http3`"),
        ("rate_limit: {interval: 1s, bursts: 2}", "unknown field `bursts`"),
        ("[]", "Expected `object`, got `array`"),
        ("a: [", "line 1: not YAML"),
        ("tls_server_config: {cert_file: a}", "missing one of key or key_file"),
        ("tls_server_config: {key_file: a}", "needs a certificate"),
        (f"tls_server_config: {{{PAIR}, cert: x}}", "cert and cert_file: give one"),
        (f"tls_server_config: {{{PAIR}, client_ca_file: a}}", "asks clients for no certificate"),
        (
            f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert}}",
            "needs the CA of clients",
        ),
        (
            f"tls_server_config: {{{PAIR}, {CA}: RequireAnyClientCert}}",
            "anybody made: use RequireAndVerifyClientCert",
        ),
        (f"tls_server_config: {{{PAIR}, client_auth_type: Some}}", "'Some' is not one of"),
        (f"tls_server_config: {{{PAIR}, client_allowed_sans: [a]}}", "need a certificate that"),
        (f"tls_server_config: {{{PAIR}, min_version: SSL3}}", "Invalid enum value 'SSL3'"),
        (f"tls_server_config: {{{PAIR}, min_version: TLS13, max_version: TLS12}}", "above"),
        (f"tls_server_config: {{{PAIR}, cipher_suites: [RC4]}}", "'RC4' is not one of"),
        (f"tls_server_config: {{{PAIR}, curve_preferences: [P1]}}", "'P1' is not one of"),
        (
            f"tls_server_config: {{{PAIR}, curve_preferences: [X25519, CurveP256]}}",
            "can prefer one curve",
        ),
        ("http_server_config: {headers: {Server: x}}", "'Server' is not one of"),
        ("http_server_config: {headers: {X-Frame-Options: maybe}}", "'maybe' is not allowed"),
        ('http_server_config: {headers: {X-XSS-Protection: "a\\r\\nB: c"}}', "is not allowed"),
        ("basic_auth_users: {alice: secret}", "basic_auth_users.alice: must be a bcrypt hash"),
        (f"basic_auth_users: {{alice: {HASH.replace('$10', '$31')}}}", "cost 31 is not in 4 to"),
        ("basic_auth_users: {alice: 1}", "Expected `str`, got `int`"),
        ("rate_limit: {interval: 1 second, burst: 1}", "'1 second' is no duration"),
        ("rate_limit: {interval: 1s}", "rate_limit.burst: must be 1 at least"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_name(text: str, message: str) -> None:
    with pytest.raises(BadConfig) as refusal:
        parse_web_config(text.encode(), "/etc")
    assert message in str(refusal.value)
    assert "secret" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("interval", "seconds"),
    [("1s", 1.0), ("1h2m", 3720.0), ("250ms", 0.25), ("0", 0.0), ("1000000000", 1.0)],
)
def test_durations_are_those_of_go(interval: str, seconds: float) -> None:
    text = f"rate_limit: {{interval: {interval}, burst: 1}}"
    assert parse_web_config(text.encode(), "/").interval_s == pytest.approx(seconds)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(BadConfig, match=str(path)):
            read_web_config(str(path))
    huge = tmp_path / "huge"
    huge.write_bytes(b"#" * (1 << 20) + b"#")
    with pytest.raises(BadConfig, match="larger than"):
        read_web_config(str(huge))
