"""The versions of an API group that the server offers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec

from agent.kube.api import ApiClient, ApiRequest
from agent.kube.errors import ApiError, BadResponse, Forbidden, NotFound
from agent.kube.flow_control import Backoff
from agent.wire_formats.json_values import JSON_ERRORS

REREAD_S = 600.0  # versions change when a person installs another one
ABSENT_S = 300.0  # a missing group may be installed; 5,000 nodes make 17 requests a second
MAX_VERSIONS = 16

ApiVersions = tuple[str, ...]


class _GroupVersion(msgspec.Struct):
    version: str


class _ApiGroup(msgspec.Struct):
    versions: list[_GroupVersion]


async def read_api_versions(api: ApiClient, group: str) -> ApiVersions:
    """Return the versions, none if the server does not have the group; raise an `ApiError`."""
    request = ApiRequest(method="GET", path=f"/apis/{group}")
    try:
        response = await api.call(request)
        api_group = msgspec.json.decode(response.body, type=_ApiGroup)
    except NotFound:
        return ()
    except JSON_ERRORS as error:
        raise BadResponse(str(request), "it lists no versions of a group") from error
    return tuple(entry.version for entry in api_group.versions[:MAX_VERSIONS])


async def follow_api_versions(
    api: ApiClient,
    group: str,
    take: Callable[[ApiVersions], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    uniform: Callable[[float, float], float] = random.uniform,
) -> None:
    """Read the versions again and again; call `take` with each result.

    Without the right to read them, the result is empty. A failed read is retried, and `take` is not
    called.
    """
    backoff, failures = Backoff(), 0
    while True:
        try:
            versions = await read_api_versions(api, group)
        except Forbidden:
            versions = ()
        except ApiError as error:
            failures += 1
            await sleep(backoff.wait_s(failures, error.retry_after_s, uniform))
            continue
        failures = 0
        take(versions)
        await sleep((REREAD_S if versions else ABSENT_S) * uniform(0.9, 1.1))
