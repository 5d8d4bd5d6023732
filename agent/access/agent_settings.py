"""Who may read the agent's metrics, by its settings.

Imported only where settings restrict or encrypt: `ssl` and `bcrypt` take time and memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.access.certificates import TlsConfig, check_tls
from agent.access.rules import AccessFiles, AccessSettings
from agent.config.address import ListenAddress
from agent.config.settings import MetricsSettings
from agent.errors import BadConfig


def access_settings(metrics: MetricsSettings) -> AccessSettings:
    """Return the settings of access."""
    tls = metrics.tls
    return AccessSettings(
        tls=TlsConfig(
            cert_file=tls.cert_file,
            key_file=tls.key_file,
            client_ca_file=tls.client_ca_file,
            client_auth=tls.client_auth,
            client_names=tls.client_names,
            min_version=tls.min_version,
        ),
        web_config_file=metrics.web_config_file,
        tokens=metrics.auth.tokens,
    )


def check_access(metrics: MetricsSettings) -> None:
    """Check what needs no file; raise `BadConfig`."""
    settings = access_settings(metrics)
    check_tls(settings.tls, settings.where)
    if metrics.auth.audiences and not metrics.auth.tokens:
        raise BadConfig("metrics.auth.audiences: without effect unless metrics.auth.tokens is on")


def open_access(
    metrics: MetricsSettings, listen: Iterable[ListenAddress], *, is_standalone: bool
) -> AccessFiles:
    """Read the files of the settings; raise `BadConfig`."""
    check_access(metrics)
    files = AccessFiles(access_settings(metrics))
    if not metrics.auth.tokens:
        return files
    if is_standalone:
        raise BadConfig("metrics.auth.tokens: needs a cluster: no API server checks tokens here")
    is_local = all(address.is_loopback for address in listen)
    if files.context is None and not is_local:
        raise BadConfig(
            "metrics.auth.tokens: needs metrics.tls.cert_file: without TLS everybody on the "
            "network could read the tokens"
        )
    return files
