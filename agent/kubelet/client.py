"""The kubelet's HTTP server, asked with the agent's own account; nothing of it is trusted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from agent.config.cluster import KubeletSettings
from agent.errors import ParseError
from agent.kube.base import MAX_BODY_BYTES
from agent.kube.errors import (
    ApiError,
    BadAnswer,
    Forbidden,
    NotFound,
    ServerError,
    Throttled,
    Unauthorized,
    Unreachable,
)
from agent.kube.session.credentials import Credentials
from agent.kubelet.base import TIMEOUT, KubeletConfig, Offload, PodList, in_thread
from agent.kubelet.configz import parse_config
from agent.kubelet.endpoint import Endpoint, endpoint_of
from agent.kubelet.trust import KubeletTrust
from agent.model.cluster.facts import NodeFacts
from agent.model.foreign.pod import decode_pod_list

if TYPE_CHECKING:
    import aiohttp

PODS = "/pods/"
CONFIG = "/configz"
# what RBAC must allow; kubelets before fine-grained authorization ask for nodes/proxy only
RIGHTS = {PODS: "nodes/pods", CONFIG: "nodes/configz"}
MAX_CONFIG_BYTES = 1 << 20
MAX_EXTRACT = 512  # bytes of a refusal
_CHUNK_BYTES = 256 << 10
_REFUSALS: Mapping[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    429: Throttled,
}


class KubeletClient:
    """Implements `agent.kubelet.base.Kubelet`. Belongs to the loop thread; keeps one connection."""

    def __init__(
        self,
        settings: KubeletSettings,
        credentials: Credentials,
        node: Callable[[], NodeFacts | None],
        offload: Offload = in_thread,
    ) -> None:
        """`node` tells what is known of the Node object now."""
        self._settings = settings
        self._credentials = credentials
        self._node = node
        self._offload = offload
        self._trust = KubeletTrust(settings.ca_file)
        self._session: aiohttp.ClientSession | None = None

    async def pods(self) -> PodList:
        """Return the pods that the kubelet runs, its static ones too."""
        body = await self._get(PODS, MAX_BODY_BYTES)
        try:
            pods, left_out = await self._offload(lambda: decode_pod_list(body))
        except ParseError as error:
            raise BadAnswer(f"GET {PODS}", str(error)) from error
        return PodList(pods=pods, left_out=left_out)

    async def config(self) -> KubeletConfig | None:
        """Return the kubelet's settings; `None` on the read-only port, which has none."""
        if self._settings.read_only_port:
            return None
        body = await self._get(CONFIG, MAX_CONFIG_BYTES)
        try:
            return parse_config(body)
        except ParseError as error:
            raise BadAnswer(f"GET {CONFIG}", str(error)) from error

    async def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _get(self, path: str, limit: int) -> bytes:
        """Return the body within the deadline; a 401 is tried once more with a token read anew."""
        endpoint = endpoint_of(self._settings, self._node())
        if endpoint is None:
            kind = self._settings.address_type
            raise Unreachable(f"GET {path}", f"the Node has no {kind} yet; see kubelet.address")
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                try:
                    return await self._ask(endpoint, path, limit)
                except Unauthorized:
                    self._credentials.refused()
                    return await self._ask(endpoint, path, limit)
        except TimeoutError as error:
            detail = f"no answer within {self._settings.timeout_s:g} s"
            raise Unreachable(f"GET {endpoint.url}{path}", detail, reason=TIMEOUT) from error

    async def _ask(self, endpoint: Endpoint, path: str, limit: int) -> bytes:
        import aiohttp  # noqa: PLC0415 - 180 ms, not before the first object is published

        if self._session is None:
            # no proxy and no cookies: this is a server of the same node
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1), cookie_jar=aiohttp.DummyCookieJar()
            )
        what = f"GET {endpoint.url}{path}"
        headers = {"Accept": "application/json"}
        if endpoint.tls and (value := await self._credentials.authorization()):
            headers["Authorization"] = value
        try:
            async with self._session.get(
                f"{endpoint.url}{path}",
                headers=headers,
                ssl=self._trust.context() if endpoint.tls else False,
                timeout=aiohttp.ClientTimeout(total=None),  # the deadline is `_get`'s
                allow_redirects=False,  # a token is for this server alone
            ) as answer:
                body = await _bounded(answer, what, limit)
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(what, str(error) or type(error).__name__) from error
        if answer.status != 200:
            raise _refusal(what, path, answer.status, body)
        return body


async def _bounded(answer: aiohttp.ClientResponse, what: str, limit: int) -> bytes:
    """Return the body; of a refusal, which is only shown, its start."""
    if answer.status != 200:
        return await answer.content.read(MAX_EXTRACT)
    body = bytearray()
    async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > limit:
            raise BadAnswer(what, f"more than {limit} bytes")
    return bytes(body)


def _refusal(what: str, path: str, status: int, body: bytes) -> ApiError:
    said = body.decode("utf-8", "replace").strip()
    if status == 403:
        said = (
            f"needs get on {RIGHTS[path]}, or on nodes/proxy where the kubelet knows no finer"
            f" rights; {said}"
        )
    kind = _REFUSALS.get(status, ServerError if status >= 500 else BadAnswer)
    return kind(what, said, code=status)
