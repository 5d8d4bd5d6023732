"""The kubelet's HTTP server, asked with the agent's own account; nothing of it is trusted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agent.clock import Clock
from agent.config.cluster import KubeletSettings
from agent.errors import ParseError
from agent.kube.base import Request
from agent.kube.errors import BadAnswer, Forbidden, Unreachable
from agent.kube.session.client import Session
from agent.kube.session.connections import Endpoint
from agent.kube.session.credentials import Credentials
from agent.kube.session.trust import TlsFiles, Trust
from agent.kubelet.base import TIMEOUT, KubeletConfig, Offload, PodList, in_thread
from agent.kubelet.configz import parse_config
from agent.kubelet.endpoint import url_of
from agent.model.cluster.facts import NodeFacts
from agent.model.foreign.pod import decode_pod_list

PODS = "/pods/"
CONFIG = "/configz"
# what RBAC must allow; kubelets before fine-grained authorization ask for nodes/proxy only
RIGHTS = {PODS: "nodes/pods", CONFIG: "nodes/configz"}


class KubeletClient:
    """Implements `agent.kubelet.base.Kubelet`. Belongs to the loop thread.

    Without `kubelet.ca_file` every certificate is taken: kubelets sign their own by default.
    """

    def __init__(
        self,
        kubelet: KubeletSettings,
        credentials: Credentials,
        node: Callable[[], NodeFacts | None],
        clock: Clock,
        offload: Offload = in_thread,
    ) -> None:
        """`kubelet` says how it is asked, `node` what is known of the Node object now."""
        self._kubelet = kubelet
        self._credentials = credentials
        self._node = node
        self._clock = clock
        self._offload = offload
        files = TlsFiles(ca_file=kubelet.ca_file, insecure=not kubelet.ca_file)
        self._trust = Trust(lambda: files, clock)
        self._url = ""
        self._session: Session | None = None
        self._opened_before = 0  # by sessions that are closed

    @property
    def connections(self) -> int:
        """Count the connections opened so far."""
        now = self._session.state.opened_connections if self._session is not None else 0
        return self._opened_before + now

    async def pods(self) -> PodList:
        """Return the pods that the kubelet runs, its static ones too."""
        body = await self._get(PODS)
        try:
            pods, left_out = await self._offload(lambda: decode_pod_list(body))
        except ParseError as error:
            raise BadAnswer(f"GET {PODS}", str(error)) from error
        return PodList(pods=pods, left_out=left_out)

    async def config(self) -> KubeletConfig | None:
        """Return the kubelet's settings; `None` on the read-only port, which has none."""
        if self._kubelet.read_only_port:
            return None
        body = await self._get(CONFIG)
        try:
            return await self._offload(lambda: parse_config(body))
        except ParseError as error:
            raise BadAnswer(f"GET {CONFIG}", str(error)) from error

    async def close(self) -> None:
        """Close the connection; it is opened again when something is asked."""
        self._opened_before = self.connections
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _get(self, path: str) -> bytes:
        """Return the body within the deadline; a hang is told apart from a refused connection."""
        session = await self._opened(path)
        limit_s = self._kubelet.timeout_s
        request = Request(method="GET", path=path, deadline_s=2 * limit_s)  # ours comes first
        try:
            async with asyncio.timeout(limit_s):
                return (await session.call(request)).body
        except TimeoutError as error:
            detail = f"{self._url} has not answered within {limit_s:g} s"
            raise Unreachable(str(request), detail, reason=TIMEOUT) from error
        except Forbidden as error:
            right = f"needs get on {RIGHTS[path]}, or on nodes/proxy before Kubernetes 1.33"
            raise Forbidden(right, str(error), code=error.code, reason=error.reason) from error

    async def _opened(self, path: str) -> Session:
        """Return a session with where the kubelet is now."""
        url = url_of(self._kubelet, self._node())
        if url is None:
            kind = self._kubelet.address_type
            lacking = f"the Node has no address of type {kind}"
            if self._node() is None:
                lacking = "its address is not known, for the Node is not"
            raise Unreachable(f"GET {path}", f"{lacking}; see kubelet.address")
        if self._session is None or url != self._url:
            await self.close()
            self._url = url
            self._session = Session(Endpoint(url=url), self._credentials, self._trust, self._clock)
        return self._session
