"""Which versions the server has: asked seldom, told each time, patient with failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from agent.kube.api import ApiRequest, ApiResponse
from agent.kube.api_versions import ABSENT_S, REREAD_S, follow_api_versions, read_api_versions
from agent.kube.errors import ApiError, BadResponse, Forbidden, NotFound, Unreachable

GROUP = "topology.node.k8s.io"
BOTH = b'{"kind":"APIGroup","versions":[{"version":"v1alpha1"},{"version":"v1alpha2"}]}'


class Answers:
    """A server that gives one answer after the other, or fails."""

    def __init__(self, *answers: bytes | ApiError) -> None:
        self.requests: list[str] = []
        self._answers = list(answers)

    async def call(self, request: ApiRequest) -> ApiResponse:
        self.requests.append(str(request))
        answer = self._answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return ApiResponse(status=200, headers={}, body=answer)

    def stream(
        self, request: ApiRequest, idle_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise NotImplementedError


def test_the_versions_of_a_group_are_in_the_servers_order() -> None:
    server = Answers(BOTH)
    assert asyncio.run(read_api_versions(server, GROUP)) == ("v1alpha1", "v1alpha2")
    assert server.requests == [f"GET /apis/{GROUP}"]


def test_a_group_that_is_not_there_has_none() -> None:
    assert asyncio.run(read_api_versions(Answers(NotFound("GET", "no", code=404)), GROUP)) == ()


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'{"versions":3}', b"\xff", b"[" * 100_000])
def test_what_lists_no_versions_is_a_bad_answer(body: bytes) -> None:
    with pytest.raises(BadResponse):
        asyncio.run(read_api_versions(Answers(body), GROUP))


def followed(*answers: bytes | ApiError) -> tuple[list[tuple[str, ...]], list[float]]:
    """Return what was told, and the pauses, until the answers end."""
    results: list[tuple[str, ...]] = []
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == len(answers):
            raise asyncio.CancelledError

    middle: Callable[[float, float], float] = lambda low, high: (low + high) / 2  # noqa: E731
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(follow_api_versions(Answers(*answers), GROUP, results.append, sleep, middle))
    return results, pauses


def test_versions_are_read_again_sooner_while_there_are_none() -> None:
    results, pauses = followed(NotFound("GET", "no", code=404), BOTH)
    assert results == [(), ("v1alpha1", "v1alpha2")]
    assert pauses == [ABSENT_S, REREAD_S]


def test_without_the_right_the_result_is_empty() -> None:
    assert followed(Forbidden("GET", "no", code=403))[0] == [()]


def test_while_the_server_fails_the_last_result_stays() -> None:
    down = Unreachable("GET", "no route", retry_after_s=40.0)
    results, pauses = followed(BOTH, down, Unreachable("GET", "no route"), b"odd", BOTH)
    assert results == [("v1alpha1", "v1alpha2")] * 2
    assert pauses[1] >= 40.0
    assert 0 < pauses[2] < pauses[3] < 30.0
