"""Volumes of claims: each read once, only those that are needed, patient with refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from agent.kube.api import ApiRequest, ApiResponse
from agent.kube.errors import BadResponse, Forbidden, NotFound, Unreachable
from agent.kube.volume_claims import (
    FORBIDDEN_S,
    INTERVAL_S,
    VolumeNames,
    follow_volume_names,
    read_volume_name,
)

PATH = "/api/v1/namespaces/shop/persistentvolumeclaims/data"
BOUND = b'{"kind":"PersistentVolumeClaim","spec":{"volumeName":"pvc-1"}}'
UNBOUND = b'{"kind":"PersistentVolumeClaim","spec":{}}'


class Claims:
    """A server with claims by path; an exception is raised."""

    def __init__(self, **answers: bytes | Exception) -> None:
        self.answers: dict[str, bytes | Exception] = {
            f"/api/v1/namespaces/shop/persistentvolumeclaims/{name}": answer
            for name, answer in answers.items()
        }
        self.requests: list[str] = []

    async def call(self, request: ApiRequest) -> ApiResponse:
        self.requests.append(request.path)
        answer = self.answers.get(request.path, NotFound("GET", "no", code=404))
        if isinstance(answer, Exception):
            raise answer
        return ApiResponse(status=200, headers={}, body=answer)

    def stream(
        self, request: ApiRequest, idle_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise NotImplementedError


def test_a_bound_claim_names_its_volume() -> None:
    server = Claims(data=BOUND, new=UNBOUND)
    assert asyncio.run(read_volume_name(server, "shop/data")) == "pvc-1"
    assert server.requests == [PATH]
    assert asyncio.run(read_volume_name(server, "shop/new")) == ""
    assert asyncio.run(read_volume_name(server, "shop/gone")) == ""


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'{"spec":3}', b"\xff", b"[" * 100_000])
def test_what_is_no_claim_is_a_bad_answer(body: bytes) -> None:
    with pytest.raises(BadResponse):
        asyncio.run(read_volume_name(Claims(data=body), "shop/data"))


def followed(
    server: Claims, *rounds: Callable[[], frozenset[str]]
) -> tuple[list[dict[str, str]], list[float]]:
    """Return what was taken and the pauses; each round says which claims are needed."""
    results: list[dict[str, str]] = []
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == len(rounds):
            raise asyncio.CancelledError

    def take(names: VolumeNames) -> None:
        results.append(dict(names))

    def needed() -> frozenset[str]:
        return rounds[len(pauses)]()

    middle: Callable[[float, float], float] = lambda low, high: (low + high) / 2  # noqa: E731
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(follow_volume_names(server, needed, take, sleep, middle))
    return results, pauses


def need(*names: str) -> Callable[[], frozenset[str]]:
    return lambda: frozenset(f"shop/{name}" for name in names)


def test_each_claim_is_read_once_and_forgotten_when_no_pod_needs_it() -> None:
    server = Claims(data=BOUND)
    results, pauses = followed(server, need(), need("data"), need("data"), need())
    assert results == [{"shop/data": "pvc-1"}, {}]
    assert server.requests == [PATH]
    assert pauses == [INTERVAL_S] * 4


def test_an_unbound_claim_is_read_again() -> None:
    server = Claims(data=UNBOUND)

    def bind() -> frozenset[str]:
        server.answers[PATH] = BOUND
        return need("data")()

    results, _ = followed(server, need("data"), bind)
    assert results == [{"shop/data": "pvc-1"}]


def test_without_the_right_it_waits_long_and_keeps_what_it_has() -> None:
    server = Claims(data=BOUND, other=Forbidden("GET", "no", code=403))
    results, pauses = followed(server, need("data"), need("data", "other"))
    assert results == [{"shop/data": "pvc-1"}]
    assert pauses == [INTERVAL_S, FORBIDDEN_S]


def test_a_server_that_is_down_is_called_ever_more_rarely() -> None:
    server = Claims(data=Unreachable("GET", "no"))
    results, pauses = followed(server, *[need("data")] * 8)
    assert results == []
    assert pauses[0] < pauses[3] < pauses[-1] <= 30.0
