"""Client of the kubelet's HTTP server: address, pods, configuration. Answers are untrusted."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from typing import Protocol

import msgspec

from agent.clock import Clock
from agent.config.cluster import KubeletSettings
from agent.errors import ParseError
from agent.kube.api import ApiRequest
from agent.kube.credentials import Credentials, TlsContextCache, TlsFiles
from agent.kube.endpoint import Endpoint
from agent.kube.errors import ApiError, BadResponse, Forbidden, Unauthorized, Unreachable
from agent.kube.session import ApiSession
from agent.loop import run_in_thread
from agent.snapshot.cluster import (
    KUBELET_ABSENT,
    KUBELET_FAILING,
    KUBELET_FORBIDDEN,
    KUBELET_HANGING,
    KUBELET_UNAUTHORISED,
    NodeView,
)
from agent.snapshot.node import SnapshotStore
from agent.snapshot.pod import PodView
from agent.wire_formats.kubelet import KubeletConfig, parse_configz
from agent.wire_formats.pod import PodListDecoder

TIMEOUT = "Timeout"  # reason of an `Unreachable` error whose deadline passed


class PodList(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to `GET /pods/`."""

    pods: tuple[PodView, ...]  # by uid
    malformed: int = 0  # number of entries that could not be decoded


class KubeletApi(Protocol):
    """The kubelet's HTTP server. Both calls raise the `ApiError` that fits the failure."""

    @property
    def connections(self) -> int:
        """Return the number of connections opened so far: a new one may lead to a new kubelet."""
        ...

    async def pods(self) -> PodList:
        """Return the pods that the kubelet runs."""
        ...

    async def config(self) -> KubeletConfig | None:
        """Return its settings; `None` if they are not available."""
        ...


def classify_error(error: ApiError) -> str:
    """Return the kubelet state for an error."""
    if isinstance(error, Unreachable):
        return KUBELET_HANGING if error.reason == TIMEOUT else KUBELET_ABSENT
    if isinstance(error, Unauthorized):
        return KUBELET_UNAUTHORISED
    return KUBELET_FORBIDDEN if isinstance(error, Forbidden) else KUBELET_FAILING


DEFAULT_PORT = 10250

_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


def kubelet_url(kubelet: KubeletSettings, node: NodeView | None) -> str | None:
    """Return the base URL; `None` while neither the settings nor the Node have an address.

    The read-only port is used without TLS and without a token. If the Node has two addresses of the
    type, the first is used, which is of the Node's main IP family.
    """
    addresses = node.addresses if node is not None else ()
    node_hosts = (address for kind, address in addresses if kind == kubelet.address_type)
    hosts = (kubelet.address,) if kubelet.address else node_hosts
    host = next(filter(None, map(_url_host, hosts)), None)
    if host is None:
        return None
    if kubelet.read_only_port:
        return f"http://{host}:{kubelet.read_only_port}"
    reported = node.kubelet_port if node is not None else None
    return f"https://{host}:{kubelet.port or reported or DEFAULT_PORT}"


def _url_host(address: str) -> str | None:
    """Return the address as a URL needs it; `None` if it is neither an address nor a name."""
    try:
        version = ipaddress.ip_address(address).version
    except ValueError:
        return address if _HOST_NAME.fullmatch(address) else None
    if "%" in address:  # valid on one interface only
        return None
    return f"[{address}]" if version == 6 else address


PODS_PATH = "/pods/"

CONFIGZ_PATH = "/configz"

# RBAC rights; kubelets before fine-grained authorization check nodes/proxy only
RBAC_RESOURCES = {PODS_PATH: "nodes/pods", CONFIGZ_PATH: "nodes/configz"}


class KubeletClient:
    """Implements `KubeletApi`. Belongs to the loop thread.

    Without `kubelet.ca_file` it accepts every certificate: by default kubelets sign their own.
    """

    def __init__(
        self,
        kubelet: KubeletSettings,
        credentials: Credentials,
        store: SnapshotStore,
        clock: Clock,
    ) -> None:
        """`kubelet` has address and credentials; the snapshot has the Node object."""
        self._kubelet = kubelet
        self._credentials = credentials
        self._store = store
        self._clock = clock
        files = TlsFiles(ca_file=kubelet.ca_file, insecure=not kubelet.ca_file)
        self._trust = TlsContextCache(lambda: files, clock)
        self._url = ""
        self._session: ApiSession | None = None
        self._pod_list = PodListDecoder()
        self._opened_before = 0  # by sessions that are closed

    @property
    def connections(self) -> int:
        """Count the connections opened so far."""
        current = self._session.state.opened_connections if self._session is not None else 0
        return self._opened_before + current

    async def pods(self) -> PodList:
        """Return the pods that the kubelet runs, including static ones."""
        body = await self._get(PODS_PATH)
        try:
            pods, left_out = await run_in_thread(lambda: self._pod_list.decode(body))
        except ParseError as error:
            raise BadResponse(f"GET {PODS_PATH}", str(error)) from error
        return PodList(pods=pods, malformed=left_out)

    async def config(self) -> KubeletConfig | None:
        """Return the kubelet's settings.

        `None` on the read-only port, which does not serve them.
        """
        if self._kubelet.read_only_port:
            return None
        body = await self._get(CONFIGZ_PATH)
        try:
            return await run_in_thread(lambda: parse_configz(body))
        except ParseError as error:
            raise BadResponse(f"GET {CONFIGZ_PATH}", str(error)) from error

    async def close(self) -> None:
        """Close the connection; the next call opens it again."""
        self._opened_before = self.connections
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _get(self, path: str) -> bytes:
        """Return the body within the deadline.

        A hang and a refused connection are different errors.
        """
        session = await self._open_session(path)
        limit_s = self._kubelet.timeout_s
        # this function's own deadline is earlier
        request = ApiRequest(method="GET", path=path, deadline_s=2 * limit_s)
        try:
            async with asyncio.timeout(limit_s):
                return (await session.call(request)).body
        except TimeoutError as error:
            detail = f"{self._url} has not answered within {limit_s:g} s"
            raise Unreachable(str(request), detail, reason=TIMEOUT) from error
        except Forbidden as error:
            message = (
                f"needs get on {RBAC_RESOURCES[path]}, or on nodes/proxy before Kubernetes 1.33"
            )
            raise Forbidden(message, str(error), code=error.code, reason=error.reason) from error

    async def _open_session(self, path: str) -> ApiSession:
        """Return a session for the present address of the kubelet."""
        url = kubelet_url(self._kubelet, self._store.current.cluster.node.value)
        if url is None:
            kind = self._kubelet.address_type
            problem = f"the Node has no address of type {kind}"
            if self._store.current.cluster.node.value is None:
                problem = "its address is not known, for the Node is not"
            raise Unreachable(f"GET {path}", f"{problem}; see kubelet.address")
        if self._session is None or url != self._url:
            await self.close()
            self._url = url
            self._session = ApiSession(
                Endpoint(url=url), self._credentials, self._trust, self._clock
            )
        return self._session
