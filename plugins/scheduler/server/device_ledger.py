"""Marks the Device object before each binding, so that a replica that lost the lease notices it.

A pod's resourceVersion protects one pod, but no device: two replicas that both take themselves for
the leader could give one device to two pods. Each binding is therefore preceded by a write of
`TERM/NUMBER` to the Device object, of exactly the version that this replica knows. If another
replica has written meanwhile, the write fails. A replica that is paused between the mark and the
binding is not noticed: then the agent refuses the second pod.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from typing import TypeVar

import msgspec

from agent.errors import AgentError, ParseError
from agent.kube.api import ApiClient, ApiRequest, ObjectRequests
from agent.kube.errors import ApiError, Conflict
from agent.kube.resources import DEVICES
from agent.wire_formats.json_values import JSON_ERRORS

T = TypeVar("T")

LEDGER_ANNOTATION = "xpu-agent.io/ledger"
DEADLINE_S = 5.0
PAGE = 500  # Device objects of one answer
MAX_TRIES = 3  # of one mark: the agent writes the object, too
_MARK = re.compile(r"(\d{1,12})/(\d{1,18})")


class LedgerRefused(AgentError):
    """The mark was not written, so nothing may be bound."""


class _LedgerMetadata(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _LedgerObject(msgspec.Struct):
    metadata: _LedgerMetadata


class _ListMetadata(msgspec.Struct, rename="camel"):
    continue_token: str = msgspec.field(name="continue", default="")


class _LedgerList(msgspec.Struct):
    metadata: _ListMetadata
    items: list[_LedgerObject]


class DeviceMark(msgspec.Struct, frozen=True):
    """The annotation of one Device object, and the version of the object."""

    version: str = ""
    text: str = ""

    @property
    def term(self) -> int:
        """Return the term of the replica that wrote it; -1 without one."""
        match = _MARK.fullmatch(self.text)
        return int(match[1]) if match is not None else -1


class DeviceLedger:
    """Marks Device objects in one term. Belongs to the loop thread."""

    def __init__(self, api: ApiClient, term: int) -> None:
        self._api = api
        self._term = term
        self._number = 0
        self._marks: dict[str, DeviceMark] = {}  # by node
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def start(self) -> None:
        """Read the marks of all nodes; raises `ApiError` or `ParseError`.

        This precedes the list of pods: later marks of another replica are noticed, and its earlier
        bindings are in that list.
        """
        token = ""
        while True:
            query = (("limit", str(PAGE)), *((("continue", token),) if token else ()))
            response = await self._api.call(
                ApiRequest(method="GET", path=DEVICES.path(), query=query, deadline_s=DEADLINE_S)
            )
            page = _decode(response.body, _LedgerList)
            for item in page.items:
                self._marks[item.metadata.name] = _mark(item)
            token = page.metadata.continue_token
            if not token:
                break
        # a Lease that was deleted counts from 0 again
        highest = max((mark.term for mark in self._marks.values()), default=-1)
        self._term = max(self._term, highest + 1)

    async def mark(self, node: str) -> None:
        """Mark the node's Device object; raise `LedgerRefused`."""
        async with self._locks[node]:
            for _ in range(MAX_TRIES):
                try:
                    if node not in self._marks:
                        self._marks[node] = await self._read(node)
                    await self._write(node)
                except Conflict:
                    await self._compare(node)
                except (ApiError, ParseError) as error:
                    raise LedgerRefused(
                        f"the Device of {node} cannot be marked: {error}"
                    ) from error
                else:
                    return
            raise LedgerRefused(f"the Device of {node} changes too often to be marked")

    async def _write(self, node: str) -> None:
        self._number += 1
        text = f"{self._term}/{self._number}"
        patch = {
            "metadata": {
                "resourceVersion": self._marks[node].version,
                "annotations": {LEDGER_ANNOTATION: text},
            }
        }
        response = await self._api.call(self._requests(node).merge(patch))
        self._marks[node] = _mark(_decode(response.body, _LedgerObject))

    async def _compare(self, node: str) -> None:
        """Store the object's present version, unless another replica marked it."""
        before = self._marks[node]
        try:
            now = await self._read(node)
        except (ApiError, ParseError) as error:
            raise LedgerRefused(f"the Device of {node} cannot be read: {error}") from error
        if now.term > self._term:
            raise LedgerRefused(f"another replica is the leader: it marked the Device of {node}")
        self._marks[node] = now
        if now.text != before.text and now.term != self._term:
            # an earlier leader: its pod comes by the watch before kube-scheduler tries again
            raise LedgerRefused(f"another replica gave devices of {node} meanwhile")

    async def _read(self, node: str) -> DeviceMark:
        response = await self._api.call(self._requests(node).read())
        return _mark(_decode(response.body, _LedgerObject))

    def _requests(self, node: str) -> ObjectRequests:
        return ObjectRequests(resource=DEVICES, name=node, deadline_s=DEADLINE_S)


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except JSON_ERRORS as error:
        raise ParseError(f"Device object: {type(error).__name__}", "") from error


def _mark(body: _LedgerObject) -> DeviceMark:
    text = (body.metadata.annotations or {}).get(LEDGER_ANNOTATION, "")
    return DeviceMark(version=body.metadata.resource_version, text=text)
