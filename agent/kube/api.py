"""Requests to the API server as data.

Resources, requests, responses, and the calls about one object.

Calls that read and write one object.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from agent.errors import ParseError
from agent.snapshot.device import Pairs
from agent.wire_formats.json_values import JSON_ERRORS, JsonObject

JSON_TYPE = "application/json"

APPLY_PATCH_TYPE = "application/apply-patch+yaml"

MERGE_PATCH_TYPE = "application/merge-patch+json"

MAX_BODY_BYTES = 16 << 20  # of one answer, and of one line of a stream; etcd takes 1.5 MB


class ApiResource(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of object at the API server, in one version."""

    group: str  # "" is core
    version: str
    plural: str
    kind: str
    namespaced: bool = False

    @property
    def api_version(self) -> str:
        """Return what objects carry as `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, name: str = "", namespace: str = "", subresource: str = "") -> str:
        """Return the path of the collection, or of one object."""
        parts = ["", "apis", self.group, self.version] if self.group else ["", "api", self.version]
        if namespace:
            parts += ["namespaces", namespace]
        parts += [self.plural, *([name] if name else ()), *([subresource] if subresource else ())]
        return "/".join(parts)


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call. The deadline is of the whole: connecting, sending, the last byte of the answer."""

    method: str  # GET, POST, PATCH, DELETE
    path: str
    query: Pairs = ()
    body: bytes = b""
    content_type: str = JSON_TYPE
    deadline_s: float = 10.0

    def __str__(self) -> str:
        """Say what is asked, for messages."""
        return f"{self.method} {self.path}"


class ApiResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with a status of 2xx. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ApiClient(Protocol):
    """The API server, authenticated. Belongs to the loop thread."""

    async def call(self, request: ApiRequest) -> ApiResponse:
        """Return the answer; raise an `ApiError` of the class that says what to do.

        A 401 was tried again once with a token read anew; nothing else is tried twice.
        """
        ...

    def stream(
        self, request: ApiRequest, idle_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Return the lines of a watch, without their ends; `deadline_s` is that of the first byte.

        A line longer than `MAX_BODY_BYTES` is a `BadAnswer`; `idle_s` seconds without a whole one,
        a reset or a broken chunk an `Unreachable`. The server closing the stream in order ends it.
        """
        ...


FIELD_MANAGER = "xpu-agent"  # the one field manager of all our writes


class ObjectRequests(msgspec.Struct, frozen=True, kw_only=True):
    """One object at the server, and how long a call about it may take."""

    resource: ApiResource
    name: str
    namespace: str = ""
    subresource: str = ""  # of writes; reads and deletions are of the whole object
    deadline_s: float = 10.0

    def _path(self, subresource: str = "") -> str:
        return self.resource.path(self.name, self.namespace, subresource)

    def read(self) -> ApiRequest:
        """Ask for the object as it is now."""
        return ApiRequest(method="GET", path=self._path(), deadline_s=self.deadline_s)

    def apply(self, body: JsonObject, *, force: bool = False) -> ApiRequest:
        """Say all that is ours of the object; it is made if it is not there.

        Without `force` a field of somebody else with another value is a 409.
        """
        query = (("fieldManager", FIELD_MANAGER),)
        return ApiRequest(
            method="PATCH",
            path=self._path(self.subresource),
            query=(*query, ("force", "true")) if force else query,
            body=msgspec.json.encode(body),
            content_type=APPLY_PATCH_TYPE,
            deadline_s=self.deadline_s,
        )

    def merge(self, patch: JsonObject, *, subresource: str | None = None) -> ApiRequest:
        """Change what the patch names; `None` removes a member, lists are replaced whole."""
        return ApiRequest(
            method="PATCH",
            path=self._path(self.subresource if subresource is None else subresource),
            query=(("fieldManager", FIELD_MANAGER),),
            body=msgspec.json.encode(patch),
            content_type=MERGE_PATCH_TYPE,
            deadline_s=self.deadline_s,
        )

    def create(self, body: JsonObject) -> ApiRequest:
        """Make the object; one that is there is a 409."""
        return ApiRequest(
            method="POST",
            path=self.resource.path(namespace=self.namespace),
            query=(("fieldManager", FIELD_MANAGER),),
            body=msgspec.json.encode(body),
            deadline_s=self.deadline_s,
        )

    def delete(self, uid: str, version: str) -> ApiRequest:
        """Remove exactly the object that was seen: another one, or a newer state, is a 409."""
        preconditions = {"uid": uid, "resourceVersion": version}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        return ApiRequest(
            method="DELETE",
            path=self._path(),
            body=msgspec.json.encode(options),
            deadline_s=self.deadline_s,
        )


def decode_object(body: bytes) -> dict[str, object]:
    """Return an object as JSON data; raise `ParseError` for anything else."""
    try:
        found = msgspec.json.decode(body)
    except JSON_ERRORS as error:
        raise ParseError("object of the API server", str(error)) from error
    if not isinstance(found, dict):
        raise ParseError("object of the API server", type(found).__name__)
    return found
