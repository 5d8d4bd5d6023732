"""A person's kubeconfig, read by the `kubernetes` package: certificates, tokens, plug-ins, OIDC."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from agent.kube.errors import NoApiServer
from agent.kube.session.target import FromKubeconfig, server_url
from agent.kube.session.trust import TlsFiles

log = logging.getLogger(__name__)

EXTRA = "xpu-node-agent[kubeconfig]"

Foreign = Any  # what the package hands out: it has no types


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What one context of a kubeconfig leads to, as files and words that a session can use."""

    url: str
    tls: TlsFiles
    server_name: str = ""
    proxy: str = ""  # `proxy-url`; empty: what the environment says
    authorization: str | None = None
    token_file: str = ""  # whoever renews the token writes it there
    # asks a plug-in again when what it gave has expired; blocks as long as that takes
    renewed: Callable[[], str | None] | None = None


def read_account(target: FromKubeconfig) -> Account:
    """Return what a kubeconfig says; raise `NoApiServer` that says what is wrong with it.

    Blocks: reads files, runs the plug-in or asks the OIDC issuer, however long they take.
    """
    try:
        # imported here: 45 MB and half a second that only a person's kubeconfig needs
        from kubernetes import client, config  # noqa: PLC0415 - see above
    except ImportError as error:
        raise NoApiServer(
            f"{target}: the package `kubernetes` is missing, which reads kubeconfig files; "
            f"install {EXTRA}"
        ) from error
    library: Foreign = config.kube_config  # its functions have no types
    with _foreign(library, target):
        return _read(library, client.Configuration(), target)


# what the package raises for a file of an unexpected form
_PYTHON_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


@contextlib.contextmanager
def _foreign(library: Foreign, target: FromKubeconfig) -> Iterator[None]:
    """Make the package's errors ours, and those it lets through from what it is made of."""
    own = library.ConfigException
    passed_on = (
        library.yaml.YAMLError,
        library.urllib3.exceptions.HTTPError,
        library.oauthlib.oauth2.OAuth2Error,
    )
    try:
        yield
    except (own, *passed_on, *_PYTHON_ERRORS) as error:
        # only the package's own words: an issuer's or a YAML extract may hold a token
        said = str(error)[:200] if isinstance(error, own) else type(error).__name__
        raise NoApiServer(f"{target}: cannot be used: {said}") from None


def _read(library: Foreign, found: Foreign, target: FromKubeconfig) -> Account:
    files = library.KubeConfigMerger(target.paths)
    if files.config is None:
        raise NoApiServer(f"{target}: no such file, or it is empty")

    def keep() -> None:
        # an issuer's refresh token is good for one time: the next one must outlive us
        try:
            files.save_changes()
        except OSError as error:
            log.warning("kubeconfig_not_written", extra={"error": str(error)})

    loader = library.KubeConfigLoader(
        config_dict=files.config,
        active_context=target.context or None,
        config_base_path=None,
        config_persister=keep,
    )
    loader.load_and_set(found)
    context = loader.current_context["context"]
    cluster = files.config["clusters"].get_with_name(context["cluster"])["cluster"]
    user = _user(files.config, context.get("user", ""))
    authorization = found.api_key.get("BearerToken")
    if "exec" in user and authorization is None and not found.cert_file:
        raise NoApiServer(
            f"{target}: the plug-in {user['exec'].safe_get('command')!r} gave no credentials; "
            "run it by hand to see why"
        )
    return Account(
        url=server_url(cluster["server"], f"{target}: server"),
        tls=TlsFiles(
            ca_file=found.ssl_ca_cert or "",
            cert_file=found.cert_file or "",
            key_file=found.key_file or "",
            insecure=not found.verify_ssl,
        ),
        server_name=found.tls_server_name or "",
        proxy=cluster.safe_get("proxy-url") or "",
        authorization=authorization,
        token_file=_token_file(user),
        renewed=functools.partial(_renewed, library, found, target) if "exec" in user else None,
    )


def _renewed(library: Foreign, found: Foreign, target: FromKubeconfig) -> str | None:
    with _foreign(library, target):
        if found.refresh_api_key_hook is not None:
            found.refresh_api_key_hook(found)
        token: str | None = found.api_key.get("BearerToken")
    return token


def _user(config: Foreign, name: str) -> Foreign:
    users = config.safe_get("users")
    entry = config["users"].get_with_name(name, safe=True) if users and name else None
    return entry["user"] if entry is not None and entry.safe_get("user") else {}


def _token_file(user: Foreign) -> str:
    if not user or "tokenFile" not in user or "token" in user:
        return ""
    return str(Path(user.path or "").parent / user["tokenFile"])
