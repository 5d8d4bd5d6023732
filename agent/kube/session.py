"""An authenticated session with one server: calls, streams, deadlines, status."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping

import aiohttp
from msgspec.structs import replace

from agent.clock import Clock
from agent.kube.api import (
    APPLY_PATCH_TYPE,
    MAX_BODY_BYTES,
    MERGE_PATCH_TYPE,
    ApiRequest,
    ApiResponse,
)
from agent.kube.connections import (
    ConnectionPool,
    LineReader,
    RequestAttempt,
    fail_body_on_disconnect,
    read_body,
    read_chunk,
)
from agent.kube.credentials import Credentials, TlsContextCache, TlsFiles, TokenFile
from agent.kube.endpoint import (
    ApiTarget,
    Endpoint,
    InClusterTarget,
    KubeconfigTarget,
    parse_proxy,
    proxy_for,
)
from agent.kube.errors import ApiError, BadResponse, Unreachable
from agent.kube.http_errors import (
    MAX_ERROR_BYTES,
    RequestRoute,
    error_of_response,
    http_date_s,
    is_closed_connection,
    is_untrusted_certificate,
    translate_errors,
)
from agent.kube.kubeconfig import KubeconfigCredentials
from agent.snapshot.cluster import ApiSessionStatus

log = logging.getLogger(__name__)

NO_RESPONSE_CODE = "none"  # code of a request that got no answer


def clock_skew_s(date_s: float, sent_s: float, received_s: float) -> float:
    """Return how far the server's clock is ahead at least; wall seconds.

    The header has whole seconds and was written between sending and receiving, so the true
    difference is between `date - received` and `date + 1 - sent`.
    """
    lowest_s, highest_s = date_s - received_s, date_s + 1 - sent_s
    if lowest_s <= 0 <= highest_s:
        return 0.0
    return lowest_s if lowest_s > 0 else highest_s


class SessionStatusTracker:
    """Updates the status of one session. Belongs to the loop thread."""

    def __init__(self, server: str, clock: Clock) -> None:
        """Start without any request; `server` names the server in the log."""
        self._server = server
        self._clock = clock
        self.state = ApiSessionStatus()

    def begin(self, *, stream: bool) -> None:
        """Count a call or stream as in progress."""
        self._count(1, stream=stream)

    def end(self, *, stream: bool) -> None:
        """Count a call or stream as ended."""
        self._count(-1, stream=stream)

    def count_retries(self, times: int) -> None:
        """Count repeated requests."""
        if times:
            self.state = replace(self.state, retries=self.state.retries + times)

    def record_response(self, verb: str, status: int) -> None:
        """Record a response of any status."""
        now_s = self._clock.monotonic()
        if self.state.reachable is False:
            log.info("server_answers_again", extra={"server": self._server})
        self.state = replace(
            self.state,
            reachable=True,
            last_answer_s=now_s,
            last_ok_s=now_s if 200 <= status < 300 else self.state.last_ok_s,
            requests=self._incremented(verb, str(status)),
        )

    def record_failure(self, verb: str, error: ApiError, *, answered: bool) -> None:
        """Record an error; the server counts as unreachable only if no response had begun.

        A stream that breaks later says little: proxies end streams at any time.
        """
        state = self.state
        if not answered:
            state = replace(state, requests=self._incremented(verb, NO_RESPONSE_CODE))
        is_unreachable = isinstance(error, Unreachable) and not answered
        if is_unreachable and state.reachable is not False:
            extra = {"server": self._server, "error": str(error)}
            log.warning("server_does_not_answer", extra=extra)
        self.state = replace(
            state,
            reachable=False if is_unreachable else state.reachable,
            last_error=str(error),
        )

    def record_clock_skew(self, date_s: float, sent_s: float) -> None:
        """Record the server's clock, from a request sent at `sent_s`; wall seconds."""
        skew_s = clock_skew_s(date_s, sent_s, self._clock.wall())
        self.state = replace(self.state, clock_skew_s=skew_s)

    def _count(self, change: int, *, stream: bool) -> None:
        state = self.state
        if stream:
            self.state = replace(state, streams=state.streams + change)
        else:
            self.state = replace(state, in_flight=state.in_flight + change)

    def _incremented(self, verb: str, code: str) -> Mapping[tuple[str, str], int]:
        requests = self.state.requests
        return {**requests, (verb, code): requests.get((verb, code), 0) + 1}


MAX_CALLS = 8  # at the same time; streams are not counted

WATCH_VERB = "WATCH"

REPEATABLE_PATCH_TYPES = (
    APPLY_PATCH_TYPE,
    MERGE_PATCH_TYPE,
)  # a PATCH of these types may be repeated

