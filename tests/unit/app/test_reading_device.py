"""The published Device object, read once after a loss of state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest

from agent.app.cluster import read_device
from agent.kube.api import ApiRequest, ApiResponse
from agent.kube.errors import ApiError, Forbidden, NotFound, Unreachable


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


def read(*answers: bytes | ApiError) -> tuple[object, list[str], list[float]]:
    """Return the object, the requests, and the pauses between them."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    server = Answers(*answers)
    result = asyncio.run(read_device(server, "node-a", 1.0, sleep, lambda _, most: most))
    return result, server.requests, pauses


def test_the_nodes_own_object_is_read_once() -> None:
    path = "/apis/scheduling.koordinator.sh/v1alpha1/devices/node-a"
    assert read(b'{"kind":"Device"}') == ({"kind": "Device"}, [f"GET {path}"], [])


def test_a_node_without_an_object_has_published_nothing() -> None:
    assert read(NotFound("GET", "no", code=404))[0] is None


@pytest.mark.parametrize(
    "failure",
    [
        Unreachable("GET", "refused"),
        Forbidden("GET", "no", code=403),
        ApiError("GET", "later", code=503),
        b"[]",
        b"{",
    ],
    ids=["unreachable", "forbidden", "unavailable", "a-list", "cut-off"],
)
def test_an_uncertain_answer_is_requested_again_and_never_taken_for_absence(
    failure: bytes | ApiError,
) -> None:
    result, requests, pauses = read(failure, failure, b'{"kind":"Device"}')
    assert result == {"kind": "Device"}
    assert len(requests) == 3
    assert pauses == [0.8, 1.6]
