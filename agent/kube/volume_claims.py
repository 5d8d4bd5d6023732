"""The volumes that PersistentVolumeClaims are bound to, of claims that somebody needs."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

import msgspec

from agent.kube.api import ApiClient, ApiRequest, ApiResource
from agent.kube.errors import ApiError, BadResponse, Forbidden, NotFound
from agent.kube.flow_control import Backoff
from agent.wire_formats.json_values import JSON_ERRORS

log = logging.getLogger(__name__)

CLAIMS = ApiResource(
    group="", version="v1", plural="persistentvolumeclaims", kind="PersistentVolumeClaim"
)
INTERVAL_S = 5.0
FORBIDDEN_S = 300.0  # until the right is asked for again
FORBIDDEN = "volume_claims_forbidden"

VolumeNames = Mapping[str, str]  # PersistentVolume by "namespace/claim"


class _ClaimSpec(msgspec.Struct, rename="camel"):
    volume_name: str = ""


class _Claim(msgspec.Struct):
    spec: _ClaimSpec = msgspec.field(default_factory=_ClaimSpec)


async def read_volume_name(api: ApiClient, claim: str) -> str:
    """Return the volume of "namespace/claim"; empty while it is not bound. Raise an `ApiError`."""
    namespace, _, name = claim.partition("/")
    request = ApiRequest(method="GET", path=CLAIMS.path(name, namespace))
    try:
        return msgspec.json.decode((await api.call(request)).body, type=_Claim).spec.volume_name
    except NotFound:
        return ""
    except JSON_ERRORS as error:
        raise BadResponse(str(request), "it is no PersistentVolumeClaim") from error


async def follow_volume_names(
    api: ApiClient,
    needed: Callable[[], frozenset[str]],
    take: Callable[[VolumeNames], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    uniform: Callable[[float, float], float] = random.uniform,
) -> None:
    """Read the volume of each claim in `needed` once: a claim stays bound to its volume.

    Call `take` with all of them when they change. Without the right to read claims, the result
    lacks them, which is logged once.
    """
    names: VolumeNames = MappingProxyType({})
    backoff, failures, was_forbidden = Backoff(), 0, False
    while True:
        claims = needed()
        bound = {claim: names[claim] for claim in claims if claim in names}
        wait_s = INTERVAL_S * uniform(0.9, 1.1)
        try:
            for claim in sorted(claims - bound.keys()):
                volume = await read_volume_name(api, claim)
                if volume:
                    bound[claim] = volume
            failures = 0
        except Forbidden as error:
            wait_s = FORBIDDEN_S * uniform(0.9, 1.1)
            if not was_forbidden:
                log.warning(FORBIDDEN, extra={"error": str(error)})
            was_forbidden = True
        except ApiError as error:
            failures += 1
            wait_s = backoff.wait_s(failures, error.retry_after_s, uniform)
        if bound != names:
            names = MappingProxyType(bound)
            take(names)
        await sleep(wait_s)