Authentication = tuple[
    str | None, ssl.SSLContext | None
]  # the Authorization header, the trusted authorities


class ApiSession:
    """`agent.kube.api.ApiClient` over HTTPS. Belongs to the loop thread; connects at the first use.

    A request is repeated once after a 401 if there are other credentials by then, and after an
    error of a reused connection that the server had closed, if repeating it is safe.
    """

    def __init__(
        self, endpoint: Endpoint, credentials: Credentials, trust: TlsContextCache, clock: Clock
    ) -> None:
        """Take the server, the account, and the trusted authorities."""
        self.credentials = credentials
        self._endpoint = endpoint
        self._trust = trust
        self._clock = clock
        self._connections = ConnectionPool(endpoint)
        self._call_slots = asyncio.Semaphore(MAX_CALLS)
        self._status = SessionStatusTracker(str(endpoint), clock)

    @property
    def state(self) -> ApiSessionStatus:
        """Return the status of the session; any thread may call this."""
        return replace(
            self._status.state,
            opened_connections=self._connections.opened_count,
            token_read_errors=self.credentials.read_errors,
            ca_read_errors=self._trust.read_errors,
        )

    async def close(self) -> None:
        """Close all connections; calls and streams in progress end as `Unreachable`."""
        await self._connections.close()

    async def call(self, request: ApiRequest) -> ApiResponse:
        """Return the response; raise the subclass of `ApiError` that fits the failure."""
        attempt = RequestAttempt(request.method)
        attempt.stage = f"waiting for one of {MAX_CALLS} other calls to end"
        self._status.begin(stream=False)
        try:
            with self._recording(attempt):
                async with (
                    _deadline(request, attempt),
                    self._call_slots,
                    self._response(request, attempt) as response,
                ):
                    body = await read_body(response, str(request), self._route(), MAX_BODY_BYTES)
                    headers = _headers(response)
                    return ApiResponse(status=response.status, headers=headers, body=body)
        finally:
            self._status.end(stream=False)

    @contextlib.asynccontextmanager
    async def stream(
        self, request: ApiRequest, idle_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Return the lines of a watch; closing it closes the connection of an open stream."""
        attempt = RequestAttempt(WATCH_VERB)
        self._status.begin(stream=True)
        try:
            async with contextlib.AsyncExitStack() as stack:
                with self._recording(attempt):
                    async with _deadline(request, attempt):
                        response = await stack.enter_async_context(self._response(request, attempt))
                lines = self._lines(request, response, idle_s, attempt)
                yield await stack.enter_async_context(contextlib.aclosing(lines))
        finally:
            self._status.end(stream=True)

    async def _lines(
        self,
        request: ApiRequest,
        response: aiohttp.ClientResponse,
        idle_s: float,
        attempt: RequestAttempt,
    ) -> AsyncGenerator[bytes, None]:
        lines, now_s = LineReader(str(request), MAX_BODY_BYTES), asyncio.get_running_loop().time
        with self._recording(attempt):
            until_s = now_s() + idle_s  # for a whole line: bytes without a line end do not count
            try:
                while chunk := await read_chunk(response, str(request), self._route(), until_s):
                    for line in lines.feed(chunk):
                        yield line
                        until_s = now_s() + idle_s
            except TimeoutError as error:
                raise Unreachable(str(request), f"no line came for {idle_s:g} s") from error
            if lines.pending_bytes:
                raise Unreachable(str(request), f"{self._endpoint} ended the stream within a line")

    @contextlib.asynccontextmanager
    async def _response(
        self, request: ApiRequest, attempt: RequestAttempt
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a 2xx response with its body unread; raise the error for any other response."""
        sent_s = self._clock.wall()
        response, secrets = await self._send_authenticated(request, attempt)
        try:
            with fail_body_on_disconnect(response):
                attempt.stage = "reading the answer"
                self._record_response(response, attempt, sent_s)
                if not 200 <= response.status < 300:
                    raise await self._refusal(request, response, secrets)
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise BadResponse(str(request), "compressed, which was not asked for")
                yield response
        finally:
            response.close()  # without effect if its body was read to the end

    async def _send_authenticated(
        self, request: ApiRequest, attempt: RequestAttempt
    ) -> tuple[aiohttp.ClientResponse, tuple[str, ...]]:
        """Send the request, after a 401 again with other credentials; return its secrets too."""
        attempt.stage = "waiting for credentials"
        authentication = await self._authenticate()
        attempt.stage = "waiting for a connection"
        response = await self._send(request, authentication, attempt)
        if response.status == 401:
            self.credentials.expire()
            try:
                new_authentication = await self._authenticate()
            except BaseException:
                response.close()
                raise
            if new_authentication != authentication:
                response.close()
                authentication = new_authentication
                response = await self._send(request, authentication, attempt)
        authorization, _ = authentication
        return response, ((authorization or "").partition(" ")[2],)

    async def _authenticate(self) -> Authentication:
        if not self._endpoint.is_tls:
            return None, None  # a token is never sent without encryption
        return await self.credentials.authorization(), await self._trust.context()

    async def _send(
        self, request: ApiRequest, authentication: Authentication, attempt: RequestAttempt
    ) -> aiohttp.ClientResponse:
        try:
            return await self._send_once(request, authentication, attempt)
        except Unreachable as error:
            stale = attempt.is_reused and is_closed_connection(error)
            if not (
                stale
                and request.content_type in REPEATABLE_PATCH_TYPES
                and request.method == "PATCH"
            ):
                raise
        # the library repeats GET, PUT and DELETE itself
        return await self._send_once(request, authentication, attempt)

    async def _send_once(
        self, request: ApiRequest, authentication: Authentication, attempt: RequestAttempt
    ) -> aiohttp.ClientResponse:
        if self._connections.is_closed:
            raise Unreachable(str(request), "the session is closed")
        authorization, tls = authentication
        with translate_errors(str(request), self._route()):
            return await self._connections.send(request, authorization, tls, attempt)

    async def _refusal(
        self, request: ApiRequest, response: aiohttp.ClientResponse, secrets: tuple[str, ...]
    ) -> ApiError:
        try:
            body = await read_body(response, str(request), self._route(), MAX_ERROR_BYTES)
        except ApiError:
            body = b""  # the status is more useful than the error of reading its body
        return error_of_response(
            str(request),
            response.status,
            _headers(response),
            body,
            secrets=secrets,
            wall_s=self._clock.wall(),
        )

    @contextlib.contextmanager
    def _recording(self, attempt: RequestAttempt) -> Iterator[None]:
        try:
            yield
        except ApiError as error:
            if (
                not self._connections.is_closed
            ):  # errors caused by closing the session say nothing about the server
                self._status.record_failure(attempt.verb, error, answered=attempt.is_answered)
            if is_untrusted_certificate(error):
                self._trust.expire()
            raise
        finally:
            self._status.count_retries(attempt.take_repeats())

    def _record_response(
        self, response: aiohttp.ClientResponse, attempt: RequestAttempt, sent_s: float
    ) -> None:
        attempt.is_answered = True
        self._status.record_response(attempt.verb, response.status)
        date_s = http_date_s(response.headers.get("Date", ""))
        if date_s is not None:
            self._status.record_clock_skew(date_s, sent_s)

    def _route(self) -> RequestRoute:
        proxy = self._endpoint.proxy
        return RequestRoute(
            server=str(self._endpoint), proxy=proxy, authority=self._trust.authority
        )


@contextlib.asynccontextmanager
async def _deadline(request: ApiRequest, attempt: RequestAttempt) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(request.deadline_s):
            yield
    except TimeoutError as error:
        raise Unreachable(
            str(request), f"not done within {request.deadline_s:g} s: {attempt.stage}"
        ) from error


def _headers(response: aiohttp.ClientResponse) -> Mapping[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


async def open_session(target: ApiTarget, clock: Clock, environ: Mapping[str, str]) -> ApiSession:
    """Return a session; nothing is sent yet. Raise `NoApiServer` if none can be opened.

    In a pod no file is read either; a kubeconfig is read, and may run a plug-in.
    """
    if isinstance(target, InClusterTarget):
        return _in_cluster_session(target, clock, environ)
    return await _kubeconfig_session(target, clock, environ)


def _in_cluster_session(
    target: InClusterTarget, clock: Clock, environ: Mapping[str, str]
) -> ApiSession:
    files = TlsFiles(ca_file=f"{target.folder}/ca.crt")
    return ApiSession(
        Endpoint(url=target.url, proxy=proxy_for(target.url, environ)),
        TokenFile(f"{target.folder}/token", clock),
        TlsContextCache(lambda: files, clock),
        clock,
    )


async def _kubeconfig_session(
    target: KubeconfigTarget, clock: Clock, environ: Mapping[str, str]
) -> ApiSession:
    credentials = KubeconfigCredentials(target, clock)
    account = await credentials.open()
    proxy = proxy_for(account.url, environ)
    if account.proxy:
        proxy = parse_proxy(account.proxy, f"proxy-url of {target}")
    return ApiSession(
        Endpoint(url=account.url, server_name=account.server_name, proxy=proxy),
        credentials,
        TlsContextCache(lambda: credentials.tls, clock),
        clock,
    )
