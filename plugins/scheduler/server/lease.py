"""Leader election by a Lease, as client-go does it: one replica answers, the others wait.

A leader that could not renew in time falls silent before another one can take the lease: it asks
its own clock at each answer, so that it does so even if it was paused meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from agent.clock import Clock
from agent.errors import ParseError
from agent.kube.api import (
    JSON_TYPE,
    ApiClient,
    ApiRequest,
    ApiResource,
    ApiResponse,
    decode_object,
)
from agent.kube.errors import ApiError, NotFound
from agent.wire_formats.json_values import JsonDict

log = logging.getLogger(__name__)


class NotLeader(ApiError):
    """A write was not sent, because this replica is not the leader any more."""


LEASES = ApiResource(
    group="coordination.k8s.io", version="v1", plural="leases", kind="Lease", namespaced=True
)
DURATION_S = 15  # that a lease lasts after its last renewal
RENEW_DEADLINE_S = 10.0  # without a renewal for so long the leader falls silent
RETRY_S = 2.0
DEADLINE_S = 5.0  # of one request; a write in flight ends before the lease can be taken


class LeadershipView(Protocol):
    """Knows whether this replica is the leader at this moment."""

    @property
    def is_leader(self) -> bool:
        """Return whether this replica may write now."""


class LeaderApi:
    """The API server as one term of a leader uses it: writes end with the term.

    A replica that was paused asks its own clock before each write, as it does before each answer.
    """

    def __init__(self, api: ApiClient, elector: LeadershipView) -> None:
        self._api = api
        self._elector = elector

    async def call(self, request: ApiRequest) -> ApiResponse:
        """Call the server; raise `NotLeader` instead of a write after the term."""
        if request.method != "GET" and not self._elector.is_leader:
            raise NotLeader(f"{request.method} {request.path}", "this replica lost the lease")
        return await self._api.call(request)

    def stream(
        self, request: ApiRequest, idle_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Return the lines of a watch."""
        return self._api.stream(request, idle_s)


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a Lease. Its times are of other clocks, and are not compared."""

    holder: str = ""
    renewed: str = ""  # text, compared for equality only
    duration_s: int = DURATION_S
    transitions: int = 0
    version: str = ""  # of the object
    uid: str = ""


class LeaseObservation(msgspec.Struct, frozen=True, kw_only=True):
    """The last record that was read, and since when it has not changed."""

    record: LeaseRecord
    since_s: float  # monotonic

    def is_expired(self, now_s: float) -> bool:
        """Return whether the holder has not renewed for the lease's duration."""
        return not self.record.holder or now_s - self.since_s >= self.record.duration_s


def observe(before: LeaseObservation | None, record: LeaseRecord, now_s: float) -> LeaseObservation:
    """Return the observation with a record that was read now."""
    if before is not None and before.record == record:
        return before
    return LeaseObservation(record=record, since_s=now_s)


