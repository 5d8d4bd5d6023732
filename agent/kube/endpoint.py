"""Where the API server is, and which account to use: the pod's, or a kubeconfig's.

It follows from settings, the pod's environment or a kubeconfig, and an HTTP proxy.
"""

from __future__ import annotations

import base64
import ipaddress
import os
from collections.abc import Callable, Mapping, MutableMapping
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

import msgspec

from agent.errors import BadConfig
from agent.kube.api import ApiRequest
from agent.kube.errors import NoApiServer


class HttpProxy(msgspec.Struct, frozen=True, kw_only=True):
    """A proxy with its account. Its text never contains the password."""

    url: str  # http://proxy:3128, without user and password
    user: str = ""
    password: str = ""

    def headers(self) -> dict[str, str]:
        """Return the headers that authenticate the agent at the proxy."""
        if not self.user:
            return {}
        pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return {"Proxy-Authorization": f"Basic {pair}"}

    def __str__(self) -> str:
        """Return the URL, for messages."""
        return self.url

    def __repr__(self) -> str:
        """Return the URL, for messages."""
        return f"Proxy({self.url})"


def proxy_for(url: str, environ: Mapping[str, str]) -> HttpProxy | None:
    """Return the proxy that the environment names for a URL; `None` means a direct connection.

    A proxy is never used for this machine itself, nor for entries of NO_PROXY: a host, a domain
    (with or without a leading dot), an address, a network, each with or without a port, or `*`.
    Raise `NoApiServer` for an invalid proxy.
    """
    split = _split(url)
    variable = "HTTPS_PROXY" if split.scheme == "https" else "HTTP_PROXY"
    text = _variable(environ, variable)
    host, port = split.hostname or "", split.port or (443 if split.scheme == "https" else 80)
    if not text or _is_loopback(host) or _is_excluded(host, port, _variable(environ, "NO_PROXY")):
        return None
    return parse_proxy(text, variable)


def parse_proxy(text: str, origin: str) -> HttpProxy:
    """Return the proxy that a text names; `origin` is its source, for the message."""
    split = _split(text if "://" in text else f"http://{text}")
    if split.scheme not in ("http", "https") or not split.hostname:
        raise NoApiServer(f"{origin}: only http:// and https:// proxies are supported")
    port = f":{split.port}" if split.port else ""
    return HttpProxy(
        url=f"{split.scheme}://{bracket_host(split.hostname)}{port}",
        user=unquote(split.username or ""),
        password=unquote(split.password or ""),
    )


def bracket_host(host: str) -> str:
    """Return a host as in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _split(url: str) -> SplitResult:
    """Split a URL; the result for an invalid one (bracket, port) has no host."""
    try:
        split = urlsplit(url)
        _ = split.port
    except ValueError:
        return urlsplit("")
    return split


def _variable(environ: Mapping[str, str], name: str) -> str:
    return (environ.get(name) or environ.get(name.lower()) or "").strip()


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _is_excluded(host: str, port: int, no_proxy: str) -> bool:
    return any(
        _entry_matches(entry.strip().lower(), host.lower(), port) for entry in no_proxy.split(",")
    )


def _entry_matches(entry: str, host: str, port: int) -> bool:
    if not entry:
        return False
    if entry == "*":
        return True
    address = _address(host)
    if "/" in entry:
        return address is not None and _is_in_network(address, entry)
    entry, entry_port = _split_port(entry)
    if entry_port is not None and entry_port != port:
        return False
    if address is not None:
        return _address(entry) == address
    domain = entry.removeprefix("*")
    if domain.startswith("."):
        return host.endswith(domain)
    return host == domain or host.endswith(f".{domain}")


def _split_port(entry: str) -> tuple[str, int | None]:
    if _address(entry) is not None:  # an IPv6 address has colons of its own
        return entry, None
    host, colon, port = entry.rpartition(":")
    if colon and port.isdecimal():
        return host.strip("[]"), int(port[:6])
    return entry.strip("[]"), None


def _is_in_network(address: ipaddress.IPv4Address | ipaddress.IPv6Address, network: str) -> bool:
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None


SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

# another folder with `token` and `ca.crt`, for a pod that mounts its token elsewhere
FOLDER_VARIABLE = "XPU_AGENT_SERVICE_ACCOUNT"

HOME_KUBECONFIG = "~/.kube/config"


class InClusterTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The API server as a pod sees it; both files are read again after a change."""

    url: str  # https://10.96.0.1:443, https://[fd00::1]:443
    folder: str = SERVICE_ACCOUNT

    def __str__(self) -> str:
        """Return URL and folder, for messages."""
        return f"{self.url} with the account of {self.folder}"


class KubeconfigTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The API server of a context; `paths` as in KUBECONFIG, empty `context`: the current."""

    paths: str
    context: str = ""

    def __str__(self) -> str:
        """Return paths and context, for messages."""
        return f"{self.paths}{f', context {self.context}' if self.context else ''}"


ApiTarget = InClusterTarget | KubeconfigTarget


def find_api_target(
    environ: Mapping[str, str],
    kubeconfig: str = "",
    context: str = "",
    is_file: Callable[[str], bool] = os.path.isfile,
    option: str = "",
) -> ApiTarget:
    """Return where the API server is; raise `NoApiServer` if no source names one.

    In this order: the kubeconfig of the settings, the pod's own account, KUBECONFIG, and without
    that `~/.kube/config`. Only the existence of files is checked, nothing is read. Raise
    `BadConfig` for a context without a kubeconfig. `option` is that of a command without a setting
    for it, for messages.
    """
    if kubeconfig:
        path = _expand_home(kubeconfig, environ)
        if not is_file(path):
            raise NoApiServer(
                f"{option or 'api.kubeconfig'}: {kubeconfig} is no file; correct it, or leave "
                "it empty to use the pod's own account"
            )
        return KubeconfigTarget(paths=path, context=context)
    folder = environ.get(FOLDER_VARIABLE) or SERVICE_ACCOUNT
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    if host and is_file(f"{folder}/token"):
        if context:
            raise BadConfig(
                f"api.context: {context!r} is of a kubeconfig, and a pod's own account has "
                "none; set api.kubeconfig too, or leave it empty"
            )
        port = environ.get("KUBERNETES_SERVICE_PORT", "443")
        url = f"https://{bracket_host(host)}:{_port(port)}"
        return InClusterTarget(url=server_url(url, "KUBERNETES_SERVICE_HOST"), folder=folder)
    from_environment = [path for path in environ.get("KUBECONFIG", "").split(":") if path]
    paths = [_expand_home(path, environ) for path in from_environment or (HOME_KUBECONFIG,)]
    if any(map(is_file, paths)):
        return KubeconfigTarget(paths=":".join(paths), context=context)
    if from_environment:
        raise NoApiServer(f"KUBECONFIG: {':'.join(paths)} is no file; correct it, or unset it")
    raise NoApiServer(_advice(host, folder, option))


def server_url(text: str, origin: str) -> str:
    """Return a URL without the slash at its end; raise `NoApiServer` if it is no URL of a server.

    `origin` is its source, for the message. The message does not repeat the URL, which may contain
    a password.
    """
    try:
        split = urlsplit(text)
        is_valid = split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0
    except ValueError:  # an invalid bracket or port
        is_valid = False
    if not is_valid:
        raise NoApiServer(f"{origin}: no URL of a server, as https://10.0.0.1:6443 is")
    return text.rstrip("/")


def _port(text: str) -> int:
    if not text.isdecimal() or len(text) > 5 or not 1 <= int(text) <= 65535:
        raise NoApiServer(f"KUBERNETES_SERVICE_PORT: {text[:20]!r} is no port")
    return int(text)


def _expand_home(path: str, environ: Mapping[str, str]) -> str:
    home = environ.get("HOME", "")
    return f"{home}{path[1:]}" if path.startswith("~/") and home else path


def _advice(host: str, folder: str, option: str) -> str:
    source = option or "api.kubeconfig"
    if host:
        return (
            f"in a pod, but there is no {folder}/token: give the pod a ServiceAccount and leave "
            f"automountServiceAccountToken on, or name a kubeconfig with {source}"
        )
    return (
        "no API server: not in a pod (KUBERNETES_SERVICE_HOST is not set), and no kubeconfig in "
        f"{source}, KUBECONFIG or ~/.kube/config; name one"
        f"{'' if option else ', or run with --standalone'}"
    )


def disable_system_authorities(target: ApiTarget, environ: MutableMapping[str, str]) -> None:
    """Disable the certificate authorities of the image in a pod: only the cluster's are used.

    aiohttp reads all of them when it is imported. Call this before aiohttp is imported and before
    there are threads that read the environment.
    """
    if isinstance(target, InClusterTarget):
        environ["SSL_CERT_FILE"] = os.devnull


SAFE_PATH = "/:@!$&'()*+,;=~-._"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a server. A path in `url` is put before the path of every request."""

    url: str
    server_name: str = ""  # in its certificate, if it differs from the host of `url`
    proxy: HttpProxy | None = None

    @property
    def is_tls(self) -> bool:
        """Return whether the connection is encrypted."""
        return self.url.lower().startswith("https://")

    def __str__(self) -> str:
        """Return scheme, host and port, for messages."""
        split = urlsplit(self.url)
        return f"{split.scheme}://{split.netloc.rpartition('@')[2]}"

    def url_of(self, request: ApiRequest) -> str:
        """Return the URL of a request, with everything escaped that must be."""
        query = f"?{urlencode(request.query, quote_via=quote)}" if request.query else ""
        return f"{self.url.rstrip('/')}{quote(request.path, safe=SAFE_PATH)}{query}"
