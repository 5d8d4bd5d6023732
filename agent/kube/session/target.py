"""Where the API server is, and whose account to use there: the pod's, or a kubeconfig's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import msgspec

from agent.config.cluster import ApiSettings
from agent.errors import BadConfig
from agent.kube.errors import NoApiServer
from agent.kube.proxy import bracketed

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
# another folder with `token` and `ca.crt`, for a pod that mounts its token elsewhere
FOLDER_VARIABLE = "XPU_AGENT_SERVICE_ACCOUNT"
HOME_KUBECONFIG = "~/.kube/config"


class InPod(msgspec.Struct, frozen=True, kw_only=True):
    """The API server as a pod sees it; both files are read again whenever they change."""

    url: str  # https://10.96.0.1:443, https://[fd00::1]:443
    folder: str = SERVICE_ACCOUNT

    def __str__(self) -> str:
        """Say which, for messages."""
        return f"{self.url} with the account of {self.folder}"


class FromKubeconfig(msgspec.Struct, frozen=True, kw_only=True):
    """The API server of one context; `paths` is as in KUBECONFIG, empty `context` its current."""

    paths: str
    context: str = ""

    def __str__(self) -> str:
        """Say which, for messages."""
        return f"{self.paths}{f', context {self.context}' if self.context else ''}"


ApiTarget = InPod | FromKubeconfig


def where_is_api(
    api: ApiSettings,
    environ: Mapping[str, str],
    is_file: Callable[[str], bool] = os.path.isfile,
) -> ApiTarget:
    """Return where the API server is; raise `NoApiServer` when nothing says so.

    In this order: the kubeconfig of the settings, the pod's own account, KUBECONFIG, and without
    that `~/.kube/config`. Only file names are looked at, nothing is read. Raises `BadConfig` for a
    context that nothing has.
    """
    if api.kubeconfig:
        path = _expanded(api.kubeconfig, environ)
        if not is_file(path):
            raise NoApiServer(
                f"api.kubeconfig: {api.kubeconfig} is no file; correct the setting, or leave "
                "it empty to use the pod's own account"
            )
        return FromKubeconfig(paths=path, context=api.context)
    folder = environ.get(FOLDER_VARIABLE) or SERVICE_ACCOUNT
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    if host and is_file(f"{folder}/token"):
        if api.context:
            raise BadConfig(
                f"api.context: {api.context!r} is of a kubeconfig, and a pod's own account has "
                "none; set api.kubeconfig too, or leave it empty"
            )
        port = environ.get("KUBERNETES_SERVICE_PORT", "443")
        url = f"https://{bracketed(host)}:{_port(port)}"
        return InPod(url=server_url(url, "KUBERNETES_SERVICE_HOST"), folder=folder)
    named = [path for path in environ.get("KUBECONFIG", "").split(":") if path]
    found = [_expanded(path, environ) for path in named or (HOME_KUBECONFIG,)]
    if any(map(is_file, found)):
        return FromKubeconfig(paths=":".join(found), context=api.context)
    if named:
        raise NoApiServer(f"KUBECONFIG: {':'.join(found)} is no file; correct it, or unset it")
    raise NoApiServer(_advice(host, folder))


def server_url(text: str, origin: str) -> str:
    """Return a URL without the slash at its end; raise `NoApiServer` for none of a server.

    `origin` is where it stands, for the message, which does not repeat it: it may hold a password.
    """
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket, a port
        is_one = False
    if not is_one:
        raise NoApiServer(f"{origin}: no URL of a server, as https://10.0.0.1:6443 is")
    return text.rstrip("/")


def _port(text: str) -> int:
    if not text.isdecimal() or len(text) > 5 or not 1 <= int(text) <= 65535:
        raise NoApiServer(f"KUBERNETES_SERVICE_PORT: {text[:20]!r} is no port")
    return int(text)


def _expanded(path: str, environ: Mapping[str, str]) -> str:
    home = environ.get("HOME", "")
    return f"{home}{path[1:]}" if path.startswith("~/") and home else path


def _advice(host: str, folder: str) -> str:
    if host:
        return (
            f"in a pod, but there is no {folder}/token: give the pod a ServiceAccount and leave "
            "automountServiceAccountToken on, or name a kubeconfig with api.kubeconfig"
        )
    return (
        "no API server: not in a pod (KUBERNETES_SERVICE_HOST is not set), and no kubeconfig in "
        "api.kubeconfig, KUBECONFIG or ~/.kube/config; name one, or run with --standalone"
    )
