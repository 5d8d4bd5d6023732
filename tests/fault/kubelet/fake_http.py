"""A strict kubelet for tests: HTTPS, tokens reviewed, rights by table, and it misbehaves on order.

It runs on the event loop of the test. `start` after `stop` comes back on the same port.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import trustme
from aiohttp import web

TOKEN = "token-of-the-agent"
HANG, RESET, HALF = "hang", "reset", "half"

# what the kubelet asks the API server about a path, finest first
SUBRESOURCES = {"/pods/": "pods", "/configz": "configz", "/pods": "pods"}


class ServedRequest:
    """One request as the kubelet saw it."""

    def __init__(self, path: str, user: str, status: int | str) -> None:
        self.path, self.user, self.status = path, user, status

    def __repr__(self) -> str:
        return f"{self.path} {self.user or 'nobody'} {self.status}"


class FakeKubelet:
    """`rights` maps users to what they may get; everything else is 403, and unknown tokens 401."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", *, tls: bool = True) -> None:
        self.host, self.tls, self.port = host, tls, 0
        self.users: dict[str, str] = {TOKEN: "agent"}
        self.rights: dict[str, set[str]] = {"agent": {"nodes/pods", "nodes/configz"}}
        self.fine_grained = True  # KubeletFineGrainedAuthz
        self.pods: list[object] = []
        self.config: Mapping[str, object] = {}
        self.bodies: dict[str, bytes] = {}  # path -> what is answered in place of the truth
        self.statuses: dict[str, int] = {}
        self.faults: dict[str, str] = {}  # path -> HANG, RESET, HALF
        self.asked: list[ServedRequest] = []
        self.connections: set[object] = set()
        authority = trustme.CA()
        self._cert = authority.issue_cert(host)
        self.ca_file = folder / "kubelet-ca.pem"
        authority.cert_pem.write_to_path(str(self.ca_file))
        self.wrong_ca_file = folder / "other-ca.pem"
        trustme.CA().cert_pem.write_to_path(str(self.wrong_ca_file))
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen; at the port of before, if there was one."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        # a client that hangs up is not waited for
        runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
        await runner.setup()
        context = None
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._cert.configure_cert(context)
        site = web.TCPSite(runner, self.host, self.port, ssl_context=context, reuse_address=True)
        await site.start()
        self.port = runner.addresses[0][1]
        self._runner = runner

    async def stop(self) -> None:
        """Close everything, as a kubelet that is stopped or killed."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakeKubelet]:
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        user = ""
        try:
            self.connections.add(request.transport)
            user = self._reviewed(request)
            response = await self._served(request)
        except web.HTTPException as refusal:
            self.asked.append(ServedRequest(request.path, user, refusal.status))
            raise
        self.asked.append(ServedRequest(request.path, user, response.status))
        return response

    def _reviewed(self, request: web.Request) -> str:
        """Do as TokenReview and SubjectAccessReview would; the read-only port asks nobody."""
        if not self.tls:
            if "Authorization" in request.headers:
                raise web.HTTPBadRequest(text="a token was sent in the clear")
            return "nobody"
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        user = self.users.get(token) if scheme == "Bearer" else None
        if user is None:
            raise web.HTTPUnauthorized(text="Unauthorized")
        if request.method != "GET":
            raise web.HTTPMethodNotAllowed(request.method, ["GET"])
        part = SUBRESOURCES.get(request.path)
        requests = [part, "proxy"] if self.fine_grained and part else ["proxy"]
        if not any(f"nodes/{name}" in self.rights.get(user, set()) for name in requests):
            raise web.HTTPForbidden(
                text=f"Forbidden (user={user}, verb=get, resource=nodes,"
                f" subresource(s)=[{' '.join(requests)}])"
            )
        return user

    async def _served(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path not in ("/pods/", "/configz") or (path == "/configz" and not self.tls):
            raise web.HTTPNotFound(text="404 page not found")
        fault = self.faults.get(path)
        if fault == HANG:
            self.asked.append(ServedRequest(path, "", HANG))
            await asyncio.Event().wait()
        body = self.bodies.get(path, self._body(path))
        if fault in (RESET, HALF):
            return await self._broken(request, body, fault)
        status = self.statuses.get(path, 200)
        headers = {"Location": f"https://{self.host}:1/steal"} if status == 307 else {}
        return web.Response(
            status=status, body=body, content_type="application/json", headers=headers
        )

    def _body(self, path: str) -> bytes:
        import msgspec

        if path == "/configz":
            return msgspec.json.encode({"kubeletconfig": self.config})
        return msgspec.json.encode(
            {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self.pods}
        )

    async def _broken(self, request: web.Request, body: bytes, how: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(body))})
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        assert request.transport is not None
        if how == RESET:
            request.transport.abort()
        else:
            request.transport.close()
        return response


def pod(name: str, uid: str = "", **annotations: str) -> dict[str, object]:
    """Return a running pod as a kubelet lists it."""
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid or f"uid-of-{name}",
            "annotations": {
                key.replace("__", "/").replace("_", "."): annotations[key] for key in annotations
            },
        },
        "spec": {"nodeName": "node-a", "containers": [{"name": "main", "image": "i"}]},
        "status": {"phase": "Running", "qosClass": "BestEffort"},
    }
