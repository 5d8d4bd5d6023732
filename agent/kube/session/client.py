"""The session: one request at a time, each with a deadline, each failure of a class."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.clock import Clock
from agent.kube.base import APPLY, MAX_BODY_BYTES, MERGE, Request, Response
from agent.kube.errors import ApiError, BadAnswer, Unreachable
from agent.kube.session.answers import MAX_ERROR_BYTES, failure, http_date_s
from agent.kube.session.connections import Attempt, Connections, Endpoint
from agent.kube.session.credentials import Credentials
from agent.kube.session.edge import Way, ours, was_closed, was_distrusted
from agent.kube.session.reading import Lines, body_of, chunk_of, ending_with_its_connection
from agent.kube.session.state import Keeper, SessionState
from agent.kube.session.trust import Trust

if TYPE_CHECKING:
    import aiohttp

MAX_CALLS = 8  # at once; streams are not counted
STREAM = "WATCH"
REPEATABLE = (APPLY, MERGE)  # a PATCH of these may arrive twice

Signed = tuple[str | None, ssl.SSLContext | None]  # the Authorization header, whom to believe


class Session:
    """`agent.kube.base.Api` over HTTPS. Belongs to the loop thread; opens nothing until used.

    Twice is tried: what was answered 401 when there are other credentials by then, and what can
    be repeated without harm on a kept connection that the server had closed meanwhile.
    """

    def __init__(
        self, endpoint: Endpoint, credentials: Credentials, trust: Trust, clock: Clock
    ) -> None:
        """Take where, who we are there, whom we believe."""
        self.credentials = credentials
        self._endpoint = endpoint
        self._trust = trust
        self._clock = clock
        self._connections = Connections(endpoint)
        self._free = asyncio.Semaphore(MAX_CALLS)
        self._keeper = Keeper(str(endpoint), clock)

    @property
    def state(self) -> SessionState:
        """Return how the server has answered so far; any thread may ask."""
        return replace(
            self._keeper.state,
            open_connections=self._connections.open,
            opened_connections=self._connections.opened,
            token_read_errors=self.credentials.read_errors,
            ca_read_errors=self._trust.read_errors,
        )

    async def close(self) -> None:
        """Close all connections; calls and streams under way end as `Unreachable`."""
        await self._connections.close()

    async def call(self, request: Request) -> Response:
        """Return the answer; raise an `ApiError` of the class that says what to do."""
        attempt = Attempt(request.method)
        attempt.stage = f"waiting for one of {MAX_CALLS} other calls to end"
        self._keeper.began(stream=False)
        try:
            with self._noting(attempt):
                async with (
                    _deadline(request, attempt),
                    self._free,
                    self._answer(request, attempt) as response,
                ):
                    body = await body_of(response, str(request), self._way(), MAX_BODY_BYTES)
                    headers = _headers(response)
                    return Response(status=response.status, headers=headers, body=body)
        finally:
            self._keeper.ended(stream=False)

    @contextlib.asynccontextmanager
    async def stream(self, request: Request, idle_s: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Return the lines of a watch; leaving it closes its connection, unless it ended."""
        attempt = Attempt(STREAM)
        self._keeper.began(stream=True)
        try:
            async with contextlib.AsyncExitStack() as stack:
                with self._noting(attempt):
                    async with _deadline(request, attempt):
                        response = await stack.enter_async_context(self._answer(request, attempt))
                lines = self._lines(request, response, idle_s, attempt)
                yield await stack.enter_async_context(contextlib.aclosing(lines))
        finally:
            self._keeper.ended(stream=True)

    async def _lines(
        self, request: Request, response: aiohttp.ClientResponse, idle_s: float, attempt: Attempt
    ) -> AsyncGenerator[bytes, None]:
        lines, now_s = Lines(str(request), MAX_BODY_BYTES), asyncio.get_running_loop().time
        with self._noting(attempt):
            until_s = now_s() + idle_s  # for a whole line: bytes that never end one are no life
            try:
                while chunk := await chunk_of(response, str(request), self._way(), until_s):
                    for line in lines.feed(chunk):
                        yield line
                        until_s = now_s() + idle_s
            except TimeoutError as error:
                raise Unreachable(str(request), f"no line came for {idle_s:g} s") from error
            if lines.pending_bytes:
                raise Unreachable(str(request), f"{self._endpoint} ended the stream within a line")

    @contextlib.asynccontextmanager
    async def _answer(
        self, request: Request, attempt: Attempt
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Return an answer of 2xx with its body still to be read; raise what any other means."""
        sent_s = self._clock.wall()
        response, secrets = await self._sent(request, attempt)
        try:
            with ending_with_its_connection(response):
                attempt.stage = "reading the answer"
                self._note(response, attempt, sent_s)
                if not 200 <= response.status < 300:
                    raise await self._refusal(request, response, secrets)
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise BadAnswer(str(request), "compressed, which was not asked for")
                yield response
        finally:
            response.close()  # nothing happens when its body was read to the end

    async def _sent(
        self, request: Request, attempt: Attempt
    ) -> tuple[aiohttp.ClientResponse, tuple[str, ...]]:
        """Send it, after a 401 once more with other credentials; return what must not be said."""
        attempt.stage = "waiting for credentials"
        signed = await self._signed()
        attempt.stage = "waiting for a connection"
        response = await self._send(request, signed, attempt)
        if response.status == 401:
            self.credentials.refused()
            try:
                again = await self._signed()
            except BaseException:
                response.close()
                raise
            if again != signed:
                response.close()
                signed = again
                response = await self._send(request, signed, attempt)
        authorization, _ = signed
        return response, ((authorization or "").partition(" ")[2],)

    async def _signed(self) -> Signed:
        if not self._endpoint.is_tls:
            return None, None  # a token is not sent where anybody can read it
        return await self.credentials.authorization(), await self._trust.context()

    async def _send(
        self, request: Request, signed: Signed, attempt: Attempt
    ) -> aiohttp.ClientResponse:
        try:
            return await self._send_once(request, signed, attempt)
        except Unreachable as error:
            stale = attempt.reused and was_closed(error)
            if not (stale and request.content_type in REPEATABLE and request.method == "PATCH"):
                raise
        # the library repeats GET, PUT and DELETE itself
        return await self._send_once(request, signed, attempt)

    async def _send_once(
        self, request: Request, signed: Signed, attempt: Attempt
    ) -> aiohttp.ClientResponse:
        if self._connections.closed:
            raise Unreachable(str(request), "the session is closed")
        authorization, tls = signed
        with ours(str(request), self._way()):
            return await self._connections.send(request, authorization, tls, attempt)

    async def _refusal(
        self, request: Request, response: aiohttp.ClientResponse, secrets: tuple[str, ...]
    ) -> ApiError:
        try:
            body = await body_of(response, str(request), self._way(), MAX_ERROR_BYTES)
        except ApiError:
            body = b""  # the status says more than why its body could not be read
        return failure(
            str(request),
            response.status,
            _headers(response),
            body,
            secrets=secrets,
            wall_s=self._clock.wall(),
        )

    @contextlib.contextmanager
    def _noting(self, attempt: Attempt) -> Iterator[None]:
        try:
            yield
        except ApiError as error:
            if not self._connections.closed:  # what ends with us says nothing of the server
                self._keeper.failed(attempt.verb, error, answered=attempt.answered)
            if was_distrusted(error):
                self._trust.doubted()
            raise
        finally:
            self._keeper.tried_again(attempt.repeats())

    def _note(self, response: aiohttp.ClientResponse, attempt: Attempt, sent_s: float) -> None:
        attempt.answered = True
        self._keeper.answered(attempt.verb, response.status)
        date_s = http_date_s(response.headers.get("Date", ""))
        if date_s is not None:
            self._keeper.skewed(date_s, sent_s)

    def _way(self) -> Way:
        proxy = self._endpoint.proxy
        return Way(server=str(self._endpoint), proxy=proxy, whose=self._trust.whose)


@contextlib.asynccontextmanager
async def _deadline(request: Request, attempt: Attempt) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(request.deadline_s):
            yield
    except TimeoutError as error:
        raise Unreachable(
            str(request), f"not done within {request.deadline_s:g} s: {attempt.stage}"
        ) from error


def _headers(response: aiohttp.ClientResponse) -> Mapping[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}
