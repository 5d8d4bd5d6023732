"""Requests to the API server as data: resources, requests, responses, calls about one object."""

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

MAX_BODY_BYTES = (
    16 << 20
)  # of one response, and of one line of a stream; etcd stores at most 1.5 MB


class ApiResource(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of object at the API server, in one version."""

    group: str  # "" is core
    version: str
    plural: str
    kind: str
    namespaced: bool = False

    @property
    def api_version(self) -> str:
        """Return the `apiVersion` of the objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, name: str = "", namespace: str = "", subresource: str = "") -> str:
        """Return the path of the collection, or of one object."""
        segments = (
            ["", "apis", self.group, self.version] if self.group else ["", "api", self.version]
        )
        if namespace:
            segments += ["namespaces", namespace]
        segments += [
            self.plural,
            *([name] if name else ()),
            *([subresource] if subresource else ()),
        ]
        return "/".join(segments)


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call. The deadline covers connecting, sending and the last byte of the response."""

    method: str  # GET, POST, PATCH, DELETE
    path: str
    query: Pairs = ()
    body: bytes = b""
    content_type: str = JSON_TYPE
    deadline_s: float = 10.0

    def __str__(self) -> str:
        """Return method and path, for messages."""
        return f"{self.method} {self.path}"


class ApiResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response with a status of 2xx. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ApiClient(Protocol):
    """The API server, authenticated. Belongs to the loop thread."""

    async def call(self, request: ApiRequest) -> ApiResponse:
        """Return the response; raise the subclass of `ApiError` that fits the failure.

        After a 401 the call is repeated once with a token that was read again; nothing else is
        repeated.
        """
        ...

    def stream(
        self, request: ApiRequest, idle_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Return the lines of a watch, without line ends. `deadline_s` covers the first byte.

        A line longer than `MAX_BODY_BYTES` raises `BadResponse`. A reset, a broken chunk, or
        `idle_s` seconds without a complete line raise `Unreachable`. The stream ends when the
        server closes it.
        """
        ...


FIELD_MANAGER = "xpu-agent"  # the field manager of all writes of the agent


class ObjectRequests(msgspec.Struct, frozen=True, kw_only=True):
    """The requests for one object at the server."""

    resource: ApiResource
    name: str
    namespace: str = ""
    subresource: str = ""  # of writes; reads and deletions concern the whole object
    deadline_s: float = 10.0

    def _path(self, subresource: str = "") -> str:
        return self.resource.path(self.name, self.namespace, subresource)

    def read(self) -> ApiRequest:
        """Return a request for the current object."""
        return ApiRequest(method="GET", path=self._path(), deadline_s=self.deadline_s)

    def apply(self, body: JsonObject, *, force: bool = False) -> ApiRequest:
        """Return a server-side apply of all fields that the agent wants.

        A missing object is created. Without `force`, a field that another manager owns with another
        value causes a 409.
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
        """Return a merge patch; `None` removes a member, lists are replaced as a whole."""
        return ApiRequest(
            method="PATCH",
            path=self._path(self.subresource if subresource is None else subresource),
            query=(("fieldManager", FIELD_MANAGER),),
            body=msgspec.json.encode(patch),
            content_type=MERGE_PATCH_TYPE,
            deadline_s=self.deadline_s,
        )

    def create(self, body: JsonObject) -> ApiRequest:
        """Return a request to create the object; an existing one causes a 409."""
        return ApiRequest(
            method="POST",
            path=self.resource.path(namespace=self.namespace),
            query=(("fieldManager", FIELD_MANAGER),),
            body=msgspec.json.encode(body),
            deadline_s=self.deadline_s,
        )

    def delete(self, uid: str, version: str) -> ApiRequest:
        """Return a request to delete this version of the object; any other causes a 409."""
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
        value = msgspec.json.decode(body)
    except JSON_ERRORS as error:
        raise ParseError("object of the API server", str(error)) from error
    if not isinstance(value, dict):
        raise ParseError("object of the API server", type(value).__name__)
    return value
