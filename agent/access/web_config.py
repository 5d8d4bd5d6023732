"""The file format of Prometheus' exporter-toolkit: TLS, headers, passwords and a rate in one file.

<https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md>. A key that
the format lacks, and a value that would have no effect here, is refused with its name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec
import yaml

from agent.access.basic_auth import check_users
from agent.access.certificates import (
    CHECK_IF_SENT,
    MAX_FILE_BYTES,
    NO_CERTIFICATES,
    REQUIRE,
    TlsConfig,
    check_tls,
)
from agent.durable import read_file
from agent.errors import BadConfig

# Go's names of the suites that its TLS offers, and OpenSSL's. Those of TLS 1.3 cannot be chosen
CIPHERS = {
    f"TLS_ECDHE_{key}_WITH_{go}": f"ECDHE-{key}-{openssl}"
    for key in ("RSA", "ECDSA")
    for go, openssl in (
        ("AES_128_CBC_SHA", "AES128-SHA"),
        ("AES_256_CBC_SHA", "AES256-SHA"),
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}
TLS13_CIPHERS = frozenset(
    ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
)
CURVES = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}
CLIENT_AUTH = {
    "": NO_CERTIFICATES,
    "NoClientCert": NO_CERTIFICATES,
    "VerifyClientCertIfGiven": CHECK_IF_SENT,
    "RequireAndVerifyClientCert": REQUIRE,
}
UNVERIFIED = ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert")
HEADERS: Mapping[str, tuple[str, ...]] = {  # and the values that are allowed; empty: any
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?(?:ns|us|µs|ms|s|m|h))+")
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?)(ns|us|µs|ms|s|m|h)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
MAX_USERS = 64


class _TlsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cert: str = ""
    key: str = ""
    client_ca: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_auth_type: str = ""
    client_ca_file: str = ""
    client_allowed_sans: list[str] = []
    min_version: Literal["TLS10", "TLS11", "TLS12", "TLS13"] = "TLS12"
    max_version: Literal["TLS10", "TLS11", "TLS12", "TLS13"] = "TLS13"
    cipher_suites: list[str] = []
    prefer_server_cipher_suites: bool = True  # OpenSSL's own order decides
    curve_preferences: list[str] = []


class _HttpSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    http2: bool = True  # a permission: this server speaks HTTP/1.1
    headers: dict[str, str] = {}


class _RateSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    interval: str | int = 0
    burst: int = 0


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tls_server_config: _TlsSection | None = None
    http_server_config: _HttpSection | None = None
    basic_auth_users: dict[str, str] | None = None
    rate_limit: _RateSection | None = None


class WebConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file, checked."""

    tls: TlsConfig = TlsConfig()
    headers: Mapping[str, str] = {}
    users: Mapping[str, str] = {}  # bcrypt hash of each user name
    interval_s: float = 0.0  # between two requests on average; 0: no limit
    burst: int = 0


def read_web_config(path: str) -> WebConfig:
    """Return the content of a file; raise `BadConfig` that names file and key, never a secret."""
    try:
        data = read_file(path, MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise BadConfig(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    try:
        return parse_web_config(data, os.path.dirname(path))
    except BadConfig as error:
        raise BadConfig(f"{path}: {error}") from error


def parse_web_config(data: bytes, folder: str) -> WebConfig:
    """Return the checked content; names of files are relative to `folder`. Raise `BadConfig`."""
    try:
        loaded = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise BadConfig(f"line {mark.line + 1}: not YAML" if mark else "not YAML") from error
    try:
        parsed = msgspec.convert({} if loaded is None else loaded, _File)
    except msgspec.ValidationError as error:
        raise BadConfig(str(error)) from error
    users = dict(parsed.basic_auth_users or {})
    if len(users) > MAX_USERS:
        raise BadConfig(f"basic_auth_users: more than {MAX_USERS} users")
    check_users(users, "basic_auth_users")
    rate = parsed.rate_limit or _RateSection()
    interval_s = _duration_s(rate.interval)
    if interval_s and rate.burst < 1:
        raise BadConfig("rate_limit.burst: must be 1 at least, or nothing is ever served")
    return WebConfig(
        tls=_tls(parsed.tls_server_config or _TlsSection(), folder),
        headers=_checked_headers(parsed.http_server_config or _HttpSection()),
        users=users,
        interval_s=interval_s,
        burst=rate.burst,
    )


def _tls(section: _TlsSection, folder: str) -> TlsConfig:
    where = "tls_server_config"
    for name in ("cert", "key", "client_ca"):
        if getattr(section, name) and getattr(section, f"{name}_file"):
            raise BadConfig(f"{where}: {name} and {name}_file: give one of them")
    if (section.cert or section.cert_file) and not (section.key or section.key_file):
        raise BadConfig(f"{where}: missing one of key or key_file")
    if section.client_auth_type in UNVERIFIED:
        raise BadConfig(
            f"{where}.client_auth_type: {section.client_auth_type} would take a certificate that "
            "anybody made: use RequireAndVerifyClientCert"
        )
    tls = TlsConfig(
        cert_file=_path(section.cert_file, folder),
        key_file=_path(section.key_file, folder),
        cert=section.cert,
        key=section.key,
        client_ca_file=_path(section.client_ca_file, folder),
        client_ca=section.client_ca,
        client_auth=_choose(section.client_auth_type, CLIENT_AUTH, f"{where}.client_auth_type"),
        client_names=tuple(section.client_allowed_sans),
        min_version=section.min_version,
        max_version=section.max_version,
        ciphers=tuple(
            _choose(name, CIPHERS, f"{where}.cipher_suites")
            for name in section.cipher_suites
            if name not in TLS13_CIPHERS
        ),
        curve=_curve(section.curve_preferences, f"{where}.curve_preferences"),
    )
    check_tls(tls, where)
    return tls


def _path(path: str, folder: str) -> str:
    return os.path.join(folder, path) if path else ""


def _choose(value: str, choices: Mapping[str, str], where: str) -> str:
    if value not in choices:
        names = ", ".join(name for name in choices if name)
        raise BadConfig(f"{where}: {value[:60]!r} is not one of {names}")
    return choices[value]


def _curve(names: Iterable[str], where: str) -> str:
    curves = [_choose(name, CURVES, where) for name in names]
    if len(curves) > 1:
        raise BadConfig(f"{where}: this server can prefer one curve: give one, or none")
    return curves[0] if curves else ""


def _checked_headers(section: _HttpSection) -> Mapping[str, str]:
    where = "http_server_config.headers"
    for name, value in section.headers.items():
        if name not in HEADERS:
            raise BadConfig(f"{where}: {name[:60]!r} is not one of {', '.join(HEADERS)}")
        allowed = HEADERS[name]
        if _CONTROL.search(value) or (value and allowed and value not in allowed):
            raise BadConfig(f"{where}.{name}: {value[:60]!r} is not allowed")
    return {name: value for name, value in section.headers.items() if value}


def _duration_s(value: str | int) -> float:
    """Return the seconds of a duration as Go writes it; a bare number counts nanoseconds."""
    if isinstance(value, int):
        seconds = value * 1e-9
    elif value == "0":
        seconds = 0.0
    elif _DURATION.fullmatch(value):
        seconds = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(value))
    else:
        raise BadConfig(f"rate_limit.interval: {value[:60]!r} is no duration, as 500ms is")
    if seconds < 0:
        raise BadConfig("rate_limit.interval: must not be negative")
    return seconds
