"""Asks the API server the questions of the checks, all at once and within a deadline."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from agent.clock import Clock
from agent.config.settings import Settings
from agent.doctor.api_checks import OBJECT_KINDS
from agent.doctor.facts import ApiFacts, ApiReply
from agent.doctor.rights import needed_rights
from agent.errors import AgentError
from agent.kube.api import ApiRequest
from agent.kube.endpoint import ApiTarget, InClusterTarget
from agent.kube.errors import ApiError
from agent.kube.resources import DEVICES, NODE_METRICS, NODES, PODS, TOPOLOGIES
from agent.kube.session import ApiSession, open_session
from agent.objects.node_resource_topology import V1ALPHA2
from agent.wire_formats.json_values import JSON_ERRORS

REVIEW_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
AGENT_LABEL = "app.kubernetes.io/name=xpu-agent"
DEFAULT_NAMESPACE = "xpu-agent"
MAX_NAMESPACE = 253


class ApiReader:
    """The answers so far; another thread may take them while requests are in progress."""

    def __init__(self, target: ApiTarget, settings: Settings, node_name: str, clock: Clock) -> None:
        """Ask nothing yet."""
        self._target = target
        self._settings = settings
        self._clock = clock
        self._replies: dict[str, ApiReply] = {}
        self._facts = ApiFacts(
            target=str(target),
            problem="no answer in time",
            node_name=node_name,
            namespace=own_namespace(target),
            is_own_account=isinstance(target, InClusterTarget),
        )

    @property
    def facts(self) -> ApiFacts:
        """Return what is known now."""
        return replace(self._facts, replies=dict(self._replies), wall_s=self._clock.wall())

    async def read(self, environ: Mapping[str, str], deadline_s: float) -> None:
        """Ask everything; what is not answered within the deadline is left out."""
        try:
            session = await open_session(self._target, self._clock, environ)
        except AgentError as error:
            self._facts = replace(self._facts, problem=str(error))
            return
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(deadline_s):
                    await self._read(session, deadline_s)
        finally:
            await session.close()

    async def _read(self, session: ApiSession, deadline_s: float) -> None:
        version = ApiRequest(method="GET", path="/version", deadline_s=deadline_s)
        reply = await _ask(session, version)
        if reply.problem:  # without an answer, or with an account that the server does not know
            self._facts = replace(self._facts, problem=reply.problem)
            return
        self._replies["version"] = reply
        self._facts = replace(self._facts, problem="", clock_skew_s=session.state.clock_skew_s)
        requests = self._requests(deadline_s)
        await asyncio.gather(*(self._store(session, *item) for item in requests))

    async def _store(self, session: ApiSession, name: str, request: ApiRequest) -> None:
        reply = await _ask(session, request)
        previous = self._replies.get(name)
        if previous is None or previous.problem:  # of two versions one may be absent
            self._replies[name] = reply

    def _requests(self, deadline_s: float) -> Iterator[tuple[str, ApiRequest]]:
        """Yield the requests, each with the name of its reply."""
        node = self._facts.node_name

        def get(path: str, *query: tuple[str, str]) -> ApiRequest:
            return ApiRequest(method="GET", path=path, query=query, deadline_s=deadline_s)

        yield "node", get(NODES.path(), ("fieldSelector", f"metadata.name={node}"))
        for version in (version for one in OBJECT_KINDS for version in one.versions):
            yield version, get(f"/apis/{version}")
        for resource in (DEVICES, NODE_METRICS, TOPOLOGIES, replace(TOPOLOGIES, version=V1ALPHA2)):
            yield resource.kind, get(resource.path(quote(node, safe="")))
        yield (
            "agent-pods",
            get(
                PODS.path(namespace=self._facts.namespace),
                ("fieldSelector", f"spec.nodeName={node}"),
                ("labelSelector", AGENT_LABEL),
            ),
        )
        for right in needed_rights(self._settings):
            body = msgspec.json.encode(right.review())
            yield (
                f"right {right}",
                ApiRequest(method="POST", path=REVIEW_PATH, body=body, deadline_s=deadline_s),
            )


async def _ask(session: ApiSession, request: ApiRequest) -> ApiReply:
    try:
        response = await session.call(request)
        return ApiReply(body=msgspec.json.decode(response.body))
    except ApiError as error:
        return ApiReply(code=error.code, problem=str(error))
    except JSON_ERRORS as error:
        return ApiReply(problem=f"{request}: no JSON: {error}"[:200])


def own_namespace(target: ApiTarget) -> str:
    """Return the namespace of the agent's pod; outside of a pod that of the manifests."""
    if isinstance(target, InClusterTarget):
        try:
            with open(f"{target.folder}/namespace", encoding="utf-8") as file:  # noqa: PTH123
                return file.read(MAX_NAMESPACE).strip() or DEFAULT_NAMESPACE
        except (OSError, UnicodeDecodeError):
            return DEFAULT_NAMESPACE
    return DEFAULT_NAMESPACE
