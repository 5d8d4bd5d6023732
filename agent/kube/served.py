"""Which versions of a group of resources the server has."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec

from agent.kube.backoff import Backoff
from agent.kube.base import Api, Request
from agent.kube.errors import ApiError, BadAnswer, Forbidden, NotFound

AGAIN_S = 600.0  # they change when a person installs another version
ABSENT_S = 300.0  # a group that is not there may be installed; 5,000 nodes ask 17 times a second
MAX_VERSIONS = 16

Versions = tuple[str, ...]


class _Version(msgspec.Struct):
    version: str


class _Group(msgspec.Struct):
    versions: list[_Version]


async def served_versions(api: Api, group: str) -> Versions:
    """Return the versions, none if the server does not have the group; raise an `ApiError`."""
    request = Request(method="GET", path=f"/apis/{group}")
    try:
        answer = await api.call(request)
        found = msgspec.json.decode(answer.body, type=_Group)
    except NotFound:
        return ()
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadAnswer(str(request), "it lists no versions of a group") from error
    return tuple(entry.version for entry in found.versions[:MAX_VERSIONS])


async def follow_versions(
    api: Api,
    group: str,
    take: Callable[[Versions], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    uniform: Callable[[float, float], float] = random.uniform,
) -> None:
    """Tell the versions now and again, for ever; `take` is called with each answer.

    Who may not ask is told of none. A failure is tried again, and what was told last stands.
    """
    backoff, failures = Backoff(), 0
    while True:
        try:
            versions = await served_versions(api, group)
        except Forbidden:
            versions = ()
        except ApiError as error:
            failures += 1
            await sleep(backoff.wait_s(failures, error.retry_after_s, uniform))
            continue
        failures = 0
        take(versions)
        await sleep((AGAIN_S if versions else ABSENT_S) * uniform(0.9, 1.1))