class LeaderElector:
    """Takes and renews one Lease. Belongs to the loop thread."""

    def __init__(
        self,
        api: ApiClient,
        clock: Clock,
        identity: str,
        *,
        namespace: str,
        name: str,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._clock = clock
        self._identity = identity
        self._namespace = namespace
        self._name = name
        self._sleep = sleep
        self._observation: LeaseObservation | None = None
        self._renewed_s: float | None = None  # monotonic, before the request that renewed it
        self.error = ""  # of the last request

    @property
    def is_leader(self) -> bool:
        """Return whether this replica may answer now."""
        return (
            self._renewed_s is not None
            and self._clock.monotonic() - self._renewed_s < RENEW_DEADLINE_S
        )

    @property
    def holder(self) -> str:
        """Return the identity in the Lease; empty while it is unknown."""
        return "" if self._observation is None else self._observation.record.holder

    @property
    def term(self) -> int:
        """Return the number of the term: each holder's is higher than that of the one before."""
        return 0 if self._observation is None else self._observation.record.transitions

    @property
    def lease_uid(self) -> str:
        """Return the uid of the Lease; empty while it is not known."""
        return "" if self._observation is None else self._observation.record.uid

    async def acquire(self) -> None:
        """Wait until this replica is the leader."""
        while not await self._try():
            await self._sleep(RETRY_S)

    async def hold(self) -> None:
        """Renew until the lease is lost."""
        while self.is_leader:
            await self._sleep(RETRY_S)
            await self._try()
        self._renewed_s = None
        log.error("leadership_lost", extra={"holder": self.holder, "error": self.error})

    async def release(self) -> None:
        """Release the lease, so that another replica need not wait for its end."""
        observation = self._observation
        if not self.is_leader or observation is None:
            return
        self._renewed_s = None
        await self._write(
            LeaseRecord(
                transitions=observation.record.transitions,
                version=observation.record.version,
                duration_s=1,
            )
        )

    async def _try(self) -> bool:
        """Take or renew the lease once; return whether it is held."""
        now_s = self._clock.monotonic()
        try:
            record = await self._read()
        except (ApiError, ParseError) as error:
            self.error = str(error)
            return self.is_leader
        if record is None:
            return await self._write(LeaseRecord(holder=self._identity), now_s=now_s, creates=True)
        self._observation = observation = observe(self._observation, record, now_s)
        is_own = record.holder == self._identity
        if not is_own and not observation.is_expired(now_s):
            self._renewed_s = None
            return False
        transitions = record.transitions + (not is_own)
        wanted = LeaseRecord(holder=self._identity, transitions=transitions, version=record.version)
        return await self._write(wanted, now_s=now_s)

    async def _read(self) -> LeaseRecord | None:
        try:
            response = await self._api.call(
                ApiRequest(
                    method="GET",
                    path=LEASES.path(self._name, self._namespace),
                    deadline_s=DEADLINE_S,
                )
            )
        except NotFound:
            return None
        return lease_record(decode_object(response.body))

    async def _write(
        self, record: LeaseRecord, *, now_s: float | None = None, creates: bool = False
    ) -> bool:
        """Write the lease; with a time, remember it as renewed then. A conflict is no success."""
        renewed = _micro_time(self._clock.wall())
        body = lease_object(record, self._namespace, self._name, renewed)
        method, name = ("POST", "") if creates else ("PUT", self._name)
        try:
            response = await self._api.call(
                ApiRequest(
                    method=method,
                    path=LEASES.path(name, self._namespace),
                    body=msgspec.json.encode(body),
                    content_type=JSON_TYPE,
                    deadline_s=DEADLINE_S,
                )
            )
            written = lease_record(decode_object(response.body))
        except (ApiError, ParseError) as error:
            self.error = str(error)
            return self.is_leader
        self.error = ""
        self._observation = LeaseObservation(record=written, since_s=self._clock.monotonic())
        self._renewed_s = now_s
        return now_s is not None


def lease_record(body: JsonDict) -> LeaseRecord:
    """Return the content of a Lease; members of wrong types count as absent."""
    metadata, spec = body.get("metadata"), body.get("spec")
    members = spec if isinstance(spec, dict) else {}
    version, uid = (
        metadata.get(name) if isinstance(metadata, dict) else None
        for name in ("resourceVersion", "uid")
    )
    duration, transitions = members.get("leaseDurationSeconds"), members.get("leaseTransitions")
    holder, renewed = members.get("holderIdentity"), members.get("renewTime")
    return LeaseRecord(
        holder=holder if isinstance(holder, str) else "",
        renewed=renewed if isinstance(renewed, str) else "",
        duration_s=duration if isinstance(duration, int) else DURATION_S,
        transitions=transitions if isinstance(transitions, int) else 0,
        version=version if isinstance(version, str) else "",
        uid=uid if isinstance(uid, str) else "",
    )


def lease_object(record: LeaseRecord, namespace: str, name: str, renewed: str) -> JsonDict:
    """Return the object to write; with a version, only that version is replaced."""
    metadata: JsonDict = {"name": name, "namespace": namespace}
    if record.version:
        metadata["resourceVersion"] = record.version
    spec: JsonDict = {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": record.duration_s,
        "renewTime": renewed,
        "acquireTime": renewed,
        "leaseTransitions": record.transitions,
    }
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": metadata,
        "spec": spec,
    }


def _micro_time(wall_s: float) -> str:
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(wall_s))
    return f"{text}.{int(wall_s % 1 * 1e6):06d}Z"
