"""Settings of who may read the metrics: TLS, client certificates, tokens, passwords."""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.snapshot.settings import SettingRule


class MetricsTlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """TLS of `metrics.listen`. Its files are read again when they change."""

    cert_file: Annotated[
        str, SettingRule("certificate of the server, PEM; empty: no TLS", maturity="beta")
    ] = ""
    key_file: Annotated[
        str, SettingRule("its key, PEM and not encrypted; empty: in cert_file", maturity="beta")
    ] = ""
    min_version: Annotated[
        str, SettingRule("lowest version of TLS", choices=("TLS12", "TLS13"), maturity="beta")
    ] = "TLS12"
    client_ca_file: Annotated[
        str, SettingRule("CA of the certificates of clients, PEM", maturity="beta")
    ] = ""
    client_auth: Annotated[
        str,
        SettingRule(
            "certificates of clients for /metrics. accept: a valid one is enough, as a token or a "
            "password is; require: needed beside a token or password, if those are on",
            choices=("none", "accept", "require"),
            maturity="beta",
        ),
    ] = "none"
    client_names: Annotated[
        tuple[str, ...],
        SettingRule(
            "names of which a client's certificate must have one: DNS name, IP address, e-mail or "
            "URI of its alternative names, or CN=NAME; empty: any that the CA signed",
            maturity="beta",
        ),
    ] = ()


class MetricsAuthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bearer tokens of the cluster for `/metrics`."""

    tokens: Annotated[
        bool,
        SettingRule(
            "accept bearer tokens of the cluster whose owner may get the nonResourceURL /metrics; "
            "needs the component metrics-auth",
            maturity="beta",
        ),
    ] = False
    audiences: Annotated[
        tuple[str, ...],
        SettingRule(
            "audiences of which a token must have one; empty: the API server's own",
            maturity="beta",
        ),
    ] = ()
